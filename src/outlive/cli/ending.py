"""Ending a run from outside: its record and its place are taken by one commit, and whoever holds them is refused from then on."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

from .. import lease
from ..backend import NEXT, Commit, Entry
from ..errors import EntryHeld, RunBusy, RunEnded
from ..runtime import run_now
from .find import engine_of, key_of

if TYPE_CHECKING:
    from ..sync import Store

_TRIES = 8
_FINAL = {
    lease.PARKED: (lease.COMPLETED, lease.CANCELLED, lease.PARKED),
    lease.CANCELLED: (lease.COMPLETED, lease.CANCELLED),
}


def end_run(store: Store, run: lease.RunInfo, status: str) -> None:
    """Give a run another status, whoever is at work on it. Raises RunEnded when it has ended already."""
    engine, key = engine_of(store), key_of(store, run.thread)
    for _ in range(_TRIES):
        stored = run_now(lease.find(engine, key, lease.RUN, run.id))
        if stored is None or stored.status in _FINAL[status]:
            raise RunEnded(run.id, stored.status if stored is not None else "deleted")
        found = lease.unpack_run(engine.codec, key, stored)
        entries = [_ended(store, found, stored, status), *_freed(store, found)]
        try:
            run_now(engine.commit(Commit(key, entries=tuple(entries))))
        except EntryHeld:  # it wrote in between: look again
            continue
        return
    raise RunBusy(run.id, None)


def _ended(store: Store, run: lease.RunInfo, stored: Entry, status: str) -> Entry:
    run.status = status
    if status == lease.CANCELLED:
        run.ended_at = dt.datetime.now(dt.UTC)
    body = lease.pack_run(engine_of(store).codec, run)
    return Entry(lease.RUN, run.id, body, status, epoch=stored.epoch, fence=NEXT, expect=stored.rank)


def _freed(store: Store, run: lease.RunInfo) -> list[Entry]:
    """Return what frees the place of a run, if it is the run's."""
    engine, key = engine_of(store), key_of(store, run.thread)
    held = run_now(lease.find(engine, key, lease.LOCK, run.namespace))
    if held is None or held.status != lease.RUNNING or lease.run_of(engine.codec, held) != run.id:
        return []
    free = Entry(lease.LOCK, run.namespace, None, "free", epoch=held.epoch, fence=NEXT)
    return [replace(free, expect=held.rank)]
