"""What a run has asked: questions, events, sleeps and runs inside it, as they are stored.

They are read when an attempt begins, and again when the store refuses a write because an answer
came first. Every write expects the rank that was read (`wait_entry.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from outlive.backend import EntryRecord, Receipt
from outlive.backend.entries import WAIT
from outlive.dataclass import dataclass
from outlive.errors import (
    EntryHeld,
    QuestionChanged,
    Unanswered,
)
from outlive.runs import timers
from outlive.runs.answer_schema import check, plain, revive
from outlive.runs.lease import RunInfo
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
    next_rank,
    put,
    read_waits,
    withdrawn,
)
from outlive.runs.waiting import Group
from outlive.runs.writing_run import WritingRun

_MAX_REASON = 500  # characters

Around = frozenset[tuple[int, str, str]]  # steps: (id of the ledger, name, key)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a call waits for."""

    name: str
    type: str
    payload: Any
    schema: Any  # as the caller gave it
    json_schema: dict[str, Any] | None
    digest: bytes


@dataclass(eq=False, slots=True)
class Call:
    """A call that waits in this process, until it returns or the run is suspended."""

    asked: Sequence[Asked]
    group: Group
    timeout_s: float | None
    due: int  # 0: by timeout_s
    steps: Around  # that it is in, of this and other runs: they do nothing but wait
    asks_again: bool  # what nobody answered, and by which an attempt failed
    is_suspended: bool = False  # the record of the run waits for it

    @property
    def runs(self) -> tuple[str, ...]:
        """The run in the block of this one that it waits for. Such a call never returns: that block must be entered again."""
        return tuple(each.payload[0] for each in self.asked if each.type == INNER)

    def deadline(self, now: int) -> int:
        return self.due or (0 if self.timeout_s is None else now + int(self.timeout_s * 1e6))


class Order(Protocol):
    """Where waits are numbered among the steps of their run."""

    def number(self, name: str, key: str) -> int: ...


class Asker(WritingRun, Protocol):
    """The run that asks."""

    info: RunInfo

    @property
    def _branches(self) -> Order: ...
    async def _write_entries(self, *entries: EntryRecord) -> Receipt: ...


