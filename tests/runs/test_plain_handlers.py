"""Plain functions as handlers of an async store: each works in a thread of its own, with a sync run."""

import asyncio
import functools
import threading
import time

import pytest

import outlive
from outlive.errors import BadArgument, RunEnded
from outlive.testing.patience import PATIENCE_S, eventually

BACKENDS = ["memory", "sqlite", "postgres"]


@pytest.fixture
def url(backend, url_for, tmp_path):
    return "memory:" if backend == "memory" else url_for(backend, tmp_path)


def recover_all(url, handlers, prepare, then=None, **options):
    """Recover what `prepare(store)` has stored; return the report, and what `then(store)` returns."""

    async def main():
        async with outlive.open_async(url) as store:
            await prepare(store)
            report = await store.recover(handlers, **options)
            return report, None if then is None else await then(store)

    return asyncio.run(main())


def submitting(**options):
    async def prepare(store):
        await store.submit("t", run_id="r", agent="a", **options)

    return prepare


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plain_handler_gets_a_sync_run_and_does_all_its_work_in_its_thread(backend, url):
    seen = []

    def note(value):
        seen.append(threading.get_ident())
        return value

    def handler(run):
        assert isinstance(run, outlive.Run)
        note(None)
        run.save({"n": run.step("one", note, 1)}, usage={"tokens": 3})
        run.emit({"text": "Lis"})
        run.sleep(0.01)
        assert run.thread.load() == {"n": 1} == run.load()
        paid = run.step("pay", effect=True, timeout_s=PATIENCE_S)(lambda: str(run.effect_key))()
        with run.child("other", agent="b", run_id="c") as child:
            child.complete(child.step("two", note, 2))
        assert paid
        assert run.status == "running"
        return child.result

    async def look(store):
        chunks = [chunk.value async for chunk in store.follow("r")]
        steps = [(step.name, step.status) for step in await store.steps("r")]
        return chunks, steps, (await store.find_run("c")).parent, await store.thread("t").load()

    report, (chunks, steps, parent, state) = recover_all(url, {"a": handler}, submitting(), look)
    assert [(run.result, run.status, run.usage) for run in report.resumed] == [
        (2, "completed", {"tokens": 3})
    ]
    assert chunks == [{"text": "Lis"}]
    assert parent == "r"
    assert state == {"n": 1}
    assert steps == [("one", "done"), ("sleep#1", "done"), ("pay", "done")]
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_plain_handler_asks_and_continues_after_the_answer(backend, url):
    calls = []

    def handler(run):
        run.step("before", calls.append, 1)
        return run.ask("ok?", {"eur": 4}, schema=bool)

    async def main():
        async with outlive.open_async(url) as store:
            await store.submit("t", run_id="r", agent="a")
            first = await store.recover({"a": handler})
            await store.answer("r", "ok?", True)
            return first, await store.recover({"a": handler})

    first, second = asyncio.run(main())
    assert [run.status for run in first.suspended] == ["waiting"]
    assert [(run.result, run.attempt) for run in second.resumed] == [(True, 1)]
    assert calls == [1]


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_an_error_of_a_plain_handler_fails_its_run(backend, url):
    def handler(run):
        run.save({"kept": True})
        raise KeyError("flights")

    async def look(store):
        return await store.thread("t").load(), (await store.find_run("r")).error

    report, (state, error) = recover_all(url, {"a": handler}, submitting(), look)
    assert [(run.code, run.run_id) for run in report.failed] == [("KeyError", "r")]
    assert state == {"kept": True}
    assert error == "KeyError: 'flights'"


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_plain_and_async_handlers_share_a_worker(backend, url):
    """A step that blocks in a plain handler does not hold up the event loop."""
    is_blocked, may_end = threading.Event(), threading.Event()

    def plain(run):
        return run.step("block", lambda: is_blocked.set() or may_end.wait(PATIENCE_S))

    async def coroutine(run):
        while not is_blocked.is_set():
            await asyncio.sleep(0.01)
        return await run.step("free", may_end.set)

    class Agent:
        async def __call__(self, run):
            return await run.step("object", lambda: 7)

    async def with_client(client, run):
        return await run.step("partial", lambda: client)

    handlers = {"a": plain, "b": coroutine, "c": Agent(), "d": functools.partial(with_client, 8)}

    async def main():
        async with outlive.open_async(url) as store:
            for agent in handlers:
                await store.submit(f"thread {agent}", run_id=agent, agent=agent)
            worker = store.worker(handlers, interval_s=0.1)
            task = asyncio.create_task(worker.run())
            async with asyncio.timeout(PATIENCE_S):
                while not all([(await store.find_run(agent)).is_finished for agent in handlers]):
                    await asyncio.sleep(0.01)
            worker.stop()
            await task
            return [(await store.find_run(agent)).result for agent in handlers]

    assert asyncio.run(main()) == [True, None, 7, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_drain_releases_the_run_of_a_plain_handler_which_is_refused_from_then_on(backend, url):
    has_begun, may_continue, errors = threading.Event(), threading.Event(), []

    def handler(run):
        has_begun.set()
        may_continue.wait(PATIENCE_S)
        try:
            run.step("late", lambda: errors.append("called"))
        except BaseException as error:
            errors.append(error)
            raise

    async def main():
        async with outlive.open_async(url) as store:
            await store.submit("t", run_id="r", agent="a")
            worker = store.worker({"a": handler}, interval_s=0.1, grace_s=0)
            task = asyncio.create_task(worker.run())
            while not has_begun.is_set():
                await asyncio.sleep(0.01)
            worker.drain()
            await task
            status = (await store.find_run("r")).status
            may_continue.set()
            while not errors:
                await asyncio.sleep(0.01)
            return status, (await store.find_run("r")).status

    assert asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S)) == ("released", "released")
    assert [type(error) for error in errors] == [RunEnded]


