"""The sweep: deletes what a store need not keep.

A checkpoint is due if it is not among the newest `keep_last` of its namespace, or is older than
`max_age_s`. A whole thread is due if nothing was committed to it for `ttl_s`. What is still needed
stays: the newest checkpoint of a namespace, the newest one of an unfinished run, a checkpoint that
waits for an answer, and a thread with one of the last two.

One sweeper works at a time: it holds a lock of the whole tenant, in a thread of the store itself.
It does not take the locks of threads, which would keep runs from starting. It works thread by
thread in small commits and rests after each as long as that took, so others can save in between.
Each commit is one of `prune.py`, so a crash leaves at worst chunks without a reader, which the next
sweep removes. A thread is deleted only if nothing was committed to it since it was listed.
"""

from __future__ import annotations

import time
import warnings

from outlive.backend import NEXT, Commit, EntryRecord, ThreadKey, reserved
from outlive.backend.entries import SWEEP
from outlive.errors import (
    BadArgument,
    Corrupt,
    OutcomeUnknown,
    OutliveError,
    StoreClosed,
    StoreUnavailable,
    SweepBusy,
    ThreadBusy,
    well_formed,
)
from outlive.events import SWEEP as EVENT
from outlive.events import Event
from outlive.format.codec import Codec
from outlive.retention.policy import Retain, Swept
from outlive.retention.thread_sweep import MAX_SEEN, Pacer, ThreadSweep
from outlive.runs import lease
from outlive.runs.lock import AsyncLock, LeaseRegistry
from outlive.runtime.fork import reset_in_child
from outlive.runtime.runtime import Signal, Ticker
from outlive.threads.engine import Engine
from outlive.threads.listing import Threads

_LOOK_S = 60.0  # how often a process checks if a sweep is due
_LEASE_S = 60.0


