"""Pending writes as a backend stores them. Pure, no I/O.

A write is part of one checkpoint alone and shares nothing, so its value is stored in its row. One
that is large is stored in chunks, like a state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

import ormsgpack

from outlive.backend import WriteRecord
from outlive.dataclass import dataclass
from outlive.format import manifest
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.format.extensions import Opaque
from outlive.format.planner import plan_chunks
from outlive.format.splitter import split
from outlive.values import CONTROL, Interrupt, PendingWrite

_INLINE = 2048  # bytes; a chunk of its own costs more than it saves, up to about here


@dataclass(frozen=True, slots=True)
class Written:
    """The writes of one save: their records and chunks, and a digest of the arguments."""

    records: tuple[WriteRecord, ...] = ()
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    digest: bytes = b""


NOTHING = Written()


def write_record(
    codec: Codec, namer: Namer, namespace: str, checkpoint: str, write: PendingWrite
) -> tuple[WriteRecord, dict[bytes, bytes]]:
    """Return the record of a write and its chunks."""
    pieces = split(codec, write.value)
    if pieces.size <= _INLINE:
        body = manifest.encode_fields([b"".join([part.bytes_of(codec) for part in pieces.parts])], {})
        return _record(namespace, checkpoint, write, body), {}
    plan = plan_chunks(codec, namer, pieces, None)
    body = manifest.encode_fields(plan.layout, {})
    return _record(namespace, checkpoint, write, body, tuple(plan.names)), plan.chunks


def _record(
    namespace: str, checkpoint: str, write: PendingWrite, body: bytes, names: tuple[bytes, ...] = ()
) -> WriteRecord:
    return WriteRecord(namespace, checkpoint, write.task, write.index, write.channel, write.path, body, names)


def describe_writes(
    codec: Codec, namer: Namer, namespace: str, checkpoint: str, writes: Iterable[PendingWrite]
) -> Written:
    """Return all writes of a save.

    The digest is stored in the checkpoint, so that a retry of the save can be told from another
    one: the rows themselves may be those of an earlier `thread.write`, or gone.
    """
    records: list[WriteRecord] = []
    chunks: dict[bytes, bytes] = {}
    hasher = hashlib.blake2b(digest_size=16, person=b"outlive.writes")
    for write in writes:
        record, new = write_record(codec, namer, namespace, checkpoint, write)
        records.append(record)
        chunks.update(new)
        place = codec.pack([write.task, write.index, write.channel, write.path])
        hasher.update(ormsgpack.packb([place, codec.pack(write.value)]))
    return Written(tuple(records), chunks, hasher.digest())


def open_interrupts(interrupts: Iterable[Interrupt], writes: Sequence[PendingWrite]) -> tuple[Interrupt, ...]:
    """Return the interrupts of a checkpoint, and those that tasks of a graph wrote, that have no answer yet."""
    resumed = {write.task for write in writes if write.channel == "__resume__"}
    done = {write.task for write in writes if write.channel not in CONTROL}
    written = [
        _interrupt(write, item) for write in writes if write.task not in done for item in _asked(write)
    ]
    return (*(asked for asked in interrupts if asked.id not in resumed), *written)


def _asked(write: PendingWrite) -> list[dict[str, Any]]:
    """Return the fields of the interrupts that a write holds, as LangGraph stores them."""
    items = write.value if write.channel == "__interrupt__" and isinstance(write.value, list | tuple) else ()
    fields = [item.value for item in items if type(item) is Opaque]
    return [item for item in fields if isinstance(item, dict) and isinstance(item.get("id"), str)]


def _interrupt(write: PendingWrite, fields: dict[str, Any]) -> Interrupt:
    node = write.path.rpartition(", ")[2] if "__pregel_pull" in write.path else ""
    return Interrupt(fields["id"], node, fields.get("value"))
