"""What is on its way into one thread of the target.

Chunks go first, as they come; the records of the checkpoints and writes follow in one commit. A crash in between leaves chunks
that nobody reads, and never half a thread: a graph that goes on with it finds all of it or nothing. (A thread of more than
MOST checkpoints comes in parts, oldest first.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint

from outlive.adapters.langgraph.importer.decoder import Found
from outlive.adapters.langgraph.importer.source import WriteRow
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.adapters.langgraph.state import describe, kept_values, pack_state
from outlive.adapters.langgraph.values.messages import opened
from outlive.backend import NEXT, CheckpointRecord, Commit, EntryRecord, ThreadKey, WriteRecord
from outlive.backend.entries import MOVED
from outlive.errors import StaleBase
from outlive.threads.cache import Base, Cache
from outlive.threads.engine import Draft

MOST = 5_000
SYSTEM = "langgraph"  # the key of an entry of kind "moved", whose fence is the revision of the last commit of a mover
_CHUNK_BYTES = 4 << 20
_CACHE_BYTES = 64 << 20


class Cargo:
    """Gathers what a thread gets, and commits it; with `dry_run` it is let go instead."""

    def __init__(
        self,
        keeper: CheckpointOperations,
        key: ThreadKey,
        generation: int | None,
        namespaces: set[str],
        *,
        dry_run: bool = False,
    ) -> None:
        self.checkpoints = 0
        self.writes = 0
        self._keeper = keeper
        self._key = key
        self._dry_run = dry_run
        self._generation = generation
        self._namespaces = namespaces  # in which there is something to share with
        self._cache = Cache(_CACHE_BYTES)
        self._records: list[CheckpointRecord] = []
        self._writes: list[WriteRecord] = []
        self._chunks: dict[bytes, bytes] = {}
        self._chunk_bytes = 0

    async def add(self, found: Found, place: tuple[int, int] | None = None) -> None:
        """Take a checkpoint along. `place` is its (epoch, seq), when it belongs before others that are there already."""
        draft = Draft(found.namespace, found.id, parent=found.parent, follows=False)
        describe(self._keeper.codec, draft, found.metadata, found.checkpoint.get("channel_values", {}))
        state = pack_state(self._keeper.codec, cast(Checkpoint, found.checkpoint), self._kept(found))
        cache = self._cache if found.namespace in self._namespaces else None
        prepared = await self._keeper.engine.prepare(self._key, state, draft, cache)
        (record,) = prepared.commit.checkpoints
        record.created_at = found.created_at
        if place is not None:
            record.epoch, record.seq = place
        prepared.plan.settle()  # not committed yet, but nothing of this is used when it cannot be
        base = Base(record, self._generation or 0, prepared.plan.pieces)
        self._cache.put((self._key.digest, found.namespace), base)
        self._namespaces.add(found.namespace)
        self._records.append(record)
        await self._carry(prepared.plan.chunks)

    def _kept(self, found: Found) -> Mapping[str, Any]:
        """Return what the parent has sealed already: a serializer that encrypts gives other bytes every time."""
        codec = self._keeper.codec
        base = None if codec.is_open else self._cache.get((self._key.digest, found.namespace))
        if base is None or base.record.id != found.parent:
            return {}
        state = codec.unpack(base.bytes_of(codec), opaque=True)
        return kept_values(state, found.checkpoint["channel_versions"], {})

    async def add_write(self, row: WriteRow, value: Any) -> None:
        """Take a write along."""
        codec = self._keeper.codec
        value = opened(value) if codec.is_open else codec.seal(value, None, f"write to {row.channel!r}")
        record, chunks = self._keeper.engine.write_record(
            row.namespace, row.checkpoint, row.task, row.index, row.channel, value, row.path
        )
        self._writes.append(record)
        await self._carry(chunks)

    async def _carry(self, chunks: dict[bytes, bytes]) -> None:
        self._chunks.update(chunks)
        self._chunk_bytes += sum(map(len, chunks.values()))
        if self._chunk_bytes >= _CHUNK_BYTES:
            await self._send_chunks()

    async def _send_chunks(self) -> None:
        chunks, self._chunks, self._chunk_bytes = tuple(self._chunks.items()), {}, 0
        if self._dry_run:
            return
        receipt = await self._keeper.engine.commit(Commit(self._key, chunks=chunks))
        if self._generation not in (None, receipt.generation):
            raise StaleBase(self._key.id)  # a sweep may have taken what we count on
        self._generation = receipt.generation

    @property
    def is_full(self) -> bool:
        return len(self._records) >= MOST

    async def commit(self, *, replace: bool = False) -> None:
        """Store what was gathered, all of it or nothing. Raises StaleBase when others were at work on the thread."""
        if not self._dry_run and (self._records or self._writes):
            await self._store(replace)
        self.checkpoints += len(self._records)
        self.writes += len(self._writes)
        self._records, self._writes, self._chunks, self._chunk_bytes = [], [], {}, 0

    async def _store(self, replace: bool) -> None:
        receipt = await self._keeper.engine.commit(
            Commit(
                self._key,
                checkpoints=tuple(self._records),
                writes=tuple(self._writes),
                chunks=tuple(self._chunks.items()),
                entries=(EntryRecord(MOVED, SYSTEM, fence=NEXT),),
                generation=self._generation,
                replace=replace,
            )
        )
        if receipt.existing is not None:
            raise StaleBase(self._key.id)  # another mover was faster
        self._generation = receipt.generation
