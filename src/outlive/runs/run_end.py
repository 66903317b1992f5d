"""The end of a run in this process: completed, failed, cancelled, parked, released, or suspended because it waits.

Every end takes the same steps:

1. What was held back is stored, and saves in the background are waited for. A crash here leaves a
   run that died; it is recovered with what was stored.
2. The lease is not renewed any more.
3. One commit stores the record with its new status, frees the place, withdraws open questions if the
   run is over, and adds what its status needs: a ticket (released), a timer (a pause), the questions
   (waiting), a timer that tells the run around it. A crash before it leaves a run that died, a crash
   after it a run that has ended. If it is refused because a question was answered in between, the
   answer is read and the commit is tried again.
4. The run around this one is told (`outer_run.py`). A crash before it leaves that to a worker.

When the commit fails for another reason, the run is live again and the caller may try again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlive.backend import Commit, EntryRecord
from outlive.backend.entries import WAIT
from outlive.errors import (
    BudgetSpent,
    CallerError,
    DelayedSaveFailed,
    EntryHeld,
    LeaseLost,
    RunEnded,
    StoreBusy,
)
from outlive.events import END, QUESTION
from outlive.runs import attempts, lease, tickets, timers
from outlive.runs.lease import (
    CANCELLED,
    COMPLETED,
    FAILED,
    FREE,
    LEFT,
    LOCK,
    PARKED,
    RELEASED,
    RUN,
    RUNNING,
    WAITING,
    RunInfo,
)
from outlive.runs.outer_run import event_name
from outlive.runs.store_clock import store_now
from outlive.runs.waiting import Outer, Waiting
from outlive.runs.wakes import outer_timer
from outlive.values import moment

if TYPE_CHECKING:
    from outlive.runs.run import AsyncRun

_TRIES = 20
_ENDING_S = 5.0  # for the write that releases a run: its process is about to be killed


class RunEnd:
    """How one run ends."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run
        self._engine = run._engine
        self._key = run._key

    async def complete(self, result: Any = None) -> None:
        """End the run with a result."""
        await self._end(COMPLETED, result=result)

    async def fail(self, error: BaseException | str) -> None:
        """End the run because of an error, or let it wait for its next attempt."""
        self._run._waits.failed_by(error)
        failures = self._run.info.failures + 1
        if self._run.info.backoff_s is None:
            await self._end(FAILED, error=_text(error), failures=failures)
        elif failures >= self._run.info.max_attempts:
            await self._end(PARKED, error=_text(error), failures=failures)
        else:
            now = await store_now(self._engine)
            due = timers.backoff_due(replace(self._run.info, failures=failures), now)
            waits = Waiting("backoff", moment(now), moment(due))
            timer = timers.timer(due, self._run.id, timers.OF_RUN, self._run._epoch, self._run._fence)
            await self._end(WAITING, also=(timer,), error=_text(error), failures=failures, waits=waits)

    async def cancel(self) -> None:
        """End the run; nothing recovers it."""
        await self._end(CANCELLED)

    async def release(self) -> None:
        """Give the run up, so that another process can recover it at once."""
        await self._end(RELEASED, timeout_s=_ENDING_S)

    async def leave_by(self, error: BaseException | None) -> None:
        """End the run as its block was left."""
        is_lost = isinstance(error, LeaseLost) and (error.kind, error.key) == (RUN, self._run.id)
        if error is None:
            await self._complete_or_fail()
        elif not is_lost:
            try:
                if (spent := _budget_spent(error)) is not None:
                    await self._end(PARKED, error=_text(spent))
                elif isinstance(error, Exception):
                    await self.fail(error)
                else:
                    await self._engine.runtime.shielded(self.release())
            except RunEnded:
                pass  # by an earlier call that was cut off
            except DelayedSaveFailed as lost:  # the run has ended, and a cancelled task is to stay cancelled
                error.add_note(str(lost))

    async def _complete_or_fail(self) -> None:
        try:
            await self.complete(self._run.info.result)
        except (CallerError, DelayedSaveFailed) as error:
            if self._run._is_live:  # refused, and nothing was written
                self._run.info.result = None
                await self.fail(error)
            raise

    async def suspend(
        self,
        waiting: Waiting,
        entries: Sequence[EntryRecord],
        questions: Sequence[str] = (),
        *,
        is_ready: bool = False,
    ) -> None:
        """Make the run wait: one commit stores why, and frees the place. Raises EntryHeld if an answer came first.

        With `is_ready` it can continue at once, in another call of its handler. A caller that is
        cancelled meanwhile waits for the outcome: the run either waits, or it does not.
        """
        status = RELEASED if is_ready else WAITING
        await self._engine.runtime.shielded(self._suspend_now(status, waiting, entries, questions))

    async def _suspend_now(
        self, status: str, waiting: Waiting, entries: Sequence[EntryRecord], questions: Sequence[str]
    ) -> None:
        """Store the suspension, then what this process knows of the run. If it is refused, the run is live again."""
        async with self._run._mutex:
            self._run._check_live()
            now = moment(self._engine.runtime.now())
            tried = attempts.end(self._run.info.attempts, WAITING, now)
            suspended = replace(self._run.info, status=status, waits=waiting, attempts=tried, step=None)
            suspended.outer = self._link() or self._run.info.outer
            body = lease.pack_run(self._engine, suspended)
            await self._run._flush()
            outer_timers = await self._outer_timers(status, suspended)
            self._run._is_suspended = True  # before the run is not live any more, for steps of other branches
            # A crash before this commit leaves a run that died: its next attempt asks again. A
            # crash after it leaves a run that waits, with its questions, and belongs to no process.
            try:
                await self._store(status, body, None, [*entries, *outer_timers])
            except BaseException:
                self._run._is_suspended = False
                raise
            for name in ("status", "waits", "outer", "attempts", "step", "updated_at"):
                setattr(self._run.info, name, getattr(suspended, name))
            self._tell_questions(questions)
            self._run._tell(END, usage=self._run.info.usage)
        await timers.fire_outer(self._engine, self._key, outer_timers)

    async def suspend_also(
        self,
        waiting: Waiting | None,
        entries: Sequence[EntryRecord],
        now: int,
        questions: Sequence[str] = (),
    ) -> bool:
        """Add what another branch waits for to a run that is suspended; None: that branch can continue.

        The run does not belong to this process any more, so the commit expects it as this process
        left it. If it was answered or claimed since, the branch asks again when the run is resumed.
        False: it is not suspended.
        """
        async with self._run._mutex:
            if not self._run._is_suspended:
                return False
            info = self._run.info
            if info.status == RELEASED:  # because of another branch: this one asks when it is resumed
                return True
            if waiting is not None:
                info = replace(info, waits=waiting if info.waits is None else info.waits.joined(waiting))
            before = (self._run._epoch, self._run._fence, self._run._revision)
            run = EntryRecord(
                RUN, self._run.id, lease.pack_run(self._engine, info), info.status,
                epoch=self._run._epoch, fence=self._run._fence, revision=self._run._revision + 1, expect=before,
            )  # fmt: skip
            outer_timers: list[EntryRecord] = []
            also: Sequence[EntryRecord] = (run,)
            if waiting is None:
                outer_timers = await self._outer_timers(RELEASED, info)
                also = (*self._ticketed(run, info, now), *outer_timers)
            try:
                await self._engine.commit(Commit(self._key, entries=(*also, *entries)))
            except EntryHeld as error:
                if error.kind == RUN:
                    return True
                raise
            self._run._revision += 1
            self._run.info.waits, self._run.info.status = info.waits, also[0].status
            self._tell_questions(questions)
        await timers.fire_outer(self._engine, self._key, outer_timers)
        return True

    def _link(self) -> Outer | None:
        """Return the run around this one, which must wait too, and how it learns that this one can continue."""
        outer = self._run._waiting_outer()
        if outer is None or outer._engine is not self._engine:
            return None
        event = event_name(self._run.info.thread, self._run.id, *self._run._rank)
        return Outer(outer.info.thread, outer.id, event)

    async def _outer_timers(self, status: str, info: RunInfo) -> list[EntryRecord]:
        """Return the timer that tells the run around this one, if it waits for it, that this one has left its wait."""
        if info.outer is None or status == WAITING:
            return []
        now = await store_now(self._engine)
        return [outer_timer(self._engine.codec, self._run.id, info.outer, now, self._run._epoch)]

    def _tell_questions(self, names: Sequence[str]) -> None:
        for name in names:
            self._run._tell(QUESTION, step=name)

    async def _end(
        self,
        status: str,
        timeout_s: float | None = None,
        also: Sequence[EntryRecord] = (),
        **changes: Any,
    ) -> None:
        """Store what was held back, then the end. When that is refused or fails, the run continues as before."""
        async with self._run._mutex:
            self._run._check_live()
            now = moment(self._engine.runtime.now())
            tried = attempts.end(
                self._run.info.attempts, FAILED if "error" in changes else status, now, changes.get("error")
            )
            changes = {**changes, "attempts": tried, "step": None}
            ended_at = None if status in (RELEASED, WAITING, PARKED) else now
            ended = replace(self._run.info, status=status, ended_at=ended_at, **changes)
            if status == COMPLETED and ended.phase is not None and ended.phase not in ended.completed_phases:
                ended.completed_phases = [*ended.completed_phases, ended.phase]
            body = lease.pack_run(self._engine, ended)  # before anything is written
            try:
                await self._run._flush(timeout_s)
            except DelayedSaveFailed:
                if status != COMPLETED:  # those saves are lost, and the run ends anyway
                    await self._run._flush(timeout_s)  # what was held back waited for them
                    await self._finish(ended, body, timeout_s, changes, also)
                raise
            await self._finish(ended, body, timeout_s, changes, also)

    async def _finish(
        self,
        ended: RunInfo,
        body: bytes,
        timeout_s: float | None,
        changes: Iterable[str],
        also: Sequence[EntryRecord],
    ) -> None:
        outer_timers = await self._outer_timers(ended.status, ended)
        for _ in range(_TRIES):
            waits = await self._run._waits.withdrawals(is_over=ended.status not in (RELEASED, WAITING))
            try:
                await self._store(ended.status, body, timeout_s, [*waits, *also, *outer_timers])
                break
            except EntryHeld:  # a question of the run was answered in between
                await self._run._waits.read()
        else:
            raise StoreBusy(
                f"the questions of run {self._run.id!r} were answered at each attempt to end it; try again"
            )
        for name in ("status", "ended_at", "updated_at", "completed_phases", *changes):
            setattr(self._run.info, name, getattr(ended, name))
        self._run._tell(END, usage=ended.usage, error=ended.error if "error" in changes else None)
        if ended.status != RELEASED:  # its process may be about to end: a worker does it then
            await timers.fire_outer(self._engine, self._key, outer_timers)

    async def _store(
        self, status: str, body: bytes, timeout_s: float | None, waits: Sequence[EntryRecord] = ()
    ) -> None:
        """Do the one commit of an end: see step 3 of the module. If it fails, the run is live again."""
        self._run._revision += 1
        run = self._run
        ended = EntryRecord(
            RUN, run.id, body, status, epoch=run._epoch, fence=run._fence, revision=run._revision
        )
        entries = [ended, *waits]
        if status == RELEASED:
            now = self._engine.runtime.now()
            entries = [*self._ticketed(ended, self._run.info, now), *waits]
        if self._run._has_place:  # freed, not deleted: another run may hold the thread by now
            place = LEFT if status in (RELEASED, WAITING) else FREE
            entries.append(replace(self._run._lock(None), status=place, lease_s=None))
        chunks = self._run._stream.take()
        commit = Commit(self._key, entries=(*entries, *chunks), timeout_s=timeout_s)
        self._run._stop()  # a renewal that came after the end would be refused
        try:
            stored = await self._commit(status, self._run._fenced(commit))
            self._run._left = next((entry for entry in stored if entry.kind == LOCK), None)
            self._run._stream.settle(chunks)
        except (LeaseLost, RunEnded):
            raise
        except BaseException:
            self._run._go_live()  # the caller may try again
            raise

    def _ticketed(self, run: EntryRecord, info: RunInfo, now: int) -> tuple[EntryRecord, EntryRecord]:
        return tickets.released(self._engine.codec, run, tickets.Errand.of(info), now)

    async def _commit(self, status: str, commit: Commit) -> Sequence[EntryRecord]:
        """Store the end; return the entries as they are stored, if this call has stored them."""
        try:
            return (await self._engine.commit(commit)).entries
        except (LeaseLost, EntryHeld) as error:
            if error.kind == WAIT:  # answered in between: nothing was stored
                raise
            refusal = error
        # It may be stored already, by an earlier call whose outcome was not known.
        stored = await lease.find(self._engine, self._key, RUN, self._run.id)
        if stored is None or stored.fence != self._run._fence or stored.status == RUNNING:
            self._run._is_live = True
            raise self._run._lose(refusal)
        if stored.status != status:
            self._run.info.status = stored.status
            raise RunEnded(self._run.id, stored.status)
        return ()


def _budget_spent(error: BaseException) -> BudgetSpent | None:
    """Return the BudgetSpent by which a block was left, also as a part of a group, as task groups raise it."""
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_budget_spent, error.exceptions)), None)
    return error if isinstance(error, BudgetSpent) else None


def _text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # its own text is what fails
        return type(error).__name__
