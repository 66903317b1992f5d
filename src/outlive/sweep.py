"""The sweep: takes away what is beyond what a store keeps.

A checkpoint is due when it is beyond the newest `keep_last` of its namespace, or older than `max_age_s`. A whole thread is due when nothing was
committed to it for `ttl_s`. What is due stays all the same when somebody still needs it: the newest checkpoint of a namespace,
the newest one of a run that is not finished, a question that nobody answered, and a thread with any of the last two.

One sweeper works at a time: it holds a lock of the tenant as a whole, in a thread of the store's own. Locks of the threads themselves belong to
runs, which a sweep must not keep from starting, and two sweepers on two threads would still double the load. It goes on
thread by thread in small commits and rests after each as long as that took, so that saves come between. Each commit is one of `prune.py`, so a
crash at any moment leaves chunks without a reader at worst, which the next sweep takes along. A thread is deleted only if nothing at all was
committed to it since it was listed.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence

from . import lease, prune
from .backend import NEXT, CheckpointRecord, Commit, Entry, Removal, ThreadKey, ThreadRow, reserved
from .codec import Codec
from .engine import Engine
from .errors import (
    BadArgument,
    OutcomeUnknown,
    OutliveError,
    StaleBase,
    StoreClosed,
    StoreUnavailable,
    SweepBusy,
    ThreadBusy,
)
from .event import SWEEP as EVENT
from .event import Event
from .lease import INTERRUPTED, LOCK, PARKED, RUN, RUNNING
from .listing import Threads
from .lock import AsyncLock, Keeper
from .prune import Look
from .retain import Retain, Swept
from .runtime import Bell, Ticker

Pair = tuple[str, str]  # (namespace, id)
Needed = Mapping[str, set[Pair]]  # by reason
SWEEP = "sweep"
_PAGE = 200
_BATCH = 500  # checkpoints removed by one commit, or a twentieth of the thread if that is more
_LOOK_S = 60.0  # how often a process looks whether a sweep is due
_LONGEST_REST_S = 0.25
_LEASE_S = 60.0
_MAX_SEEN = 200_000


class _Pace:
    """When to rest and when to stop."""

    def __init__(self, bell: Bell, lock: AsyncLock | None) -> None:
        self._bell = bell
        self._lock = lock
        self._since = time.monotonic()

    @property
    def goes_on(self) -> bool:
        return not self._bell.has_rung() and (self._lock is None or self._lock.is_held)

    async def rest(self) -> None:
        """Rest as long as it worked, so that others have the store for half of the time at least."""
        await self._bell.wait(min(_LONGEST_REST_S, time.monotonic() - self._since))
        self._since = time.monotonic()


class Sweeper:
    """The sweeps of one store."""

    def __init__(self, engine: Engine, tenant: str, heart: Keeper, retain: Retain | None) -> None:
        self._engine = engine
        self._tenant = tenant
        self._heart = heart
        self.retain = retain
        self._ticker: Ticker | None = None
        self._begin()
        self._seen: dict[bytes, tuple[int, float]] = {}  # thread → (revision, nothing is due before)
        self._touched: dict[bytes, float] = {}
        self._skew_s = 0.0  # by which the store's clock is ahead of ours
        self._key = reserved(f"sweep {ThreadKey.of(tenant, '').digest.hex()}")
        if retain is not None and retain.every_s is not None:
            self._ticker = engine.runtime.tick(min(retain.every_s, _LOOK_S), self._tick)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._bell = self._engine.runtime.bell()
        self._turn = self._engine.runtime.mutex()

    def _after_fork(self) -> None:
        if self._pid != os.getpid():  # the parent sweeps; its thread may have held the mutex when it forked
            self._ticker = None
            self._begin()

    async def close(self) -> None:
        """Stop what is under way after its commit, and wait for that."""
        self._after_fork()
        self._bell.ring()
        async with self._turn:
            if self._ticker is not None:
                self._ticker.stop()

    # When

    async def _tick(self) -> None:
        """Sweep if it is time. What stands in the way is told, and may be gone the next time."""
        try:
            if await self._is_due(time.time() + self._skew_s):  # before anybody takes a lock for it
                await self.sweep(self.retain, if_due=True)
        except (ThreadBusy, StoreClosed):
            pass  # another process sweeps, or this one ends
        except Exception as error:  # noqa: BLE001  # nobody waits for it, and the next sweep may go well
            why = f"{type(error).__name__}: {error}"
            self._engine.watched.tell(Event(EVENT, "", status="failed", error=why))
            if not self._engine.watched.is_on:
                warnings.warn(f"a sweep in the background failed: {why}", stacklevel=1)

    async def _is_due(self, now: float) -> bool:
        last = await self._last()
        every_s = self.retain.every_s if self.retain is not None else None
        if last is None or every_s is None:
            return True
        return not 0 <= now - _swept_at(self._engine.codec, last) < every_s * 0.9  # unless a clock went back

    async def _now(self) -> float:
        """Return the time by the clock that stamps what is committed: the server's, where there is one."""
        asked = Entry(SWEEP, "clock", b"", fence=NEXT, lease_s=1.0)
        try:
            (answer,) = (await self._engine.commit(Commit(self._key, entries=(asked,)))).entries
        except (
            OutliveError,
            ValueError,
        ):  # of a store that keeps nothing, or that this process may only read
            return time.time()
        if lease.lapses_at(answer) is not None:  # else it counts since the machine was started
            self._skew_s = answer.until / 1e6 - 1.0 - time.time()
        return time.time() + self._skew_s

    async def _last(self) -> Entry | None:
        return await lease.find(self._engine, self._key, SWEEP, "last")

    async def _note(self, now: float) -> None:
        """Write down when this sweep was, for all processes."""
        last = await self._last()
        revision = 1 if last is None else last.revision + 1
        body = self._engine.codec.pack({"at": now})
        await self._engine.commit(Commit(self._key, entries=(Entry(SWEEP, "last", body, revision=revision),)))

    # How

    async def sweep(
        self,
        retain: Retain | None,
        *,
        dry_run: bool = False,
        if_due: bool = False,
    ) -> Swept:
        """Take away what is due. Raises SweepBusy when another process sweeps."""
        if retain is None:
            raise BadArgument("nothing says what to keep: open the store with retain=outlive.Retain(...)")
        self._after_fork()
        swept = Swept(dry_run)
        async with self._turn:
            if self._bell.has_rung():
                raise StoreClosed
            if dry_run:
                await self._all(retain, swept, _Pace(self._bell, None))
                return swept
            lock = AsyncLock(self._engine, self._key, "", self._heart, timeout_s=0.001, lease_s=_LEASE_S)
            try:
                async with lock:
                    if not if_due or await self._is_due(await self._now()):
                        await self._sweep(retain, swept, lock)
            except ThreadBusy as busy:
                raise SweepBusy(busy.thread, busy.until) from None
        return swept

    async def _sweep(self, retain: Retain, swept: Swept, lock: AsyncLock) -> None:
        start = time.perf_counter()
        now = await self._all(retain, swept, _Pace(self._bell, lock))
        if swept.is_complete:
            await self._note(now)
        status, error = "done" if swept.is_complete else "stopped", "; ".join(swept.problems) or None
        took = time.perf_counter() - start
        self._engine.watched.tell(
            Event(EVENT, "", status=status, size=swept.bytes, seconds=took, error=error)
        )

    async def _all(self, retain: Retain, swept: Swept, pace: _Pace) -> float:
        """Look at every thread; return the moment by which it went."""
        seen = self._seen if retain is self.retain else {}
        now = await self._now()
        rows = Threads(self._engine, self._tenant, heads=False)
        while (row := await rows.next_row()) is not None:
            if not pace.goes_on:
                swept.is_complete = False
                break
            did = True
            try:
                did = await _Visit(self._engine, retain, swept, seen, pace, now).thread(
                    ThreadKey.of(self._tenant, row.id), row
                )
            except (StoreUnavailable, OutcomeUnknown, StoreClosed):
                raise
            except OutliveError as error:  # of this thread; the others can be swept all the same
                swept.problems.append(str(error))
            swept.threads += 1
            if did:
                await pace.rest()
        return now

    # Reading

    async def touch(self, key: ThreadKey) -> None:
        """Note that a thread was read, if that counts: an empty commit, which moves nothing but the time of its last change."""
        retain = self.retain
        if retain is None or not retain.refresh_on_read or retain.ttl_s is None:
            return
        now = time.monotonic()
        if now - self._touched.get(key.digest, float("-inf")) < retain.ttl_s / 10:
            return
        if len(self._touched) > _MAX_SEEN:
            self._touched.clear()
        self._touched[key.digest] = now
        try:
            await self._engine.commit(Commit(key))
        except OutliveError:
            del self._touched[key.digest]  # the load itself went well


