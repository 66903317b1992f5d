"""Copying checkpoints: into another thread, or into another store.

The target's chunks go first, then its records in one commit. A crash between the two leaves chunks that
nobody reads, which the next deletion in that thread takes along, and never half a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from .backend import CheckpointRecord, Commit, ThreadKey, ThreadRow, WriteRecord
from .engine import Engine, Located
from .errors import Corrupt


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
    generation = await engine.backend.share(source, target, names)
    held = await engine.backend.inventory(target)
    if missing := [name for name in names if name not in held.chunks]:
        raise Corrupt(f"chunk {missing[0].hex()} is missing", thread=source.id)
    await engine.backend.commit(
        Commit(
            target,
            checkpoints=tuple(records),
            writes=tuple(writes),
            info=info[0],
            info_projection=info[1],
            expect_empty=True,
            generation=generation,  # a sweep in between would have taken the chunks away
        )
    )


async def into_store(source: Engine, target: Engine, key: ThreadKey, row: ThreadRow) -> int:
    """Copy a whole thread into another store, which may have a part of it; return how many checkpoints it has."""
    records = await source.records(key)
    writes = await source.backend.writes(key, None)
    renamed, generation = await _copy_chunks(source, target, key, _names(records, writes))
    await target.backend.commit(
        Commit(
            key,
            checkpoints=tuple(replace(record, chunks=_renamed(record.chunks, renamed)) for record in records),
            writes=tuple(replace(write, chunks=_renamed(write.chunks, renamed)) for write in writes),
            info=row.info,
            generation=generation,
        )
    )
    return len(records)


async def _copy_chunks(
    source: Engine, target: Engine, key: ThreadKey, names: Sequence[bytes]
) -> tuple[dict[bytes, bytes], int | None]:
    """Store chunks under the names that the other store's key gives them."""
    renamed: dict[bytes, bytes] = {}
    generation = None
    for at in range(0, len(names), 32):
        batch = names[at : at + 32]
        data = await source.backend.fetch(key, batch)
        chunks = []
        for name in batch:
            with Located(key, None):
                source.raw(name, data.get(name))
            renamed[name] = target.namer.name(data[name])
            chunks.append((renamed[name], data[name]))
        receipt = await target.backend.commit(Commit(key, chunks=tuple(chunks)))
        generation = receipt.generation
    return renamed, generation


def _names(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> list[bytes]:
    names = {name: None for record in records for name in record.chunks}
    names.update({name: None for write in writes for name in write.chunks})
    return list(names)


def _renamed(names: Iterable[bytes], renamed: dict[bytes, bytes]) -> tuple[bytes, ...]:
    return tuple(renamed[name] for name in names)
