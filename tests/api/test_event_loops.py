"""An async store works in one event loop at a time: at once in two it says so, one after the other it works."""

import asyncio
import contextlib
import threading
import time

import pytest

import outlive
from outlive.adapters.langgraph import OutliveSaver
from outlive.runtime.loop import AsyncRuntime
from outlive.testing.patience import PATIENCE_S

BACKENDS = ("memory", "file", "sqlite", "postgresql", "redis")
SOON_S = PATIENCE_S  # half of the store's own timeout


@contextlib.contextmanager
def running_loop():
    """An event loop that runs in a thread of its own; yields what runs a coroutine there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(SOON_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(asyncio.all_tasks(loop)))
        loop.close()


async def _end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def opened(url, **options):
    return await outlive.open_async(url, timeout_s=2 * SOON_S, **options)


def refused(make):
    """Await a call in a loop of our own; return how long its refusal took."""

    async def main():
        start = time.monotonic()
        with pytest.raises(outlive.errors.WrongLoop, match="open one in each loop"):
            await make()
        return time.monotonic() - start

    return asyncio.run(main())


@pytest.fixture(params=BACKENDS)
def url(request, url_for, tmp_path):
    return "memory:" if request.param == "memory" else url_for(request.param, tmp_path)


def test_a_call_from_a_second_loop_is_refused_at_once_and_the_first_goes_on(url):
    with running_loop() as first:
        store = first(opened(url))
        thread = store.thread("t")
        first(thread.save({"n": 1}))
        for call in (
            lambda: thread.save({"n": 2}),
            lambda: thread.save({"n": 2}, durability="async"),
            thread.load,
            store.size,
            lambda: store.run("t").start(),
            thread.delete,
            lambda: OutliveSaver(store).aget_tuple({"configurable": {"thread_id": "t"}}),
        ):
            assert refused(call) < SOON_S
        assert first(thread.load()) == {"n": 1}
        assert first(thread.save({"n": 3})).seq == 2
    assert asyncio.run(thread.load()) == {"n": 3}  # that loop has ended
    with running_loop() as third:
        third(thread.save({"n": 4}))
        assert refused(thread.load) < SOON_S
        third(store.close())


@pytest.mark.parametrize("is_pair", [False, True])
def test_a_store_that_is_closed_from_a_second_loop_stays_open(tmp_path, is_pair):
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    with running_loop() as first:
        store = first(opened(one, **({"replication": outlive.Replication(two)} if is_pair else {})))
        run = first(store.run("t", lease_s=6.0).start())
        assert refused(store.close) < SOON_S
        first(asyncio.wait_for(_until_renewed(store), SOON_S))
        first(run.save({"n": 1}))
        first(store.close())
    with outlive.open(one, **({"replication": outlive.Replication(two)} if is_pair else {})) as again:
        assert again.thread("t").load() == {"n": 1}
        assert [found.id for found in again.recoverable()] == [
            run.id
        ]  # the close that was not refused gave it up


def test_a_run_that_is_used_from_a_second_loop_stays_alive_in_the_first(tmp_path):
    with running_loop() as first:
        store = first(opened(f"sqlite:///{tmp_path}/a.db"))
        run = first(store.run("t", lease_s=6.0).start())
        for call in (run.complete, run.release, lambda: run.save({"n": 1}), run.flush):
            assert refused(call) < SOON_S
        first(asyncio.wait_for(_until_renewed(store), SOON_S))
        first(run.complete())
        first(store.close())


def test_a_call_from_a_second_loop_opens_no_lock_of_the_first():
    mutex = AsyncRuntime().mutex()

    async def take():
        async with mutex:
            pass

    with running_loop() as first:
        first(mutex.__aenter__())
        assert refused(take) < SOON_S
        with pytest.raises(TimeoutError):
            first(asyncio.wait_for(take(), 0.2))
        first(mutex.__aexit__())
        first(take())


def test_of_two_loops_at_once_one_works_and_the_other_is_told(url):
    store = asyncio.run(opened(url))
    outcomes, start = {}, threading.Barrier(2)

    async def save(name):
        for n in range(20):
            await asyncio.gather(*(store.thread(f"{name} {k}").save({"n": n}) for k in range(3)))

    def work(name):
        start.wait()
        try:
            outcomes[name] = asyncio.run(save(name))
        except outlive.errors.WrongLoop as error:
            outcomes[name] = error

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["a", "b"]
    for name, outcome in outcomes.items():
        if outcome is None:
            assert asyncio.run(store.thread(f"{name} 0").load()) == {"n": 19}
    assert asyncio.run(store.verify()).ok
    asyncio.run(store.close())


def test_a_loop_that_stands_still_with_calls_under_way_keeps_the_store(tmp_path):
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(opened(f"sqlite:///{tmp_path}/a.db"))
    save = loop.create_task(store.thread("t").save({"n": 1}))
    loop.run_until_complete(asyncio.sleep(0))  # begun, not answered
    assert refused(store.thread("t").load) < SOON_S
    loop.run_until_complete(save)
    assert asyncio.run(store.thread("t").load()) == {"n": 1}
    loop.close()
    asyncio.run(store.close())


def test_timers_and_locks_go_along_into_the_next_loop(tmp_path):
    """A pair continues to transfer what is queued, a lease is renewed, and a lock that was contended can be so again."""
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    store = asyncio.run(opened(one, replication=outlive.Replication(two, mode="async")))

    async def drained():
        saves = [store.thread("t").save({"n": n}, durability="async") for n in range(20)]
        await asyncio.gather(*saves)
        await store.flush()
        await asyncio.wait_for(_until_drained(store), SOON_S)

    for _ in range(3):
        asyncio.run(drained())

    async def started():
        return await store.run("r", lease_s=1.0).start()

    async def renewed(run):
        await _until_renewed(store)
        await run.complete()

    run = asyncio.run(started())
    asyncio.run(asyncio.wait_for(renewed(run), SOON_S))
    asyncio.run(store.close())


async def _until_renewed(store):
    """Wait until a lease lasts longer than it does now."""
    first = [found.lease_expires_at async for found in store.runs()]
    while [found.lease_expires_at async for found in store.runs()] == first:
        await asyncio.sleep(0.05)


async def _until_drained(store):
    while (await store.replication_status()).queued:
        await asyncio.sleep(0.02)


def test_a_sweep_can_rest_in_one_loop_after_another(tmp_path):
    store = asyncio.run(opened(f"sqlite:///{tmp_path}/a.db"))

    async def swept():
        for name in "abc":
            for n in range(5):
                await store.thread(name).save({"n": n})
        return (await store.sweep(retain=outlive.Retain(keep_last=1))).checkpoints

    assert [asyncio.run(swept()) for _ in range(2)] == [12, 15]
    asyncio.run(store.close())
