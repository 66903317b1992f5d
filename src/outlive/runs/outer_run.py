"""The run around a run: it waits while a run in its block waits, and continues when that can.

A run that waits inside the block of another one stores which run that is, and the name of an event
of it (`Outer`). The outer run waits for this event. No commit spans threads, so the event comes in
two commits:

1. Whatever wakes or ends the inner run adds a timer that is due at once, in the same commit. A
   crash after it leaves the timer, which any worker fires.
2. The timer settles the event of the outer run, and wakes that if it waits. A crash after it fires
   the timer again, which finds the event settled.

An event that comes before the outer run waits is kept for it, like any early answer. That run then
does not wait: it is released at once, because the inner block has been left and must be entered
again. Each wait of the inner run has an event of its own, named by its fence.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from dataclasses import replace

from outlive.backend import Commit, EntryQuery, EntryRecord, ThreadKey, each_entry
from outlive.backend.entries import TIMER
from outlive.errors import Corrupt, DamagedEntry, EntryHeld, KeyMissing, StoreBusy, well_formed
from outlive.format.codec import Codec
from outlive.runs import wakes
from outlive.runs.lease import RUN, UNFINISHED, WAITING, RunInfo, find, unpack_or_tell
from outlive.runs.store_clock import store_now
from outlive.runs.wait_entry import ANSWERED, INNER, OPEN, Wait, put, read_run
from outlive.runs.waiting import Outer
from outlive.threads.engine import Engine

_TRIES = 20
_PAGE = 200
_DELETION_S = 30.0  # until an outer run is told of a deletion whose process died


def event_name(thread: str, run_id: str, epoch: int, fence: int) -> str:
    """Return the name of the event by which the outer run learns that this wait of a run is over."""
    text = f"{len(thread)}:{thread}{run_id}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=12, person=b"outlive.inner").hexdigest()
    return f"{wakes.INNER_PREFIX}{digest}.{epoch}.{fence}"


def outer_of(codec: Codec, thread: ThreadKey, timer: EntryRecord) -> Outer:
    """Return which run a timer is for. Raises Corrupt."""
    with well_formed(f"timer {timer.key!r:.100}", thread.id):
        return Outer.unpack(codec.unpack(timer.body or b""))


async def tell(engine: Engine, tenant: str, outer: Outer) -> tuple[ThreadKey, list[EntryRecord]]:
    """Settle the event of an outer run; return what was changed in its thread."""
    key = ThreadKey.of(tenant, outer.thread)
    for _ in range(_TRIES):
        run, waits = await read_run(engine, key, outer.run)
        wait = waits.get(outer.event, Wait(outer.event, INNER))
        if run is None or run.status not in UNFINISHED or wait.status != OPEN:
            return key, []
        now = await store_now(engine)
        waits[outer.event] = settled = replace(wait, status=ANSWERED, answered_at=now)
        woken = wakes.wake(engine.codec, key, run, waits, outer.event, now)
        try:
            await engine.commit(Commit(key, entries=(put(engine.codec, outer.run, settled), *woken)))
        except EntryHeld:  # the run itself, or another event, was faster: look again
            continue
        wakes.tell(engine, key, woken)
        return key, woken
    raise StoreBusy(f"run {outer.run!r} changed at each attempt to wake it; it is tried again")


async def is_left_to_outer(engine: Engine, tenant: str, outer: Outer | None) -> bool:
    """Tell whether the run around a run continues it: nothing else should claim it."""
    if outer is None:
        return False
    run = await find(engine, ThreadKey.of(tenant, outer.thread), RUN, outer.run)
    return run is not None and run.status in UNFINISHED


async def before_deletion(engine: Engine, thread: ThreadKey) -> list[Outer]:
    """Return the runs that wait for runs of a thread; a timer tells each if this process dies after the deletion."""
    query = EntryQuery(thread.tenant, RUN, thread=thread, statuses=[WAITING], limit=_PAGE)
    runs: list[RunInfo] = []
    with contextlib.suppress(Corrupt, KeyMissing):  # what cannot be read can be deleted all the same
        async for place, entry in each_entry(engine.backend, query):
            if not isinstance(entry, DamagedEntry):
                runs.append(unpack_or_tell(engine.codec, place, entry))
    outers = [run.outer for run in runs if run.outer is not None]
    for outer in outers:
        key = ThreadKey.of(thread.tenant, outer.thread)
        run = await find(engine, key, RUN, outer.run)
        if run is not None:
            due = await store_now(engine) + int(_DELETION_S * 1e6)
            timer = wakes.outer_timer(engine.codec, outer.run, outer, due, run.epoch)
            await engine.commit(Commit(key, entries=(timer,)))
    return outers


def outer_timers(entries: Iterable[EntryRecord]) -> list[EntryRecord]:
    """Return those of the entries of a commit that tell an outer run."""
    return [
        entry
        for entry in entries
        if entry.kind == TIMER and not entry.gone and entry.key.endswith(f"\n{wakes.OUTER}")
    ]
