"""Effects as bytes: what a frame of a log says. Chunk data is stored apart from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import ormsgpack

from outlive.backend import CheckpointRecord, EntryRecord, ThreadKey, WriteRecord, escape, unescape
from outlive.backend.entries import check_stored_kind
from outlive.backends.file.log import FORMAT
from outlive.backends.rules.view import Counters, Effect
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, NewerFormat

# Listed here, not taken from the classes: the order is part of the format, new fields come last.
_ROW = ("generation", "revision", "epoch", "seq", "created_at", "metadata_version")
_CHECKPOINT = (
    "namespace", "id", "parent", "run", "step", "source", "size", "added", "chunks", "body", "projection",
    "format", "epoch", "seq", "created_at", "version",
)  # fmt: skip
_WRITE = ("namespace", "checkpoint", "task", "index", "channel", "path", "body", "chunks", "rank")
_ENTRY = ("kind", "key", "body", "status", "epoch", "fence", "revision", "until", "clock", "gone")
_CHUNK = ("name", "size", "crc", "revision", "is_new")
_row, _checkpoint, _write, _entry, _chunk = (
    attrgetter(*names) for names in (_ROW, _CHECKPOINT, _WRITE, _ENTRY, _CHUNK)
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as a frame names it. One that is stored already only gets a new stamp."""

    name: bytes
    size: int
    crc: int
    revision: int
    is_new: bool


def pack_effect(effect: Effect, chunks: Sequence[Chunk]) -> bytes:
    return pack(
        (
            (effect.thread.tenant, effect.thread.id),
            _row(effect.counters),
            effect.at,
            [_checkpoint(record) for record in (*effect.checkpoints, *effect.rewrites)],
            [_chunk(chunk) for chunk in chunks],
            [_write(write) for write in effect.writes],
            [_entry(entry) for entry in effect.entries],
            effect.removed,
            effect.removed_chunks,
            effect.everything,
            effect.erase,
            effect.metadata,
        )
    )


def unpack_effect(meta: bytes, key: ThreadKey) -> tuple[Effect, list[Chunk]]:
    """Return an effect without the data of its chunks, which are listed beside it."""
    owner, row, at, records, chunks, writes, entries, removed, removed_chunks, everything, erase, metadata = (
        unpack(meta)
    )
    if tuple(owner) != (key.tenant, key.id):
        raise ValueError("it belongs to another thread")
    effect = Effect(
        thread=key,
        counters=Counters(*row),
        at=at,
        checkpoints=tuple(CheckpointRecord(**_named(_CHECKPOINT, values)) for values in records),
        writes=tuple(WriteRecord(**_named(_WRITE, values)) for values in writes),
        entries=tuple(EntryRecord(**_named(_ENTRY, values)) for values in entries),
        removed=tuple((pair[0], pair[1]) for pair in removed),
        removed_chunks=tuple(removed_chunks),
        everything=everything,
        erase=erase,
        metadata=metadata,
    )
    for entry in effect.entries:
        check_stored_kind(entry.kind, key.id)
    return effect, [Chunk(*values) for values in chunks]


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    """Pair values with names. An older frame may have fewer; lists were tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in zip(names, values, strict=False)
    }


def pack(fields: Sequence[Any]) -> bytes:
    try:
        return ormsgpack.packb((FORMAT, False, fields))
    except TypeError:  # a lone surrogate, most likely
        try:
            return ormsgpack.packb((FORMAT, True, _each_text(escape, fields)))
        except TypeError as error:
            raise BadArgument(f"a record of this commit cannot be stored: {error}") from error


def unpack(meta: bytes) -> Any:
    version, *rest = ormsgpack.unpackb(meta)
    if version > FORMAT:
        raise NewerFormat("a frame of a log", version, FORMAT)
    is_escaped, fields = rest
    return _each_text(unescape, fields) if is_escaped else fields


def _each_text(convert: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_each_text(convert, item) for item in value]
    return convert(value) if isinstance(value, str) else value
