"""One store of a pair that was opened by itself: it can be read, and is not written without the
knowledge of the other one.

What is written to one store alone has no outbox entry, so the other one never gets it. After the
next change of roles it would be out of sight, and what was deleted would be back. So it is refused,
unless the store is opened with `single=True`. Then the record of the pair says that
replication is paused, as if the pair had been opened so while the other store was down: the next
process that opens both with replication transfers everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from outlive.backend import Backend, Commit, Receipt, Reservation, ThreadKey, Unreserved
from outlive.errors import Corrupt, EntryHeld, OutliveError, ReplicaOpenedAlone, StoreBusy
from outlive.layers.replication.outbox_entry import leaving_tombstones
from outlive.layers.replication.pair import (
    ALONE,
    OLD_COPY,
    ROLES,
    PairRecord,
    read_pair_record,
    write_pair_record,
)

_RACES = 10


async def guarded(backend: Backend, tenant: str, timeout_s: float | None, *, may_write: bool) -> Backend:
    """Return a store that was opened by itself as it may be used; `may_write` allows to write it
    without the other one.
    """
    for _ in range(_RACES):
        try:
            record = await read_pair_record(backend, tenant, timeout_s)
        except Corrupt:
            return backend  # it is damaged, which `verify` reports; to open it as a pair is refused
        if record is None or record.ended == ALONE:
            return backend
        if record.ended or not (may_write and record.is_active):
            return cast(Backend, SingleReplica(backend, record))
        try:
            if not record.is_paused:
                await write_pair_record(backend, tenant, record, replace(record, is_paused=True), timeout_s)
        except EntryHeld:
            continue  # another process changes it at the same moment
        return cast(Backend, SingleReplica(backend, None))
    raise StoreBusy("other processes keep changing the roles of this pair; try again")


class SingleReplica:
    """A backend that is one of two. Without `record` it can be written, leaving tombstones."""

    def __init__(self, inner: Backend, record: PairRecord | None) -> None:
        self.inner = inner
        self.name = inner.name
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Refuse each commit, or do it."""
        if self._record is not None:
            return [_refusal(self._record) for _ in commits]
        return await self.inner.commit_all([leaving_tombstones(commit) for commit in commits])

    async def reserve(self) -> Reservation:
        """Reserve nothing."""
        return Unreserved(cast(Backend, self))

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks from thread to thread, unless nothing may be changed."""
        if self._record is not None:
            raise _refusal(self._record)
        return await self.inner.share(source, target, names)


def _refusal(record: PairRecord) -> ReplicaOpenedAlone:
    role, other = record.role, 1 - record.role
    if record.ended == OLD_COPY:
        return ReplicaOpenedAlone(ROLES[role], ROLES[other], is_old_copy=True)
    return ReplicaOpenedAlone(ROLES[role], ROLES[role if record.is_active else other])
