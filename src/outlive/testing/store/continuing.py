"""A script that is executed again continues the run that it left unfinished, and repeats nothing."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.backend.entries import READY, TIMER
from outlive.errors import BadArgument, ThreadBusy
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.patience import eventually_async
from outlive.testing.store.waiting import _all, _begin, _entries
from outlive.testing.trial import Trial


def kill(run: Any) -> None:
    """Let a run be as if its process had died: nothing renews its lease."""
    inner = getattr(run, "_inner", None)
    run._heart.discard(run if inner is None else inner._run)


async def _again(trial: Trial, store: AsyncStore, **options: Any) -> Any:
    """Start a run as soon as the lease of the dead one has expired."""

    async def start() -> Any:
        try:
            return await store.run("t", agent="a", **options).start()
        except ThreadBusy:
            return None

    return await eventually_async(start, trial.sleep)


class ContinuingContract(Contract):
    async def test_a_dead_run_is_continued_by_the_same_call(self, trial: Trial) -> None:
        store, other, calls = await trial.store(), await trial.store(), []
        first = await store.run("t", agent="a", prompt={"to": (1, 2)}, lease_s=0.3).start()
        await first.step("one", lambda: calls.append("one"))
        with pytest.raises(ThreadBusy) as busy:
            await other.run("t", agent="a").start()
        assert busy.value.holder == first.id
        assert busy.value.owner == str(first.info.owner)
        kill(first)
        second = await _again(trial, other)
        assert (second.id, second.info.attempt, second.info.failures) == (first.id, 2, 1)
        assert second.info.prompt == {"to": (1, 2)}
        await second.step("one", lambda: calls.append("again"))
        await second.complete("done")
        assert calls == ["one"]
        third = await store.run("t", agent="a").start()
        assert third.id != first.id
        assert third.info.attempt == 1
        await third.complete()
        assert len(await _all(store.runs())) == 2

    async def test_a_released_run_is_continued_and_a_failed_one_is_not(self, store: AsyncStore) -> None:
        first = await store.run("t", agent="a").start()
        await first.release()
        second = await store.run("t", agent="a").start()
        assert (second.id, second.info.attempt) == (first.id, 2)
        assert await _entries(store, READY) == []
        await second.fail("broken")
        third = await store.run("t", agent="a").start()
        assert third.id != first.id
        await third.cancel()

    async def test_a_run_that_waits_is_continued(self, trial: Trial, store: AsyncStore) -> None:
        async def agent(run: Any) -> Any:
            return await run.ask("go?")

        first = await _begin(store, agent)
        async with store.run("t", agent="a") as run:
            await run.complete(await run.ask("go?"))
        assert (run.id, run.status, run.info.attempt) == (first.id, "waiting", 1)
        await store.answer(run.id, "go?", True)
        async with store.run("t", agent="a") as run:
            await run.complete(await run.ask("go?"))
        assert (run.id, run.status, run.result) == (first.id, "completed", True)

    async def test_only_the_same_work_is_continued(self, store: AsyncStore) -> None:
        first = await store.run("t", agent="a", prompt=[1]).start()
        await first.release()
        for options in (
            {"agent": "b"}, {"agent": None}, {"agent": "a", "namespace": "beside"}, {"agent": "a", "exclusive": False},
            {"agent": "a", "prompt": [2]}, {"agent": "a", "parent": "other"},
        ):  # fmt: skip
            other = await store.run("t", **options).start()
            assert other.id != first.id
            await other.cancel()
            async with await store.retry(first.id) as again:  # it is the last one of its place again
                await again.release()
        same = await store.run("t", agent="a", prompt=[1]).start()
        assert same.id == first.id
        await same.complete()

    async def test_of_several_processes_one_continues(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(4)]
        first = await stores[0].run("t", agent="a").start()
        await first.release()
        results = await trial.together(
            *(lambda each=each: each.run("t", agent="a").start() for each in stores)
        )
        started = [result for result in results if not isinstance(result, BaseException)]
        assert [run.id for run in started] == [first.id]
        assert [type(result) for result in results if result not in started] == [ThreadBusy] * 3
        await started[0].complete()

    async def test_new_cancels_the_unfinished_run(self, trial: Trial, store: AsyncStore) -> None:
        async def agent(run: Any) -> Any:
            return await run.ask("go?", timeout_s=3600)

        await _begin(store, agent)
        live = await store.run("t", agent="a", new=True, lease_s=0.3).start()
        old = await store.find_run("r")
        assert old is not None
        assert (old.status, old.error) == ("cancelled", f"superseded by run {live.id!r}")
        assert await _entries(store, TIMER) == []
        assert [question.status for question in await _all(store.questions(status=None))] == ["withdrawn"]
        with pytest.raises(ThreadBusy):
            await store.run("t", agent="a", new=True).start()
        kill(live)
        last = await _again(trial, store, new=True)
        assert last.info.attempt == 1
        dead = await store.find_run(live.id)
        assert dead is not None
        assert (dead.status, dead.attempts[-1].outcome) == ("cancelled", "lapsed")
        await last.complete()
        with pytest.raises(BadArgument, match="run_id"):
            store.run("t", run_id="x", new=True)

    async def test_a_run_that_was_cancelled_is_not_continued(self, store: AsyncStore) -> None:
        first = await store.run("t", agent="a").start()
        await first.release()
        await store.cancel(first.id)
        second = await store.run("t", agent="a").start()
        assert second.id != first.id
        await second.complete()

    async def test_a_start_that_fails_leaves_the_run_as_it_was(self, trial: Trial) -> None:
        backend, store = await trial.interposed()
        async with store.run("t", agent="a", backoff_s=3600) as run:
            await run.fail("broken")
        due = await _entries(store, TIMER)

        async def fail(*args: Any) -> None:
            raise OSError("no memory")

        backend.after("commit_all", lambda result: _then_fail(backend, fail))
        with pytest.raises(OSError, match="no memory"):
            await store.run("t", agent="a").start()
        assert await _entries(store, TIMER) == due != []
        assert [(run.status, run.attempt) for run in await _all(store.runs())] == [("waiting", 1)]


async def _then_fail(backend: Any, fail: Any) -> None:
    backend.before("entries", fail)
