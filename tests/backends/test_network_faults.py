"""A network and a server that fail: every call ends in time, nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import outlive
from outlive.backend import ABSENT, NEXT, Commit, EntryRecord, Fence, Receipt, Removal, ThreadKey
from outlive.backends.postgres import urls as postgres_url
from outlive.backends.redis import urls as redis_url
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually
from outlive.testing.thread_records import Probe, draft, write
from rig.crash import rounds
from rig.proxy import FaultProxy

pytestmark = pytest.mark.heavy

BACKENDS = ("postgresql", "redis")
IO_MODES = ("sync", "async")
NOISE = [random.Random(n).randbytes(2_000) for n in range(40)]
FAULTS = ("blackhole", "lose_replies", "reset", "refuse", "slow", "stall")
TIMEOUT_S = 1.0
SLACK_S = 20.0  # less than the default timeout of 30 s, more than a busy machine needs to notice


@pytest.fixture
def url(backend, request):
    return request.getfixturevalue({"postgresql": "postgres_store", "redis": "valkey_url"}[backend])


@pytest.fixture
def proxy(url):
    parts = urlsplit(url)
    with FaultProxy(parts.hostname, parts.port) as proxy:
        yield proxy


@contextlib.contextmanager
def opened(io_mode, url, **options):
    """Open a store whose methods are called in the same way sync and async."""
    if io_mode == "sync":
        with outlive.open(url, **options) as store:
            yield store
        return
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()

    def wait(awaitable):
        async def one():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(one(), loop).result(PATIENCE_S)

    store = None
    try:
        store = wait(outlive.open_async(url, **options))
        yield Waiting(store, wait)
    finally:
        if store is not None:
            wait(store.close())
        loop.call_soon_threadsafe(loop.stop)
        running.join()
        loop.close()


class Waiting:
    """An async store or thread behind plain calls."""

    def __init__(self, inner, wait):
        self._inner, self._wait = inner, wait

    def thread(self, *args, **options):
        return Waiting(self._inner.thread(*args, **options), self._wait)

    def history(self, **options):
        return self._each(self._inner.history(**options))

    def threads(self, **options):
        return self._each(self._inner.threads(**options))

    def _each(self, items):
        async def collect():
            return [item async for item in items]

        return self._wait(collect())

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        return lambda *args, **options: self._wait(found(*args, **options))


# In time --------------------------------------------------------------------------------------------------------

CALLS = {
    "a warm save": lambda store: store.thread("warm").save({"n": 1}),
    "a first save": lambda store: store.thread("cold").save({"n": 1}),
    "a save of much": lambda store: store.thread("warm").save({"blob": bytes(range(256)) * 20_000}),
    "load": lambda store: store.thread("warm").load(),
    "write": lambda store: store.thread("warm").write("task", [("c", 1)]),
    "history": lambda store: list(store.thread("warm").history()),
    "threads": lambda store: list(store.threads()),
    "update": lambda store: store.thread("warm").set_metadata({"a": 1}),
    "delete": lambda store: store.delete("warm"),
    "prune": lambda store: store.thread("warm").prune(keep_last=1),
    "fork": lambda store: store.thread("warm").fork("other"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_call_returns_in_time_and_the_store_goes_on_afterwards(backend, io_mode, fault, url, proxy):
    with opened_at_last(io_mode, proxy.through(url), timeout_s=TIMEOUT_S, pool_size=12) as store:
        store.thread("warm").save({"n": 0}, timeout_s=PATIENCE_S)
        if fault == "slow":
            proxy.slow(0.2, 50)
        else:
            proxy.mode = fault
            if fault == "refuse":
                proxy.drop_connections()
        with ThreadPoolExecutor(len(CALLS) + 1) as pool:
            running = {name: pool.submit(timed, call, store) for name, call in CALLS.items()}
            running["open"] = pool.submit(timed, open_another, io_mode, proxy.through(url))
            took = {name: future.result(PATIENCE_S) for name, future in running.items()}
        late = {name: seconds for name, (seconds, _) in took.items() if seconds > TIMEOUT_S + SLACK_S}
        assert not late
        odd = {name: error for name, (_, error) in took.items() if not isinstance(error, outlive.StoreError)}
        assert not odd
        proxy.mode = "pass"
        store.thread("warm").save({"n": 2}, timeout_s=PATIENCE_S)
        assert store.thread("warm").load(timeout_s=PATIENCE_S) == {"n": 2}


def timed(call, *args):
    start = time.monotonic()
    try:
        found = call(*args)
    except Exception as error:
        found = error
    return time.monotonic() - start, found


@contextlib.contextmanager
def opened_at_last(io_mode, url, **options):
    """Open a store as often as it takes: a busy machine may outlast its timeout."""
    with contextlib.ExitStack() as stack:

        def attempt():
            with contextlib.suppress(outlive.StoreError):
                return stack.enter_context(opened(io_mode, url, **options))

        yield eventually(attempt)


def open_another(io_mode, url):
    with opened(io_mode, url, timeout_s=TIMEOUT_S):
        pass


@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_outage_that_is_shorter_than_the_deadline_is_seen_by_nobody(backend, io_mode, url, proxy):
    with opened(io_mode, proxy.through(url), timeout_s=PATIENCE_S, pool_size=4) as store:
        for fault in ("reset", "refuse", "blackhole"):
            store.thread("t").save({"fault": fault})
            proxy.mode = fault
            proxy.drop_connections()
            with ThreadPoolExecutor(4) as pool:
                saving = [pool.submit(store.thread(f"t{n}").save, {"during": fault}) for n in range(3)]
                loading = pool.submit(store.thread("t").load)
                time.sleep(0.3)
                proxy.mode = "pass"
                assert loading.result() == {"fault": fault}
                for future in saving:
                    future.result()
        assert [info.checkpoints for info in store.threads()] == [3, 3, 3, 3]


# Once -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reply_that_is_lost_after_the_commit_neither_doubles_nor_refuses_it(backend, io_mode, url, proxy):
    with opened(io_mode, proxy.through(url)) as store:
        thread = store.thread("t")
        head = thread.save({"n": 0})
        for n in range(1, 6):
            proxy.lose_reply()
            head = thread.save({"n": n}, expect=head.id)
            assert (head.seq, thread.load()) == (n + 1, {"n": n})
        proxy.lose_reply()
        thread.write("task", [("c", 1), ("__error__", 2)])
        proxy.lose_reply()
        thread.set_metadata({"topic": "x"})
        proxy.lose_reply()
        thread.save({"n": "replaced"}, id=head.id, replace=True)
        assert [one.seq for one in thread.history()] == [6, 5, 4, 3, 2, 1]
        assert (thread.load(), thread.metadata()) == ({"n": "replaced"}, {"topic": "x"})
        assert [(write.channel, write.value) for write in thread.writes()] == [("__error__", 2), ("c", 1)]


REPLIES = range(0, 24, rounds(3, long=1))  # to four calls


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_a_prune_and_a_deletion_survive_any_lost_reply(backend, url, proxy):
    with outlive.open(proxy.through(url)) as store:
        for skip in REPLIES:
            thread = store.thread(f"t{skip}")
            for n in range(4):
                thread.save({"n": n})
            proxy.lose_reply(skip=skip)
            thread.fork(f"fork{skip}")
            thread.copy(f"copy{skip}")
            thread.prune(keep_last=2)
            store.delete(thread.id)
            assert store.thread(f"fork{skip}").load() == store.thread(f"copy{skip}").load() == {"n": 3}
        assert sorted(info.id for info in store.threads()) == sorted(
            f"{name}{skip}" for skip in REPLIES for name in ("fork", "copy")
        )
        assert proxy.replies_lost > 0.8 * len(REPLIES)
        assert store.verify().problems == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_outcome_that_nobody_knows_is_said_and_settled_by_saving_the_same_id(backend, url, proxy):
    with outlive.open(proxy.through(url)) as store:
        thread = store.thread("t")
        thread.save({"n": 0})
        proxy.mode = "lose_replies"
        with pytest.raises(outlive.OutcomeUnknown) as caught:
            thread.save({"n": 1}, timeout_s=1.5)
        proxy.mode = "pass"
        assert thread.save({"n": 1}, id=caught.value.checkpoint).seq == 2
        assert [one.seq for one in thread.history()] == [2, 1]


# At the backend protocol ---------------------------------------------------------------------------------------------------

KEY = ThreadKey.of("", "t")


@contextlib.contextmanager
def probe(url, timeout_s=PATIENCE_S):
    """Open a backend without a store."""
    served = (postgres_url if url.startswith("postgres") else redis_url).parse_url(url, {})
    backend = served.sync(timeout_s)
    run_now(backend.identity(b"k" * 32))
    try:
        yield Probe(backend, KEY)
    finally:
        run_now(backend.close())


def do(found, commit):
    (result,) = run_now(found.backend.commit_all([commit]))
    return result


RUN = EntryRecord("run", "r", b"body", "running", fence=NEXT, lease_s=60)


def entry(**fields):
    return Commit(KEY, entries=(EntryRecord("run", "r", **fields),))


# What is there before, the commit whose reply is lost (given the fence before), and what its receipt says.
ONCE = {
    "a claim": (
        (),
        lambda fence: entry(body=b"x", status="running", fence=NEXT, lease_s=60, expect=ABSENT),
        lambda receipt, fence: (
            (receipt.entries[0].status, receipt.entries[0].fence) == ("running", fence + 1)
        ),
    ),
    "a takeover": (
        (EntryRecord("run", "r", b"old", "running", fence=NEXT, lease_s=0.001),),
        lambda fence: entry(body=b"x", status="running", fence=NEXT, lease_s=60, expect_lapsed=True),
        lambda receipt, fence: receipt.entries[0].fence == fence + 1,
    ),
    "a completion": (
        (RUN,),
        lambda fence: Commit(
            KEY,
            entries=(EntryRecord("run", "r", b"done", "completed", fence=fence, revision=1),),
            fence=Fence("run", "r", 0, fence),
        ),
        lambda receipt, fence: (receipt.entries[0].status, receipt.entries[0].body) == ("completed", b"done"),
    ),
    "a renewal": (
        (RUN,),
        lambda fence: entry(body=None, fence=fence, revision=1, lease_s=60, expect=(0, fence, 0)),
        lambda receipt, fence: (receipt.entries[0].body, receipt.entries[0].revision) == (b"body", 1),
    ),
    "an end": (
        (RUN,),
        lambda fence: entry(gone=True, expect=(0, fence, 0)),
        lambda receipt, fence: len(receipt.entries) == 1,
    ),
    "metadata": (
        (),
        lambda fence: Commit(KEY, metadata=b"new", metadata_version=0),
        lambda receipt, fence: receipt.existing is None,
    ),
    "a deletion": (
        (),
        lambda fence: Commit(KEY, removal=Removal(everything=True)),
        lambda receipt, fence: receipt.removed == 1,
    ),
}


@pytest.mark.parametrize("what", ONCE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_commit_that_was_done_is_not_refused_for_what_it_did_itself(backend, what, url, proxy):
    before, commit, fits = ONCE[what]
    lost = 0
    with probe(proxy.through(url)) as found:
        for skip in range(12):
            do(found, Commit(KEY, removal=Removal(everything=True)))
            receipt = do(found, Commit(KEY, (draft(f"c{skip}"),), entries=before))
            fence = receipt.entries[0].fence if before else receipt.revision
            time.sleep(0.005 if what == "a takeover" else 0)
            proxy.lose_reply(skip=skip)
            receipt = do(found, commit(fence))
            assert isinstance(receipt, Receipt), (skip, receipt)
            assert fits(receipt, fence), (skip, receipt)
            if proxy.replies_lost == lost:
                break
            lost = proxy.replies_lost
    assert lost > 0


class Holding:
    """A network that keeps one request back, delivers those behind it, and the one at last, when its client is gone."""

    def __init__(self, url):
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._holds = False
        self._go, self._done = threading.Event(), threading.Event()
        self._sockets = [self._listener]
        address = f"{parts.hostname}:{parts.port}"
        self.url = url.replace(address, f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._go.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def hold(self):
        """Keep the next request back."""
        self._go.clear()
        self._done.clear()
        self._holds = True

    @property
    def is_armed(self):
        """Whether the request to be kept back has not come yet."""
        return self._holds

    def deliver(self):
        """Let it arrive, and wait until the server has answered."""
        assert not self._holds, "nothing was held"
        self._go.set()
        assert self._done.wait(PATIENCE_S)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                threading.Thread(target=self._up, args=(client, server), daemon=True).start()

    def _up(self, client, server):
        down = threading.Thread(target=self._down, args=(client, server), daemon=True)
        down.start()
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self._holds:
                    self._holds = False
                    self._go.wait()
                    server.sendall(data)
                    self._done.wait()
                    break
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # ends `_down`, which a mere close would leave waiting
        server.close()

    def _down(self, client, server):
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if self._go.is_set():
                    self._done.set()
                with contextlib.suppress(OSError):
                    client.sendall(data)


LATE = {
    "a write": lambda body: Commit(KEY, writes=(write("c", "task", -1, body),)),
    "an entry": lambda body: Commit(KEY, entries=(EntryRecord("step", "n", body, "s"),)),
    "metadata": lambda body: Commit(KEY, metadata=body),
    "a checkpoint": lambda body: Commit(KEY, (draft(body.decode()),)),
}


def once(url):
    return f"{url}{'&' if '?' in url else '?'}max_retries=0"


async def seen(found):
    return (
        [held.body for held in await found.backend.writes(KEY, None)],
        [held.body for held in await found.entries("step")],
        (await found.row()).metadata,
        await found.head(),
    )


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_commit_whose_first_attempt_comes_late_is_done_once(backend, what, url):
    with Holding(url) as network, probe(network.url, 3) as found, probe(url) as direct:
        assert isinstance(do(found, Commit(KEY, (draft("c"),))), Receipt)
        network.hold()
        assert isinstance(do(found, LATE[what](b"A")), Receipt)  # by its second attempt
        assert isinstance(do(direct, LATE[what](b"B")), Receipt)
        before = run_now(seen(direct))
        network.deliver()
        assert run_now(seen(direct)) == before


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_commit_that_was_given_up_does_nothing_after_the_next_one(backend, what, url):
    with Holding(url) as network, probe(once(network.url)) as found, probe(url) as direct:
        assert isinstance(do(found, Commit(KEY, (draft("c"),))), Receipt)
        network.hold()
        commit = LATE[what](b"A")
        commit.timeout_s = 1.5
        assert isinstance(do(found, commit), outlive.StoreError)
        assert isinstance(do(found, LATE[what](b"B")), Receipt)
        before = run_now(seen(direct))
        network.deliver()
        assert run_now(seen(direct)) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_that_was_cancelled_does_nothing_after_the_next_one(backend, url):
    async def scenario():
        async with outlive.open_async(network.url) as store:
            thread = store.thread("t")
            await thread.save({"n": 0})
            network.hold()
            saving = asyncio.ensure_future(thread.save({"n": "cancelled"}))
            while network.is_armed:
                await asyncio.sleep(0.001)
            saving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await saving
            await thread.save({"n": "acknowledged"})
            await asyncio.to_thread(network.deliver)
            assert await thread.load() == {"n": "acknowledged"}
            assert len([one async for one in thread.history()]) == 2

    with Holding(url) as network:
        asyncio.run(scenario())


# Round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io_mode", IO_MODES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_and_a_load_are_one_round_trip_each(backend, io_mode, url, proxy):
    def count(call):
        before = proxy.round_trips
        call()
        return proxy.round_trips - before

    with opened(io_mode, proxy.through(url), pool_size=1) as store, outlive.open(url) as other:
        thread = store.thread("t")
        assert count(lambda: thread.save({"n": 0, "text": NOISE})) == 2, (
            "the first looks whether there is a base"
        )
        assert [count(lambda n=n: thread.save({"n": n, "text": NOISE})) for n in range(3)] == [1, 1, 1]
        assert count(thread.load) == 1
        assert count(lambda: thread.write("task", [("c", 1)], checkpoint="later")) == 1
        other.thread("t").prune(keep_last=1)
        assert count(lambda: thread.save({"n": 9, "text": NOISE})) == 2, "refused, and saved on what is kept"
        assert count(lambda: thread.save({"n": 10, "text": NOISE})) == 1
        thread.prune(keep_last=1)
        assert count(lambda: thread.save({"n": 11, "text": NOISE})) <= 2
        assert count(lambda: thread.save({"n": 12, "text": NOISE})) == 1
        assert thread.load() == {"n": 12, "text": NOISE}
        assert count(lambda: store.thread("new").load()) == 1
