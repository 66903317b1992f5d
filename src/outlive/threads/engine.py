"""Saves and loads states for a thread, on top of a backend.

The order of a save: split against the base, plan the chunks, commit, and only then remember the new
base. A crash or refusal before the commit leaves the store as it was; the base changes after
success alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from outlive.backend import (
    FORMAT,
    Backend,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Fence,
    HistoryQuery,
    ReadResult,
    Receipt,
    ThreadKey,
    WriteRecord,
    all_records,
)
from outlive.errors import (
    BadArgument,
    CheckpointExists,
    Corrupt,
    HeadMoved,
    LeaseLost,
    NewerFormat,
    OutcomeUnknown,
    OutliveError,
    StaleBase,
    StoreError,
    StoreUnavailable,
    UnknownTag,
    refuse_unopened,
)
from outlive.events import LOAD, SAVE, Event, EventSink
from outlive.format import chunk, manifest
from outlive.format.codec import Codec
from outlive.format.planner import Plan, plan_chunks
from outlive.format.splitter import split
from outlive.runtime.runtime import Deadline, Runtime
from outlive.threads.cache import Base, Cache
from outlive.threads.pending_writes import NOTHING, Written, describe_writes, write_record
from outlive.values import CheckpointInfo, PendingWrite, moment

_REBASES = 5  # how often a save may lose against deletions by others before it gives up


@dataclass(slots=True)
class Draft:
    """What the caller wants to save, besides the state."""

    namespace: str
    id: str
    parent: str | None = None
    follows: bool = True
    expect: tuple[str, str | None] | None = None
    step: int | None = None
    source: str = "loop"
    run: str | None = None
    fence: Fence | None = None
    entries: tuple[EntryRecord, ...] = ()
    replace: bool = False
    writes: tuple[PendingWrite, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    next_nodes: tuple[str, ...] = ()
    completed_tasks: tuple[str, ...] = ()
    interrupts: tuple[Any, ...] = ()
    needs_parent: bool = False
    timeout_s: float | None = None
    receipt: Receipt | None = None  # set by the save

    @property
    def is_repeated(self) -> bool:
        """Tell whether the checkpoint was stored before the save, and nothing is new."""
        return self.receipt is not None and self.receipt.existing is not None


@dataclass(slots=True)
class Prepared:
    """A save that is ready to be committed."""

    draft: Draft
    commit: Commit
    plan: Plan
    base: Base | None = None
    written: Written = NOTHING

    def fits(self, stale: StaleBase) -> bool:
        """Tell whether the present generation of the thread still has all chunks that this save shares."""
        return stale.generation is not None and self.plan.shared <= stale.chunks


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
        self._is_watched = self.events.is_on
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

    # Saving

    async def save(self, key: ThreadKey, state: Any, draft: Draft, *, emits: bool = True) -> CheckpointInfo:
        """Commit a state; on a stale base read the newest and try again, at last without any.

        `emits`: listeners are told of it.
        """
        start = time.perf_counter() if self._is_watched else 0.0
        deadline = Deadline(self.timeout_s if draft.timeout_s is None else draft.timeout_s)
        reason = ""
        for attempt in range(_REBASES + 1):
            cache = self.cache if attempt < _REBASES else None
            try:
                saved = await self._try_to_save(key, state, draft, deadline, cache)
            except StaleBase as stale:
                self.cache.drop(key.digest)
                reason = str(stale) if stale.may_be_stored else reason
            except StoreError as error:
                if not reason or isinstance(error, OutcomeUnknown):
                    raise
                raise OutcomeUnknown(key.id, draft.id, deadline.timeout_s, str(error)) from error
            else:
                if saved is not None:
                    if self._is_watched and emits:
                        self._emit_save(key, saved, time.perf_counter() - start)
                    return saved
        if reason:
            raise OutcomeUnknown(key.id, draft.id, deadline.timeout_s, reason)
        raise StaleBase(key.id)

    def _emit_save(self, key: ThreadKey, saved: CheckpointInfo, took_s: float) -> None:
        event = Event(SAVE, key.id, saved.namespace, saved.id, saved.run, duration_s=took_s)
        self.events.emit(replace(event, state_bytes=saved.state_bytes, new_bytes=saved.new_bytes))

    async def _try_to_save(
        self, key: ThreadKey, state: Any, draft: Draft, deadline: Deadline, cache: Cache | None
    ) -> CheckpointInfo | None:
        """Commit a state once; None when its checkpoint was there and was deleted meanwhile."""
        # 1. Split and plan. Nothing is stored yet.
        prepared = await self.prepare(key, state, draft, cache)
        commit = prepared.commit
        commit.timeout_s = draft.timeout_s = deadline.as_timeout_s()
        try:
            # 2. Commit: all of it or none. A crash here leaves the parent as head.
            (result,) = await self.backend.commit_all([commit])
            if isinstance(result, StaleBase) and prepared.fits(result):
                # Others deleted something, and nothing that this save shares.
                timeout_s, token = deadline.as_timeout_s(), os.urandom(8)
                commit = replace(commit, generation=result.generation, timeout_s=timeout_s, token=token)
                (result,) = await self.backend.commit_all([commit])
            if not isinstance(result, Receipt):
                raise result
        except StaleBase:
            raise  # the caller reads the newest state and tries again
        except BaseException as error:
            # Saved or not: the next save must read what is there.
            self.cache.drop(key.digest, draft.namespace)
            # A replacement is no new checkpoint, so the backend does not look for its id first: an
            # earlier attempt of the caller may be what moved the head or ended the lease.
            if draft.replace and isinstance(error, HeadMoved | LeaseLost):
                draft.timeout_s = deadline.as_timeout_s()
                if (stored := await self._stored(key, prepared)) is not None:
                    draft.receipt = Receipt(0, 0, existing=stored)
                    return describe(key, stored, draft)
            raise
        draft.receipt = result
        if result.existing is None:
            # 3. Make it the new base.
            prepared.plan.record_spans()
            (record,) = result.checkpoints
            base = Base(record, result.generation, prepared.plan.pieces)
            self.cache.put((key.digest, draft.namespace), base)
            return describe(key, record, draft)
        return await self._repeated(key, prepared, result.existing, deadline)

    async def _repeated(
        self, key: ThreadKey, prepared: Prepared, stored: CheckpointRecord, deadline: Deadline
    ) -> CheckpointInfo | None:
        """Answer a save whose id is there already: it must be the same save again."""
        prepared.draft.timeout_s = deadline.as_timeout_s()
        try:
            return await self.compare(key, prepared, stored)
        except StoreUnavailable as error:  # it is there, and whether it is the same could not be read
            raise OutcomeUnknown(key.id, stored.id, deadline.timeout_s, str(error)) from error

    async def prepare(self, key: ThreadKey, state: Any, draft: Draft, cache: Cache | None) -> Prepared:
        """Split, plan and describe a save without changing anything; without a cache it shares nothing."""
        base = cache.get((key.digest, draft.namespace)) if cache is not None else None
        if cache is not None and (base is None or base.pieces is None):
            base = await self._read_base(key, draft, base)
        old = base.pieces if base is not None else None
        pieces = split(self.codec, state, old)
        plan = plan_chunks(self.codec, self.namer, pieces, old)
        shares = len(plan.names) > len(plan.chunks)
        written = NOTHING
        if draft.writes:
            written = describe_writes(self.codec, self.namer, draft.namespace, draft.id, draft.writes)
        commit = Commit(
            thread=key,
            checkpoints=(self.record(draft, plan, written.digest),),
            chunks=tuple((plan.chunks | written.chunks if written.chunks else plan.chunks).items()),
            writes=written.records,
            generation=base.generation if base is not None and shares else None,
            expect_head=draft.expect,
            fence=draft.fence,
            entries=draft.entries,
            replace=draft.replace,
            timeout_s=draft.timeout_s,
        )
        return Prepared(draft, commit, plan, base, written)

    async def _read_base(self, key: ThreadKey, draft: Draft, base: Base | None) -> Base | None:
        """Split what this process has in memory, or read the head.

        A head that cannot be read, damaged or written by a newer outlive during a rolling deploy,
        is no base; the save shares nothing then.
        """
        try:
            if base is None:
                reading = await self.backend.read(key, draft.namespace, timeout_s=draft.timeout_s)
                if reading.record is None:
                    return None
                base = Base(reading.record, reading.generation, stream=self.stream(key, reading))
            base.split(self.codec)
        except (Corrupt, NewerFormat):
            return None
        return base

    def record(self, draft: Draft, plan: Plan, written: bytes = b"") -> CheckpointRecord:
        """Describe a planned save for the backend."""
        contents = manifest.Manifest(
            plan.layout,
            draft.metadata,
            draft.next_nodes,
            draft.completed_tasks,
            draft.interrupts,
            draft.needs_parent,
            written,
        )
        return CheckpointRecord(
            namespace=draft.namespace,
            id=draft.id,
            parent=draft.parent,
            run=draft.run,
            step=draft.step,
            source=draft.source,
            size=plan.pieces.size,
            added=plan.added,
            chunks=tuple(plan.names),
            body=manifest.encode(self.codec, contents),
            projection=manifest.projection(draft.metadata) if draft.metadata else None,
            follows=draft.follows,
        )

    async def compare(
        self, key: ThreadKey, prepared: Prepared, record: CheckpointRecord
    ) -> CheckpointInfo | None:
        """Answer a save whose id is stored: a repetition gets its checkpoint, else raise.

        What counts is what the caller passed (state, metadata, named fields), not how it is laid
        out.
        """
        self.cache.drop(key.digest, record.namespace)
        reading = await self._read_again(key, prepared)
        if reading.record is None:
            return None
        if not self._is_same(key, prepared, reading):
            raise CheckpointExists(key.id, record.id)
        return describe(key, reading.record, prepared.draft)

    async def _stored(self, key: ThreadKey, prepared: Prepared) -> CheckpointRecord | None:
        """Return the record of a refused save when an earlier attempt of the caller has stored it."""
        reading = await self._read_again(key, prepared)
        if reading.record is None or not self._is_same(key, prepared, reading):
            return None
        return reading.record

    async def _read_again(self, key: ThreadKey, prepared: Prepared) -> ReadResult:
        draft = prepared.draft
        return await self.backend.read(key, draft.namespace, draft.id, timeout_s=draft.timeout_s)

    def _is_same(self, key: ThreadKey, prepared: Prepared, reading: ReadResult) -> bool:
        """Tell whether a checkpoint has the contents of a save, however it is laid out."""
        assert reading.record is not None
        draft, stored = prepared.draft, reading.record
        bodies = (prepared.commit.checkpoints[0].body, stored.body)
        new, old = (manifest.decode(self.codec, body, opaque=True) for body in bodies)
        fields = (draft.step, draft.source, draft.run, None if draft.follows else draft.parent)
        return (
            fields == (stored.step, stored.source, stored.run, None if draft.follows else stored.parent)
            and manifest.encode(self.codec, replace(new, layout=[]))
            == manifest.encode(self.codec, replace(old, layout=[]))
            and b"".join(part.bytes_of(self.codec) for part in prepared.plan.pieces.parts)
            == self.stream(key, reading)
        )

    # Reading

    async def load(
        self, key: ThreadKey, namespace: str, id: str | None, at: int | None, timeout_s: float | None
    ) -> tuple[ReadResult, bytes] | None:
        """Return a checkpoint's records and the stream of its state, or None."""
        start = time.perf_counter() if self._is_watched else 0.0
        loaded = await self._load(key, namespace, id, at, timeout_s)
        if loaded is not None and self._is_watched and (record := loaded[0].record) is not None:
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
        stream = self.stream(key, reading)
        if id is None and at is None:
            self.cache.put((key.digest, namespace), Base(record, reading.generation, stream=stream))
        return reading, stream

    def stream(self, key: ThreadKey, reading: ReadResult) -> bytes:
        """Put the stream of a state together, checking every chunk against its name."""
        record = reading.record
        assert record is not None
        with Located(key, record.id):
            check_format(record)
            return self.assemble(record.chunks, record.body, record.size, reading.chunks)

    def assemble(
        self, names: Sequence[bytes], body: bytes, size: int | None, data: Mapping[bytes, bytes]
    ) -> bytes:
        """Put bytes together from chunks by name."""
        raws = [self.raw(name, data.get(name)) for name in names]
        layout = manifest.layout_of(body)
        return chunk.assemble(layout, raws, size)

    def raw(self, name: bytes, data: bytes | None) -> bytes:
        """Return the raw bytes of a chunk after checking it against its name."""
        if data is None:
            raise Corrupt(f"chunk {name.hex()} is missing")
        refuse_unopened(data)
        if self.namer.name(data) != name:
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
        return describe(key, record, contents)

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
            value = self.codec.unpack(stream, opaque=opaque)
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


def describe(key: ThreadKey, record: CheckpointRecord, contents: Draft | manifest.Manifest) -> CheckpointInfo:
    """Return a checkpoint as the user sees it."""
    return CheckpointInfo(
        thread=key.id,
        id=record.id,
        namespace=record.namespace,
        parent=record.parent,
        seq=record.seq or None,
        epoch=record.epoch,
        step=record.step,
        source=record.source,
        run=record.run,
        created_at=moment(record.created_at) if record.created_at else None,
        state_bytes=record.size,
        new_bytes=record.added,
        metadata=contents.metadata,
        next_nodes=contents.next_nodes,
        completed_tasks=contents.completed_tasks,
        interrupts=contents.interrupts,
    )
