"""Submitting a run: one commit stores its record and its ticket, or a timer. Any worker claims it.

A submitted run has attempt 0 and no owner, and it holds no place until it is claimed. To submit a
run again under the same id changes nothing, so a caller that does not know the outcome repeats it.
"""

from __future__ import annotations

from outlive.backend import ABSENT, NEXT, Commit, EntryRecord, ThreadKey
from outlive.errors import EntryHeld, RunElsewhere
from outlive.runs import lease, tickets, timers
from outlive.runs.effect_keys import new_seed
from outlive.runs.lease import RELEASED, RUN, WAITING, RunInfo
from outlive.runs.store_clock import store_now
from outlive.runs.waiting import Waiting
from outlive.threads.engine import Engine
from outlive.values import moment


async def submit(engine: Engine, key: ThreadKey, run: RunInfo, *, due: int | None, is_named: bool) -> RunInfo:
    """Store a run for workers; return it, or the one that has its id. Raises RunElsewhere, Unencodable."""
    # 1. The id may be in use: the same run, or one of another thread. (`start.py` tells why it is
    #    looked for again after the commit.)
    if is_named and (stored := await _find(engine, key, run.id)) is not None:
        return lease.unpack_or_tell(engine.codec, key, stored)
    now = await store_now(engine)
    entries = _entries(engine, run, due, now)
    # 2. Record and ticket in one commit. A crash before it leaves nothing, after it a run that
    #    workers find.
    try:
        receipt = await engine.commit(Commit(key, entries=entries))
    except EntryHeld:  # another process has submitted it at the same moment
        stored = await lease.find(engine, key, RUN, run.id)
        if stored is None:
            raise
        return lease.unpack_or_tell(engine.codec, key, stored)
    if is_named:
        await _check_again(engine, key, run, receipt.entries or entries)
    return run


def _entries(engine: Engine, run: RunInfo, due: int | None, now: int) -> tuple[EntryRecord, ...]:
    run.attempt, run.status = 0, RELEASED
    run.effect_seed, run.trace = new_seed(), engine.events.current_trace()
    if due is not None and due > now:
        run.status, run.waits = WAITING, Waiting("start", moment(now), moment(due))
    body = lease.pack_run(engine, run)
    entry = EntryRecord(RUN, run.id, body, run.status, fence=NEXT, expect=ABSENT)
    if run.status == WAITING:
        return (entry, timers.timer(due or 0, run.id, timers.OF_RUN, 0))
    return tickets.released(engine.codec, entry, tickets.Errand.of(run), now)


async def _find(engine: Engine, key: ThreadKey, id: str) -> EntryRecord | None:
    stored = dict(await lease.find_all(engine, key.tenant, id))
    if stored and key not in stored:
        raise RunElsewhere(id, [other.id for other in stored])
    return stored.get(key)


async def _check_again(
    engine: Engine, key: ThreadKey, run: RunInfo, entries: tuple[EntryRecord, ...] | list[EntryRecord]
) -> None:
    """Take the run back if another thread has its id by now, unless a worker has claimed it."""
    others = [other.id for other, _ in await lease.find_all(engine, key.tenant, run.id) if other != key]
    if not others:
        return
    stored = await lease.find(engine, key, RUN, run.id)
    if stored is not None:
        gone = [EntryRecord(entry.kind, entry.key, gone=True) for entry in entries if entry.kind != RUN]
        taken_back = EntryRecord(RUN, run.id, gone=True, expect=stored.rank)
        if stored.status in (RELEASED, WAITING):
            try:
                await engine.commit(Commit(key, entries=(taken_back, *gone)))
            except EntryHeld:
                pass  # a worker was faster: `AmbiguousRun` reports both
    raise RunElsewhere(run.id, others)