@pytest.mark.parametrize("backend", ["memory"])
def test_a_cancelled_recovery_and_a_closed_store_release_the_runs_of_plain_handlers(backend, url):
    has_begun, may_end = threading.Semaphore(0), threading.Event()

    def handler(run):
        has_begun.release()
        may_end.wait(PATIENCE_S)

    async def main():
        async with outlive.open_async(url) as store:
            await store.submit("t", run_id="r", agent="a")
            task = asyncio.create_task(store.recover({"a": handler}))
            while not has_begun.acquire(blocking=False):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await store.find_run("r")).status == "released"
            task = asyncio.create_task(store.recover({"a": handler}))
            while not has_begun.acquire(blocking=False):
                await asyncio.sleep(0.01)
            released = (await store.find_run("r")).status
            await store._plain_mode()._store._heart.close()  # what closing the store does first
            assert (released, (await store.find_run("r")).status) == ("running", "released")
            may_end.set()
            await task

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))


@pytest.mark.parametrize("backend", ["memory"])
def test_a_plain_function_that_returns_a_coroutine_is_told_what_to_write(backend, url):
    async def coroutine(run, client):
        raise AssertionError("called")

    report, _ = recover_all(url, {"a": lambda run: coroutine(run, "client")}, submitting())
    assert [run.code for run in report.failed] == ["SyncAsyncMixed"]
    assert "functools.partial" in report.failed[0].message


def test_a_sync_store_refuses_async_handlers_before_anything_runs():
    async def coroutine(run): ...

    class Agent:
        async def __call__(self, run): ...

    with outlive.open("memory:") as store:
        store.submit("t", run_id="r", agent="a")
        for handler in (coroutine, Agent(), functools.partial(coroutine)):
            for call in (store.worker, store.recover):
                with pytest.raises(BadArgument, match="'a' is a coroutine function"):
                    call({"a": handler})
        assert store.find_run("r").attempt == 0


@pytest.mark.parametrize("backend", ["sqlite"])
def test_saves_in_the_background_of_a_plain_handler_are_stored_when_the_store_is_flushed(backend, url):
    """The handler has its own queue; `flush` and `close` of the store wait for it too."""

    def handler(run):
        run.save({"n": 1}, durability="async")

    async def look(store):
        await store.flush()
        return await store.thread("t").load()

    assert recover_all(url, {"a": handler}, submitting(), look)[1] == {"n": 1}


def test_threads_of_plain_handlers_end_with_their_handlers():
    def handler(run):
        run.step("one", time.sleep, 0)

    before = threading.enumerate()  # other tests may have left some
    recover_all("memory:", {"a": handler}, submitting())
    eventually(lambda: not set(threading.enumerate()).difference(before))