class KnownWaits:
    """The waits of one run, as far as this process knows them."""

    def __init__(self, run: Asker) -> None:
        self._run = run
        self._known: dict[str, Wait] = {}
        self._missed: list[str] = []  # the run fails because nobody answered these
        self._has_asked = False  # while other branches worked: `_known` may not tell

    async def read(self) -> None:
        """Read what earlier attempts asked, and the answers."""
        self._known = await read_waits(self._run._engine, self._run._key, self._run.id)

    @property
    def last_order(self) -> int:
        """The position of the last wait among the steps of the run."""
        return max((wait.order for wait in self._known.values()), default=0)

    def answers(self, name: str) -> Iterator[Any]:
        """Iterate over the answers to a series of questions."""
        for number in itertools.count(1):
            wait = self._known.get(numbered(name, number))
            if wait is None or wait.status != ANSWERED or wait.digest is None:
                return
            yield wait.value

    def runs_inside(self) -> dict[str, tuple[list[Any], bool]]:
        """Return the runs in the block of this one that it has waited for: where each began, and whether in this attempt."""
        waits = sorted(self._known.values(), key=lambda wait: wait.order)
        return {
            wait.inner_run: (wait.payload[1:], wait.attempt == self._run.info.attempt)
            for wait in waits
            if wait.inner_run is not None
        }

    def _status(self, name: str) -> str | None:
        known = self._known.get(name)
        return None if known is None else known.status

    def _has_answer(self, asked: Asked) -> bool:
        """Tell whether there is an answer that fits."""
        known = self._known.get(asked.name)
        return known is not None and known.status == ANSWERED and _refusal(asked, known) is None

    def _is_met(self, call: Call) -> bool:
        answered = [each.name for each in call.asked if self._has_answer(each)]
        expired = [each.name for each in call.asked if self._status(each.name) == EXPIRED]
        return call.group.is_met(answered, expired)

    def _check_same(self, asked: Sequence[Asked]) -> None:
        for each in asked:
            known = self._known.get(each.name)
            if known is None or known.digest is None or known.status == WITHDRAWN:
                continue
            if known.digest != each.digest:
                raise QuestionChanged(self._run.id, each.name)

    def _ask_again(self, call: Call) -> None:
        """Open what an earlier attempt failed by, unless there is a default now."""
        for name in call.group.names if call.asks_again else ():
            if (wait := self._known.get(name)) is not None and wait.asks_again and wait.status == EXPIRED:
                self._known[name] = replace(withdrawn(wait), asks_again=False)

    async def _expire(self, group: Group) -> None:
        """Settle what is due, as a timer would: nobody may have fired it yet."""
        run = self._run
        due = [self._known[name] for name in group.names if self._status(name) == OPEN]
        due = [wait for wait in due if wait.due_at]
        if not due:
            return
        now = await store_now(run._engine)
        is_changed = False
        for wait in due:
            if wait.due_at <= now:
                await timers.fire_at(run._engine, run._key, wait.due_at, run.id, wait.name)
                is_changed = True
        if is_changed:
            await self.read()

    def _others_waiting(self, calls: Sequence[Call], now: int) -> tuple[list[Group], list[EntryRecord]]:
        """Return what else the run waits for: branches that asked in an earlier attempt.

        They may not have come to ask again yet. An answer to them must wake the run all the same.
        """
        names = {name for call in calls for name in call.group.names}
        runs = {id for call in calls for id in call.runs}
        waits = [
            wait
            for wait in self._known.values()
            if wait.status == OPEN
            and wait.name not in names
            and (wait.type != SLEEP or wait.due_at > now)
            and wait.inner_run not in runs
        ]
        groups = dict.fromkeys(Group(wait.group, wait.mode) for wait in waits)
        return list(groups), [entry for wait in waits for entry in self._asking(wait)]

    def _unanswered(self, asked: Sequence[Asked]) -> list[str]:
        """Return the names of the questions and events that the run waits for from now on."""
        return [each.name for each in asked if each.type in (QUESTION, EVENT) and not self._has_answer(each)]

    def _entries(self, call: Call, now: int) -> list[EntryRecord]:
        """Return the entries that ask: each open wait, new or again, with its timer."""
        entries: list[EntryRecord] = []
        group, due = call.group, call.deadline(now)
        for each in call.asked:
            known = self._known.get(each.name)
            if known is not None and (known.status == EXPIRED or self._has_answer(each)):
                continue
            is_open = known is not None and known.status == OPEN
            wait = known if is_open and known is not None else self._opened(each, group, due, now)
            entries += self._asking(replace(wait, group=group.names, mode=group.mode))
        return entries + self._withdrawals(self._former_waits(call))

    def _former_waits(self, call: Call) -> list[Wait]:
        """Return open waits for the same run, which has continued since and waits again."""
        return [
            wait
            for wait in self._known.values()
            if wait.status == OPEN and wait.inner_run in call.runs and wait.name not in call.group.names
        ]

    def _asking(self, wait: Wait) -> list[EntryRecord]:
        """Return the entries of an open wait: its own, and its timer."""
        entry, (epoch, fence) = self._entry(wait), self._run._rank
        if not wait.due_at:
            return [entry]
        return [entry, timers.timer(wait.due_at, self._run.id, wait.name, epoch, fence)]

    def _opened(self, asked: Asked, group: Group, due: int, now: int) -> Wait:
        """Return an open wait: a new one, or one that is asked again, with the entry that it replaces."""
        run, known = self._run, self._known.get(asked.name)
        refused = None
        if known is not None and known.status == ANSWERED:  # it is asked again, until the same deadline
            due, refused = known.due_at or due, _refusal(asked, known)
        return Wait(
            asked.name,
            asked.type,
            OPEN,
            asked.payload,
            asked.json_schema,
            asked.digest,
            agent=run.info.agent,
            asked_at=now,
            due_at=due,
            attempt=run.info.attempt,
            order=run._branches.number(asked.name, f"?{asked.type}"),
            group=group.names,
            mode=group.mode,
            refused=refused,
            entry=None if known is None else known.entry,
        )

    def _entry(self, wait: Wait) -> EntryRecord:
        rank = next_rank(wait, *self._run._rank)
        return put(self._run._engine.codec, self._run.id, wait, rank)

    async def _bind(self, asked: Sequence[Asked], group: Group) -> None:
        """Note what an answer that came early has answered: it answers nothing else."""
        entries: list[EntryRecord] = []
        for each in asked:
            known = self._known.get(each.name)
            if known is None or known.status != ANSWERED or known.digest is not None:
                continue
            bound = replace(
                self._opened(each, group, 0, known.answered_at), status=ANSWERED, value=known.value, by=known.by,
                answered_at=known.answered_at, token=known.token,
            )  # fmt: skip
            if each.json_schema is not None:
                bound = replace(bound, value=plain(known.value))
            entry = self._entry(bound)
            entries.append(entry)
            self._known[each.name] = replace(bound, entry=replace(entry, expect=None))
        if entries:
            await self._run._write_entries(*entries)

    async def _withdraw(self, waits: Sequence[Wait]) -> None:
        if not waits:
            return
        try:
            await self._run._write_entries(*self._withdrawals(waits))
        except EntryHeld as error:
            if error.kind != WAIT:
                raise
        await self.read()  # an answer that came too late for `ask_any` stays

    def failed_by(self, error: BaseException | str) -> None:
        """Note why the run fails: what nobody answered is asked again by the next attempt."""
        if isinstance(error, BaseExceptionGroup):
            for part in error.exceptions:
                self.failed_by(part)
        elif isinstance(error, Unanswered) and error.run == self._run.id:
            self._missed += error.names

    async def withdrawals(self, *, is_over: bool) -> list[EntryRecord]:
        """Return the entries for the commit that ends the run or its attempt.

        With the run its open questions are withdrawn. Those by which it failed are asked again if
        it is retried.
        """
        if is_over and self._has_asked:
            await self.read()
        known = self._known.values()
        missed = [wait for wait in known if wait.status == EXPIRED and wait.name in self._missed]
        again = [self._entry(replace(wait, asks_again=True)) for wait in missed]
        return again + self._withdrawals([wait for wait in known if is_over and wait.status == OPEN])

    def _withdrawals(self, waits: Sequence[Wait]) -> list[EntryRecord]:
        entries = [self._entry(withdrawn(wait)) for wait in waits]
        gone = [timers.timer_removed(wait.due_at, self._run.id, wait.name) for wait in waits if wait.due_at]
        return [*entries, *gone]


def _refusal(asked: Asked, wait: Wait) -> str | None:
    """Return why an answer does not fit: it came before its schema was known, or the type of the agent refuses it."""
    try:
        value = wait.value
        if wait.digest is None and asked.json_schema is not None:
            value = plain(value)
            check(asked.json_schema, value)
        revive(asked.schema, value)
    except Exception as error:  # noqa: BLE001  # the type decides what it raises
        return f"{type(error).__name__}: {error}"[:_MAX_REASON]
    return None


def numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}#{number}"