class _Visit:
    """One look at one thread."""

    def __init__(
        self,
        engine: Engine,
        retain: Retain,
        swept: Swept,
        seen: dict[bytes, tuple[int, float]],
        pace: _Pace,
        now: float,
    ) -> None:
        self._engine = engine
        self._retain = retain
        self._swept = swept
        self._seen = seen
        self._pace = pace
        self._now = now

    async def thread(self, key: ThreadKey, row: ThreadRow) -> bool:
        """Sweep a thread; tell whether anything was done."""
        retain = self._retain
        is_over = retain.ttl_s is not None and row.updated_at / 1e6 < self._now - retain.ttl_s
        if is_over and await self._expire(key, row):
            return True
        revision, due_at = self._seen.get(key.digest, (0, 0.0))
        if revision == row.revision and self._now < due_at:
            return False
        return await self._shorten(key, row)

    # A whole thread

    async def _expire(self, key: ThreadKey, row: ThreadRow) -> bool:
        look = await prune.look_at(self._engine, key)
        reason = await self._needs(key, look)
        if reason is not None:
            self._swept.keep(reason)
            return False
        if not self._swept.dry_run:
            everything = Removal(everything=True)
            try:
                await self._engine.commit(Commit(key, removal=everything, revision=row.revision))
            except StaleBase:  # somebody came back to it
                self._swept.keep("in use")
                return False
            self._engine.cache.drop(key.digest)
            self._seen.pop(key.digest, None)
        taken = self._swept.ttl
        taken.threads += 1
        taken.checkpoints += len(look.records)
        taken.bytes += row.stored
        return True

    async def _needs(self, key: ThreadKey, look: Look) -> str | None:
        """Say why a whole thread must stay."""
        if await self._unfinished(key):
            return "unfinished run"
        backend = self._engine.backend
        if await backend.entries(key.tenant, LOCK, thread=key, statuses=[RUNNING], lapsed=False, limit=1):
            return "lock"
        if await prune.open_interrupts(self._engine, key, look.records):
            return "open interrupt"
        return None

    async def _unfinished(self, key: ThreadKey) -> set[str]:
        """Return the runs of a thread that may still go on."""
        found: set[str] = set()
        after = None
        while True:
            page = await self._engine.backend.entries(
                key.tenant, RUN, thread=key, statuses=[RUNNING, INTERRUPTED, PARKED], after=after, limit=_PAGE
            )
            found |= {entry.key for _, entry in page}
            if len(page) < _PAGE:
                return found
            after = (page[-1][1].key, page[-1][0].digest)

    # Single checkpoints

    async def _shorten(self, key: ThreadKey, row: ThreadRow) -> bool:
        look = await prune.look_at(self._engine, key)
        due = self.due(look.records)
        if not any(due.values()):
            if await self._has_orphans(key, look):
                return True
            self._remember(key, row, look.records)
            return False
        needed = await self.needed(key, look.records)
        for reason, pairs in needed.items():
            self._swept.keep(reason, len(pairs & (due["max_age"] | due["keep_last"])))
        free = {name: pairs - set().union(*needed.values()) for name, pairs in due.items()}
        if any(free.values()):
            if self._swept.dry_run:
                pairs = set().union(*free.values())
                wasted = prune.wasted(self._engine, key, look, pairs)
                self._count(look, free, _cost(look, pairs) - _cost(look, set()) + wasted)
            else:
                await self._prune(key, look, needed)
        return True

    def due(self, records: Sequence[CheckpointRecord]) -> dict[str, set[Pair]]:
        """Return what is due by reason, the newest of each namespace never."""
        due: dict[str, set[Pair]] = {"max_age": set(), "keep_last": set()}
        seen: dict[str, int] = {}
        retain = self._retain
        oldest = None if retain.max_age_s is None else (self._now - retain.max_age_s) * 1e6
        for record in records:  # newest first
            place = seen[record.namespace] = seen.get(record.namespace, -1) + 1
            if place == 0:
                continue
            if oldest is not None and record.created_at < oldest:
                due["max_age"].add((record.namespace, record.id))
            elif retain.keep_last is not None and place >= retain.keep_last:
                due["keep_last"].add((record.namespace, record.id))
        return due

    async def needed(self, key: ThreadKey, records: Sequence[CheckpointRecord]) -> Needed:
        """Return what must stay whatever its age: the newest of every run that may go on, and open questions."""
        runs = await self._unfinished(key)
        newest: set[Pair] = set()
        for record in records:  # newest first
            if record.run in runs:
                runs.discard(record.run)
                newest.add((record.namespace, record.id))
        needed = {
            "unfinished run": newest,
            "open interrupt": await prune.open_interrupts(self._engine, key, records),
        }
        kept = {(record.namespace, record.id) for record in records} - set().union(
            *self.due(records).values()
        )
        needed["ancestor"] = prune.leaned_on(records, kept.union(*needed.values()))
        return needed

    def _count(self, look: Look, due: Mapping[str, set[Pair]], freed: int) -> None:
        """Count what goes, or went. Bytes that several reasons free are counted with the first."""
        old, more = due["max_age"], due["keep_last"]
        by_age = min(freed, _cost(look, old) - _cost(look, set())) if old and more else freed if old else 0
        for taken, pairs, size in (
            (self._swept.max_age, old, by_age),
            (self._swept.keep_last, more, freed - by_age),
        ):
            taken.threads += bool(pairs)
            taken.checkpoints += len(pairs)
            taken.bytes += size

    async def _prune(self, key: ThreadKey, look: Look, needed: Needed) -> None:
        """Remove what is due, the oldest first, in commits that are short; count what has gone, however it ends."""
        limit = max(_BATCH, len(look.records) // 20)
        gone: dict[str, set[Pair]] = {"max_age": set(), "keep_last": set()}
        freed = 0
        fresh: Look | None = look
        try:
            while True:
                batch = _Batch(self, key, limit, look, needed)
                done = await prune.remove_chosen(self._engine, key, batch.choose, look=fresh)
                fresh = None
                for reason, pairs in batch.chosen.items():
                    gone[reason] |= pairs
                freed += done.freed_bytes + batch.bodies
                if done.checkpoints < limit:
                    return
                await self._pace.rest()
                if not self._pace.goes_on:
                    self._swept.is_complete = False
                    return
        finally:
            self._count(look, gone, freed)

    async def _has_orphans(self, key: ThreadKey, look: Look) -> bool:
        """Take chunks away that a crash in the middle of a deletion had left; tell whether there were any."""
        size = _cost(look, set())
        if not size:
            return False
        if not self._swept.dry_run and await prune.sweep(self._engine, key, look=look) is None:
            return False
        self._swept.orphans.threads += 1
        self._swept.orphans.bytes += size
        return True

    def _remember(self, key: ThreadKey, row: ThreadRow, records: Sequence[CheckpointRecord]) -> None:
        """Note that there is nothing to do before the oldest comes of age, unless somebody saves."""
        if len(self._seen) > _MAX_SEEN:
            self._seen.clear()
        age_s = self._retain.max_age_s
        newest = {record.namespace: record.id for record in reversed(records)}  # which never come of age
        ages = [record.created_at for record in records if newest[record.namespace] != record.id]
        due_at = float("inf") if age_s is None or not ages else min(ages) / 1e6 + age_s
        self._seen[key.digest] = (row.revision, due_at)


def _cost(look: Look, gone: set[Pair]) -> int:
    """Return the bytes that go with some checkpoints."""
    kept = [record for record in look.records if (record.namespace, record.id) not in gone]
    live = {name for record in kept for name in record.chunks}
    live |= {
        name
        for write in look.writes
        if (write.namespace, write.checkpoint) not in gone
        for name in write.chunks
    }
    bodies = sum([len(record.body) for record in look.records]) - sum([len(record.body) for record in kept])
    return bodies + sum([size for name, (size, _) in look.inventory.chunks.items() if name not in live])


class _Batch:
    """What one commit of a sweep removes."""

    def __init__(self, visit: _Visit, key: ThreadKey, limit: int, look: Look, needed: Needed) -> None:
        self._visit = visit
        self._key = key
        self._limit = limit
        self._look = look
        self._needed = needed  # of that look
        self.chosen: dict[str, set[Pair]] = {}
        self.bodies = 0  # bytes

    async def choose(self, records: list[CheckpointRecord]) -> set[Pair]:
        """Pick the oldest of what is due and not needed; asked again when others delete too."""
        due = self._visit.due(records)
        is_seen = records is self._look.records
        needed = self._needed if is_seen else await self._visit.needed(self._key, records)
        free = (due["max_age"] | due["keep_last"]) - set().union(*needed.values())
        oldest = [record for record in reversed(records) if (record.namespace, record.id) in free]
        picked = {(record.namespace, record.id) for record in oldest[: self._limit]}
        self.chosen = {reason: pairs & picked for reason, pairs in due.items()}
        self.bodies = sum(len(record.body) for record in oldest[: self._limit])
        return picked


def _swept_at(codec: Codec, last: Entry) -> float:
    return float(codec.unpack(last.body or b"")["at"])
