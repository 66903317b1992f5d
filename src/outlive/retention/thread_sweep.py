"""The sweep of one thread: what is due and not needed, deleted in short commits."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from outlive.backend import (
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryQuery,
    Removal,
    ThreadKey,
    ThreadRecord,
    all_entries,
)
from outlive.errors import StaleBase
from outlive.retention.policy import Retain, Swept
from outlive.retention.stream_sweep import StreamSweep
from outlive.runs.lease import LOCK, PARKED, RUN, RUNNING, UNFINISHED
from outlive.runs.lock import AsyncLock
from outlive.runtime.runtime import Signal
from outlive.threads import prune
from outlive.threads.engine import Engine
from outlive.threads.keep_policy import ByReason, KeepPolicy, keys_of, open_interrupts, still_needed
from outlive.threads.prune import ThreadContents

MAX_SEEN = 200_000  # threads that are remembered
_PAGE = 200
_BATCH = 500  # checkpoints removed by one commit, or a twentieth of the thread if that is more
_LONGEST_REST_S = 0.25


class Pacer:
    """When to rest and when to stop."""

    def __init__(self, bell: Signal, lock: AsyncLock | None) -> None:
        self._bell = bell
        self._lock = lock
        self._since = time.monotonic()

    @property
    def may_continue(self) -> bool:
        return not self._bell.is_set() and (self._lock is None or self._lock.is_held)

    async def rest(self) -> None:
        """Rest as long as it worked, so that others have the store for half of the time at least."""
        await self._bell.wait(min(_LONGEST_REST_S, time.monotonic() - self._since))
        self._since = time.monotonic()


class ThreadSweep:
    """One look at one thread."""

    def __init__(
        self,
        engine: Engine,
        retain: Retain,
        swept: Swept,
        seen: dict[bytes, tuple[int, float]],
        pace: Pacer,
        now: float,
    ) -> None:
        self._engine = engine
        self._retain = retain
        self._policy = KeepPolicy(retain.keep_last, retain.max_age_s)
        self._swept = swept
        self._seen = seen
        self._pace = pace
        self._now = now

    async def thread(self, key: ThreadKey, row: ThreadRecord) -> bool:
        """Sweep a thread; tell whether anything was done."""
        retain = self._retain
        is_over = retain.ttl_s is not None and row.updated_at / 1e6 < self._now - retain.ttl_s
        if is_over and await self._expire(key, row):
            return True
        revision, due_at = self._seen.get(key.digest, (0, 0.0))
        if revision == row.revision and self._now < due_at:
            return False
        stream_due_at = await self._delete_streams(key)
        return await self._shorten(key, row, stream_due_at)

    async def _delete_streams(self, key: ThreadKey) -> float:
        """Delete the streams that are due; return when the next one will be, unless the thread changes."""
        if self._retain.streams_s is None:
            return float("inf")
        streams = StreamSweep(self._engine, key, self._retain.streams_s, self._now)
        await streams.delete_due(dry_run=self._swept.dry_run)
        self._swept.streams.threads += bool(streams.freed_bytes)
        self._swept.streams.freed_bytes += streams.freed_bytes
        return streams.due_at

    # A whole thread

    async def _expire(self, key: ThreadKey, row: ThreadRecord) -> bool:
        contents = await prune.read_contents(self._engine, key)
        reason = await self._needs(key, contents)
        if reason is not None:
            self._swept.keep(reason)
            return False
        if not self._swept.dry_run:
            everything = Removal(everything=True)
            try:
                await self._engine.commit(Commit(key, removal=everything, revision=row.revision))
            except StaleBase:  # it was used again
                self._swept.keep("in use")
                return False
            self._engine.cache.drop(key.digest)
            self._seen.pop(key.digest, None)
        taken = self._swept.ttl
        taken.threads += 1
        taken.checkpoints += len(contents.records)
        taken.freed_bytes += row.stored
        return True

    async def _needs(self, key: ThreadKey, contents: ThreadContents) -> str | None:
        """Say why a whole thread must stay."""
        if await self._unfinished(key):
            return "unfinished run"
        backend = self._engine.backend
        if await backend.entries(
            EntryQuery(key.tenant, LOCK, thread=key, statuses=[RUNNING], lapsed=False, limit=1)
        ):
            return "lock"
        if await open_interrupts(self._engine, key, contents.records):
            return "open interrupt"
        return None

    async def _unfinished(self, key: ThreadKey) -> set[str]:
        """Return the runs of a thread that are not finished."""
        statuses = [*UNFINISHED, PARKED]
        runs = EntryQuery(key.tenant, RUN, thread=key, statuses=statuses, limit=_PAGE)
        return {entry.key for _, entry in await all_entries(self._engine.backend, runs)}

    # Single checkpoints

    async def _shorten(self, key: ThreadKey, row: ThreadRecord, due_before: float) -> bool:
        contents = await prune.read_contents(self._engine, key)
        due = self.due(contents.records)
        if not any(due.values()):
            if await self._has_orphans(key, contents):
                return True
            self._remember(key, row, contents.records, due_before)
            return False
        needed = await self.needed(key, contents.records)
        for reason, pairs in needed.items():
            self._swept.keep(reason, len(pairs & (due["max_age"] | due["keep_last"])))
        free = {name: pairs - set().union(*needed.values()) for name, pairs in due.items()}
        if any(free.values()):
            if self._swept.dry_run:
                pairs = set().union(*free.values())
                wasted = prune.rewritable_bytes(self._engine, key, contents, pairs)
                self._count(
                    contents, free, _freed_bytes(contents, pairs) - _freed_bytes(contents, set()) + wasted
                )
            else:
                await self._prune(key, contents, needed)
        return True

    def due(self, records: Sequence[CheckpointRecord]) -> dict[str, set[CheckpointKey]]:
        """Return what is due by reason; the newest checkpoint of a namespace never is."""
        return self._policy.due(records, self._now)

    async def needed(self, key: ThreadKey, records: Sequence[CheckpointRecord]) -> ByReason:
        """Return what must be kept whatever its age."""
        runs = await self._unfinished(key)
        return await still_needed(self._engine, key, records, self.due(records), runs=runs)

    def _count(self, contents: ThreadContents, due: Mapping[str, set[CheckpointKey]], freed: int) -> None:
        """Count what goes, or went. Bytes that several reasons free are counted with the first."""
        old, more = due["max_age"], due["keep_last"]
        by_age = (
            min(freed, _freed_bytes(contents, old) - _freed_bytes(contents, set()))
            if old and more
            else freed
            if old
            else 0
        )
        for taken, pairs, size in (
            (self._swept.max_age, old, by_age),
            (self._swept.keep_last, more, freed - by_age),
        ):
            taken.threads += bool(pairs)
            taken.checkpoints += len(pairs)
            taken.freed_bytes += size

    async def _prune(self, key: ThreadKey, contents: ThreadContents, needed: ByReason) -> None:
        """Remove what is due, oldest first, in short commits.

        What was saved after `contents` were read is left to the next sweep: a saver may be faster
        than this one, which would never end. Count what was removed, however it ends.
        """
        limit = max(_BATCH, len(contents.records) // 20)
        gone: dict[str, set[CheckpointKey]] = {"max_age": set(), "keep_last": set()}
        freed = 0
        fresh: ThreadContents | None = contents
        try:
            while True:
                batch = _Batch(self, key, limit, contents, needed)
                done = await prune.remove_chosen(self._engine, key, batch.choose, contents=fresh)
                fresh = None
                for reason, pairs in batch.chosen.items():
                    gone[reason] |= pairs
                freed += done.freed_bytes + batch.bodies
                if done.checkpoints < limit:
                    return
                await self._pace.rest()
                if not self._pace.may_continue:
                    self._swept.is_complete = False
                    return
        finally:
            self._count(contents, gone, freed)

    async def _has_orphans(self, key: ThreadKey, contents: ThreadContents) -> bool:
        """Remove chunks that a crash in a deletion left; tell whether there were any."""
        size = _freed_bytes(contents, set())
        if not size:
            return False
        if not self._swept.dry_run and await prune.sweep_chunks(self._engine, key, contents=contents) is None:
            return False
        self._swept.orphans.threads += 1
        self._swept.orphans.freed_bytes += size
        return True

    def _remember(
        self, key: ThreadKey, row: ThreadRecord, records: Sequence[CheckpointRecord], due_before: float
    ) -> None:
        """Note that nothing is due before the oldest reaches its age, unless the thread changes."""
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        age_s = self._retain.max_age_s
        newest = {record.namespace: record.id for record in reversed(records)}  # which never come of age
        ages = [record.created_at for record in records if newest[record.namespace] != record.id]
        due_at = float("inf") if age_s is None or not ages else min(ages) / 1e6 + age_s
        self._seen[key.digest] = (row.revision, min(due_at, due_before))


def _freed_bytes(contents: ThreadContents, removed: set[CheckpointKey]) -> int:
    """Return the bytes that a removal of checkpoints frees. Unread chunks are freed in any case."""
    records = [record for record in contents.records if record.key in removed]
    return sum(len(record.body) for record in records) + sum(contents.dead(removed).values())


class _Batch:
    """What one commit of a sweep removes."""

    def __init__(
        self, sweep: ThreadSweep, key: ThreadKey, limit: int, contents: ThreadContents, needed: ByReason
    ) -> None:
        self._sweep = sweep
        self._key = key
        self._limit = limit
        self._contents = contents
        self._known = keys_of(contents.records)
        self._needed = needed  # of those contents
        self.chosen: dict[str, set[CheckpointKey]] = {}
        self.bodies = 0  # bytes

    async def choose(self, records: list[CheckpointRecord]) -> set[CheckpointKey]:
        """Pick the oldest of what is known, due and not needed; asked again when others delete too."""
        due = self._sweep.due(records)
        is_seen = records is self._contents.records
        needed = self._needed if is_seen else await self._sweep.needed(self._key, records)
        free = self._known & (due["max_age"] | due["keep_last"]) - set().union(*needed.values())
        oldest = [record for record in reversed(records) if record.key in free]
        picked = {record.key for record in oldest[: self._limit]}
        self.chosen = {reason: pairs & picked for reason, pairs in due.items()}
        self.bodies = sum(len(record.body) for record in oldest[: self._limit])
        return picked
