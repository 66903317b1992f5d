"""Runs on a backend: one owner, steps that are not repeated, and recovery."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from outlive.errors import (
    AmbiguousRun,
    BadArgument,
    DelayedSaveFailed,
    LeaseLost,
    RunBusy,
    RunElsewhere,
    RunEnded,
    RunNotStarted,
    StepMismatch,
    ThreadBusy,
)
from outlive.runs.lease import RunInfo
from outlive.runs.owner import Owner
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.trial import Trial
from outlive.values import Interrupt


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


def _check_until(busy: ThreadBusy | RunBusy, lease_s: float) -> None:
    """The end of the lease is a time of day."""
    assert busy.lease_expires_at is not None
    left_s = (busy.lease_expires_at - dt.datetime.now(dt.UTC)).total_seconds()
    assert lease_s / 2 < left_s < lease_s + 60, left_s


class RunContract(Contract):
    async def test_a_run_has_its_place_alone_until_it_ends(self, store: AsyncStore) -> None:
        run = await store.run(
            "t", run_id="r", agent="a", prompt={"ask": (1, 2)}, attributes={"caller_id": 7}
        ).start()
        with pytest.raises(ThreadBusy) as busy:
            await store.run("t").start()
        assert busy.value.holder == "r"
        _check_until(busy.value, 30)
        with pytest.raises(RunBusy, match="alive in this process") as alive:
            await store.run("t", run_id="r").start()
        _check_until(alive.value, 30)
        assert alive.value.owner == busy.value.owner == str(run.info.owner)
        other = await store.run("t", namespace="beside").start()
        await other.complete()
        await run.save({"n": 1}, iteration=3, phase="plan", usage={"tokens": 5})
        await run.complete({"answer": (42,)})
        with pytest.raises(RunEnded):
            await run.save({"n": 2})
        info = next(listed for listed in await _all(store.runs()) if listed.id == "r")
        assert (info.status, info.result, info.iteration, info.phase) == (
            "completed",
            {"answer": (42,)},
            3,
            "plan",
        )
        assert (info.prompt, info.attributes, info.usage) == (
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
        await run.release()

    async def test_a_step_that_was_done_is_given_back(self, store: AsyncStore) -> None:
        called: list[int] = []

        def call(n: int) -> set[int]:
            called.append(n)
            return {n}

        run = await store.run("t", run_id="r").start()
        for n in range(3):
            assert await run.step("s", call, n) == {n}
        await run.release()
        run = await store.run("t", run_id="r").start()
        assert run.info.attempt == 2
        assert [await run.step("s", call, n) for n in range(4)] == [{0}, {1}, {2}, {3}]
        assert called == [0, 1, 2, 3]
        assert await run.step("s", key="x")(lambda n: n)(9) == 9
        with pytest.raises(StepMismatch):
            await run.step("s", key="x")(lambda n: n)(8)
        await run.complete()

    async def test_what_was_interrupted_is_recovered_once(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        seen: list[str] = []
        for n in range(5):
            run = await stores[0].run(f"t{n}", run_id=f"r{n}", agent="a").start()
            await run.release()
        assert len(await _all(stores[0].recoverable())) == 5
        handlers = {"a": lambda run: seen.append(run.id)}
        reports = await trial.together(*(lambda store=store: store.recover(handlers) for store in stores))
        assert [report for report in reports if isinstance(report, Exception)] == []
        assert sorted(seen) == [f"r{n}" for n in range(5)]
        assert await _all(stores[0].recoverable()) == []
        assert {info.attempt for info in await _all(stores[0].runs(status="completed"))} == {2}

    async def test_a_lease_that_has_run_out_may_be_taken(self, trial: Trial) -> None:
        store = await trial.store()
        run = await store.run("t", run_id="r", lease_s=0.2).start()
        store._heart._stop()  # as a process that hangs
        await trial.sleep(0.5)
        assert [info.id for info in await _all(store.recoverable())] == ["r"]
        other = await (await trial.store()).run("t", run_id="r").start()
        assert other.info.attempt == 2
        for late in (lambda: run.save({"late": 1}), lambda: run.step("s", int), run.complete):
            with pytest.raises(LeaseLost):
                await late()
        assert await other.load() is None
        await other.complete()

    async def test_a_place_is_free_when_a_run_and_those_that_share_it_have_ended(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        parent = await store.run("t", run_id="parent").start()
        child = await other.run("t", run_id="child", parent="parent").start()
        await parent.complete()
        with pytest.raises(ThreadBusy) as refusal:
            await store.run("t", run_id="next").start()
        assert refusal.value.holder == "child"
        await child.complete()
        await (await store.run("t", run_id="next").start()).complete()

    async def test_a_run_joins_its_parent_while_that_writes(self, trial: Trial) -> None:
        store = await trial.store()
        backend, other = await trial.interposed()
        parent = await store.run("t", run_id="parent").start()

        async def write(*args: Any) -> None:
            await parent.save({"n": 1})

        backend.before("commit_all", write)  # between the look of the child and its commit
        child = await other.run("t", run_id="child", parent="parent").start()
        assert child.info.shares_place
        await parent.complete()
        with pytest.raises(ThreadBusy):
            await store.run("t", run_id="next").start()
        await child.complete()

    async def test_a_lock_holds_a_place_without_a_run(self, store: AsyncStore) -> None:
        lock = await store.lock("t").acquire()
        for take in (store.run("t").start, store.lock("t", timeout_s=0.1).acquire):
            with pytest.raises(ThreadBusy) as busy:
                await take()
            assert (busy.value.holder, busy.value.owner) == (None, str(Owner.me()))
            _check_until(busy.value, 30)
        await lock.release()
        await (await store.run("t").start()).complete()

    async def test_what_names_a_run_is_refused_once_another_process_has_it(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        thread, sub = store.thread("t"), store.thread("t", namespace="sub")
        run = store.run("t", run_id="r", lease_s=0.2)
        with pytest.raises(RunNotStarted):
            await thread.save({"n": 0}, fence=run)
        await run.start()
        assert (await thread.save({"n": 1}, fence=run)).run == "r"
        assert (await sub.save({"n": 1}, fence=run, run="another")).run == "another"
        await thread.write("task", [("c", 1)], fence=run)
        await thread.set_metadata({"title": "mine"}, fence=run)
        with pytest.raises(BadArgument, match="protects nothing"):
            await store.thread("another").save({"n": 1}, fence=run)
        store._heart._stop()  # as a process that hangs
        await trial.sleep(0.5)
        theirs = await other.run("t", run_id="r").start()
        for late in (
            lambda: thread.save({"n": 2}, fence=run),
            lambda: sub.save({"n": 2}, fence=run, id="late"),
            lambda: thread.write("late", [("c", 2)], fence=run),
            lambda: thread.set_metadata({"title": "late"}, fence=run),
        ):
            with pytest.raises(LeaseLost):
                await late()
        assert (await thread.load(), await sub.load(), await thread.metadata()) == (
            {"n": 1}, {"n": 1}, {"title": "mine"},
        )  # fmt: skip
        await other.thread("t").save({"n": 3}, fence=theirs)
        await theirs.complete()
        with pytest.raises(RunEnded):
            await other.thread("t").save({"n": 4}, fence=theirs)

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
        await thread.set_metadata({"title": "mine"}, fence=lock)
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
            lambda: thread.set_metadata({"title": "late"}, fence=lock),
        ):
            with pytest.raises(LeaseLost) as lost:
                await late()
            assert (lost.value.fence, lost.value.current) == (lock.fence, theirs.fence)
        assert (await thread.load(), await thread.metadata()) == ({"n": 1}, {"title": "mine"})
        assert [write.task for write in await thread.writes("one")] == ["task"]
        await other.thread("t").save({"n": 3}, fence=theirs)
        await theirs.release()
        with pytest.raises(LeaseLost, match="given back"):
            await other.thread("t").save({"n": 4}, fence=theirs)
        assert await thread.load() == {"n": 3}

    async def test_a_run_that_is_alive_is_waited_for(self, trial: Trial) -> None:
        first, other = await trial.store(), await trial.store()
        run = await first.run("t", run_id="r", agent="a").start()
        for store in (first, other):
            report = await store.recover({"*": lambda run: None})
            assert ([info.id for info in report.waiting], report.resumed) == (["r"], [])
        await run.complete()
        assert (await other.recover({"*": lambda run: None})).waiting == []

    async def test_a_run_id_is_used_once(self, trial: Trial) -> None:
        first, other = await trial.store(), await trial.store()
        await (await first.run("a", run_id="r").start()).complete(1)
        await (await first.run("a", run_id="r2").start()).complete(2)
        with pytest.raises(RunElsewhere) as elsewhere:
            await other.run("b", run_id="r").start()
        assert elsewhere.value.threads == ("a",)
        assert await other.thread("b").load() is None
        assert await _all(other.thread("b").history()) == []
        stored = await other.find_run("r")
        assert stored is not None
        assert (stored.thread, stored.result) == ("a", 1)
        assert await other.find_run("r", thread="b") is None
        assert await other.find_run("no such run") is None

    async def test_of_runs_of_one_id_that_start_together_one_at_most_continues(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(4)]
        for turn in range(3):
            starts = [
                lambda store=store, n=n, turn=turn: store.run(f"t{n}", run_id=f"r{turn}").start()
                for n, store in enumerate(stores)
            ]
            results = await trial.together(*starts)
            begun = [result for result in results if not isinstance(result, Exception)]
            assert {type(result) for result in results if isinstance(result, Exception)} <= {RunElsewhere}
            assert len(begun) <= 1
            left = [info for info in await _all(stores[0].runs()) if info.id == f"r{turn}"]
            assert len(left) == len(begun)  # a start that was refused leaves nothing
            for run in begun:
                await run.complete()
            for n in range(4):  # and its place is free
                await (await stores[n].run(f"t{n}").start()).complete()

    async def test_one_of_several_runs_of_an_id_is_never_taken_in_silence(self, store: AsyncStore) -> None:
        for thread in ("a", "b"):  # as copies from two stores bring them
            await (await store._run(RunInfo("r", thread)).start()).release()
        for call in (store.find_run, store.cancel, store.park, store.retry):
            with pytest.raises(AmbiguousRun) as several:
                await call("r")
            assert sorted(several.value.threads) == ["a", "b"]
        assert (await store.cancel("r", thread="b")).thread == "b"
        assert sorted([(info.thread, info.status) for info in await _all(store.runs())]) == [
            ("a", "released"),
            ("b", "cancelled"),
        ]

    async def test_runs_are_found_by_their_attributes(self, store: AsyncStore) -> None:
        for n in range(4):
            attributes = {"caller_id": n % 2, "channel": None} if n else {}
            await (await store.run(f"t{n}", run_id=f"r{n}", attributes=attributes).start()).complete()
        expected: dict[str, list[str]] = {
            "caller_id": ["r1", "r3"],
            "channel": ["r1", "r2", "r3"],
            "x": [],
        }
        for name, ids in expected.items():
            wanted = {name: 1 if name == "caller_id" else None}
            assert [info.id for info in await _all(store.runs(attributes=wanted))] == ids
