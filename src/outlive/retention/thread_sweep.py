"""One thread of a sweep: what of it is due, what somebody still needs, and taking the rest away in short commits."""

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
    ThreadRow,
    all_entries,
)
from outlive.errors import StaleBase
from outlive.retention.policy import Retain, Swept
from outlive.runs.lease import LOCK, PARKED, RELEASED, RUN, RUNNING
from outlive.runs.lock import AsyncLock
from outlive.runtime.runtime import Signal
from outlive.threads import prune
from outlive.threads.engine import Engine
from outlive.threads.prune import ThreadContents

Needed = Mapping[str, set[CheckpointKey]]  # by reason
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
    def goes_on(self) -> bool:
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
        taken.freed_bytes += row.stored
        return True

    async def _needs(self, key: ThreadKey, look: ThreadContents) -> str | None:
        """Say why a whole thread must stay."""
        if await self._unfinished(key):
            return "unfinished run"
        backend = self._engine.backend
        if await backend.entries(
            EntryQuery(key.tenant, LOCK, thread=key, statuses=[RUNNING], lapsed=False, limit=1)
        ):
            return "lock"
        if await prune.open_interrupts(self._engine, key, look.records):
            return "open interrupt"
        return None

    async def _unfinished(self, key: ThreadKey) -> set[str]:
        """Return the runs of a thread that may still go on."""
        statuses = [RUNNING, RELEASED, PARKED]
        runs = EntryQuery(key.tenant, RUN, thread=key, statuses=statuses, limit=_PAGE)
        return {entry.key for _, entry in await all_entries(self._engine.backend, runs)}

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

    def due(self, records: Sequence[CheckpointRecord]) -> dict[str, set[CheckpointKey]]:
        """Return what is due by reason, the newest of each namespace never."""
        due: dict[str, set[CheckpointKey]] = {"max_age": set(), "keep_last": set()}
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
        newest: set[CheckpointKey] = set()
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
        needed["ancestor"] = prune.required_ancestors(records, kept.union(*needed.values()))
        return needed

    def _count(self, look: ThreadContents, due: Mapping[str, set[CheckpointKey]], freed: int) -> None:
        """Count what goes, or went. Bytes that several reasons free are counted with the first."""
        old, more = due["max_age"], due["keep_last"]
        by_age = min(freed, _cost(look, old) - _cost(look, set())) if old and more else freed if old else 0
        for taken, pairs, size in (
            (self._swept.max_age, old, by_age),
            (self._swept.keep_last, more, freed - by_age),
        ):
            taken.threads += bool(pairs)
            taken.checkpoints += len(pairs)
            taken.freed_bytes += size

    async def _prune(self, key: ThreadKey, look: ThreadContents, needed: Needed) -> None:
        """Remove what is due, the oldest first, in commits that are short; count what has gone, however it ends."""
        limit = max(_BATCH, len(look.records) // 20)
        gone: dict[str, set[CheckpointKey]] = {"max_age": set(), "keep_last": set()}
        freed = 0
        fresh: ThreadContents | None = look
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

    async def _has_orphans(self, key: ThreadKey, look: ThreadContents) -> bool:
        """Take chunks away that a crash in the middle of a deletion had left; tell whether there were any."""
        size = _cost(look, set())
        if not size:
            return False
        if not self._swept.dry_run and await prune.sweep(self._engine, key, look=look) is None:
            return False
        self._swept.orphans.threads += 1
        self._swept.orphans.freed_bytes += size
        return True

    def _remember(self, key: ThreadKey, row: ThreadRow, records: Sequence[CheckpointRecord]) -> None:
        """Note that there is nothing to do before the oldest comes of age, unless somebody saves."""
        if len(self._seen) > MAX_SEEN:
            self._seen.clear()
        age_s = self._retain.max_age_s
        newest = {record.namespace: record.id for record in reversed(records)}  # which never come of age
        ages = [record.created_at for record in records if newest[record.namespace] != record.id]
        due_at = float("inf") if age_s is None or not ages else min(ages) / 1e6 + age_s
        self._seen[key.digest] = (row.revision, due_at)


def _cost(look: ThreadContents, gone: set[CheckpointKey]) -> int:
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

    def __init__(
        self, visit: ThreadSweep, key: ThreadKey, limit: int, look: ThreadContents, needed: Needed
    ) -> None:
        self._visit = visit
        self._key = key
        self._limit = limit
        self._look = look
        self._needed = needed  # of that look
        self.chosen: dict[str, set[CheckpointKey]] = {}
        self.bodies = 0  # bytes

    async def choose(self, records: list[CheckpointRecord]) -> set[CheckpointKey]:
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
