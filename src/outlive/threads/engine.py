"""What the threads of a store work with: its backend, codec, naming key and cache; and how states are read.

Saving is in `save.py`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from outlive.backend import (
    FORMAT,
    Backend,
    CheckpointRecord,
    Commit,
    HistoryQuery,
    ReadResult,
    Receipt,
    SoundChunks,
    ThreadKey,
    WriteRecord,
    all_records,
)
from outlive.backend.undecrypted import refuse_undecrypted
from outlive.errors import (
    BadArgument,
    Corrupt,
    NewerFormat,
    OutliveError,
    UnknownTag,
)
from outlive.events import LOAD, Event, EventSink
from outlive.format import chunk, layout, manifest
from outlive.format.codec import Codec
from outlive.runtime.runtime import Runtime
from outlive.threads.cache import Base, Cache
from outlive.threads.pending_writes import write_record
from outlive.values import CheckpointInfo, PendingWrite

ConfirmDeletion = Callable[[ThreadKey | None], Awaitable[None]]  # of a thread, or of all


async def _confirmed(thread: ThreadKey | None) -> None:
    """Do nothing: a single store has removed it. A pair of stores has more to do."""


class Engine:
    """One store's backend, codec, naming key and cache, and what is done with them.

    It is complete when it is made. `with_codec` makes another one that differs in nothing else.
    """

    def __init__(
        self,
        backend: Backend,
        codec: Codec,
        namer: chunk.Namer,
        cache: Cache,
        runtime: Runtime,
        *,
        events: EventSink | None = None,
        timeout_s: float | None = None,
        confirm_deletion: ConfirmDeletion = _confirmed,
    ) -> None:
        self.events = events or EventSink()
        self.is_watched = self.events.is_on
        self.backend = backend
        self.codec = codec
        self.namer = namer
        self.cache = cache
        self.runtime = runtime
        self.timeout_s = timeout_s  # of commits without their own
        self.confirm_deletion = confirm_deletion  # makes sure that a removal reaches both stores of a pair

    def with_codec(self, codec: Codec) -> Engine:
        """Return an engine on the same store, cache and settings that packs values in another way."""
        return Engine(
            self.backend, codec, self.namer, self.cache, self.runtime,
            events=self.events, timeout_s=self.timeout_s, confirm_deletion=self.confirm_deletion,
        )  # fmt: skip

    async def commit(self, commit: Commit) -> Receipt:
        """Do one commit; raise the error if it is refused.

        Its timeout is that of the store by default.
        """
        if commit.timeout_s is None:
            commit.timeout_s = self.timeout_s
        (result,) = await self.backend.commit_all([commit])
        if isinstance(result, Receipt):
            return result
        raise result

    # Reading

    async def load(
        self, key: ThreadKey, namespace: str, id: str | None, at: int | None, timeout_s: float | None
    ) -> tuple[ReadResult, bytes] | None:
        """Return a checkpoint's records and the stream of its state, or None."""
        start = time.perf_counter() if self.is_watched else 0.0
        loaded = await self._load(key, namespace, id, at, timeout_s)
        if loaded is not None and self.is_watched and (record := loaded[0].record) is not None:
            event = Event(LOAD, key.id, namespace, record.id, record.run, state_bytes=record.size)
            self.events.emit(replace(event, duration_s=time.perf_counter() - start))
        return loaded

    async def _load(
        self, key: ThreadKey, namespace: str, id: str | None, at: int | None, timeout_s: float | None
    ) -> tuple[ReadResult, bytes] | None:
        base = self.cache.get((key.digest, namespace)) if at is None else None
        known = base.known if base is not None and id in (None, base.record.id) else None
        reading = await self.backend.read(key, namespace, id, at=at, known=known, timeout_s=timeout_s)
        record = reading.record
        if record is None:
            return None
        if base is not None and known is not None and record.id == known.id and record.chunks == known.chunks:
            if record.body == base.record.body:
                return reading, base.bytes_of(self.codec)
            # The same chunks and another body: it was replaced.
            reading = await self.backend.read(key, namespace, record.id, timeout_s=timeout_s)
            if reading.record is None:
                return None
            record = reading.record
        latest = self.base(key, reading)
        if (id is None and at is None) or (base is not None and base.record.id == record.id):
            self.cache.put((key.digest, namespace), latest)
        return reading, latest.stream or b""

    def stream(self, key: ThreadKey, reading: ReadResult) -> bytes:
        """Put the stream of a state together, checking every chunk."""
        return self.base(key, reading).stream or b""

    def base(self, key: ThreadKey, reading: ReadResult) -> Base:
        """Return a checkpoint that was read, with the stream of its state."""
        record = reading.record
        assert record is not None
        with Located(key, record.id):
            check_format(record)
            raws = self._raws(record.chunks, reading.chunks)
            spans = manifest.layout_of(record.body)
            stream = layout.assemble(spans, raws, record.size)
            composite = raws[0] if layout.has_composite(spans) else None
        return Base(record, reading.generation, stream=stream, composite=composite)

    async def composites(self, key: ThreadKey, records: Iterable[CheckpointRecord]) -> dict[bytes, bytes]:
        """Return the raw bytes of the composites of some checkpoints, apart from damaged ones."""
        names = set[bytes]()
        for record in records:
            with Located(key, record.id):
                if record.chunks and layout.has_composite(manifest.layout_of(record.body)):
                    names.add(record.chunks[0])
        raws = {}
        for name in sorted(names):  # one by one: a damaged one must not hide the others
            with suppress(Corrupt, NewerFormat):
                raws[name] = self.raw(name, (await self.backend.fetch(key, [name])).get(name))
        return raws

    def assemble(
        self, names: Sequence[bytes], body: bytes, size: int | None, data: Mapping[bytes, bytes]
    ) -> bytes:
        """Put bytes together from chunks by name."""
        return layout.assemble(manifest.layout_of(body), self._raws(names, data), size)

    def _raws(self, names: Sequence[bytes], data: Mapping[bytes, bytes]) -> list[bytes]:
        is_sound = type(data) is SoundChunks
        return [self.raw(name, data.get(name), is_sound=is_sound) for name in names]

    def raw(self, name: bytes, data: bytes | None, *, is_sound: bool = False) -> bytes:
        """Return the raw bytes of a chunk after checking it against its name, unless it is known to be sound."""
        if data is None:
            raise Corrupt(f"chunk {name.hex()} is missing")
        refuse_undecrypted(data)
        if not is_sound and self.namer.name(data) != name:
            raise Corrupt(f"chunk {name.hex()} holds other bytes than it was named for")
        return chunk.decode(data)

    def unpack(self, key: ThreadKey, id: str, stream: bytes, *, opaque: bool = False) -> Any:
        """Return the value of a stream; damage names the checkpoint."""
        with Located(key, id):
            return self.codec.unpack(stream, opaque=opaque)

    def checkpoint(self, key: ThreadKey, record: CheckpointRecord, *, opaque: bool = False) -> CheckpointInfo:
        """Return what a record says, as the user sees it."""
        with Located(key, record.id):
            check_format(record)
            try:
                contents = manifest.decode(self.codec, record.body, opaque=opaque)
            except (BadArgument, UnknownTag):
                # Metadata that an adapter or another program alone can build: that must not hide
                # the rest.
                contents = manifest.decode(self.codec, record.body, opaque=True)
        return manifest.describe(key.id, record, contents)

    # Pending writes

    def write_record(
        self, namespace: str, checkpoint: str, task: str, index: int, channel: str, value: Any, path: str
    ) -> tuple[WriteRecord, dict[bytes, bytes]]:
        """Describe a write; a value that is not short goes into chunks like a state."""
        write = PendingWrite(task, index, channel, value, path)
        return write_record(self.codec, self.namer, namespace, checkpoint, write)

    def pending(
        self,
        key: ThreadKey,
        records: Iterable[WriteRecord],
        data: Mapping[bytes, bytes],
        *,
        opaque: bool = False,
    ) -> tuple[PendingWrite, ...]:
        """Return the values of writes, whose chunks are in `data`."""
        return tuple(self._pending_write(key, record, data, opaque) for record in records)

    def _pending_write(
        self, key: ThreadKey, record: WriteRecord, data: Mapping[bytes, bytes], opaque: bool
    ) -> PendingWrite:
        with Located(key, record.checkpoint):
            stream = self.assemble(record.chunks, record.body, None, data)
            try:
                value = self.codec.unpack(stream, opaque=opaque)
            except (BadArgument, UnknownTag):  # an adapter wrote it: that must not hide the other writes
                value = self.codec.unpack(stream, opaque=True)
        return PendingWrite(record.task, record.index, record.channel, value, record.path)

    # All of a thread

    async def has_moved(self, key: ThreadKey, generation: int) -> bool:
        """Tell whether something was deleted since: what is missing then is no damage."""
        return (await self.backend.read(key, "", chunks=False)).generation != generation

    async def records(
        self, key: ThreadKey, namespace: str | None = None, run: str | None = None, page: int = 1000
    ) -> list[CheckpointRecord]:
        """Return all records of a thread, newest first, of one generation."""
        return await all_records(self.backend, HistoryQuery(key, namespace, limit=page, run=run))


def check_format(record: CheckpointRecord) -> None:
    """Refuse a record of a newer format before anything of it is read."""
    if record.format > FORMAT:
        raise NewerFormat("a checkpoint", record.format, FORMAT)


class Located:
    """Add thread and checkpoint to damage found inside."""

    def __init__(self, key: ThreadKey, checkpoint: str | None) -> None:
        self._key = key
        self._checkpoint = checkpoint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Corrupt) and error.thread is None:
            raise type(error)(error.what, thread=self._key.id, checkpoint=self._checkpoint) from error
        if isinstance(error, OutliveError) and not isinstance(error, Corrupt):
            error.add_note(f"in checkpoint {self._checkpoint!r} of thread {self._key.id!r}")
