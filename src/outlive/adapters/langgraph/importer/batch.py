"""What is on its way into one thread of the target.

Chunks go ahead as they come; the records of checkpoints and writes follow in one commit. A crash in
between leaves unused chunks, and never half a thread. (A new thread of more than MOST
checkpoints is stored in parts, oldest first.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from langgraph.checkpoint.base import Checkpoint

from outlive.adapters.langgraph.importer.decoder import DecodedCheckpoint
from outlive.adapters.langgraph.importer.source import WriteRow
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.state import describe, pack_state
from outlive.adapters.langgraph.values.messages import opened
from outlive.backend import CheckpointRecord, Commit, Rank, Removal, ThreadKey, WriteRecord
from outlive.errors import StaleBase
from outlive.threads.cache import Base, Cache
from outlive.threads.prune import ThreadContents
from outlive.threads.save import Draft, Save

MOST = 5_000
# The rank of imported control writes. A graph that overwrites one in the target gets a greater
# rank, because a thread's first commit has revision 1: so the next import sees that the thread was
# used.
IMPORTED: Rank = (0, 0, 1)
_CHUNK_BYTES = 4 << 20
_CACHE_BYTES = 64 << 20


class Batch:
    """Gathers the checkpoints and writes of a thread, and commits them; with `dry_run` it drops them.

    `replaced` is what the target has of the thread: the commit deletes it first.
    """

    def __init__(
        self, session: Session, key: ThreadKey, *, replaced: ThreadContents | None, dry_run: bool
    ) -> None:
        self.checkpoints = 0
        self.writes = 0
        self._session = session
        self._key = key
        self._replaced = replaced
        self._dry_run = dry_run
        self._generation = None if replaced is None else replaced.inventory.generation
        self._revision = None if replaced is None else replaced.inventory.revision
        self._cache = Cache(_CACHE_BYTES)
        self._records: list[CheckpointRecord] = []
        self._writes: list[WriteRecord] = []
        self._chunks: dict[bytes, bytes] = {}
        self._chunk_bytes = 0

    async def add(self, decoded: DecodedCheckpoint) -> None:
        """Add a checkpoint.

        It shares what it has in common with the one before it in its namespace.
        """
        codec, slot = self._session.codec, (self._key.digest, decoded.namespace)
        draft = Draft(decoded.namespace, decoded.id, parent=decoded.parent, follows=False)
        describe(codec, draft, decoded.metadata, decoded.checkpoint.get("channel_values", {}))
        base = self._cache.get(slot)
        checkpoint = cast(Checkpoint, decoded.checkpoint)
        # A saver that stores whole checkpoints may have another value under the same version.
        # Sealed values are kept: a serializer that encrypts gives other bytes every time.
        changed = checkpoint["channel_versions"] if codec.is_open else {}
        state = pack_state(codec, checkpoint, decoded.parent, changed, {})
        cache = None if base is None else self._cache  # without it, the head in the store would be the base
        prepared = await Save(self._session.engine, self._key, state, draft).prepare(cache)
        (record,) = prepared.commit.checkpoints
        record.created_at = decoded.created_at
        prepared.plan.record_spans()  # not committed yet, but nothing of this is used when it cannot be
        self._cache.put(slot, Base(record, self._generation or 0, prepared.plan.pieces))
        self._records.append(record)
        await self._add_chunks(prepared.plan.chunks)

    async def add_write(self, row: WriteRow, value: Any) -> None:
        """Add a pending write."""
        codec = self._session.codec
        value = opened(value) if codec.is_open else codec.seal(value, None, f"write to {row.channel!r}")
        record, chunks = self._session.engine.write_record(
            row.namespace, row.checkpoint, row.task, row.index, row.channel, value, row.path
        )
        self._writes.append(replace(record, rank=IMPORTED) if record.index < 0 else record)
        await self._add_chunks(chunks)

    async def _add_chunks(self, chunks: dict[bytes, bytes]) -> None:
        self._chunks.update(chunks)
        self._chunk_bytes += sum(map(len, chunks.values()))
        if self._chunk_bytes >= _CHUNK_BYTES:
            await self._send_chunks()

    async def _send_chunks(self) -> None:
        chunks, self._chunks, self._chunk_bytes = tuple(self._chunks.items()), {}, 0
        if self._dry_run:
            return
        receipt = await self._session.engine.commit(Commit(self._key, chunks=chunks))
        if self._generation not in (None, receipt.generation):
            raise StaleBase(self._key.id)  # a sweep may have deleted chunks that were sent before
        if self._replaced is not None and receipt.revision != (self._revision or 0) + 1:
            raise StaleBase(self._key.id)  # someone uses the thread that is to be replaced
        self._generation, self._revision = receipt.generation, receipt.revision

    @property
    def is_full(self) -> bool:
        """Tell whether to commit a part now. What replaces a thread is never stored in parts."""
        return self._replaced is None and len(self._records) >= MOST

    async def commit(self) -> None:
        """Store what was gathered, all of it or nothing.

        Raises StaleBase when others changed the thread.
        """
        if not self._dry_run and (self._records or self._writes):
            if self._replaced is not None:
                await self._delete(self._replaced)
                # A crash here leaves the thread empty: the import, repeated, stores it whole.
                self._replaced = None
            await self._store()
        self.checkpoints += len(self._records)
        self.writes += len(self._writes)
        self._records, self._writes, self._chunks, self._chunk_bytes = [], [], {}, 0

    async def _delete(self, contents: ThreadContents) -> None:
        """Delete the checkpoints and writes of the thread; its runs and metadata stay.

        Refused (StaleBase) when anything at all was committed to the thread since it was read.
        Chunks that were sent since then have a later revision, and stay.
        """
        keys = {(record.namespace, record.id) for record in contents.records}
        keys |= {write.key[:2] for write in contents.writes}
        seen = contents.inventory
        removal = Removal(tuple(sorted(keys)), chunks=tuple(seen.chunks), chunks_until=seen.revision)
        receipt = await self._session.engine.commit(
            Commit(self._key, removal=removal, generation=self._generation, revision=self._revision)
        )
        self._session.engine.cache.drop(self._key.digest)
        self._generation = receipt.generation

    async def _store(self) -> None:
        receipt = await self._session.engine.commit(
            Commit(
                self._key,
                checkpoints=tuple(self._records),
                writes=tuple(self._writes),
                chunks=tuple(self._chunks.items()),
                generation=self._generation,
            )
        )
        if receipt.existing is not None:
            raise StaleBase(self._key.id)  # another importer was faster
        self._generation, self._revision = receipt.generation, receipt.revision
