"""What happened when: the times of steps, the attempts of a run, and where a quiet run is."""

from __future__ import annotations

import datetime as dt
import itertools

import pytest

from outlive.runs.owner import Owner
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.patience import PATIENCE_S
from outlive.testing.trial import AsyncDriver, Trial


def _fail() -> int:
    raise ValueError("no luck")


class AttemptContract(Contract):
    async def test_a_step_has_its_times_and_its_attempt(self, store: AsyncStore) -> None:
        before = dt.datetime.now(dt.UTC)
        run = await store.run("t", run_id="r").start()
        assert await run.step("a", int) == 0
        with pytest.raises(ValueError, match="no luck"):
            await run.step("b", _fail)
        await run.release()
        run = await store.run("t", run_id="r").start()
        assert await run.step("a", _fail) == 0  # not called
        assert await run.step("b", int) == 0
        await run.complete()
        after = dt.datetime.now(dt.UTC)
        first, second = await store.steps("r")
        assert (first.attempt, first.tries, first.failures) == (1, 1, ())
        assert (second.attempt, second.tries, second.status, second.error) == (2, 2, "done", None)
        (failed,) = second.failures
        assert (failed.attempt, failed.error) == (1, "ValueError: no luck")
        assert first.ended_at is not None and failed.ended_at is not None and second.ended_at is not None
        moments = [before, first.began_at, first.ended_at, failed.began_at, failed.ended_at]
        moments += [second.began_at, second.ended_at, after]
        assert moments == sorted(moments)

    async def test_a_run_keeps_its_attempts(self, trial: Trial) -> None:
        store = await trial.store()
        run = await store.run("t", run_id="r", lease_s=0.2).start()
        assert [(one.number, one.outcome, one.ended_at) for one in await store.attempts("r")] == [
            (1, None, None)
        ]
        store._heart._stop()  # as a process that hangs
        await trial.sleep(0.5)
        other = await trial.store()
        run = await other.run("t", run_id="r").start()
        await run.fail(ValueError("no luck"))
        run = await (await other.retry("r")).start()
        await run.complete()
        attempts = await other.attempts("r")
        assert attempts == list(run.info.attempts)
        assert [(one.number, one.outcome, one.error) for one in attempts] == [
            (1, "lapsed", None),
            (2, "failed", "ValueError: no luck"),
            (3, "completed", None),
        ]
        assert {(one.owner, one.host) for one in attempts} == {(str(Owner.me()), Owner.me().host)}
        for earlier, later in itertools.pairwise(attempts):
            assert earlier.ended_at is not None
            assert earlier.began_at <= earlier.ended_at + dt.timedelta(seconds=1)
            assert earlier.ended_at <= later.began_at

    async def test_the_attempts_that_are_kept_are_bounded(self, store: AsyncStore) -> None:
        for _ in range(25):
            await (await store.run("t", run_id="r").start()).release()
        assert [one.number for one in await store.attempts("r")] == list(range(6, 26))

    async def test_a_run_that_is_ended_from_outside_says_so(self, store: AsyncStore) -> None:
        for id, end in (("a", store.park), ("b", store.cancel)):
            await store.run(id, run_id=id).start()
            await end(id)
        outcomes = [(await store.attempts(id))[-1].outcome for id in ("a", "b")]
        assert outcomes == ["parked", "cancelled"]

    async def test_another_process_sees_the_step_of_a_quiet_run(self, trial: Trial) -> None:
        store, other = await trial.store(), await trial.store()
        run = await store.run("t", run_id="r", lease_s=0.6, prompt={"ask": {1, 2}}).start()
        await run.save({"n": 1}, phase="plan", usage={"tokens": 3})

        async def look() -> str | None:
            deadline = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=PATIENCE_S)
            while dt.datetime.now(dt.UTC) < deadline:
                info = await other.find_run("r")
                assert info is not None
                if info.step is not None:
                    assert (info.phase, info.usage, info.prompt) == ("plan", {"tokens": 3}, {"ask": {1, 2}})
                    assert info.quiet_s is not None and info.updated_at is not None
                    assert info.updated_at > saved
                    return info.step
                await trial.sleep(0.1)
            return None

        assert run.info.updated_at is not None
        saved = run.info.updated_at
        is_async = isinstance(trial.driver, AsyncDriver)
        assert await run.step("book", look if is_async else lambda: run_now(look())) == "book"
        await run.complete()
        ended = await other.find_run("r")
        assert ended is not None
        assert (ended.step, ended.quiet_s, ended.status) == (None, None, "completed")
