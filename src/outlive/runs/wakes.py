"""Waking a run that waits: the entries that make it claimable, for the commit that settles a wait.

The codec leaves the values of the run packed, so that a process without the agent's types can wake
it. Its body is not written again: the record keeps why it waited, and the process that claims it
knows by that that it is not another attempt.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping

from outlive.backend import NEXT, WALL, EntryRecord, ThreadKey
from outlive.backend.entries import TIMER
from outlive.errors import well_formed
from outlive.events import WAKE, Event
from outlive.format.codec import Codec
from outlive.runs import tickets
from outlive.runs.lease import RELEASED, RUN, WAITING
from outlive.runs.wait_entry import ANSWERED, EXPIRED, Wait
from outlive.runs.waiting import INNER_PREFIX as INNER_PREFIX
from outlive.runs.waiting import Outer, Waiting
from outlive.threads.engine import Engine
from outlive.values import moment

OUTER = f"{INNER_PREFIX}outer"  # the name of the timer that tells an outer run


def wake(
    codec: Codec, key: ThreadKey, run: EntryRecord, waits: Mapping[str, Wait], name: str, now: int
) -> list[EntryRecord]:
    """Return what the settled wait `name` changes of its run: nothing, its rank, or its status."""
    waiter = _waiting_run(codec, key, run)
    if waiter is None or name not in waiter.waiting._all_names:
        return []
    answered = [wait.name for wait in waits.values() if wait.status == ANSWERED]
    expired = [wait.name for wait in waits.values() if wait.status == EXPIRED]
    if any(group.is_met(answered, expired) for group in waiter.waiting.groups):
        return waiter.release(now)
    return [EntryRecord(RUN, run.key, None, epoch=run.epoch, fence=NEXT, expect=run.rank)]


def wake_at(codec: Codec, key: ThreadKey, run: EntryRecord, due: int, now: int) -> list[EntryRecord]:
    """Return the entries that wake a run that waits for this moment, and for nothing else."""
    waiter = _waiting_run(codec, key, run)
    if waiter is None or waiter.waiting.is_pause or waiter.waiting.until != moment(due):
        return []
    return waiter.release(now)


def tell(engine: Engine, key: ThreadKey, entries: Iterable[EntryRecord]) -> None:
    """Tell the watcher of the store if a commit with these entries woke a run."""
    for entry in entries:
        if (entry.kind, entry.status) == (RUN, RELEASED):
            engine.events.emit(Event(WAKE, key.id, run=entry.key, status=RELEASED))


def outer_timer(codec: Codec, run_id: str, outer: Outer, due: int, epoch: int) -> EntryRecord:
    """Return the timer that tells the run around a run that this one has left its wait (`outer_run.py`)."""
    key, body = f"{due:020d}\n{run_id}\n{OUTER}", codec.pack(outer.pack())
    return EntryRecord(TIMER, key, body, epoch=epoch, fence=NEXT, until=due, clock=WALL)


class _WaitingRun:
    """A run that waits, as far as it must be read to wake it."""

    def __init__(
        self,
        codec: Codec,
        run: EntryRecord,
        waiting: Waiting,
        errand: tickets.Errand,
        outer: Outer | None,
    ) -> None:
        self._codec = codec
        self._outer = outer
        self._run = run
        self._errand = errand
        self.waiting = waiting

    def release(self, now: int) -> list[EntryRecord]:
        run = self._run
        entry = EntryRecord(RUN, run.key, None, epoch=run.epoch, fence=NEXT, expect=run.rank)
        entries = list(tickets.released(self._codec, entry, self._errand, now, kept=run.body))
        if self._outer is not None:
            entries.append(outer_timer(self._codec, run.key, self._outer, now, run.epoch))
        return entries


def _waiting_run(codec: Codec, key: ThreadKey, run: EntryRecord) -> _WaitingRun | None:
    if run.status != WAITING:
        return None
    with well_formed(f"run {run.key!r}", key.id):
        fields = codec.unpack(run.body or b"", opaque=True)
        waiting = Waiting.unpack(fields["waits"])
        if not isinstance(waiting.since, dt.datetime):
            raise TypeError("a moment must be a datetime")
        outer = None if fields.get("outer") is None else Outer.unpack(fields["outer"])
        return _WaitingRun(codec, run, waiting, tickets.Errand.stored(fields), outer)
