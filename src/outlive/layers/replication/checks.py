"""Whether a store came back without its data: a server without persistence that was restarted, a
disk that lost its last second.

While the primary is active the secondary gets everything from it. So the secondary never has what
the primary lacks, unless the primary has lost it. And the secondary has all that came before what
it gets, unless it has lost that itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlive.backend import (
    TOMBSTONE,
    Backend,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    ThreadKey,
)
from outlive.backend.entries import LOCK
from outlive.backend.transfer import Tombstones, entries_of
from outlive.layers.replication.pair import PRIMARY, active_role

_PAGE = 1000


async def has_lost(primary: Backend, secondary: Backend, key: ThreadKey, timeout_s: float) -> bool:
    """Tell whether the secondary has something of a thread that the primary must have had."""
    _, records = await secondary.history(HistoryQuery(key, None, limit=_PAGE), timeout_s=timeout_s)
    for record in _evidence(records):
        result = await primary.read(key, record.namespace, record.id, chunks=False, timeout_s=timeout_s)
        if result.record is None:
            tombstones = await entries_of(primary, key, TOMBSTONE, timeout_s)
            if not Tombstones(tombstones).cover(record):
                return True
    return False


async def has_lost_lock(
    primary: Backend, secondary: Backend, key: ThreadKey, namespace: str, timeout_s: float
) -> bool:
    """Tell whether the primary has lost who holds a place, and gave it to another run or lock.

    Then the secondary has a holder whom the primary must have had.

    The entry of a place is never deleted alone. The primary is read last: what is there by then may
    be newer than what the secondary has got so far.
    """
    replica = await _lock_of(secondary, key, namespace, timeout_s)
    if replica is None:
        return False
    for tombstone in await entries_of(primary, key, TOMBSTONE, timeout_s):
        if not tombstone.key and tombstone.rank[:2] >= replica.rank[:2]:
            return False  # the thread was deleted, which the secondary will learn
    stored = await _lock_of(primary, key, namespace, timeout_s)
    if stored is None or stored.rank > replica.rank:
        return False
    return (stored.rank, stored.body) != (replica.rank, replica.body)


async def _lock_of(backend: Backend, key: ThreadKey, namespace: str, timeout_s: float) -> EntryRecord | None:
    query = EntryQuery(key.tenant, LOCK, thread=key, prefix=namespace, limit=1)
    entries = await backend.entries(query, timeout_s=timeout_s)
    return next((entry for _, entry in entries if entry.key == namespace), None)


async def has_gap(primary: Backend, secondary: Backend, done: Commit, timeout_s: float) -> bool:
    """Tell whether the secondary lacks what the primary has stored before a commit, although
    nothing of that is queued.
    """
    thread = done.thread
    for draft in done.checkpoints[:1]:
        result = await primary.read(thread, draft.namespace, draft.id, chunks=False, timeout_s=timeout_s)
        if result.record is None:
            continue
        query = HistoryQuery(thread, None, before=result.record.order, limit=1)
        _, records = await primary.history(query, timeout_s=timeout_s)
        for record in records:
            replica = await secondary.read(
                thread, record.namespace, record.id, chunks=False, timeout_s=timeout_s
            )
            return replica.record is None
    return False


def _evidence(records: Sequence[CheckpointRecord]) -> list[CheckpointRecord]:
    """Return records of the secondary that the primary must have, unless it has lost them.

    Those that it made itself; and the oldest, however old it is. One that the secondary made last
    may be news to it: stored after a failback was announced, and so not acknowledged.
    """
    made_by_primary = [record for record in records if active_role(record.epoch) == PRIMARY]
    return made_by_primary[:1] + list(records[1:][-1:])
