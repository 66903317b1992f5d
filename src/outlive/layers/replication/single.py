"""One store of a pair that was opened by itself: it can be read, and is not written behind the back of the other one.

What is written to one store alone has no note, so the other one never gets it: after the next change of places it is gone from
sight, and what was deleted is back. So it is refused, unless somebody says `single=True`. Then the record of the pair
says that replication is switched off, as if the pair had been opened so while the other store was down: whoever
opens it again with both carries everything over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from outlive.backend import Backend, Commit, Receipt, ThreadKey
from outlive.errors import Corrupt, EntryHeld, OutliveError, ReplicaOpenedAlone, StoreBusy
from outlive.layers.replication.note import buried
from outlive.layers.replication.pair import (
    ALONE,
    OLD_COPY,
    ROLES,
    PairRecord,
    read_pair_record,
    write_pair_record,
)

_RACES = 10


async def guarded(backend: Backend, tenant: str, timeout_s: float | None, *, goes_on: bool) -> Backend:
    """Return a store that was opened by itself as it may be used; `goes_on` says that the other one is left behind."""
    for _ in range(_RACES):
        try:
            side = await read_pair_record(backend, tenant, timeout_s)
        except Corrupt:
            return backend  # it is damaged, which `verify` tells; who opens it as a pair is refused
        if side is None or side.ended == ALONE:
            return backend
        if side.ended or not (goes_on and _is_active(side)):
            return cast(Backend, SingleReplica(backend, side))
        try:
            if not side.is_paused:
                await write_pair_record(backend, tenant, side, replace(side, is_paused=True), timeout_s)
        except EntryHeld:
            continue  # somebody else changes it at the same moment
        return cast(Backend, SingleReplica(backend, None))
    raise StoreBusy("other processes keep changing the roles of this pair; try again")


def _is_active(side: PairRecord) -> bool:
    """Tell whether a store is the active one, as far as it knows."""
    return side.epoch % 2 == side.role


class SingleReplica:
    """A backend that is one of two. Without `side` it goes on, and leaves tombstones for the other one."""

    def __init__(self, inner: Backend, side: PairRecord | None) -> None:
        self.inner = inner
        self.name = inner.name
        self._side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Refuse each commit, or do it."""
        if self._side is not None:
            return [self._refusal(self._side) for _ in commits]
        return await self.inner.commit_all([buried(one) for one in commits])

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks from thread to thread, unless nothing may be changed."""
        if self._side is not None:
            raise self._refusal(self._side)
        return await self.inner.share(source, target, names)

    def _refusal(self, side: PairRecord) -> ReplicaOpenedAlone:
        if side.ended == OLD_COPY:
            return ReplicaOpenedAlone(ROLES[side.role], ROLES[1 - side.role], is_old_copy=True)
        active = side.role if _is_active(side) else 1 - side.role
        return ReplicaOpenedAlone(ROLES[side.role], ROLES[active])
