"""Redis and Valkey: deadlines, lost replies, failovers, memory, and what an id can and cannot do."""

import asyncio
import contextlib
import os
import random
import threading
import time

import pytest

from outlive.backend import Commit, ThreadKey
from outlive.backends import redis_url
from outlive.errors import OutcomeUnknown, OutliveError, StoreError, StoreUnavailable
from outlive.testing import Opener, Trial
from outlive.testing.proxy import FaultProxy
from outlive.testing.servers import ValkeyServer
from outlive.testing.trial import AsyncDriver, SyncDriver

LONG = bool(os.environ.get("OUTLIVE_LONG"))
COLOURS = {"sync": SyncDriver, "async": AsyncDriver}


@contextlib.contextmanager
def opened(url, colour="sync", **options):
    """Open a store in a colour; its methods are awaited in both. Gives (run, store)."""
    found = redis_url.serve(url, options) if isinstance(url, str) else redis_url.serve_client(url, options)
    with COLOURS[colour]() as driver:
        trial = Trial(Opener(found.sync, found.asynchronous), driver)
        try:
            yield driver.run, driver.run(trial.store())
        finally:
            driver.run(trial.close())


@pytest.fixture(params=COLOURS)
def colour(request):
    return request.param


@pytest.fixture
def proxy(valkey_server):
    with FaultProxy("127.0.0.1", valkey_server.port) as proxy:
        yield proxy


# Deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["blackhole", "lose_replies", "reset", "refuse", "stall", "slow"])
def test_every_call_ends_with_its_deadline(mode, colour, proxy, valkey_url):
    with opened(proxy.through(valkey_url), colour) as (run, store):
        thread = store.thread("t")
        run(thread.save({"n": 1, "text": random.Random(1).randbytes(200_000)}))
        if mode == "slow":
            proxy.slow(0.01, bytes_per_s=20_000)
        else:
            proxy.mode = mode
        if mode == "refuse":
            proxy.drop_connections()
        reader = Trial.__new__(Trial)
        for call in (
            lambda: thread.save({"n": 2, "text": random.Random(2).randbytes(200_000)}, id="second", timeout_s=1.0),
            lambda: store._engine.backend.read(ThreadKey.of("", "t"), "", timeout_s=1.0),
        ):
            began = time.monotonic()
            with pytest.raises((OutcomeUnknown, StoreUnavailable)) as failed:
                run(call())
            assert time.monotonic() - began < 2.0, (mode, failed.value)
        proxy.mode = "pass"
        saved = run(thread.save({"n": 2, "text": random.Random(2).randbytes(200_000)}, id="second"))
        assert (saved.seq, run(thread.load())["n"]) == (2, 2)


def test_a_warm_save_and_a_warm_load_are_one_round_trip(colour, proxy, valkey_url):
    with opened(proxy.through(valkey_url), colour) as (run, store):
        thread = store.thread("t")
        run(thread.save({"n": 0}))
        run(thread.save({"n": 1}))
        for number in range(5):
            before = proxy.round_trips
            run(thread.save({"n": number, "text": "x" * 5000}))
            assert proxy.round_trips == before + 1
            run(thread.load())
            assert proxy.round_trips == before + 2


def test_the_first_save_of_a_process_is_two_round_trips(colour, proxy, valkey_url):
    with opened(valkey_url, colour) as (run, store):
        run(store.thread("t").save({"messages": ["x" * 1000] * 5}))
    with opened(proxy.through(valkey_url), colour) as (run, store):
        before = proxy.round_trips
        run(store.thread("t").save({"messages": ["x" * 1000] * 6}))
        assert proxy.round_trips == before + 2


def test_a_lost_reply_neither_doubles_a_save_nor_fails_its_own_expectation(colour, proxy, valkey_url):
    rounds = 400 if LONG else 40
    chance = random.Random(7)
    with opened(proxy.through(valkey_url), colour) as (run, store):
        thread = store.thread("t")
        last = run(thread.save({"n": 0})).id
        for number in range(1, rounds):
            if chance.random() < 0.2:
                proxy.lose_reply()
            last = run(thread.save({"n": number}, expect=last)).id
        assert proxy.replies_lost > rounds / 20
        line = run(listed(thread))
        assert [item.seq for item in line] == list(range(rounds, 0, -1))


async def listed(thread):
    return [item async for item in thread.history(limit=10_000)]


def test_a_cancelled_call_never_lets_another_read_its_reply(valkey_url):
    rounds = 600 if LONG else 60

    async def scenario(store):
        threads = [store.thread(f"{number}") for number in range(4)]
        for number, thread in enumerate(threads):
            await thread.save({"who": number})
        chance = random.Random(3)
        for _ in range(rounds):
            tasks = [asyncio.ensure_future(thread.load()) for thread in threads]
            await asyncio.sleep(chance.random() * 0.003)
            chance.choice(tasks).cancel()
            for number, result in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                assert result == {"who": number} or isinstance(result, asyncio.CancelledError)

    with opened(valkey_url, "async", pool_size=2) as (run, store):
        run(scenario(store))


