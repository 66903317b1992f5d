"""Timers: sleeps, deadlines and pauses end by the wall clock of the store, each once."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from outlive.backend import Commit, EntryQuery, ThreadKey
from outlive.backend.entries import READY, TIMER
from outlive.errors import BadArgument, QuestionClosed, RunBusy, RunEnded, Unanswered
from outlive.runs import timers, waits
from outlive.runs.tickets import list_agents, list_ready
from outlive.store import AsyncStore
from outlive.testing.contract import Contract
from outlive.testing.store.waiting import _all, _begin, _entries, _recover, _status
from outlive.testing.trial import Trial

HOUR_US = 3_600_000_000


async def _shift(store: AsyncStore, by_us: int) -> None:
    """Set the clock of the store: forward by an hour is as if every timer were due an hour earlier."""
    backend = store._engine.backend
    for key, entry in await backend.entries(EntryQuery("", TIMER)):
        moved = replace(entry, until=entry.until - by_us, expect=entry.rank)
        (result,) = await backend.commit_all([Commit(key, entries=(moved,))])
        assert not isinstance(result, Exception), result


class TimerContract(Contract):
    async def test_a_long_sleep_gives_up_the_process_and_rings_once(self, trial: Trial) -> None:
        stores = [await trial.store() for _ in range(3)]
        store, woken = stores[0], []

        async def agent(run: Any) -> Any:
            await run.sleep(3600)
            woken.append(run.id)
            return "awake"

        run = await _begin(store, agent)
        assert run.status == "waiting"
        assert run.info.waits.until is not None
        fired = await timers.fire_due(store._engine, "")
        assert fired.count == 0
        assert fired.next_at is not None
        assert (await _recover(trial, store, agent)).resumed == []
        # Set back by an hour: it rings later. Set forward by two: it is due.
        await _shift(store, -HOUR_US)
        assert (await timers.fire_due(store._engine, "")).count == 0
        await _shift(store, 2 * HOUR_US + 1)
        assert await _ring(trial, stores) == 1
        assert await _status(store) == "released"
        reports = [await _recover(trial, each, agent) for each in stores]
        assert [info.result for report in reports for info in report.resumed] == ["awake"]
        assert (woken, await _entries(store, TIMER)) == (["r"], [])

    async def test_a_reboot_rings_no_timer(self, trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
        from outlive.backend import clock

        store = await trial.store()

        async def agent(run: Any) -> Any:
            await run.sleep(3600)

        await _begin(store, agent)
        monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
        assert (await timers.fire_due(store._engine, "")).count == 0
        (timer,) = await store._engine.backend.entries(EntryQuery("", TIMER))
        assert not await timers.fire(store._engine, *timer)
        assert await _status(store) == "waiting"

    async def test_a_short_sleep_keeps_the_process_and_only_the_rest_is_slept_again(
        self, trial: Trial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await trial.store()
        run = await store.run("t", run_id="r", agent="a").start()
        await run.sleep(0.05)
        assert run.status == "running"
        await run.release()
        run = await store.run("t", run_id="r", agent="a").start()

        async def refuse(*args: Any) -> None:
            raise AssertionError("it sleeps again")

        inner = run._waits
        known = inner._known["sleep#1"]
        assert (known.status, known.due_at > 0) == ("open", True)
        monkeypatch.setattr(waits, "LIVE_SLEEP_S", 0.0)
        await run.sleep(0.05)
        assert run.status == "running"
        with pytest.raises(BadArgument):
            await run.sleep()
        with pytest.raises(BadArgument):
            await run.sleep(until=dt.datetime(2030, 1, 1))  # noqa: DTZ001  # that is what is refused
        await run.complete()
        steps = [(step.kind, step.name, step.status) for step in await store.steps("r")]
        assert steps == [("sleep", "sleep#1", "done")]

    async def test_a_question_that_expires_gives_the_default_or_an_error(self, trial: Trial) -> None:
        store = await trial.store()

        async def patient(run: Any) -> Any:
            return await run.ask("ok?", timeout_s=3600, default="nobody")

        async def strict(run: Any) -> Any:
            return await run.ask("ok?", timeout_s=3600)

        await _begin(store, patient, "p", "p")
        await _begin(store, strict, "s", "s")
        await _shift(store, HOUR_US + 1)
        assert (await _recover(trial, store, strict)).failed[0].code == "Unanswered"
        # The handler above was that of the other run: its question has expired all the same.
        for id in ("p", "s"):
            with pytest.raises((QuestionClosed, RunEnded)):
                await store.answer(id, "ok?", 1)
        async with await store.retry("p") as run:
            assert await patient(run) == "nobody"
        assert [item.status for item in await _all(store.questions(status="expired"))] == ["expired"] * 2

    async def test_an_answer_in_time_stops_the_clock(self, trial: Trial) -> None:
        store = await trial.store()

        async def agent(run: Any) -> Any:
            return await run.ask("ok?", timeout_s=3600, default="nobody")

        await _begin(store, agent)
        await store.answer("r", "ok?", "in time")
        assert await _entries(store, TIMER) == []
        assert (await _recover(trial, store, agent)).resumed[0].result == "in time"

    async def test_a_deadline_of_several_questions(self, trial: Trial) -> None:
        store = await trial.store()

        async def everything(run: Any) -> Any:
            return await run.ask_all({"a": 1, "b": 2}, timeout_s=3600, default=None)

        async def anything(run: Any) -> Any:
            try:
                return await run.ask_any({"a": 1, "b": 2}, timeout_s=3600)
            except Unanswered as error:
                return error.names

        await _begin(store, everything, "all", "all")
        await store.answer("all", "b", "B")
        await _shift(store, HOUR_US + 1)
        assert (await _recover(trial, store, everything)).resumed[0].result == {"a": None, "b": "B"}
        await _begin(store, anything, "any", "any")
        await _shift(store, HOUR_US + 1)
        assert (await _recover(trial, store, anything)).resumed[0].result == ("a", "b")

    async def test_a_failure_is_tried_again_after_growing_pauses(self, trial: Trial) -> None:
        store = await trial.store()
        attempts: list[int] = []

        async def agent(run: Any) -> Any:
            attempts.append(run.info.attempt)
            raise ValueError("not yet")

        with pytest.raises(ValueError, match="not yet"):
            await _begin(store, agent, max_attempts=3, backoff_s=1000)
        pauses = []
        for _ in range(2):
            info = await store.find_run("r")
            assert info is not None
            assert (info.status, info.error) == ("waiting", "ValueError: not yet")
            assert info.waits is not None
            assert info.waits.until is not None
            pauses.append((info.waits.until - info.waits.since).total_seconds())
            assert (await _recover(trial, store, agent)).failed == []
            await _fire_all(store)
            assert len((await _recover(trial, store, agent)).failed) == 1
        assert 800 <= pauses[0] <= 1200 < 1600 <= pauses[1] <= 2400
        assert attempts == [1, 2, 3]
        info = await store.find_run("r")
        assert info is not None
        assert (info.status, info.failures) == ("parked", 3)
        assert await _entries(store, TIMER) == await _entries(store, READY) == []

    async def test_a_crash_is_followed_by_a_pause_too(self, trial: Trial) -> None:
        store = await trial.store()
        run = await store.run("t", run_id="r", agent="a", lease_s=0.2, backoff_s=1000).start()
        run._stop()
        await trial.sleep(0.3)

        async def agent(run: Any) -> Any:
            return run.info.attempt

        report = await _recover(trial, store, agent)
        assert [skipped.code for skipped in report.skipped] == ["backing_off"]
        assert await _status(store) == "waiting"
        await _fire_all(store)
        assert (await _recover(trial, store, agent)).resumed[0].result == 2

    async def test_a_retry_at_a_later_time(self, trial: Trial) -> None:
        store = await trial.store()

        async def agent(run: Any) -> Any:
            return "done"

        run = await store.run("t", run_id="r", agent="a").start()
        tomorrow = dt.datetime.now(dt.UTC) + dt.timedelta(days=1)
        with pytest.raises(RunBusy):
            await store.retry("r", not_before=tomorrow)
        await run.fail("broken")
        assert (await store.retry("r", not_before=tomorrow)).status == "waiting"
        assert (await _recover(trial, store, agent)).resumed == []
        await _fire_all(store)
        assert (await _recover(trial, store, agent)).resumed[0].result == "done"
        with pytest.raises(RunEnded):
            await store.retry("r", not_before=tomorrow)

    async def test_a_queue_by_priority_then_first_come_first_served(self, store: AsyncStore) -> None:
        for id, priority in (("one", 0), ("two", 5), ("three", 0), ("four", 999)):
            run = await store.run(id, run_id=id, agent="a", priority=priority).start()
            await run.release()
        run = await store.run("five", run_id="five", agent="ab").start()
        await run.release()
        page = await list_ready(store._engine.backend, store._engine.codec, "", "a", limit=3)
        assert [ticket.run_id for ticket in page.tickets] == ["four", "two", "one"]
        assert [ticket.priority for ticket in page.tickets] == [999, 5, 0]
        (rest,) = (
            await list_ready(store._engine.backend, store._engine.codec, "", "a", limit=3, after=page.after)
        ).tickets
        assert (rest.run_id, rest.thread, rest.namespace) == ("three", ThreadKey.of("", "three"), "")
        assert await list_agents(store._engine, "", 9) == ["a", "ab"]
        await store.cancel("four")
        async with store.run("two", run_id="two"):
            pass
        page = await list_ready(store._engine.backend, store._engine.codec, "", "a", limit=9)
        assert [ticket.run_id for ticket in page.tickets] == ["one", "three"]
        assert page.after is None


async def _ring(trial: Trial, stores: list[AsyncStore]) -> int:
    """Let several processes fire what is due at once; return how many timers fired."""
    fired = await trial.together(*(lambda each=each: timers.fire_due(each._engine, "") for each in stores))
    return sum(each.count for each in fired)


async def _fire_all(store: AsyncStore) -> None:
    """Let the moment of every timer come."""
    backend = store._engine.backend
    for key, entry in await backend.entries(EntryQuery("", TIMER)):
        past = replace(entry, until=1, expect=entry.rank)
        await backend.commit_all([Commit(key, entries=(past,))])
        (listed,) = [
            each for each in await backend.entries(EntryQuery("", TIMER)) if each[1].key == entry.key
        ]
        assert await timers.fire(store._engine, *listed)
