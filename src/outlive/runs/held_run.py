"""A run that this process holds: its lease and fence, and all that it writes.

All writes (checkpoints, steps, the record) have the fence of the run and renew its leases. Only one
write is under way at a time. Each raises the revision of the run's entry, so a write that arrives
after a newer one is refused. A refusal because of the fence means that another process has the run:
this one has lost it. Between writes one timer renews the leases of all live runs of a store
(`renewal.py`).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any, Protocol

from outlive.backend import Commit, EntryRecord, Fence, Receipt, ThreadKey
from outlive.backend.entries import WAIT
from outlive.errors import (
    BadArgument,
    CheckpointExists,
    EntryHeld,
    LeaseLost,
    OutliveError,
    RunEnded,
    RunForked,
    RunNotStarted,
    RunSuspended,
    StoreClosed,
)
from outlive.events import CLAIM, LOSS, STALL, Event
from outlive.runs import lease
from outlive.runs.deferred_saves import Deferred, Kept
from outlive.runs.lease import (
    CANCELLED,
    LOCK,
    PARKED,
    RUN,
    RUNNING,
    RunInfo,
)
from outlive.runs.progress import Progress
from outlive.runs.start import StartOptions
from outlive.runs.stream import Stream
from outlive.runtime.runtime import Ticker, new_id
from outlive.threads.engine import Engine
from outlive.threads.save import Draft
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo


class Live(Protocol):
    """Where live runs are renewed."""

    @property
    def is_closed(self) -> bool: ...
    def add(self, run: Any) -> None: ...
    def discard(self, run: Any) -> None: ...
    def find(self, run_id: str) -> Any:
        """Return the live run with this id, if this store has it."""
        ...


class HeldRun:
    """What `AsyncRun` knows of its lease, and how it writes."""

    def __init__(
        self, engine: Engine, thread: AsyncThread, heart: Live, info: RunInfo, options: StartOptions
    ) -> None:
        self.info = info
        self.thread = thread
        self._engine = engine
        self._heart = heart  # renews the leases
        self._options = options
        self._mutex = engine.runtime.mutex()
        self._fence = self._epoch = self._lock_epoch = self._revision = 0
        self._left: EntryRecord | None = None  # its place, as the end of this run has left it
        self._has_place = False
        self._has_begun = False
        self._is_live = False
        self._is_lost = False
        self._lost_as: str | None = None  # cancelled or parked from outside
        self._is_replayed = (
            False  # it was completed before, and the code of the run around it comes here again
        )
        self._is_suspended = False  # by this process: it waits, and nothing is left to do here
        self._thread_ident = engine.runtime.thread_ident()
        self._progress = Progress()
        self._was_stalled = False
        self._stream = Stream(self)
        self._deferred = Deferred(options.throttle_s, options.clock)
        self._ticker: Ticker | None = None

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.info.id

    @property
    def _key(self) -> ThreadKey:
        return self.thread._key

    @property
    def _rank(self) -> tuple[int, int]:
        """The epoch and fence under which this run writes."""
        return self._epoch, self._fence

    @property
    def _lease_s(self) -> float:
        return self.info.lease_s

    # Whether this process holds the run

    def _go_live(self) -> None:
        self._is_live = True
        self._heart.add(self)
        if self._options.throttle_s > 0:
            self._ticker = self._engine.runtime.tick(
                "outlive-throttled-save", self._options.throttle_s, self._flush_when_due
            )

    def _stop(self) -> None:
        self._is_live = False
        self._heart.discard(self)
        self._stream.stop()
        if self._ticker is not None:
            self._ticker.stop()

    def _leave(self) -> None:
        """Stop renewing the lease when the end could not be stored: nothing works on the run any more."""
        if self._is_live:
            self._stop()

    def _is_mine(self) -> bool:
        """Tell whether this process owns the run: a forked child has its parent's objects, not its runs."""
        return self.info.owner is not None and self.info.owner.pid == os.getpid()

    def _check_live(self) -> None:
        """Raise unless this process holds the run, as far as it knows."""
        if self._is_live and not self._is_mine():
            raise RunForked(self.id, str(self.info.owner))
        if self._is_lost:
            raise LeaseLost(self.info.thread, RUN, self.id, self._fence, None, self._lost_as)
        if self._is_live or self._is_replayed:
            return
        if self._heart.is_closed:
            raise StoreClosed
        if self._is_suspended:
            raise RunSuspended(self.id, () if self.info.waits is None else self.info.waits.names)
        if self.info.status == RUNNING and not self._has_begun:
            raise RunNotStarted(self.id)
        raise RunEnded(
            self.id,
            "not running in this process any more" if self.info.status == RUNNING else self.info.status,
        )

    def _lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that another process has taken this run or its place over."""
        if self._is_live:
            self._is_lost = True
            self._stop()
            self._tell(LOSS)
        if isinstance(error, LeaseLost):
            return error
        return LeaseLost(self.info.thread, error.kind, error.key, self._fence, None)

    async def _lose_and_tell(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that this run is lost, and return an error that says why if it was cancelled or parked."""
        lost = self._lose(error)
        with contextlib.suppress(OutliveError):
            stored = await lease.find(self._engine, self._key, RUN, self.id)
            if stored is not None and stored.status in (CANCELLED, PARKED):
                self._lost_as = stored.status
                return LeaseLost(lost.thread, RUN, self.id, self._fence, lost.current, stored.status)
        return lost

    # The lease

    def _is_stalled(self) -> bool:
        limit_s = self.info.progress_s
        is_stalled = limit_s is not None and self._progress.quiet_s() > limit_s
        if is_stalled and not self._was_stalled:
            self._tell(STALL, step=self.info.step, duration_s=self._progress.quiet_s())
        self._was_stalled = is_stalled
        return is_stalled

    def _renewal(self) -> Commit:
        """Return the commit that renews the leases, with the progress if it has news. It is of no newer revision than the last write."""
        fence = self._as_fence() if self._fence else None
        revision = self._revision
        body = self._progress.take_news(self._engine.codec, self.info, revision)
        return Commit(
            self._key,
            entries=self._leases(body, revision),
            fence=fence,
            timeout_s=max(1.0, self.info.lease_s / 3),
        )

    def _renewed(self, is_stored: bool) -> None:
        if not is_stored:
            self._progress.tell_again()

    def _is_overtaken(self, error: LeaseLost | EntryHeld) -> bool:
        """Tell whether a renewal was refused only because a newer write of this very run came first."""
        stored = error.stored if isinstance(error, EntryHeld) else None
        return isinstance(stored, EntryRecord) and stored.fence == self._fence

    def _renewals(self, body: bytes | None = None) -> tuple[EntryRecord, ...]:
        """Return the entries that renew the leases, of a revision of their own; called under the mutex, by every write."""
        self._revision += 1
        return self._leases(body)

    def _leases(self, body: bytes | None = None, revision: int | None = None) -> tuple[EntryRecord, ...]:
        run = EntryRecord(
            RUN, self.id, body, RUNNING, epoch=self._epoch, fence=self._fence,
            revision=self._revision if revision is None else revision, lease_s=self.info.lease_s,
        )  # fmt: skip
        return (run, self._lock(None)) if self._has_place else (run,)

    def _lock(self, body: bytes | None) -> EntryRecord:
        return EntryRecord(
            LOCK, self.info.namespace, body, RUNNING,
            epoch=self._lock_epoch, fence=self._fence, revision=self._revision, lease_s=self.info.lease_s,
        )  # fmt: skip

    # Writes

    async def _or_lose(self, write: Any) -> Any:
        """Do a write; a refusal because of the fence ends this run here."""
        try:
            return await write
        except (LeaseLost, EntryHeld) as error:
            if error.kind == WAIT:  # another process answered: the run is still ours
                raise
            raise await self._lose_and_tell(error) from None

    async def _commit(self, commit: Commit) -> Receipt:
        return await self._or_lose(self._engine.commit(self._fenced(commit)))  # type: ignore[no-any-return]

    def _fenced(self, commit: Commit) -> Commit:
        """Return a commit that is refused once another process has this run. (The null store gives no fence.)"""
        return replace(commit, fence=self._as_fence()) if self._fence else commit

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence | None:
        """Return what a commit to a thread must find there, for `thread.save(state, fence=run)`."""
        lease.check_protects("run", self._engine, self._key, engine, thread)
        self._check_live()
        return self._as_fence() if self._fence else None

    def _as_fence(self) -> Fence:
        return Fence(RUN, self.id, self._epoch, self._fence)

    async def _write_entries(self, *entries: EntryRecord) -> Receipt:
        """Store entries of this run durably."""
        async with self._mutex:
            return await self._write_held(*entries)

    async def _write_held(self, *entries: EntryRecord) -> Receipt:
        """Store entries of this run durably; the caller holds the mutex."""
        self._check_live()
        if self._is_replayed:
            raise RunEnded(self.id, self.info.status)
        chunks = self._stream.take()
        fence = self._as_fence() if self._fence else None  # the null store gives no fence
        # One commit stores the entries and renews the leases. A crash before it leaves neither;
        # when another process has the run by now, the fence refuses both.
        commit = Commit(self._key, entries=(*entries, *chunks, *self._renewals()), fence=fence)
        receipt: Receipt = await self._or_lose(self._engine.commit(commit))
        self._stream.settle(chunks)
        self._progress.wrote(self._revision)
        return receipt

    # Saves

    async def _save_as(
        self, chosen: str | None, state: Any, draft: Draft, *, is_named: bool
    ) -> CheckpointInfo | None:
        durability = chosen or self._options.durability
        if durability != "sync" and draft.expect is not None:
            raise BadArgument('expect= needs an answer from the store: use durability="sync" for this save')
        if durability == "async":
            return await self._save_later(state, draft)
        waits = durability == "exit" or (chosen is None and self._deferred.is_too_soon())
        if waits and draft.expect is None:
            kept = Kept.of(self._engine.codec, state, draft)
            if not is_named or draft.replace or not await self._is_taken(draft):
                self._deferred.keep(kept, until_end=durability == "exit")
                self._progress.moved()
                return None
        return await self._store(state, draft)

    async def _is_taken(self, draft: Draft) -> bool:
        """Tell whether the thread has a checkpoint of this id: then the store has to say whether it is the same."""
        reading = await self._engine.backend.read(
            self._key, draft.namespace, draft.id, chunks=False, timeout_s=draft.timeout_s
        )
        return reading.record is not None

    async def _save_later(self, state: Any, draft: Draft) -> CheckpointInfo:
        """Queue a save. It renews nothing: what the run writes meanwhile is newer."""
        if self._fence:
            draft.fence = self._as_fence()
        queued = await self.thread._store._delayed(self._key).save(state, draft)
        self._progress.moved()
        self._deferred.stored()
        return queued

    async def _store(self, state: Any, draft: Draft) -> CheckpointInfo:
        body, chunks = None, self._stream.take()
        if self._fence:
            draft.fence = self._as_fence()
            # The checkpoint, the progress and the renewed leases are one commit: see `_write_held`.
            body = lease.pack_run(self._engine, self.info)
            draft.entries = (*self._renewals(body), *chunks)
        saved: CheckpointInfo = await self._or_lose(self.thread._save(state, draft))
        if not draft.is_repeated:
            self._stream.settle(chunks)
        self._progress.stored(self._revision, body)
        self._deferred.stored()
        return saved

    async def _flush_all(self) -> None:
        async with self._mutex:
            self._check_live()
            await self._flush()
            await self._stream.flush_held()

    async def _flush(self, timeout_s: float | None = None) -> None:
        kept = self._deferred.kept
        if kept is not None:
            try:
                await self._store(kept.state(), kept.draft(timeout_s))
            except CheckpointExists:  # another save took its id meanwhile: store the state under a new one
                await self._store(kept.state(), replace(kept.draft(timeout_s), id=new_id()))
        await self.thread._flush_queue()

    async def _flush_when_due(self) -> None:
        if self._is_live and self._deferred.is_due():
            try:
                await self._flush_all()
            except OutliveError:
                pass  # the next write of the run, or the next tick, tries again; a lost lease is noted

    def _tell(self, name: str, **details: Any) -> None:
        if self._engine.events.is_on:
            info = self.info
            fields = {"run": info.id, "status": info.status, "attempt": info.attempt, "agent": info.agent}
            if name in (CLAIM, LOSS):
                fields["usage"] = info.usage
            self._engine.events.emit(Event(name, info.thread, info.namespace, **{**fields, **details}))
