"""Pending writes as a backend stores them. Pure, no I/O.

A value that is not short is stored in chunks, like a state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import ormsgpack

from outlive.backend import WriteRecord
from outlive.format import manifest
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.format.planner import plan_chunks
from outlive.format.splitter import split
from outlive.values import PendingWrite


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
