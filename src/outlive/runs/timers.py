"""Timers: deadlines of questions, sleeps, pauses before the next attempt.

A timer is an entry in the thread of its run, so that one commit changes both. Its key begins with
the moment at which it is due: a listing by key is a listing by time, and the first page tells
whether anything is due at all. Its clock is the wall clock of the store. A reboot does not ring it;
a clock that is set back by an hour delays it by an hour.

Any process may fire a timer that is due. The commit that does so removes it, expects that it is
due by the clock of the store, and settles the wait or wakes the run. So each fires once. A timer
whose run has moved on only disappears.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable
from dataclasses import replace

from outlive.backend import NEXT, WALL, Commit, EntryQuery, EntryRecord, ThreadKey, each_entry
from outlive.backend.entries import TIMER
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, DamagedEntry, EntryHeld, OutliveError
from outlive.runs import outer_run, wakes
from outlive.runs.lease import WAITING, RunInfo, find
from outlive.runs.store_clock import store_now
from outlive.runs.wait_entry import EXPIRED, OPEN, put, read_run
from outlive.runs.waiting import Outer
from outlive.threads.engine import Engine
from outlive.values import micros

_PAGE = 32
_TRIES = 8
_LONGEST_BACKOFF_S = 3600.0
OF_RUN = ""  # the name of the timer of a run itself, not of a wait


@dataclass(frozen=True, slots=True)
class Fired:
    """What `fire_due` did."""

    count: int = 0
    next_at: int | None = None  # when the next timer is due, in microseconds by the store's clock


def timer(due: int, run_id: str, name: str, epoch: int, fence: int = NEXT) -> EntryRecord:
    """Return the entry of a timer, of a wait of a run or (OF_RUN) of the run itself."""
    return EntryRecord(TIMER, _key(due, run_id, name), epoch=epoch, fence=fence, until=due, clock=WALL)


def timer_removed(due: int, run_id: str, name: str) -> EntryRecord:
    """Return the entry that removes a timer, which may be gone already."""
    return EntryRecord(TIMER, _key(due, run_id, name), gone=True)


def run_timer_removed(run: RunInfo) -> tuple[EntryRecord, ...]:
    """Return the entries that remove the timer of a run that waits for a time."""
    if run.status != WAITING or run.waits is None or run.waits.is_pause or run.waits.until is None:
        return ()
    return (timer_removed(micros(run.waits.until), run.id, OF_RUN),)


def backoff_due(run: RunInfo, now: int) -> int:
    """Return when the next attempt of a run may begin: after a pause that doubles, with jitter."""
    assert run.backoff_s is not None
    pause_s = min(_LONGEST_BACKOFF_S, run.backoff_s * 2 ** min(run.failures - 1, 30))
    return now + int(pause_s * random.uniform(0.8, 1.2) * 1e6)


async def fire_due(engine: Engine, tenant: str) -> Fired:
    """Fire every timer of a tenant that is due. The report says when to look again. A damaged timer stops no other."""
    count, now = 0, 0
    async for thread, entry in each_entry(engine.backend, EntryQuery(tenant, TIMER, limit=_PAGE)):
        if isinstance(entry, DamagedEntry):
            continue
        if entry.until > now:
            now = await store_now(engine)
        if entry.until > now:
            return Fired(count, entry.until)
        count += await _fire_safely(engine, thread, entry)
    return Fired(count)


async def _fire_safely(engine: Engine, thread: ThreadKey, entry: EntryRecord) -> bool:
    try:
        return await fire(engine, thread, entry)
    except Corrupt:
        return False  # a damaged run must not keep the timers of the others; `verify` reports it


async def fire_at(engine: Engine, thread: ThreadKey, due: int, run_id: str, name: str) -> bool:
    """Fire one timer if it is due by the clock of the store."""
    entry = await find(engine, thread, TIMER, _key(due, run_id, name))
    return entry is not None and await fire(engine, thread, entry)


async def fire(engine: Engine, thread: ThreadKey, entry: EntryRecord) -> bool:
    """Remove a timer and do what it stands for, in one commit; False if it is not due or is gone."""
    due, run_id, name = _parse(thread, entry)
    if name == wakes.OUTER:  # before it is removed: after a crash in between it is fired again
        outer = outer_run.outer_of(engine.codec, thread, entry)
        await tell_outer(engine, thread.tenant, outer)
    gone = EntryRecord(TIMER, entry.key, gone=True, expect=entry.rank, expect_lapsed=True)
    refusal: OutliveError | None = None
    for _ in range(_TRIES):
        changes = await _changes(engine, thread, due, run_id, name)
        try:
            await engine.commit(Commit(thread, entries=(gone, *changes)))
        except EntryHeld as error:
            if error.kind == TIMER:  # it is not due, or another process has fired it
                return False
            refusal = error  # an answer came, or the run moved on: look again
            continue
        wakes.tell(engine, thread, changes)
        await fire_outer(engine, thread, changes)
        return True
    assert refusal is not None
    raise refusal


async def tell_outer(engine: Engine, tenant: str, outer: Outer) -> None:
    """Wake the run around a run, and the run around that."""
    await fire_outer(engine, *await outer_run.tell(engine, tenant, outer))


async def fire_outer(engine: Engine, thread: ThreadKey, entries: Iterable[EntryRecord]) -> None:
    """Fire the timers of a commit that tell outer runs; what fails is left to workers."""
    for entry in outer_run.outer_timers(entries):
        with contextlib.suppress(OutliveError):
            await fire_at(engine, thread, *_parse(thread, entry))


async def _changes(engine: Engine, thread: ThreadKey, due: int, run_id: str, name: str) -> list[EntryRecord]:
    run, waits = await read_run(engine, thread, run_id)
    if run is None:
        return []
    now = await store_now(engine)
    if name == wakes.OUTER:
        return []
    if name == OF_RUN:
        return wakes.wake_at(engine.codec, thread, run, due, now)
    wait = waits.get(name)
    if wait is None or wait.status != OPEN or wait.due_at != due:
        return []
    waits[name] = expired = replace(wait, status=EXPIRED, answered_at=now)
    woken = wakes.wake(engine.codec, thread, run, waits, name, now)
    return [put(engine.codec, run_id, expired), *woken]


def _key(due: int, run_id: str, name: str) -> str:
    return f"{due:020d}\n{run_id}\n{name}"


def _parse(thread: ThreadKey, entry: EntryRecord) -> tuple[int, str, str]:
    try:
        due, rest = entry.key.split("\n", 1)
        run_id, name = rest.rsplit("\n", 1)
        return int(due), run_id, name
    except ValueError:
        raise Corrupt(f"timer {entry.key!r:.100} has no valid key", thread=thread.id) from None
