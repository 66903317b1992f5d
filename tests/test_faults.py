"""A network and a server that fail: every call ends in time, nothing acknowledged is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

import outlive
from outlive.testing.proxy import FaultProxy

BACKENDS = ("postgresql", "redis")
COLOURS = ("sync", "async")
NOISE = [random.Random(n).randbytes(2_000) for n in range(40)]
FAULTS = ("blackhole", "lose_replies", "reset", "refuse", "slow", "stall")
TIMEOUT_S = 0.6


@pytest.fixture
def url(backend, request):
    return request.getfixturevalue({"postgresql": "postgres_store", "redis": "valkey_url"}[backend])


@pytest.fixture
def proxy(url):
    parts = urlsplit(url)
    with FaultProxy(parts.hostname, parts.port) as proxy:
        yield proxy


@contextlib.contextmanager
def opened(colour, url, **options):
    """Open a store whose methods are called in the same way in both colours."""
    if colour == "sync":
        with outlive.open(url, **options) as store:
            yield store
        return
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()

    def wait(awaitable):
        async def one():
            return await awaitable

        return asyncio.run_coroutine_threadsafe(one(), loop).result(60)

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
    "update": lambda store: store.thread("warm").update({"a": 1}),
    "delete": lambda store: store.delete("warm"),
    "prune": lambda store: store.thread("warm").prune(keep_last=1),
    "fork": lambda store: store.thread("warm").fork("other"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_call_returns_in_time_and_the_store_goes_on_afterwards(backend, colour, fault, url, proxy):
    with opened(colour, proxy.through(url), timeout_s=TIMEOUT_S, pool_size=12) as store:
        store.thread("warm").save({"n": 0})
        if fault == "slow":
            proxy.slow(0.2, 50)
        else:
            proxy.mode = fault
            if fault == "refuse":
                proxy.drop_connections()
        with ThreadPoolExecutor(len(CALLS) + 1) as pool:
            running = {name: pool.submit(timed, call, store) for name, call in CALLS.items()}
            running["open"] = pool.submit(timed, open_another, colour, proxy.through(url))
            took = {name: future.result(30) for name, future in running.items()}
        late = {name: seconds for name, (seconds, _) in took.items() if seconds > TIMEOUT_S + 1}
        assert not late
        odd = {name: error for name, (_, error) in took.items() if not isinstance(error, outlive.StoreError)}
        assert not odd
        proxy.mode = "pass"
        store.thread("warm").save({"n": 2}, timeout_s=10)
        assert store.thread("warm").load(timeout_s=10) == {"n": 2}


def timed(call, *args):
    start = time.monotonic()
    try:
        found = call(*args)
    except Exception as error:
        found = error
    return time.monotonic() - start, found


def open_another(colour, url):
    with opened(colour, url, timeout_s=TIMEOUT_S):
        pass


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_outage_that_is_shorter_than_the_deadline_is_seen_by_nobody(backend, colour, url, proxy):
    with opened(colour, proxy.through(url), timeout_s=15, pool_size=4) as store:
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


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_reply_that_is_lost_after_the_commit_neither_doubles_nor_refuses_it(backend, colour, url, proxy):
    with opened(colour, proxy.through(url)) as store:
        thread = store.thread("t")
        head = thread.save({"n": 0})
        for n in range(1, 6):
            proxy.lose_reply()
            head = thread.save({"n": n}, expect=head.id)
            assert (head.seq, thread.load()) == (n + 1, {"n": n})
        proxy.lose_reply()
        thread.write("task", [("c", 1), ("__error__", 2)])
        proxy.lose_reply()
        thread.update({"topic": "x"})
        proxy.lose_reply()
        thread.save({"n": "replaced"}, id=head.id, replace=True)
        assert [one.seq for one in thread.history()] == [6, 5, 4, 3, 2, 1]
        assert (thread.load(), thread.metadata()) == ({"n": "replaced"}, {"topic": "x"})
        assert [(write.channel, write.value) for write in thread.writes()] == [("__error__", 2), ("c", 1)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_a_prune_and_a_deletion_survive_any_lost_reply(backend, url, proxy):
    with outlive.open(proxy.through(url)) as store:
        for skip in range(24):
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
            f"{name}{skip}" for skip in range(24) for name in ("fork", "copy")
        )
        assert proxy.replies_lost > 20
        assert store.verify().problems == ()


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_outcome_that_nobody_knows_is_said_and_settled_by_saving_the_same_id(backend, url, proxy):
    with outlive.open(proxy.through(url)) as store:
        thread = store.thread("t")
        thread.save({"n": 0})
        proxy.mode = "lose_replies"
        with pytest.raises(outlive.OutcomeUnknown) as caught:
            thread.save({"n": 1}, timeout_s=0.4)
        proxy.mode = "pass"
        assert thread.save({"n": 1}, id=caught.value.checkpoint_id).seq == 2
        assert [one.seq for one in thread.history()] == [2, 1]


# Round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_save_and_a_load_are_one_round_trip_each(backend, colour, url, proxy):
    def count(call):
        before = proxy.round_trips
        call()
        return proxy.round_trips - before

    with opened(colour, proxy.through(url), pool_size=1) as store, outlive.open(url) as other:
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