class Sweeper:
    """The sweeps of one store."""

    def __init__(self, engine: Engine, tenant: str, heart: LeaseRegistry, retain: Retain | None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._heart = heart
        self.retain = retain
        self._ticker: Ticker | None = None
        self._background: Signal | None = None  # ends the sweeps of the ticker
        self._begin()
        reset_in_child(self)
        self._seen: dict[bytes, tuple[int, float]] = {}  # thread → (revision, nothing is due before)
        self._touched: dict[bytes, float] = {}
        self._skew_s = 0.0  # how far the clock of the store is ahead of ours
        self._key = reserved(f"sweep {ThreadKey.of(tenant, '').digest.hex()}")
        if retain is not None and retain.every_s is not None:
            self._begin_ticking(retain.every_s)

    def _begin(self) -> None:
        self._bell = self._engine.runtime.bell()
        self._turn = self._engine.runtime.mutex()

    def after_fork_in_child(self) -> None:
        """Stop sweeping in the background: the parent does that."""
        self._ticker = self._background = None
        self._begin()

    def _begin_ticking(self, every_s: float) -> None:
        self._background = self._engine.runtime.bell()
        self._ticker = self._engine.runtime.tick("outlive-sweep", min(every_s, _LOOK_S), self._tick)

    async def start(self, retain: Retain | None) -> None:
        """Sweep in the background, every `retain.every_s`.

        If it does already, use this policy from now on.
        """
        if retain is None or retain.every_s is None:
            raise BadArgument("sweeping in the background needs retain=outlive.Retain(..., every_s=...)")
        if self._bell.is_set():
            raise StoreClosed
        if self._ticker is not None and retain == self.retain:
            return
        await self.stop()
        self.retain = retain
        self._seen.clear()  # they hold for the policy before
        self._begin_ticking(retain.every_s)

    async def stop(self) -> None:
        """Stop sweeping in the background.

        A running sweep ends after its commit; this waits for it.
        """
        if self._background is not None:
            self._background.set()
        async with self._turn:
            if self._ticker is not None:
                self._ticker.stop()
            self._ticker = self._background = None

    async def close(self) -> None:
        """Stop a running sweep after its commit, and wait for that."""
        self._bell.set()
        await self.stop()

    # Scheduling

    async def _tick(self) -> None:
        """Sweep if it is time. A failure is reported; the next sweep may succeed."""
        try:
            if await self._is_due(time.time() + self._skew_s):  # before it takes the lock
                await self.sweep(self.retain, if_due=True, bell=self._background)
        except (ThreadBusy, StoreClosed):
            pass  # another process sweeps, or this store closes
        except Exception as error:  # noqa: BLE001  # no caller waits for it, and the next sweep may succeed
            why = f"{type(error).__name__}: {error}"
            self._engine.events.emit(Event(EVENT, "", status="failed", error=why))
            if not self._engine.events.is_on:
                warnings.warn(f"a sweep in the background failed: {why}", stacklevel=1)

    async def _is_due(self, now: float) -> bool:
        last = await self._last()
        every_s = self.retain.every_s if self.retain is not None else None
        if last is None or every_s is None:
            return True
        # A sweep in the future means that a clock was set back: sweep.
        return not 0 <= now - _swept_at(self._engine.codec, last) < every_s * 0.9

    async def _now(self) -> float:
        """Return the time by the clock that stamps commits: that of the server, if there is one."""
        asked = EntryRecord(SWEEP, "clock", b"", fence=NEXT, lease_s=1.0)
        try:
            (answer,) = (await self._engine.commit(Commit(self._key, entries=(asked,)))).entries
        except (OutliveError, ValueError):  # the null store, or one that this process may only read
            return time.time()
        if lease.is_time_of_day(answer):  # else it counts since the boot
            self._skew_s = answer.until / 1e6 - 1.0 - time.time()
        return time.time() + self._skew_s

    async def _last(self) -> EntryRecord | None:
        return await lease.find(self._engine, self._key, SWEEP, "last")

    async def _note(self, now: float) -> None:
        """Store the time of this sweep, for all processes."""
        last = await self._last()
        revision = 1 if last is None else last.revision + 1
        body = self._engine.codec.pack({"at": now})
        await self._engine.commit(
            Commit(self._key, entries=(EntryRecord(SWEEP, "last", body, revision=revision),))
        )

    # Sweeping

    async def sweep(
        self,
        retain: Retain | None,
        *,
        dry_run: bool = False,
        if_due: bool = False,
        bell: Signal | None = None,
    ) -> Swept:
        """Delete what is due. Raises SweepBusy if another process sweeps."""
        if retain is None:
            raise BadArgument(
                "a sweep needs to know what to keep: open the store with retain=outlive.Retain(...)"
            )
        swept = Swept(dry_run)
        bell = bell or self._bell
        async with self._turn:
            if bell.is_set():
                raise StoreClosed
            if dry_run:
                await self._all(retain, swept, Pacer(bell, None))
                return swept
            lock = AsyncLock(self._engine, self._key, "", self._heart, timeout_s=0.001, lease_s=_LEASE_S)
            try:
                async with lock:
                    if not if_due or await self._is_due(await self._now()):
                        await self._sweep(retain, swept, lock, bell)
            except ThreadBusy as busy:
                raise SweepBusy(busy.thread, busy.lease_expires_at, busy.owner) from None
        return swept

    async def _sweep(self, retain: Retain, swept: Swept, lock: AsyncLock, bell: Signal) -> None:
        start = time.perf_counter()
        now = await self._all(retain, swept, Pacer(bell, lock))
        if swept.is_complete:
            await self._note(now)
        status, error = "done" if swept.is_complete else "stopped", "; ".join(swept.problems) or None
        took = time.perf_counter() - start
        self._engine.events.emit(
            Event(EVENT, "", status=status, state_bytes=swept.freed_bytes, duration_s=took, error=error)
        )

    async def _all(self, retain: Retain, swept: Swept, pace: Pacer) -> float:
        """Sweep every thread; return the time that was used as now."""
        seen = self._seen if retain is self.retain else {}
        now = await self._now()
        damaged: list[Corrupt] = []
        rows = Threads(self._engine, self._tenant, heads=False, damaged=damaged)
        while (row := await rows.next_row()) is not None:
            if not pace.may_continue:
                swept.is_complete = False
                break
            did = True
            try:
                did = await ThreadSweep(self._engine, retain, swept, seen, pace, now).thread(
                    ThreadKey.of(self._tenant, row.id), row
                )
            except (StoreUnavailable, OutcomeUnknown, StoreClosed):
                raise
            except OutliveError as error:  # an error of this thread: sweep the others
                swept.problems.append(str(error))
            swept.threads += 1
            if did:
                await pace.rest()
        swept.problems += map(str, damaged)
        return now

    # Reading

    async def touch(self, key: ThreadKey) -> None:
        """Note that a thread was read, if that counts as use.

        An empty commit changes only the time of its last change.
        """
        retain = self.retain
        if retain is None or not retain.refresh_on_read or retain.ttl_s is None:
            return
        now = time.monotonic()
        if now - self._touched.get(key.digest, float("-inf")) < retain.ttl_s / 10:
            return
        if len(self._touched) > MAX_SEEN:
            self._touched.clear()
        self._touched[key.digest] = now
        try:
            await self._engine.commit(Commit(key))
        except OutliveError:
            del self._touched[key.digest]  # the load itself succeeded


def _swept_at(codec: Codec, last: EntryRecord) -> float:
    with well_formed("the time of the last sweep", None):
        return float(codec.unpack(last.body or b"")["at"])
