"""Waiting inside a run: questions, events and sleeps that outlive the process.

The first call stores what is asked, sets the run "waiting" and frees its place, in one commit
(`wait_entry.py` says why that loses no answer). Then it raises RunSuspended, which leaves the block
of the run. From then on no process and no lease belongs to the run. An answer, or a timer, makes it
claimable. The process that claims it calls the same code again: the steps return what is stored,
and so does this call. That is not another attempt.

Branches of a run, tasks or threads, wait for each other. While steps of other branches are in
flight, the question is stored at once, but the run waits only when they are done. A branch that
asks after the run has been suspended adds its question to it. The run can continue as soon as one
branch can.

A short sleep is not worth giving up the process: below `LIVE_SLEEP_S` it sleeps here. The moment at
which it ends is stored first, so that after a crash only the rest of it is slept.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from outlive.arguments import check_seconds
from outlive.backend import EntryRecord
from outlive.backend.entries import TIMER, WAIT
from outlive.dataclass import dataclass
from outlive.errors import (
    AmbiguousStep,
    BadArgument,
    EntryHeld,
    NoEffect,
    RunEnded,
    RunSuspended,
    StoreBusy,
    Unanswered,
)
from outlive.runs.answer_schema import essence, revive, schema_of
from outlive.runs.known_waits import Around, Asked, Asker, Call, KnownWaits, Order, numbered
from outlive.runs.store_clock import store_now
from outlive.runs.wait_entry import (
    ANSWERED,
    EVENT,
    EXPIRED,
    INNER,
    OPEN,
    QUESTION,
    SLEEP,
    WITHDRAWN,
    Wait,
    check_asked_name,
    check_name,
    digest_of,
)
from outlive.runs.waiting import MISSING, Group, Mode, Waiting
from outlive.values import micros, moment

LIVE_SLEEP_S = 5.0  # a sleep of at most this is slept by the process itself
_QUIET_S = 0.05  # without a step of another branch, until the run is suspended
_GRACE_S = 0.01  # for other branches that are about to begin, before the run is suspended
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.05, 1.0  # between looks for answers while other branches work
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Question:
    """A question of `run.ask_all` or `run.ask_any`: what is asked, and what an answer looks like."""

    payload: Any = None
    schema: Any = None


class Branches(Order, Protocol):
    """What the ledger of the run knows of its other branches."""

    def count(self, name: str) -> str: ...
    def effect_key(self) -> str: ...
    def around(self) -> Around: ...
    def is_busy_outside(self, steps: Around) -> bool: ...
    def suspending(self, steps: Around) -> AbstractContextManager[bool]: ...
    def occupied(self, name: str) -> AbstractContextManager[None]: ...


class Suspension(Protocol):
    """How a run is suspended."""

    async def suspend(
        self,
        waiting: Waiting,
        entries: Sequence[EntryRecord],
        questions: Sequence[str] = (),
        *,
        is_ready: bool = False,
    ) -> None: ...
    async def suspend_also(
        self,
        waiting: Waiting | None,
        entries: Sequence[EntryRecord],
        now: int,
        questions: Sequence[str] = (),
    ) -> bool: ...


class Suspendable(Asker, Protocol):
    """The run that waits."""

    _waits: Waits

    @property
    def _end(self) -> Suspension: ...

    @property
    def _branches(self) -> Branches: ...
    @property
    def _is_suspended(self) -> bool: ...
    @property
    def _is_replayed(self) -> bool: ...
    def _check_live(self) -> None: ...
    @property
    def _outer(self) -> Suspendable | None:
        """The run in whose block this one is."""
        ...

    def _runs_inside(self) -> Sequence[Suspendable]:
        """Return the live runs in the block of this one."""
        ...


class Waits(KnownWaits):
    """The questions, events and sleeps of one run."""

    def __init__(self, run: Suspendable) -> None:
        super().__init__(run)
        self._run: Suspendable = run
        self._calls: dict[Call, None] = {}  # that wait here, of all branches
        self._sleeps_by_count = 0  # that are under way without a key

    # What the run calls

    async def ask(
        self,
        name: str,
        payload: Any,
        schema: Any,
        timeout_s: float | None,
        default: Any,
        type: str = QUESTION,
    ) -> Any:
        """Return the answer to one question, or to one event."""
        asked = self._asked(name, type, payload, schema)
        waits = await self._settled([asked], "all", timeout_s, default)
        return self._value(asked, waits[name], default)

    async def ask_next(self, name: str, payload: Any, schema: Any) -> Any:
        """Return the answer to the first question of a series, "name", "name#2" and so on, that was not asked and answered.

        After the answer None, no more is asked in this attempt.
        """
        number = 1 + sum(1 for _ in self.answers(name))
        last = self._known.get(numbered(name, number - 1))
        if last is not None and last.value is None and last.attempt == self._run.info.attempt:
            return None
        wait = self._known.get(numbered(name, number))
        if wait is not None and wait.status == OPEN:
            payload = wait.payload  # as it was when it was first asked
        return await self.ask(numbered(name, number), payload, schema, None, MISSING)

    async def wait(self, name: str, timeout_s: float | None, default: Any) -> Any:
        """Return what an event brought."""
        return await self.ask(name, None, None, timeout_s, default, EVENT)

    async def ask_all(
        self, questions: Mapping[str, Any], timeout_s: float | None, default: Any
    ) -> dict[str, Any]:
        """Return the answers to all questions."""
        asked = self._questions(questions)
        waits = await self._settled(asked, "all", timeout_s, default)
        missed = [name for name, wait in waits.items() if wait.status != ANSWERED]
        if missed and default is MISSING:
            raise Unanswered(self._run.id, missed)
        return {each.name: self._value(each, waits[each.name], default) for each in asked}

    def first_asked(self, name: str) -> Question | None:
        """Return a question as the run has asked it before; None if it has not."""
        wait = self._known.get(name)
        if wait is None or wait.digest is None or wait.type != QUESTION:
            return None
        return Question(wait.payload, wait.schema)

    async def ask_any(
        self, questions: Mapping[str, Any], timeout_s: float | None, default: Any
    ) -> tuple[str | None, Any]:
        """Return the name and the value of the first answer, and withdraw the other questions."""
        asked = self._questions(questions)
        waits = await self._settled(asked, "any", timeout_s, default)
        # Withdraw before choosing: from then on nothing changes, and every attempt chooses the
        # same.
        while still_open := [wait for wait in waits.values() if wait.status == OPEN]:
            await self._withdraw(still_open)
            waits = {name: self._known.get(name, wait) for name, wait in waits.items()}
        answered = [each for each in asked if self._has_answer(each)]
        if not answered:
            if default is MISSING:
                raise Unanswered(self._run.id, waits)
            return None, default
        first = min(answered, key=lambda each: (waits[each.name].answered_at, each.name))
        return first.name, self._value(first, waits[first.name], default)

    async def sleep(self, seconds: float | None, until: dt.datetime | None, key: str | None) -> None:
        """Return when a moment has come."""
        if (seconds is None) == (until is None):
            raise BadArgument("sleep takes either seconds or until=, a datetime with a time zone")
        self._run._check_live()
        if key is not None:
            return await self._sleep(check_name(f"sleep={key}"), seconds, until)
        if self._sleeps_by_count:
            raise AmbiguousStep(self._run.id, "sleep")
        self._sleeps_by_count += 1
        try:
            await self._sleep(f"sleep#{self._run._branches.count('sleep')}", seconds, until)
        finally:
            self._sleeps_by_count -= 1

    async def _sleep(self, name: str, seconds: float | None, until: dt.datetime | None) -> None:
        engine = self._run._engine
        known = self._known.get(name)
        if known is not None and known.status == EXPIRED:
            return
        now = await store_now(engine)
        due = known.due_at if known is not None and known.status == OPEN else 0
        if not due:
            due = (
                micros(until) if until is not None else now + int(check_seconds("seconds", seconds, 0) * 1e6)
            )
        asked = Asked(name, SLEEP, None, None, None, b"")
        if due - now <= LIVE_SLEEP_S * 1e6:
            await self._sleep_here(asked, due, now)
        else:
            await self._settled([asked], "all", None, None, due)

    async def _sleep_here(self, asked: Asked, due: int, now: int) -> None:
        wait = self._known.get(asked.name)
        if wait is None or wait.status == WITHDRAWN:
            wait = self._opened(asked, Group((asked.name,)), due, now)
            entry = self._entry(wait)
            # From here on a crash leaves the moment at which the sleep ends: only its rest is
            # slept.
            await self._run._write_entries(entry)
            wait = replace(wait, entry=replace(entry, expect=None))
        if due > now:
            with self._run._branches.occupied(asked.name):
                await self._run._engine.runtime.sleep((due - now) / 1e6)
        self._known[asked.name] = replace(wait, status=EXPIRED)  # nothing is left to withdraw

    async def wait_for_run(self, run_id: str, event: str, code_position: Sequence[Any]) -> NoReturn:
        """Suspend this run until the run that waits in its block can continue. Raises RunSuspended.

        If that can continue already, this run is released instead of waiting: its code must enter
        the block again.
        """
        payload = [run_id, *code_position]
        await self._settled([Asked(event, INNER, payload, None, None, b"")], "all", None, None)
        raise RunSuspended(self._run.id)

    # Checks

    def _questions(self, questions: object) -> list[Asked]:
        if not isinstance(questions, Mapping) or not questions:
            raise BadArgument(
                f"questions must be a dict of name → payload or outlive.Question, not {questions!r:.100}"
            )
        return [
            self._asked(name, QUESTION, given.payload, given.schema)
            if isinstance(given, Question)
            else self._asked(name, QUESTION, given, None)
            for name, given in questions.items()
        ]

    def _asked(self, name: str, type: str, payload: Any, schema: Any) -> Asked:
        check_asked_name(name)
        json_schema = schema_of(schema)
        digest = digest_of(self._run._engine.codec, name, type, payload, essence(json_schema))
        return Asked(name, type, payload, schema, json_schema, digest)

    def _value(self, asked: Asked, wait: Wait, default: Any) -> Any:
        if wait.status == ANSWERED:
            return revive(asked.schema, wait.value)
        if default is MISSING:
            raise Unanswered(self._run.id, [asked.name])
        return default

    def _check_no_effect(self, asked: Sequence[Asked]) -> None:
        """Raise BadArgument inside an effect: the next attempt would take a wait there for a crash in its middle."""
        if not self.is_in_effect():
            return
        raise BadArgument(
            f"{asked[0].name!r} of run {self._run.id!r} would wait inside a step with effect=True, which could not "
            "tell a wait from a crash; ask before or after the step, and pass the answer to it"
        )

    def is_in_effect(self) -> bool:
        """Tell whether the caller is inside an effect, of this run or of one around it."""
        try:
            self._run._branches.effect_key()
        except NoEffect:
            return self._run._outer is not None and self._run._outer._waits.is_in_effect()
        return True

    # Waiting

    async def _settled(
        self, asked: Sequence[Asked], mode: Mode, timeout_s: float | None, default: Any, due: int = 0
    ) -> dict[str, Wait]:
        """Return what is waited for once it is settled; until then suspend the run."""
        timeout_s = None if timeout_s is None else check_seconds("timeout_s", timeout_s)
        self._check_no_effect(asked)
        group = Group(tuple(each.name for each in asked), mode)
        call = Call(asked, group, timeout_s, due, self._run._branches.around(), default is MISSING)
        self._calls[call] = None
        try:
            return await self._return_or_suspend(call)
        finally:
            del self._calls[call]

    async def _return_or_suspend(self, call: Call) -> dict[str, Wait]:
        """Return the waits of a call when they are settled. Otherwise suspend the run, and raise RunSuspended."""
        run, asked, group = self._run, call.asked, call.group
        is_quiet = False
        for _ in range(_TRIES):
            # 1. What is known: answers that this attempt read at its start, or a moment ago.
            if call.is_suspended:  # by another branch, with its own questions
                break
            if not run._is_suspended:
                run._check_live()
            if run._is_replayed and not self._is_met(call):
                raise RunEnded(run.id, run.info.status)
            self._check_same(asked)
            self._ask_again(call)
            await self._expire(group)
            now = await store_now(run._engine)
            entries = self._entries(call, now)
            is_met = self._is_met(call)
            try:
                # 2. The run is suspended by another branch: its record gets this group too.
                if run._is_suspended:
                    waiting = None if is_met else _waiting([group], entries, now, call.runs)
                    if await run._end.suspend_also(waiting, entries, now, self._unanswered(asked)):
                        break
                    continue
                # 3. All that is needed is there. (An early answer is bound to its question.)
                if is_met and not call.runs:
                    await self._bind(asked, group)
                    return {
                        name: self._known.get(name) or Wait(name, status=WITHDRAWN) for name in group.names
                    }
                # 4. Other branches are at work: store the question, and wait for them or an answer. A
                #    crash leaves a run that died, with a question that can be answered already.
                if not is_quiet and await self._is_busy(call, _GRACE_S):
                    self._has_asked = True
                    await run._write_entries(*entries)
                    await self.read()
                    is_quiet = await self._wait_for_branches(call)
                    continue
                # 5. Nothing is left to do: suspend the run, for all that its branches wait for. A
                #    crash before this commit leaves a run that died and asks again; a crash after
                #    it leaves one that waits.
                with run._branches.suspending(self._waiting_steps()) as may_suspend:
                    if may_suspend:
                        await self._suspend(call, now)
                        break
                is_quiet = False  # a step of another branch has begun since
            except EntryHeld as error:
                if error.kind != WAIT:
                    raise
                is_quiet = False
                await self.read()  # it was answered, or expired, in between: look again
            except RunSuspended:
                pass  # by another branch, in between: join it
        else:
            raise StoreBusy(f"the questions of run {run.id!r} were changed at each attempt to ask; try again")
        raise RunSuspended(run.id, () if call.runs else group.names)

    async def _suspend(self, call: Call, now: int) -> None:
        """Suspend the run for this call, for those of other branches, and for what was asked before."""
        # 1. What this process waits for, in all branches.
        calls = [call, *(other for other in tuple(self._calls) if other is not call)]
        entries = {(entry.kind, entry.key): entry for each in calls for entry in self._entries(each, now)}
        # 2. What branches asked in an earlier attempt, and did not come to ask again in this one.
        groups, others = self._others_waiting(calls, now)
        entries.update(((entry.kind, entry.key), entry) for entry in others)
        runs = [id for each in calls for id in each.runs]
        runs += [
            wait.inner_run
            for wait in self._known.values()
            if wait.inner_run is not None and Group(wait.group, wait.mode) in groups
        ]
        # 3. One commit writes all of these waits and the record of the run: see `RunEnd.suspend`. A wait
        #    that was answered meanwhile refuses it, and nothing is stored.
        waiting = _waiting([*(each.group for each in calls), *groups], list(entries.values()), now, runs)
        questions = dict.fromkeys(name for each in calls for name in self._unanswered(each.asked))
        is_ready = any(each.runs and self._is_met(each) for each in calls)
        await self._run._end.suspend(waiting, list(entries.values()), list(questions), is_ready=is_ready)
        for each in calls:
            each.is_suspended = True

    async def _wait_for_branches(self, call: Call) -> bool:
        """Return True when other branches have been quiet for a moment, False when this one may continue."""
        runtime, run = self._run._engine.runtime, self._run
        look_s, unseen_s, quiet_s = _FIRST_LOOK_S, 0.0, 0.0
        while quiet_s <= _QUIET_S:  # a branch may be about to take its next step
            await runtime.sleep(_QUIET_S)
            quiet_s = 0.0 if self._is_busy_now(call) else quiet_s + _QUIET_S
            unseen_s += _QUIET_S
            if unseen_s >= look_s or self._is_due(call):
                look_s, unseen_s = min(_LONGEST_LOOK_S, 2 * look_s), 0.0
                await self.read()
                await self._expire(call.group)
            if run._is_suspended or call.is_suspended or (self._is_met(call) and not call.runs):
                return False
            run._check_live()
        await self.read()
        return True

    def _is_due(self, call: Call) -> bool:
        """Tell whether a deadline of a call has passed, by the clock of this process."""
        now = self._run._engine.runtime.now()
        return any(
            0 < wait.due_at <= now
            for name in call.group.names
            if (wait := self._known.get(name)) is not None and wait.status == OPEN
        )

    async def _is_busy(self, call: Call, grace_s: float) -> bool:
        """Tell whether other branches are at work, or begin in a moment."""
        await self._run._engine.runtime.sleep(grace_s)
        return self._is_busy_now(call)

    def _is_busy_now(self, call: Call) -> bool:
        """Tell whether another branch is in a step that does not itself wait, or has what it waits for."""
        calls = tuple(self._calls)
        return self._has_steps() or any(
            self._is_met(other) for other in calls if other is not call and not other.runs
        )

    def _has_steps(self, around: Around = frozenset()) -> bool:
        """Tell whether steps that do not wait are in flight, of this run or of runs in its block."""
        waiting = self._waiting_steps(around)
        inside = (run._waits for run in self._run._runs_inside())
        return self._run._branches.is_busy_outside(waiting) or any(
            waits._has_steps(waiting) for waits in inside
        )

    def _waiting_steps(self, around: Around = frozenset()) -> Around:
        """Return the steps in which branches of this run wait."""
        return around.union(*(each.steps for each in tuple(self._calls)))


def _waiting(
    groups: Sequence[Group], entries: Sequence[EntryRecord], now: int, runs: Sequence[str]
) -> Waiting:
    """Return why a run waits, from the groups and the entries of the commit that suspends it."""
    due = [moment(entry.until) for entry in entries if entry.kind == TIMER and not entry.gone]
    return Waiting("answers", moment(now), min(due, default=None), tuple(groups), tuple(dict.fromkeys(runs)))
