"""Runs on a backend: one owner, what is not done again, and who goes on."""

from __future__ import annotations

from typing import Any

import pytest

from ...checkpoint import Interrupt
from ...errors import (
    BadArgument,
    DelayedSaveFailed,
    LeaseLost,
    RunBusy,
    RunEnded,
    StepMismatch,
    ThreadBusy,
)
from ...store import AsyncStore
from ..contract import Contract
from ..trial import Trial


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


class RunContract(Contract):
    async def test_a_run_has_its_place_alone_until_it_ends(self, store: AsyncStore) -> None:
        run = await store.run(
            "t", run_id="r", agent="a", prompt={"ask": (1, 2)}, attributes={"caller_id": 7}
        ).start()
        with pytest.raises(ThreadBusy) as busy:
            await store.run("t").start()
        assert busy.value.holder == "r"
        with pytest.raises(RunBusy):
            await store.run("t", run_id="r").start()
        other = await store.run("t", namespace="beside").start()
        await other.complete()
        await run.save({"n": 1}, iteration=3, phase="plan", usage={"tokens": 5})
        await run.complete({"answer": (42,)})
        with pytest.raises(RunEnded):
            await run.save({"n": 2})
        held = next(one for one in await _all(store.runs()) if one.id == "r")
        assert (held.status, held.result, held.iteration, held.phase) == (
            "completed",
            {"answer": (42,)},
            3,
            "plan",
        )
        assert (held.prompt, held.attributes, held.usage) == (
            {"ask": (1, 2)},
            {"caller_id": 7},
            {"tokens": 5},
        )
        again = await store.run("t", run_id="r").start()
        assert (again.is_finished, again.result) == (True, {"answer": (42,)})

    async def test_a_run_begins_with_a_checkpoint(self, store: AsyncStore) -> None:
        await store.thread("t").save({"n": 1})
        run = await store.run("t", run_id="r").start()
        newest = await store.thread("t").checkpoint()
        assert newest is not None
        assert (newest.run, newest.source, newest.state) == ("r", "input", {"n": 1})
        await run.interrupt()

    async def test_a_step_that_was_done_is_given_back(self, store: AsyncStore) -> None:
        called: list[int] = []

        def call(n: int) -> set[int]:
            called.append(n)
            return {n}

        run = await store.run("t", run_id="r").start()
        for n in range(3):
            assert await run.step("s", call, n) == {n}
        await run.interrupt()
        run = await store.run("t", run_id="r").start()
        assert run.info.attempt == 2
        assert [await run.step("s", call, n) for n in range(4)] == [
            {0},
            {1},
            {2},
            {3},
        ]
        assert called == [0, 1, 2, 3]
        assert await run.step("s", lambda n: n, 9, key="x") == 9
        with pytest.raises(StepMismatch):
            await run.step("s", lambda n: n, 8, key="x")
        await run.complete()

    async def test_what_was_interrupted_is_recovered_once(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        seen: list[str] = []
        for n in range(5):
            run = await stores[0].run(f"t{n}", run_id=f"r{n}", agent="a").start()
            await run.interrupt()
        assert len(await _all(stores[0].interrupted())) == 5
        handlers = {"a": lambda run: seen.append(run.id)}
        reports = await trial.together(*(lambda store=store: store.recover(handlers) for store in stores))
        assert [report for report in reports if isinstance(report, Exception)] == []
        assert sorted(seen) == [f"r{n}" for n in range(5)]
        assert await _all(stores[0].interrupted()) == []
        assert {one.attempt for one in await _all(stores[0].runs(status="completed"))} == {2}

    async def test_a_lease_that_has_run_out_may_be_taken(self, trial: Trial) -> None:
        store = await trial.store()
        run = await store.run("t", run_id="r", lease_s=0.2).start()
        store._heart._stop()  # as a process that hangs
        await trial.sleep(0.5)
        assert [one.id for one in await _all(store.interrupted())] == ["r"]
        other = await (await trial.store()).run("t", run_id="r").start()
        assert other.info.attempt == 2
        for late in (lambda: run.save({"late": 1}), lambda: run.step("s", int), run.complete):
            with pytest.raises(LeaseLost):
                await late()
        assert await other.load() is None
        await other.complete()

    async def test_a_lock_holds_a_place_without_a_run(self, store: AsyncStore) -> None:
        lock = await store.lock("t").acquire()
        with pytest.raises(ThreadBusy):
            await store.run("t").start()
        with pytest.raises(ThreadBusy):
            await store.lock("t", timeout_s=0.1).acquire()
        await lock.release()
        await (await store.run("t").start()).complete()

    async def test_what_names_a_lock_is_refused_once_another_holds_it(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread = store.thread("t")
        lock = store.lock("t", lease_s=0.2)
        assert lock.fence is None
        with pytest.raises(BadArgument, match="never held"):
            await thread.save({"n": 0}, fence=lock)
        await lock.acquire()
        await thread.save({"n": 1}, id="one", fence=lock, interrupts=[Interrupt("i", "node")])
        await thread.write("task", [("c", 1)], fence=lock)
        await thread.update({"title": "mine"}, fence=lock)
        await store.thread("t", namespace="sub").save({"n": 1}, fence=lock)  # the thread is one
        with pytest.raises(BadArgument, match="another"):
            await store.thread("another").save({"n": 1}, fence=lock)
        store._heart._stop()  # as a process that hangs
        await trial.sleep(0.5)
        theirs = await other.lock("t", timeout_s=20).acquire()
        assert lock.fence is not None and theirs.fence is not None and theirs.fence > lock.fence
        for durability in ("sync", "async"):
            with pytest.raises(LeaseLost if durability == "sync" else DelayedSaveFailed):
                await thread.save({"n": 2}, fence=lock, durability=durability)
                await thread.flush()
        for late in (
            lambda: thread.save({"n": 2}, id="one", replace=True, fence=lock),
            lambda: thread.write("late", [("c", 2)], fence=lock),
            lambda: thread.resume("i", 2, checkpoint="one", fence=lock),
            lambda: thread.update({"title": "late"}, fence=lock),
        ):
            with pytest.raises(LeaseLost) as lost:
                await late()
            assert (lost.value.fence, lost.value.current) == (lock.fence, theirs.fence)
        assert (await thread.load(), await thread.metadata()) == ({"n": 1}, {"title": "mine"})
        assert [held.task for held in await thread.writes("one")] == ["task"]
        await other.thread("t").save({"n": 3}, fence=theirs)
        await theirs.release()
        with pytest.raises(LeaseLost, match="given back"):
            await other.thread("t").save({"n": 4}, fence=theirs)
        assert await thread.load() == {"n": 3}
