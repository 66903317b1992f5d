"""Ending a run from outside: one commit takes its record and its place."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from outlive.backend import NEXT, Commit, EntryRecord, ThreadKey
from outlive.errors import EntryHeld, RunBusy, RunEnded
from outlive.runs import attempts, lease
from outlive.runs.lease import CANCELLED, COMPLETED, LOCK, PARKED, RUN, RUNNING, Lock, RunInfo
from outlive.threads.engine import Engine

_TRIES = 8
_FINAL = {PARKED: (COMPLETED, CANCELLED, PARKED), CANCELLED: (COMPLETED, CANCELLED)}


async def end_run(engine: Engine, key: ThreadKey, id: str, status: str) -> RunInfo:
    """Park or cancel a run, even while its owner works on it. Raises RunEnded if it has ended."""
    for _ in range(_TRIES):
        stored = await lease.find(engine, key, RUN, id)
        if stored is None or stored.status in _FINAL[status]:
            raise RunEnded(id, stored.status if stored is not None else "deleted")
        run = lease.unpack_run(engine.codec, key, stored)
        entries = [_ended(engine, run, stored, status), *await _freed(engine, key, run)]
        try:
            await engine.commit(Commit(key, entries=tuple(entries)))
        except EntryHeld:  # its owner wrote in between: look again
            continue
        return run
    raise RunBusy(id, None)


def _ended(engine: Engine, run: RunInfo, stored: EntryRecord, status: str) -> EntryRecord:
    now = dt.datetime.now(dt.UTC)
    run.status, run.step, run.attempts = status, None, attempts.end(run.attempts, status, now)
    if status == CANCELLED:
        run.ended_at = now
    body = lease.pack_run(engine, run)
    return EntryRecord(RUN, run.id, body, status, epoch=stored.epoch, fence=NEXT, expect=stored.rank)


async def _freed(engine: Engine, key: ThreadKey, run: RunInfo) -> list[EntryRecord]:
    """Return the entry that frees the place of the run, if the run holds it."""
    lock = await lease.find(engine, key, LOCK, run.namespace)
    if lock is None or lock.status != RUNNING or Lock.unpack(engine.codec, lock).run != run.id:
        return []
    free = EntryRecord(LOCK, run.namespace, None, "free", epoch=lock.epoch, fence=NEXT)
    return [replace(free, expect=lock.rank)]