def test_more_threads_than_connections_take_turns(valkey_url):
    with opened(valkey_url, pool_size=2) as (run, store):
        store = store._inner
        results = []

        def work(number):
            for turn in range(20):
                store.thread(f"{number}").save({"turn": turn})
            results.append(store.thread(f"{number}").load())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert results == [{"turn": 19}] * 8


# Servers that come and go -----------------------------------------------------------------------------------


class Saver(threading.Thread):
    """Saves in a loop, in a thread of its own, and notes what was acknowledged."""

    def __init__(self, url, id="t", **options):
        super().__init__()
        self.url, self.id, self.options = url, id, options
        self.acknowledged, self.errors, self.longest_s = [], [], 0.0
        self._ended = threading.Event()

    def run(self):
        with opened(self.url, **self.options) as (_, store):
            thread = store._inner.thread(self.id)
            number = 0
            while not self._ended.is_set():
                began = time.monotonic()
                try:
                    thread.save({"n": number, "text": "x" * 500}, id=f"{number}", timeout_s=20)
                    self.acknowledged.append(f"{number}")
                except OutliveError as error:
                    self.errors.append(error)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                number += 1

    def __enter__(self):
        self.start()
        while len(self.acknowledged) < 20:
            time.sleep(0.005)
        return self

    def __exit__(self, *error):
        at = len(self.acknowledged)
        until = time.monotonic() + 20
        while len(self.acknowledged) < at + 20 and time.monotonic() < until:
            time.sleep(0.005)
        self._ended.set()
        self.join()

    def lost(self, url):
        """Return what was acknowledged and is not there."""
        with opened(url) as (run, store):
            thread = store.thread(self.id)
            there = {item.id for item in run(listed(thread))}
            assert run(thread.verify()).problems == ()
            return [id for id in self.acknowledged if id not in there]


def test_a_server_that_dies_and_comes_back_loses_nothing_and_fails_nobody():
    rounds = 10 if LONG else 2
    with ValkeyServer(appendonly=True, appendfsync="always", ram=True) as server:
        with Saver(server.url) as saver:
            for number in range(rounds):
                (server.kill if number % 2 == 0 else server.stop)()
                time.sleep(0.2)
                server.start()
                time.sleep(0.2)
        assert (saver.errors, saver.lost(server.url)) == ([], [])


def test_scripts_that_a_server_forgets_are_sent_again(valkey_server, colour):
    with opened(valkey_server.url, colour) as (run, store):
        for number in range(20):
            valkey_server.call("SCRIPT", "FLUSH")
            run(store.thread("t").save({"n": number}))
            valkey_server.call("SCRIPT", "FLUSH")
            assert run(store.thread("t").load()) == {"n": number}
        assert len(run(listed(store.thread("t")))) == 20


def test_a_sentinel_failover_loses_nothing_that_a_replica_confirmed(sentinels):
    with Saver(sentinels.url, wait_replicas=1) as saver:
        for _ in range(3 if LONG else 1):
            sentinels.kill_master()
            sentinels.start()
    assert [error for error in saver.errors if not isinstance(error, OutcomeUnknown)] == []
    assert saver.lost(sentinels.url) == []
    assert len(saver.acknowledged) > 40


def test_a_cluster_failover_loses_nothing_that_a_replica_confirmed(cluster):
    slot = cluster.slot_of(key_of("t"))
    with Saver(cluster.url, wait_replicas=1) as saver:
        for _ in range(3 if LONG else 1):
            cluster.kill_master_of(slot)
            cluster.start()
    assert [error for error in saver.errors if not isinstance(error, OutcomeUnknown)] == []
    assert saver.lost(cluster.url) == []


def test_a_slot_that_moves_in_the_middle_of_saves_loses_nothing(cluster):
    slot = cluster.slot_of(key_of("t"))
    with Saver(cluster.url) as saver:
        for _ in range(10 if LONG else 2):
            target = next(server for server in cluster.masters() if server is not cluster.master_of(slot))
            with cluster.moving(slot, target) as move:
                time.sleep(0.05)
                move(3)  # some keys of the thread are here, some there
                time.sleep(0.1)
    assert (saver.errors, saver.lost(cluster.url)) == ([], [])


def key_of(id, prefix="outlive:"):
    from outlive.backends.redis_rows import Keys

    return Keys.of(prefix, ThreadKey.of("", id).digest).all[0]
