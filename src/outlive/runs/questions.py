"""Questions seen from outside their run: listing and answering them.

That needs no process of the agent and none of its types: what the codec cannot build stays packed.
`wait_entry.py` says why no answer is lost.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from outlive.arguments import check_choice
from outlive.backend import Commit, EntryQuery, EntryRecord, ThreadKey, each_entry
from outlive.backend.entries import WAIT
from outlive.dataclass import dataclass
from outlive.errors import (
    AlreadyAnswered,
    AnswerRefused,
    Corrupt,
    DamagedEntry,
    EntryHeld,
    KeyMissing,
    OutliveError,
    QuestionClosed,
    RunBusy,
    RunEnded,
    RunMissing,
    TypeChanged,
    UnknownTag,
)
from outlive.events import ANSWER, Event
from outlive.format.codec import Codec
from outlive.runs import timers, wakes
from outlive.runs.answer_schema import Mismatch, check, plain
from outlive.runs.lease import UNFINISHED, unreadable
from outlive.runs.step_record import StepInfo
from outlive.runs.store_clock import store_now
from outlive.runs.wait_entry import (
    ANSWERED,
    EVENT,
    EXPIRED,
    INNER,
    OPEN,
    QUESTION,
    SLEEP,
    STATUSES,
    WITHDRAWN,
    Wait,
    check_asked_name,
    is_unasked_name,
    put,
    read_run,
    read_waits,
    unpack_wait,
)
from outlive.threads.engine import Engine
from outlive.values import moment

_TRIES = 20
_PAGE = 200


@dataclass(frozen=True, slots=True)
class QuestionInfo:
    """A question of a run, or an event that it waits for, and the answer if there is one."""

    run: str
    thread: str
    name: str
    type: str  # "question" or "event"
    status: str  # "open", "answered", "expired" or "withdrawn"
    payload: Any = None
    schema: Mapping[str, Any] | None = None  # a JSON Schema
    agent: str | None = None
    asked_at: dt.datetime | None = None
    due_at: dt.datetime | None = None
    value: Any = None
    by: str | None = None
    answered_at: dt.datetime | None = None
    refused: str | None = None  # why the type that the agent named refused the last answer: it is asked again
    error: str | None = None  # why it cannot be read
    is_readable: bool = True  # if not: only run, thread, name and status are known; see `error`


def info_of(key: ThreadKey, run_id: str, wait: Wait) -> QuestionInfo:
    """Return what the API tells of a wait."""
    return QuestionInfo(
        run_id, key.id, wait.name, wait.type or "event", wait.status, wait.payload, wait.schema, wait.agent,
        _moment(wait.asked_at), _moment(wait.due_at), wait.value, wait.by, _moment(wait.answered_at),
        wait.refused,
    )  # fmt: skip


def _moment(at: int) -> dt.datetime | None:
    return moment(at) if at else None


def check_status(status: object) -> str | None:
    """Return the status of questions to list, or None for all."""
    return None if status is None else check_choice("status", status, STATUSES)


_KINDS = {QUESTION: "ask", EVENT: "wait", SLEEP: "sleep", INNER: "run", "": "wait"}
_STEP_STATUS = {OPEN: "started", ANSWERED: "done", EXPIRED: "done", WITHDRAWN: "raised"}


async def read_wait_steps(engine: Engine, key: ThreadKey, run_id: str) -> list[tuple[int, StepInfo]]:
    """Return what a run asked and slept as steps, with their positions."""
    now = engine.runtime.now()
    steps: list[tuple[int, StepInfo]] = []
    for wait in (await _read_known(engine, key, run_id)).values():
        is_over = wait.type == SLEEP and wait.due_at <= now
        status = "done" if is_over else _STEP_STATUS[wait.status]
        error = wait.status if wait.status in (EXPIRED, WITHDRAWN) and not is_over else None
        kind = _KINDS.get(wait.type, "wait")
        step = StepInfo(
            wait.inner_run or wait.name,
            "",
            status,
            wait.digest or None,
            wait.value,
            error,
            wait.attempt,
            kind=kind,
        )
        ended = wait.due_at if is_over else wait.answered_at
        step = replace(step, _began=wait.asked_at, _ended=0 if status == "started" else ended)
        steps.append((wait.order, step))
    return steps


async def _read_known(engine: Engine, key: ThreadKey, run_id: str) -> dict[str, Wait]:
    """Return the waits of a run; with types that this process does not know, their values stay packed."""
    try:
        return await read_waits(engine, key, run_id)
    except (UnknownTag, TypeChanged):
        return await read_waits(engine, key, run_id, opaque=True)


async def find_questions(
    engine: Engine, tenant: str, *, status: str | None, thread: ThreadKey | None, events: bool
) -> AsyncIterator[QuestionInfo]:
    """Iterate over questions by run and name: one indexed query for all threads.

    A question whose deadline has passed is expired, even if no process has noted that yet. A
    damaged question comes with `is_readable=False` and hides no other.
    """
    statuses = None if status is None else [OPEN, EXPIRED] if status == EXPIRED else [status]
    now = await store_now(engine)
    query = EntryQuery(tenant, WAIT, thread=thread, statuses=statuses, limit=_PAGE)
    async for key, entry in each_entry(engine.backend, query):
        try:
            question = _read_question(engine.codec, key, entry, now)
        except KeyMissing:
            raise  # no other question can be read without this key either
        except OutliveError as error:
            question = _unreadable_question(key, entry, error)
        if status in (None, question.status) and (
            question.type == QUESTION or (events and question.type == EVENT)
        ):
            yield question


def _read_question(codec: Codec, key: ThreadKey, entry: EntryRecord | DamagedEntry, now: int) -> QuestionInfo:
    """Return a stored wait; values of types that this process does not know stay packed."""
    if isinstance(entry, DamagedEntry):
        raise entry
    try:
        wait = unpack_wait(codec, key.id, entry)
    except KeyMissing:
        raise
    except OutliveError:
        wait = unpack_wait(codec, key.id, entry, opaque=True)
    if wait.is_overdue(now):
        wait = replace(wait, status=EXPIRED)
    return info_of(key, entry.key.rsplit("\n", 1)[0], wait)


def _unreadable_question(
    key: ThreadKey, entry: EntryRecord | DamagedEntry, error: OutliveError
) -> QuestionInfo:
    """Return what the row of a wait tells. Its name shows whether it may be a question."""
    run_id, _, name = entry.key.rpartition("\n")
    type = SLEEP if is_unasked_name(name) else QUESTION
    status = entry.status if entry.status in STATUSES else OPEN
    return QuestionInfo(run_id, key.id, name, type, status, error=unreadable(error), is_readable=False)


def check_readable(question: QuestionInfo) -> None:
    """Raise Corrupt if a question of a list cannot be read."""
    if not question.is_readable:
        what = f"question {question.name!r} of run {question.run!r}: {question.error}"
        raise Corrupt(what, thread=question.thread)


async def answer(
    engine: Engine, key: ThreadKey, run_id: str, name: str, value: Any, by: str | None
) -> QuestionInfo:
    """Store an answer and wake the run that waits for it, in one commit."""
    check_asked_name(name)
    token = os.urandom(8)
    for _ in range(_TRIES):
        # 1. Read the run and all its waits, as they were at one moment: the last of several answers at
        #    once has to see the others, because it is the one that wakes the run.
        run, waits = await read_run(engine, key, run_id)
        if run is None:
            raise RunMissing(run_id)
        wait = waits.get(name, Wait(name))
        if wait.token == token:
            return info_of(key, run_id, wait)  # stored by a try of this call whose reply was lost
        # 2. Refuse what came too late, and what does not fit the schema. Nothing is stored so far.
        _check_open(run, wait)
        now = await store_now(engine)
        if wait.is_overdue(now):
            await timers.fire_at(engine, key, wait.due_at, run_id, name)  # nobody has done it yet
            raise QuestionClosed(run_id, name, EXPIRED)
        answered = replace(wait, status=ANSWERED, by=by, answered_at=now, token=token)
        waits[name] = answered = replace(answered, value=_checked(run_id, wait, value))
        # 3. One commit stores the answer, removes the deadline, and wakes the run if it can
        #    continue with that. Each entry expects the rank that was read.
        entries = [put(engine.codec, run_id, answered)]
        if wait.due_at:
            entries.append(timers.timer_removed(wait.due_at, run_id, name))
        entries += wakes.wake(engine.codec, key, run, waits, name, now)
        try:
            # A crash before this commit leaves an open question; a crash after it, a run that any
            # process can claim, unless it still waits for other answers.
            await engine.commit(Commit(key, entries=tuple(entries)))
        except EntryHeld:
            continue  # another answer, or the run itself, was faster: look again
        engine.events.emit(Event(ANSWER, key.id, run=run_id, step=name, agent=wait.agent))
        wakes.tell(engine, key, entries)
        # 4. Tell the run around the run. A crash before that leaves a timer, which any worker fires.
        await timers.fire_outer(engine, key, entries)
        return info_of(key, run_id, answered)
    raise RunBusy(run_id, None)


def _check_open(run: EntryRecord, wait: Wait) -> None:
    if wait.status == ANSWERED:
        raise AlreadyAnswered(run.key, wait.name, wait.by, _moment(wait.answered_at))
    if run.status not in UNFINISHED:
        raise RunEnded(run.key, run.status)
    if wait.status != OPEN:
        raise QuestionClosed(run.key, wait.name, wait.status)


def _checked(run_id: str, wait: Wait, value: Any) -> Any:
    """Return the answer as it is stored. Raises AnswerRefused."""
    if wait.schema is None:
        return value
    value = plain(value)
    try:
        check(wait.schema, value)
    except Mismatch as error:
        raise AnswerRefused(run_id, wait.name, error.path, error.reason) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        reason = f"the schema of the question is not a JSON Schema ({error})"
        raise AnswerRefused(run_id, wait.name, "schema", reason) from error
    return value
