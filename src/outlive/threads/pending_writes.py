"""Pending writes as a backend stores them. Pure, no I/O.

A value that is not short is stored in chunks, like a state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ormsgpack

from outlive.backend import WriteRecord
from outlive.format import manifest
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.format.extensions import Opaque
from outlive.format.planner import plan_chunks
from outlive.format.splitter import split
from outlive.values import CONTROL, Interrupt, PendingWrite


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
    plan = plan_chunks(codec, namer, split(codec, write.value), None)
    body = manifest.encode(codec, manifest.Manifest(plan.layout))
    record = WriteRecord(
        namespace, checkpoint, write.task, write.index, write.channel, write.path, body, tuple(plan.names)
    )
    return record, plan.chunks


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
