"""A lock: a thread held without a run, with the same lease, fence and clock."""

from __future__ import annotations

import random
from dataclasses import replace
from types import TracebackType
from typing import Protocol, Self

from outlive.backend import Commit, EntryRecord, Fence, ThreadKey
from outlive.errors import BadArgument, EntryHeld, LeaseLost, ThreadBusy
from outlive.runs import lease
from outlive.runs.lease import LOCK, RUNNING
from outlive.runs.thread_lock import Place
from outlive.runtime.runtime import Deadline
from outlive.runtime.wrong_mode import AsyncContext
from outlive.threads.engine import Engine

_PAUSE_S = 0.05


class LeaseRegistry(Protocol):
    """Where leases are renewed."""

    def add(self, run: AsyncLock) -> None: ...
    def discard(self, run: AsyncLock) -> None: ...


class AsyncLock(AsyncContext):
    """A lock on a thread and namespace. Made by `store.lock(id)`; held inside its `with` block."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        namespace: str,
        heart: LeaseRegistry,
        *,
        timeout_s: float | None,
        lease_s: float,
    ) -> None:
        self._lease_s = lease_s
        self._engine = engine
        self._key = key
        self._namespace = namespace
        self._heart = heart
        self._timeout_s = timeout_s
        self._held: EntryRecord | None = None
        self._taken: EntryRecord | None = None  # the last entry held, also after it was lost or released
        self._thread_ident = engine.runtime.thread_ident()

    def __repr__(self) -> str:
        namespace = f" namespace {self._namespace!r}" if self._namespace else ""
        state = f"held, fence {self.fence}" if self.is_held else "not held"
        return f"<{type(self).__name__} on {self._key.id!r}{namespace} {state}>"

    @property
    def is_held(self) -> bool:
        """Tell whether this lock is held, as far as this process knows."""
        return self._held is not None

    @property
    def fence(self) -> int | None:
        """The number of this holder, greater than that of every holder before; None before the lock was first held.

        Pass the lock itself to what it protects: `await thread.save(state, fence=lock)`.
        """
        return None if self._taken is None else self._taken.fence

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence:
        """Return what a commit to a thread must find there. A lock that was lost still says what it was: the store refuses it."""
        lease.check_protects("lock", self._engine, self._key, engine, thread)
        if self._taken is None:
            raise BadArgument(
                f"the lock on thread {self._key.id!r} was never held: use it inside its `with` block"
            )
        return self._taken.as_fence()

    async def acquire(self) -> Self:
        """Wait until the lock is free, and take it. Raises ThreadBusy when the time is up."""
        deadline = Deadline(self._timeout_s)
        while True:
            try:
                await self._take()
                return self
            except ThreadBusy:
                if deadline.remaining_s() <= _PAUSE_S:
                    raise
            await self._engine.runtime.sleep(_PAUSE_S * random.uniform(0.5, 1.5))

    async def _take(self) -> None:
        place = Place(self._engine, self._key, self._namespace)
        claim = await place.claim(None, None, self._lease_s)
        try:
            receipt = await self._engine.commit(Commit(self._key, entries=claim.entries))
        except EntryHeld as error:
            raise lease.busy(self._engine.codec, self._namespace, error) from None
        self._held = self._taken = (receipt.entries or claim.entries)[0]
        self._heart.add(self)

    async def release(self) -> None:
        """Release the lock; nothing happens when another process has taken it over."""
        entry, self._held = self._held, None
        self._heart.discard(self)
        if entry is None:
            return
        freed = replace(entry, status="free", until=0, clock="", revision=entry.revision + 1)
        try:
            await self._engine.commit(Commit(self._key, entries=(freed,), fence=entry.as_fence()))
        except (LeaseLost, EntryHeld):
            pass  # another process holds it by now

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.runtime.shielded(self.release())

    # What the timer asks (`renewal.py`)

    def _is_stalled(self) -> bool:
        return False

    def _renewal(self) -> Commit:
        entry = self._held
        if entry is None:
            return Commit(self._key)
        renewed = EntryRecord(
            LOCK, entry.key, None, RUNNING, entry.epoch, entry.fence, entry.revision, lease_s=self._lease_s
        )
        return Commit(self._key, entries=(renewed,), fence=entry.as_fence())

    def _renewed(self, is_stored: bool) -> None:
        """Do nothing: a renewal of a lock has nothing else to store."""

    def _lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        self._held = None
        self._heart.discard(self)
        return (
            error if isinstance(error, LeaseLost) else LeaseLost(self._key.id, LOCK, self._namespace, 0, None)
        )

    def _is_overtaken(self, error: LeaseLost | EntryHeld) -> bool:
        """Tell whether a renewal was refused only because this very lock was given back meanwhile."""
        return self._held is None

    async def _give_up(self) -> None:
        await self.release()
