"""Copying checkpoints: into another thread, or into another store.

The target's chunks go first, then its records in one commit. A crash between the two leaves chunks that
nobody reads, which the next deletion in that thread takes along, and never half a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .backend import CheckpointRecord, Commit, ThreadKey, ThreadRow, WriteRecord
from .engine import Engine, Located
from .errors import Corrupt, StaleBase, ThreadNotEmpty

_BATCH = 32
_TRIES = 8


async def into_thread(
    engine: Engine,
    source: ThreadKey,
    target: ThreadKey,
    records: Sequence[CheckpointRecord],
    writes: Sequence[WriteRecord],
    info: tuple[bytes, str | None],
) -> None:
    """Copy records into an empty thread of the same store; the chunks are copied by the store itself."""
    names = _names(records, writes)
    if await _has_checkpoints(engine, target):  # look before anything is copied into it
        raise ThreadNotEmpty(target.id)
    generation = await engine.backend.share(source, target, names)
    held = await engine.backend.inventory(target)
    if missing := [name for name in names if name not in held.chunks]:
        raise Corrupt(f"chunk {missing[0].hex()} is missing", thread=source.id)
    commit = Commit(
        target,
        checkpoints=tuple(records),
        writes=tuple(writes),
        info=info[0],
        info_projection=info[1],
        expect_empty=True,
        generation=generation,  # a sweep in between would have taken the chunks away
    )
    try:
        await engine.commit(commit)
    except StaleBase:
        if await _has_checkpoints(engine, target):
            raise ThreadNotEmpty(target.id) from None
        raise


async def _has_checkpoints(engine: Engine, key: ThreadKey) -> bool:
    rows = await engine.backend.threads(key.tenant, only=key.id)
    return bool(rows and rows[0].checkpoints)


async def into_store(source: Engine, target: Engine, key: ThreadKey, row: ThreadRow) -> int:
    """Copy a whole thread into another store, which may have a part of it; return how many checkpoints it has."""
    for _ in range(_TRIES):
        try:
            return await _merge(source, target, key, row)
        except (Corrupt, StaleBase):
            if not await source.has_moved(key, row.generation):
                raise
        rows = await source.backend.threads(key.tenant, only=key.id)
        if not rows:
            return 0  # deleted meanwhile
        row = rows[0]
    raise StaleBase(key.id)


async def _merge(source: Engine, target: Engine, key: ThreadKey, row: ThreadRow) -> int:
    records = await source.records(key)
    writes = await source.backend.writes(key, None)
    renamed = await _copy_chunks(source, target, key, _names(records, writes))
    await target.commit(
        Commit(
            key,
            checkpoints=tuple(replace(record, chunks=_renamed(record.chunks, renamed)) for record in records),
            writes=tuple(replace(write, chunks=_renamed(write.chunks, renamed)) for write in writes),
            info=row.info,
            info_projection=row.info_projection,
            info_version=row.info_version,
            merge=True,  # without a generation: the store makes sure that all chunks are there
        )
    )
    return len(records)


async def _copy_chunks(
    source: Engine, target: Engine, key: ThreadKey, names: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Store chunks under the names that the other store's key gives them."""
    renamed: dict[bytes, bytes] = {}
    for at in range(0, len(names), _BATCH):
        batch = names[at : at + _BATCH]
        data = await source.backend.fetch(key, batch)
        chunks = []
        for name in batch:
            with Located(key, None):
                source.raw(name, data.get(name))
            renamed[name] = target.namer.name(data[name])
            chunks.append((renamed[name], data[name]))
        await target.commit(Commit(key, chunks=tuple(chunks)))
    return renamed


def _names(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> list[bytes]:
    names = {name: None for record in records for name in record.chunks}
    names.update({name: None for write in writes for name in write.chunks})
    return list(names)


def _renamed(names: Iterable[bytes], renamed: dict[bytes, bytes]) -> tuple[bytes, ...]:
    return tuple(renamed[name] for name in names)
