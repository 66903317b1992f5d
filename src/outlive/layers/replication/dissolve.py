"""How a pair ends: the active store goes on alone, and the other one becomes an old copy that can be read only.

The other store is told first. From then on nobody can promote it, and nobody who opens both takes them for a pair. A
crash between the two steps leaves an active store that still refuses to be written alone: doing it again finishes it.
Both go to a later epoch of the same store, so that a process which has the pair open notices at its next look.
"""

from __future__ import annotations

from dataclasses import replace

from outlive.backend import Backend
from outlive.layers.replication.pair import ALONE, OLD_COPY, PairRecord, write_pair_record


async def end_pair(
    active: tuple[Backend, PairRecord],
    other: tuple[Backend, PairRecord] | None,
    tenant: str,
    timeout_s: float | None,
) -> None:
    """End a pair; `other` is None when that store cannot be reached, and is not told.

    Raises EntryHeld when a store says something else by now than it did.
    """
    sides = [active[1], *([other[1]] if other is not None else [])]
    epoch = max(side.epoch for side in sides) + 2
    if other is not None:
        await _write(*other, tenant, epoch, OLD_COPY, timeout_s)
    await _write(*active, tenant, epoch, ALONE, timeout_s)


async def _write(
    backend: Backend, side: PairRecord, tenant: str, epoch: int, ended: int, timeout_s: float | None
) -> None:
    if side.ended != ended:
        told = replace(side, epoch=epoch, ended=ended, is_paused=False, is_manual=False)
        await write_pair_record(backend, tenant, side, told, timeout_s)
