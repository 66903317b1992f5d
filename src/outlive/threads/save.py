"""Saving a state in a thread.

The order of a save: split against the base, plan the chunks, commit, and only then remember the new
base. A crash or refusal before the commit leaves the store as it was; the base changes after
success alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from outlive.backend import CheckpointRecord, Commit, EntryRecord, Fence, ReadResult, Receipt, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import (
    CheckpointExists,
    Corrupt,
    HeadMoved,
    LeaseLost,
    NewerFormat,
    OutcomeUnknown,
    StaleBase,
    StoreError,
    StoreUnavailable,
)
from outlive.events import SAVE, Event
from outlive.format import manifest
from outlive.format.outline import split_state
from outlive.format.planner import Plan, plan_chunks
from outlive.format.splitter import Growing
from outlive.runtime.runtime import Deadline
from outlive.threads.cache import Base, Cache
from outlive.threads.engine import Engine
from outlive.threads.pending_writes import NOTHING, Written, describe_writes
from outlive.values import CheckpointInfo, PendingWrite

_REBASES = 5  # how often a save may lose against deletions by others before it gives up


@dataclass(slots=True)
class Draft:
    """What the caller wants to save, besides the state."""

    namespace: str
    id: str
    parent: str | None = None
    follows: bool = True  # no parent was named: it is the head at the commit
    expect: tuple[str, str | None] | None = None  # (namespace, id) of the head; the id None: there is none
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
    growing: Growing | None = None  # a list in the state
    timeout_s: float | None = None
    receipt: Receipt | None = None  # set by the save

    @property
    def is_repeated(self) -> bool:
        """Tell whether the checkpoint was stored before the save, and nothing is new."""
        return self.receipt is not None and self.receipt.existing is not None

    def record(self, engine: Engine, plan: Plan, written: bytes = b"") -> CheckpointRecord:
        """Return the record of a planned save."""
        return CheckpointRecord(
            namespace=self.namespace,
            id=self.id,
            parent=self.parent,
            run=self.run,
            step=self.step,
            source=self.source,
            size=plan.pieces.size,
            added=plan.added,
            chunks=tuple(plan.names),
            body=manifest.encode(engine.codec, plan.layout, self, written),
            projection=manifest.projection(self.metadata) if self.metadata else None,
            follows=self.follows,
        )


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

    async def compare(self, engine: Engine) -> CheckpointInfo | None:
        """Answer a save whose id is stored: a repetition gets its checkpoint, else raise.

        What counts is what the caller passed (state, metadata, named fields), not how it is laid
        out. None: it was deleted meanwhile.
        """
        key = self.commit.thread
        engine.cache.drop(key.digest, self.draft.namespace)
        reading = await self.read_again(engine)
        if reading.record is None:
            return None
        if not self.is_same(engine, reading):
            raise CheckpointExists(key.id, self.draft.id)
        return manifest.describe(key.id, reading.record, self.draft)

    async def read_again(self, engine: Engine) -> ReadResult:
        """Read what is stored under the id of this save."""
        thread, draft = self.commit.thread, self.draft
        return await engine.backend.read(thread, draft.namespace, draft.id, timeout_s=draft.timeout_s)

    def is_same(self, engine: Engine, reading: ReadResult) -> bool:
        """Tell whether a checkpoint has the contents of this save, however it is laid out."""
        assert reading.record is not None
        draft, stored = self.draft, reading.record
        bodies = (self.commit.checkpoints[0].body, stored.body)
        new, old = (manifest.decode(engine.codec, body, opaque=True) for body in bodies)
        fields = (draft.step, draft.source, draft.run, None if draft.follows else draft.parent)
        return (
            fields == (stored.step, stored.source, stored.run, None if draft.follows else stored.parent)
            and manifest.encode(engine.codec, [], new, new.written)
            == manifest.encode(engine.codec, [], old, old.written)
            and b"".join(part.bytes_of(engine.codec) for part in self.plan.pieces.parts)
            == engine.stream(self.commit.thread, reading)
        )


@dataclass(slots=True)
class Save:
    """One save: a state, what else the caller wants to save, and where."""

    engine: Engine
    key: ThreadKey
    state: Any
    draft: Draft

    async def run(self, *, emits: bool = True) -> CheckpointInfo:
        """Commit the state. After StaleBase, read the head again and retry; the last attempt shares nothing.

        `emits`: listeners are told of it.
        """
        engine, draft, thread = self.engine, self.draft, self.key.id
        start = time.perf_counter()
        deadline = Deadline(engine.timeout_s if draft.timeout_s is None else draft.timeout_s)
        reason = ""  # why an attempt may be stored although it was refused
        for attempt in range(_REBASES + 1):
            try:
                saved = await self._try(deadline, engine.cache if attempt < _REBASES else None)
            except StaleBase as stale:
                engine.cache.drop(self.key.digest)
                reason = str(stale) if stale.may_be_stored else reason
            except StoreError as error:
                if not reason or isinstance(error, OutcomeUnknown):
                    raise
                # This attempt did nothing, but an earlier one may be stored.
                raise OutcomeUnknown(thread, draft.id, deadline.timeout_s, str(error)) from error
            else:
                if saved is not None:
                    if emits and engine.is_watched:
                        self._emit(saved, time.perf_counter() - start)
                    return saved
        if reason:
            raise OutcomeUnknown(thread, draft.id, deadline.timeout_s, reason)
        raise StaleBase(thread)

    def _emit(self, saved: CheckpointInfo, took_s: float) -> None:
        event = Event(SAVE, self.key.id, saved.namespace, saved.id, saved.run, duration_s=took_s)
        self.engine.events.emit(replace(event, state_bytes=saved.state_bytes, new_bytes=saved.new_bytes))

    async def _try(self, deadline: Deadline, cache: Cache | None) -> CheckpointInfo | None:
        """Commit the state once; None when its checkpoint was there and was deleted meanwhile."""
        engine, key, draft = self.engine, self.key, self.draft
        # 1. Split and plan. Nothing is stored yet.
        prepared = await self.prepare(cache)
        commit = prepared.commit
        commit.timeout_s = draft.timeout_s = deadline.as_timeout_s()
        try:
            # 2. Commit: all of it or none. A crash before the commit point leaves the parent as head; a
            #    crash after it, the checkpoint: a caller that repeats the save gets it by its id.
            (result,) = await engine.backend.commit_all([commit])
            if isinstance(result, StaleBase) and prepared.fits(result):
                # Others deleted something, but nothing that this save shares: send it again as it
                # is.
                timeout_s, token = deadline.as_timeout_s(), os.urandom(8)
                commit = replace(commit, generation=result.generation, timeout_s=timeout_s, token=token)
                (result,) = await engine.backend.commit_all([commit])
            if not isinstance(result, Receipt):
                raise result
        except StaleBase:
            raise  # the caller reads the newest state and tries again
        except BaseException as error:
            # Whether it is stored is not known here: the next save must read what is.
            engine.cache.drop(key.digest, draft.namespace)
            # A replacement is no new checkpoint, so the backend does not look for its id first: an
            # earlier attempt of the caller may be what moved the head or ended the lease.
            if draft.replace and isinstance(error, HeadMoved | LeaseLost):
                draft.timeout_s = deadline.as_timeout_s()
                reading = await prepared.read_again(engine)
                if reading.record is not None and prepared.is_same(engine, reading):
                    draft.receipt = Receipt(0, 0, existing=reading.record)
                    return manifest.describe(key.id, reading.record, draft)
            raise
        draft.receipt = result
        if result.existing is not None:
            return await self._repeated(prepared, deadline)
        # 3. Make it the new base. That is in memory alone: after a crash the next save reads the head.
        prepared.plan.record_spans()
        (record,) = result.checkpoints
        base = Base(record, result.generation, prepared.plan.pieces)
        engine.cache.put((key.digest, draft.namespace), base)
        return manifest.describe(key.id, record, draft)

    async def _repeated(self, prepared: Prepared, deadline: Deadline) -> CheckpointInfo | None:
        """Answer a save whose id is there already: it must be the same save again."""
        self.draft.timeout_s = deadline.as_timeout_s()
        try:
            return await prepared.compare(self.engine)
        except StoreUnavailable as error:  # it is there, and whether it is the same could not be read
            raise OutcomeUnknown(self.key.id, self.draft.id, deadline.timeout_s, str(error)) from error

    async def prepare(self, cache: Cache | None) -> Prepared:
        """Split, plan and describe without changing anything; without a cache it shares nothing."""
        engine, draft = self.engine, self.draft
        base = cache.get((self.key.digest, draft.namespace)) if cache is not None else None
        if cache is not None and (base is None or base.pieces is None):
            base = await self._read_base(base)
        old = base.pieces if base is not None else None
        pieces = split_state(engine.codec, self.state, old, draft.growing)
        plan = plan_chunks(engine.codec, engine.namer, pieces, old)
        shares = len(plan.names) > len(plan.chunks)
        written = NOTHING
        if draft.writes:
            written = describe_writes(engine.codec, engine.namer, draft.namespace, draft.id, draft.writes)
        commit = Commit(
            thread=self.key,
            checkpoints=(draft.record(engine, plan, written.digest),),
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

    async def _read_base(self, base: Base | None) -> Base | None:
        """Split what this process has in memory, or read the head.

        A head that cannot be read, damaged or written by a newer outlive during a rolling deploy,
        is no base; the save shares nothing then.
        """
        engine, key, draft = self.engine, self.key, self.draft
        try:
            if base is None:
                reading = await engine.backend.read(key, draft.namespace, timeout_s=draft.timeout_s)
                if reading.record is None:
                    return None
                base = engine.base(key, reading)
            base.split(engine.codec)
        except (Corrupt, NewerFormat):
            return None
        return base
