"""Ending a run from outside, or its last attempt: one commit takes its record and its place.

With a run that ends, its questions are withdrawn; one that is only delayed keeps them.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from outlive.backend import NEXT, Commit, EntryRecord, ThreadKey
from outlive.errors import EntryHeld, RunBusy, RunEnded
from outlive.runs import attempts, lease, tickets, timers
from outlive.runs.lease import (
    CANCELLED,
    COMPLETED,
    FREE,
    LEFT,
    LOCK,
    PARKED,
    RUN,
    RUNNING,
    WAITING,
    Lock,
    RunInfo,
)
from outlive.runs.store_clock import store_now
from outlive.runs.wait_entry import OPEN, put, read_waits, withdrawn
from outlive.runs.waiting import Reason, Waiting
from outlive.runs.wakes import outer_timer
from outlive.threads.engine import Engine
from outlive.values import moment

_TRIES = 8
_FINAL = {PARKED: (COMPLETED, CANCELLED, PARKED), CANCELLED: (COMPLETED, CANCELLED)}


async def end_run(engine: Engine, key: ThreadKey, id: str, status: str) -> RunInfo:
    """Park or cancel a run, even while its owner works on it. Raises RunEnded if it has ended."""
    for _ in range(_TRIES):
        stored = await lease.find(engine, key, RUN, id)
        if stored is None or stored.status in _FINAL[status]:
            raise RunEnded(id, stored.status if stored is not None else "deleted")
        run = lease.unpack_run(engine.codec, key, stored)
        entries = [
            *_leftovers(stored, run),
            *await _told_outer(engine, stored, run),
            *await _freed(engine, key, run, FREE),
            *await _withdrawn(engine, key, id),
        ]
        entries = [_ended(engine, run, stored, status), *entries]
        try:
            await engine.commit(Commit(key, entries=tuple(entries)))
        except EntryHeld:  # its owner wrote in between: look again
            continue
        await timers.fire_outer(engine, key, entries)
        return run
    raise RunBusy(id, None)


async def park_run(engine: Engine, key: ThreadKey, run: RunInfo) -> None:
    """Park a run that was listed. Raises EntryHeld if it has changed since."""
    stored = run._entry
    assert stored is not None
    leftovers = [*_leftovers(stored, run), *await _told_outer(engine, stored, run)]
    entries = [*leftovers, *await _withdrawn(engine, key, run.id)]
    entries = [_ended(engine, run, stored, PARKED), *entries]
    await engine.commit(Commit(key, entries=tuple(entries)))
    await timers.fire_outer(engine, key, entries)


async def delay_run(engine: Engine, key: ThreadKey, run: RunInfo, reason: Reason, due: int) -> None:
    """Let a run that no process works on wait until a moment. Raises EntryHeld if it has changed since."""
    stored = run._entry
    assert stored is not None
    leftovers = [*_leftovers(stored, run), *await _freed(engine, key, run, LEFT)]
    lease.end_dead_attempt(run)
    run.status, run.waits = WAITING, Waiting(reason, moment(engine.runtime.now()), moment(due))
    entry = EntryRecord(RUN, run.id, lease.pack_run(engine, run), WAITING, epoch=stored.epoch, fence=NEXT)
    timer = timers.timer(due, run.id, timers.OF_RUN, stored.epoch)
    await engine.commit(Commit(key, entries=(replace(entry, expect=stored.rank), *leftovers, timer)))


async def retry_at(engine: Engine, key: ThreadKey, run: RunInfo, due: int) -> None:
    """Let a run begin again at a moment. Raises RunBusy, RunEnded."""
    stored = run._entry
    assert stored is not None
    if run.status == COMPLETED:
        raise RunEnded(run.id, run.status)
    if run.status == RUNNING:
        raise lease.run_busy(engine.codec, run.id, stored)
    if run.is_finished:
        run.failures, run.error, run.ended_at = 0, None, None
    try:
        await delay_run(engine, key, run, "start", due)
    except EntryHeld as error:
        raise lease.busy(engine.codec, run.namespace, error) from None


async def superseded(engine: Engine, key: ThreadKey, stored: EntryRecord, by: str) -> list[EntryRecord]:
    """Return the entries that cancel a run that no process works on, for the commit of its successor."""
    run = lease.unpack_run(engine.codec, key, stored)
    is_held = run.status == RUNNING and not (run.owner is not None and run.owner.is_gone())
    leftovers = [*_leftovers(stored, run), *await _told_outer(engine, stored, run)]
    leftovers += await _withdrawn(engine, key, run.id)
    lease.end_dead_attempt(run)
    run.error = f"superseded by run {by!r}"
    return [replace(_ended(engine, run, stored, CANCELLED), expect_lapsed=is_held), *leftovers]


async def _told_outer(engine: Engine, stored: EntryRecord, run: RunInfo) -> list[EntryRecord]:
    """Return the timer that tells the run around a run that this one ends."""
    if run.outer is None:
        return []
    return [outer_timer(engine.codec, run.id, run.outer, await store_now(engine), stored.epoch)]


def _leftovers(stored: EntryRecord, run: RunInfo) -> tuple[EntryRecord, ...]:
    """Return the entries that remove the ticket of a run, or its timer."""
    return (*tickets.removed(stored, run), *timers.run_timer_removed(run))


def _ended(engine: Engine, run: RunInfo, stored: EntryRecord, status: str) -> EntryRecord:
    now = dt.datetime.now(dt.UTC)
    run.status, run.step, run.attempts = status, None, attempts.end(run.attempts, status, now)
    run.waits = None
    if status == CANCELLED:
        run.ended_at = now
    body = lease.pack_run(engine, run)
    return EntryRecord(RUN, run.id, body, status, epoch=stored.epoch, fence=NEXT, expect=stored.rank)


async def _freed(engine: Engine, key: ThreadKey, run: RunInfo, status: str) -> list[EntryRecord]:
    """Return the entry that frees the place of the run, if the run holds it."""
    lock = await lease.find(engine, key, LOCK, run.namespace)
    if lock is None or lock.status != RUNNING or Lock.unpack(engine.codec, lock).run != run.id:
        return []
    free = EntryRecord(LOCK, run.namespace, None, status, epoch=lock.epoch, fence=NEXT)
    return [replace(free, expect=lock.rank)]


async def _withdrawn(engine: Engine, key: ThreadKey, id: str) -> list[EntryRecord]:
    """Return the entries that withdraw what the run still asks, with the timers."""
    waits = (await read_waits(engine, key, id, opaque=True)).values()
    asked = [wait for wait in waits if wait.status == OPEN]
    gone = [timers.timer_removed(wait.due_at, id, wait.name) for wait in asked if wait.due_at]
    return [*(put(engine.codec, id, withdrawn(wait)) for wait in asked), *gone]
