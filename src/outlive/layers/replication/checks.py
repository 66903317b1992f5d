"""Whether a store came back without what it had: a server without persistence that was restarted, a disk that forgot its last second.

While the primary is active the secondary gets everything from it, so it never has what the primary has not; unless that
has lost it. And it has what came before whatever it gets, unless it has lost that itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.backend import (
    TOMBSTONE,
    Backend,
    CheckpointRecord,
    Commit,
    EntryQuery,
    HistoryQuery,
    ThreadKey,
    tombstone_key,
)
from outlive.layers.replication.pair import PRIMARY

_PAGE = 1000


async def has_lost(primary: Backend, secondary: Backend, key: ThreadKey, timeout_s: float) -> bool:
    """Tell whether the secondary has something of a thread that the primary must have had."""
    _, found = await secondary.history(HistoryQuery(key, None, limit=_PAGE), timeout_s=timeout_s)
    for record in _evidence(found):
        there = await primary.read(key, record.namespace, record.id, chunks=False, timeout_s=timeout_s)
        if there.record is None and not await _is_buried(primary, key, record, timeout_s):
            return True
    return False


async def has_gap(primary: Backend, secondary: Backend, done: Commit, timeout_s: float) -> bool:
    """Tell whether the secondary lacks what the primary has stored before a commit, although nothing of that is queued."""
    for draft in done.checkpoints[:1]:
        found = await primary.read(done.thread, draft.namespace, draft.id, chunks=False, timeout_s=timeout_s)
        if found.record is not None:
            _, before = await primary.history(
                HistoryQuery(done.thread, None, before=found.record.order, limit=1), timeout_s=timeout_s
            )
            for one in before:
                there = await secondary.read(
                    done.thread, one.namespace, one.id, chunks=False, timeout_s=timeout_s
                )
                return there.record is None
    return False


async def _is_buried(primary: Backend, key: ThreadKey, record: CheckpointRecord, timeout_s: float) -> bool:
    for name in ("", tombstone_key(record.namespace, record.id)):
        graves = await primary.entries(
            EntryQuery(key.tenant, TOMBSTONE, thread=key, prefix=name, limit=1), timeout_s=timeout_s
        )
        for _, grave in graves:
            if grave.key == name and (record.epoch, record.seq) <= (grave.epoch, grave.until):
                return True
    return False


def _evidence(records: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
    """Return records of the secondary, newest first, that the primary must have, unless it has lost them.

    Those that it made itself; and the oldest, however old it is. One that the secondary made last may be news to it: stored when
    a failback had been announced, and so not acknowledged.
    """
    made_there = [record for record in records if record.epoch % 2 == PRIMARY]
    return made_there[:1] + list(records[1:][-1:])
