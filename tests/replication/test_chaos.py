"""Failovers in a random schedule, and a checker of what was acknowledged.

Two clients, each with networks of its own to both servers, write to threads of their own and count together in one, by compare-and-set.
Meanwhile servers are killed and networks cut, for one client or for both, disks fail, and the stores change places, by themselves and by hand.
At the end everything is healed and both stores are compared.
"""

import contextlib
import itertools
import os
import random
import time
import uuid

import apsw
import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from rig.crash import ram_folder
from rig.replicas import IO_MODES, Disk, Rig, run, until
from rig.servers import ValkeyServer

pytestmark = pytest.mark.heavy

LONG = bool(os.environ.get("OUTLIVE_LONG"))
SEED = int(os.environ.get("OUTLIVE_SEED") or 1)
CYCLES = 60 if LONG else 2
CLIENTS, WRITERS = 2, 2
PAUSE_S = 0.02 if LONG else 0.06  # between the saves of a client
STRICT = {"timeout_s": 1.0, "auto_failover": True, "max_failover_attempts": 10_000}


class Chaos:
    """Clients, a monkey, and the history of what was acknowledged."""

    def __init__(self, rigs, options, rng):
        self.rigs = rigs
        self.options = options
        self.rng = rng
        self.acknowledged = {}  # thread → ids in order
        self.counted = {}  # number → ids that were acknowledged for it
        self.failovers = 0
        self.is_over = False
        self.pause_s = PAUSE_S

    @property
    def driver(self):
        return self.rigs[0].driver

    async def scenario(self, _):
        stores = [await self.open(rig) for rig in self.rigs]
        works = [
            work
            for client, store in enumerate(stores)
            for work in [
                *(self.writer(store, f"own {client} {number}") for number in range(WRITERS)),
                self.counter(store),
            ]
        ]
        results = await self.driver.together([*works, self.monkey(stores)])
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await self.settle(stores)
        await self.check()

    async def open(self, rig):
        """Open the pair as often as it takes: a busy machine may outlast its timeout."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await rig.open(**self.options)
            except outlive.StoreError:
                assert time.monotonic() < end, "the pair cannot be opened"

    # Clients

    def writer(self, store, thread):
        async def work():
            n = 0
            while not self.is_over:
                n += 1
                await self.insist(
                    store.thread(thread), {"n": n, "text": "x" * (n % 7) * 300}, f"{thread} {n}"
                )
                self.acknowledged.setdefault(thread, []).append(f"{thread} {n}")
                await self.driver.sleep(self.pause_s)

        return work

    async def insist(self, thread, state, id):
        """Save until it is acknowledged: under one id that is safe."""
        while True:
            try:
                return await thread.save(state, id=id)
            except outlive.StoreError:
                await self.driver.sleep(self.pause_s)

    def counter(self, store):
        async def work():
            thread = store.thread("counter")
            while not self.is_over:
                with contextlib.suppress(outlive.StoreError, outlive.HeadMoved):
                    await self.count(thread)
                await self.driver.sleep(self.pause_s * 1.5)

        return work

    async def count(self, thread):
        found = await thread.checkpoint()
        if found is None:
            await thread.save(0, id="zero", expect=None)
            return
        saved = await thread.save(found.state + 1, id=str(uuid.uuid4()), expect=found.id)
        self.counted.setdefault(found.state + 1, []).append(saved.id)

    # The monkey

    def monkey(self, stores):
        async def work():
            try:
                for number in itertools.count(1):
                    await self.cycle(stores)
                    if number >= CYCLES and (self.failovers or number >= 10 * CYCLES):
                        break
            finally:
                self.is_over = True
                for rig in self.rigs:
                    rig.heal()

        return work

    async def cycle(self, stores):
        self.pause_s = PAUSE_S
        fault = self.rng.choice(self.faults())
        await fault(stores)
        await self.driver.sleep(self.rng.uniform(0.05, 0.2))
        for server in self.rigs[0].servers:
            server.start() if not server.is_running else None
        for rig in self.rigs:
            rig.heal()
        await self.back(stores)

    def faults(self):
        common = [self.cut_primary, self.swap, self.cut_secondary]
        if isinstance(self.rigs[0].primary, Disk):
            return [*common, self.lock_file]
        return [*common, self.kill_primary, self.part_clients, self.lose_replies]

    async def kill_primary(self, stores):
        self.rigs[0].servers[0].kill()
        await self.over(stores)

    async def cut_primary(self, stores):
        for rig in self.rigs:
            rig.cut(rig.primary)
        await self.over(stores)

    async def part_clients(self, stores):
        """One client reaches only the secondary; the other one both, and does not know."""
        rig = self.rng.choice(self.rigs)
        rig.cut(rig.primary)
        await self.over([stores[self.rigs.index(rig)]])

    async def cut_secondary(self, stores):
        """For one client or for both; then the stores change places."""
        for rig in self.rng.sample(self.rigs, self.rng.randint(1, len(self.rigs))):
            rig.secondary.mode = self.rng.choice(["lose_replies", "blackhole", "reset", "refuse"])
            rig.secondary.drop_connections()
        await self.driver.sleep(self.rng.uniform(0.05, 0.3))
        for rig in self.rigs:
            rig.heal()
        await self.over(stores, by_hand=True)

    async def lock_file(self, stores):
        """Somebody else holds the file of the primary: no reason to leave it, but for somebody who says so."""
        with contextlib.closing(apsw.Connection(self.rigs[0].urls[0].removeprefix("sqlite:///"))) as other:
            other.set_busy_timeout(100_000)
            other.execute("begin immediate")
            await self.over(stores, by_hand=True)
            other.execute("rollback")

    async def swap(self, stores):
        await self.over(stores, by_hand=True)

    async def lose_replies(self, stores):
        """What was sent is done, and nobody hears of it."""
        rig = self.rng.choice(self.rigs)
        rig.primary.mode = self.rng.choice(["lose_replies", "blackhole", "reset"])
        await self.over([stores[self.rigs.index(rig)]])

    async def over(self, stores, *, by_hand=False):
        """Let the secondary become active: by itself, or by hand."""
        store = self.rng.choice(stores)
        if by_hand or not self.options.get("auto_failover") or self.rng.random() < 0.5:
            with contextlib.suppress(outlive.StoreError):
                await store.promote()

        async def has_moved():
            return (await store.replication_status()).is_failed_over

        with contextlib.suppress(AssertionError):  # a primary that answers now and then is not left
            await until(self.rigs[0], has_moved, 1.5)
            self.failovers += 1

    async def back(self, stores):
        async def is_back():
            with contextlib.suppress(outlive.StoreError):
                await self.rng.choice(stores).failback()
            found = [(await store.replication_status()).active for store in stores]
            # All of this is one process: on a busy machine nobody would get an answer in time, if they all continued like that.
            self.pause_s = min(1.0, self.pause_s * 1.3)
            return found == ["primary"] * len(stores)

        await until(self.rigs[0], is_back)  # a busy machine needs many tries, each of which has little time

    # The check

    async def settle(self, stores):
        async def is_empty():
            found = [await store.replication_status() for store in stores]
            return all(status.is_exact and status.queued == 0 for status in found)

        await until(self.rigs[0], is_empty)

    async def check(self):
        alone = [await self.rigs[0].alone(which) for which in (0, 1)]
        for thread, saved in self.acknowledged.items():
            for store in alone:
                found = [one.id async for one in store.thread(thread).history()]
                lost = set(saved) - set(found)
                assert not lost, (
                    f"{len(lost)} of {len(saved)} acknowledged saves of {thread!r} are lost: {sorted(lost)}"
                )
                assert len(found) == len(set(found))
        for thread in ["counter", *self.acknowledged]:
            heads = [await store.thread(thread).checkpoint() for store in alone]
            assert heads[0].id == heads[1].id
            assert heads[0].state == heads[1].state
        await self.check_count(alone)
        for store in alone:
            assert (await store.verify()).problems == ()

    async def check_count(self, alone):
        if self.options.get("mode") == "async" or self.options.get("on_secondary_down") == "queue":
            return  # two owners in two epochs may count the same
        twice = {number: ids for number, ids in self.counted.items() if len(ids) > 1}
        assert not twice, f"lost updates: {twice}"
        line = {one.id for one in await alone[0].thread("counter").lineage()}
        assert {id for ids in self.counted.values() for id in ids} <= line


@pytest.fixture
def chaos(request, postgres_store, postgres_server):
    io_mode, primary = request.param

    def begin(options, *, appendonly=True, salt=0):
        seed = SEED * 1000 + 10 * salt + PAIRS.index(request.param)  # each meets other faults
        print(f"seed {seed}")
        with contextlib.ExitStack() as stack:
            valkey, disk = None, None
            if primary == "redis":
                valkey = ValkeyServer(appendonly=appendonly, appendfsync="always", ram=True)
                stack.enter_context(valkey)
            else:
                disk = Disk(stack.enter_context(ram_folder()) / "store.db")
            driver = stack.enter_context(IO_MODES[io_mode]())
            rigs = [
                stack.enter_context(Rig(valkey, postgres_store, postgres_server, driver, disk))
                for _ in range(CLIENTS)
            ]
            rigs[1].urls = rigs[0].urls
            found = Chaos(rigs, options, random.Random(seed))
            start = time.monotonic()

            async def whole(rig):
                try:
                    await found.scenario(rig)
                finally:
                    await rigs[1].close()

            run(rigs[0], whole)
            count = sum(map(len, found.acknowledged.values())), sum(map(len, found.counted.values()))
            print(f"{found.failovers} failovers, {count} acknowledged, {time.monotonic() - start:.1f} s")
            assert found.failovers > 0
            assert count[0] > 0
        return found

    return begin


PAIRS = [(io_mode, primary) for io_mode in ("sync", "async") for primary in ("redis", "sqlite")]
SERVED = PAIRS[::2]  # in strict mode test_histories.py has these, with a process for each client


@pytest.mark.parametrize("chaos", PAIRS if LONG else PAIRS[1::2], ids=" ".join, indirect=True)
def test_no_acknowledged_save_is_lost_and_no_update_in_strict_mode(chaos):
    chaos(STRICT, salt=1)


@pytest.mark.parametrize("chaos", SERVED if LONG else SERVED[:1], ids=" ".join, indirect=True)
def test_no_acknowledged_save_is_lost_when_the_primary_loses_all_it_has_in_strict_mode(chaos):
    chaos(STRICT, appendonly=False, salt=2)


MODES = [{"on_secondary_down": "queue"}, {"mode": "async"}]
QUEUEING = [(PAIRS[0], MODES[0]), (PAIRS[3], MODES[1])]
if LONG:
    QUEUEING = [(pair, mode) for pair in PAIRS for mode in MODES]


@pytest.mark.parametrize(
    "chaos, mode",
    QUEUEING,
    indirect=["chaos"],
    ids=lambda one: " ".join(one if isinstance(one, tuple) else one.values()),
)
def test_what_was_queued_when_the_stores_changed_places_is_there_in_the_end(chaos, mode):
    chaos({"timeout_s": 1.0, **mode}, salt=3)
