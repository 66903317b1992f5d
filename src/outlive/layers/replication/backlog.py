"""The backlog: what one store of a pair has yet to transfer to the other one."""

from __future__ import annotations

import os
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)

from outlive.backend import (
    NAMING_THREAD,
    OUTBOX,
    RESERVED,
    TOMBSTONE,
    Backend,
    CheckpointKey,
    Commit,
    EntryQuery,
    EntryRecord,
    ThreadKey,
    all_threads,
    entry_pages,
)
from outlive.backend.entries import NAMING
from outlive.backend.transfer import PAGE, entries_of
from outlive.errors import CallerError, Corrupt, EpochPassed, OutliveError
from outlive.layers.replication.outbox_entry import ChangeSet, age_s, changes_in
from outlive.layers.replication.transfer import Replicator
from outlive.runtime.runtime import Runtime

_TOGETHER = 64  # threads whose changes go to the other store by one call
_OTHERS_S = 5.0  # after which the process that made an entry is taken to be dead

SavedId = tuple[bytes, str, str]  # thread's digest, namespace, id
Entries = list[tuple[ThreadKey, EntryRecord]]
OnRefused = Callable[[ThreadKey, ChangeSet], Awaitable[None]]


class Outbox:
    """What this process knows of the outbox entries that it made, which are in the active store."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._count = 0
        self._lock = threading.Lock()
        self.process = os.urandom(4).hex()  # in the key of every entry that this process makes
        self.in_flight: set[str] = set()  # their commits are under way: they are not to be removed
        self.delivered: dict[ThreadKey, list[str]] = {}  # the other store has what they name
        # By role: only that store has what these entries name; with the checkpoints that their
        # commits saved.
        self.queued: tuple[dict[str, list[SavedId]], dict[str, list[SavedId]]] = ({}, {})
        self.is_dirty = True  # something may be queued
        self.is_in_step = True  # the other store answers, so that commits go there directly

    def has_forked(self) -> bool:
        """Start empty in a forked child: the parent transfers what it has queued."""
        if self._pid == os.getpid():
            return False
        self._reset()
        return True

    def new_key(self) -> str:
        """Return the key of a new entry: keys are sorted by the moment at which they were made."""
        with self._lock:
            self._count += 1
            key = f"{self._runtime.now():016x}{self.process}{self._count:08x}"
            self.in_flight.add(key)
        return key

    def finished(self, keys: Iterable[str]) -> None:
        """Take note that the commits of these entries have ended, well or not."""
        with self._lock:
            self.in_flight.difference_update(keys)

    def mark_delivered(self, thread: ThreadKey, keys: Iterable[str]) -> None:
        """Take note that these entries can be removed."""
        with self._lock:
            self.delivered.setdefault(thread, []).extend(keys)

    def take_delivered(self, thread: ThreadKey) -> tuple[str, ...]:
        """Return the entries of a thread that can be removed, to a caller that removes them."""
        with self._lock:
            return tuple(self.delivered.pop(thread, ()))

    def take_idle(self, least_s: float) -> dict[ThreadKey, list[str]]:
        """Return the same for idle threads: no commit came that would have removed the entries."""
        before = f"{self._runtime.now() - int(least_s * 1e6):016x}"
        with self._lock:
            idle = {key: names for key, names in self.delivered.items() if names[-1][:16] <= before}
            for key in idle:
                del self.delivered[key]
        return idle

    def delivered_keys(self, thread: ThreadKey | None = None) -> set[str]:
        """Return the entries that can be removed, of one thread or of all."""
        with self._lock:
            lists = self.delivered.values() if thread is None else [self.delivered.get(thread, [])]
            return {key for keys in lists for key in keys}

    def mark_queued(self, role: int, entries: Mapping[str, list[SavedId]]) -> None:
        """Take note that a store has these entries, and has yet to transfer what they name."""
        with self._lock:
            self.in_flight.difference_update(entries)
            self.queued[role].update(entries)
        self.is_dirty = True

    def mark_transferred(self, role: int, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self.queued[role].pop(key, None)

    def queued_in(self, role: int) -> set[str]:
        """Return the entries that a store has yet to transfer."""
        with self._lock:
            return set(self.queued[role])

    def is_queued_in(self, role: int, ids: Iterable[SavedId]) -> bool:
        """Tell whether a store has one of these checkpoints, and has it alone."""
        wanted = set(ids)
        with self._lock:
            return any(not wanted.isdisjoint(saved) for saved in self.queued[role].values())


class Backlog:
    """The outbox entries in one store, and how they are worked off."""

    def __init__(
        self,
        source: Backend,
        replicator: Replicator,
        tenant: str,
        runtime: Runtime,
        timeout_s: float,
        on_refused: OnRefused | None = None,
    ) -> None:
        self._source = source
        self._replicator = replicator
        # Called when the thread is in a later epoch in the other store.
        self._on_refused = on_refused
        self._tenant = tenant
        self._runtime = runtime
        self._timeout_s = timeout_s
        self.transferred: dict[ThreadKey, set[CheckpointKey]] = {}  # what the other store has got

    async def pages(self, kind: str = OUTBOX, tenants: Sequence[str] = ()) -> AsyncIterator[Entries]:
        """Iterate over entries, oldest first: of the tenant and, by default, of the store."""
        for tenant in tenants or (self._tenant, RESERVED):
            query = EntryQuery(tenant, kind, limit=PAGE)
            async for page in entry_pages(self._source, query, timeout_s=self._timeout_s):
                yield page

    async def changes_of(self, thread: ThreadKey, delivered: Collection[str] = ()) -> ChangeSet:
        """Return all that is queued of one thread, without what was delivered."""
        return _union([entry for entry in await self._entries_of(thread) if entry.key not in delivered])

    async def count(
        self, delivered: Collection[str] = (), process: str | None = None
    ) -> tuple[int, int, float]:
        """Return how many commits are queued, their bytes, and the age of the oldest in seconds."""
        keys, size = [], 0
        async for page in self.pages():
            for _, entry in page:
                if entry.key not in delivered and process in (None, entry.key[16:24]):
                    keys.append(entry.key)
                    size += changes_in(entry).size
        return len(keys), size, age_s(keys, self._runtime.now())

    async def drain(self, outbox: Outbox | None, process: str | None) -> int:
        """Go through what is queued once, transfer it and remove it; return how many commits.

        With `process`, what other processes have queued just now is left to them. One thread that
        cannot be transferred does not keep back the others: what was in its way is raised at the
        end.
        """
        count, failure = 0, None
        async for page in self.pages():
            in_flight = set(outbox.in_flight) if outbox is not None else set()
            due = {(key, entry.key) for key, entry in page if self._is_due(entry.key, process, in_flight)}
            threads = {key for key, _ in due}
            entries = [row for row in page if row[0] in threads]
            if len(page) == PAGE and len(due) < len(entries):
                entries = [(key, entry) for key in threads for entry in await self._entries_of(key)]
            done, error = await self._transfer(entries, due)
            count, failure = count + done, failure or error
        if failure is not None:
            raise failure
        return count

    async def _entries_of(self, thread: ThreadKey) -> list[EntryRecord]:
        return await entries_of(self._source, thread, OUTBOX, self._timeout_s)

    def _is_due(self, key: str, process: str | None, in_flight: set[str]) -> bool:
        if key in in_flight:
            return False
        recent = self._runtime.now() - int(_OTHERS_S * 1e6)
        return process in (None, key[16:24]) or int(key[:16], 16) < recent

    async def _transfer(
        self, entries: Entries, due: Collection[tuple[ThreadKey, str]]
    ) -> tuple[int, OutliveError | None]:
        """Transfer all that these entries name, and remove those that are due.

        A change of a thread goes with all that came before it, whichever process queued that. The
        other store would otherwise take what follows a missing save for the next one.
        """
        groups: dict[tuple[ThreadKey, int | None], list[EntryRecord]] = {}
        # Apart by epoch: a thread may refuse the changes of one and take those of another.
        for key, entry in entries:
            groups.setdefault((key, changes_in(entry).epoch), []).append(entry)
        rows = [
            (key, _union(group), [entry.key for entry in group if (key, entry.key) in due])
            for (key, _), group in groups.items()
        ]
        count, failure = 0, None
        for at in range(0, len(rows), _TOGETHER):
            batch = rows[at : at + _TOGETHER]
            results = await self._transfer_batch([(key, changes) for key, changes, _ in batch])
            done = [row for row, error in zip(batch, results, strict=True) if error is None]
            # A crash before this leaves entries whose changes the other store has: they are merged
            # once more.
            await self.remove([(key, names) for key, _, names in done if names])
            for key, changes, names in done:
                self.transferred.setdefault(key, set()).update(changes.checkpoints)
                count += len(names)
            failure = failure or next((error for error in results if error is not None), None)
            if failure is not None and not isinstance(failure, Corrupt | CallerError):
                raise failure  # it is the store's, not the thread's: the others would fail too
        return count, failure

    async def _transfer_batch(
        self, batch: Sequence[tuple[ThreadKey, ChangeSet]]
    ) -> list[OutliveError | None]:
        results = await self._replicator.transfer_all(batch)
        for at, (key, changes) in enumerate(batch):
            if isinstance(results[at], EpochPassed) and self._on_refused is not None:
                try:
                    await self._on_refused(key, changes)
                    results[at] = None
                except OutliveError as error:
                    results[at] = error
        return results

    async def remove(self, delivered: Iterable[tuple[ThreadKey, list[str]]]) -> None:
        """Remove entries. One that stays is transferred once more, which changes nothing."""
        commits = []
        for key, names in delivered:
            entries = tuple(EntryRecord(OUTBOX, name, gone=True) for name in names)
            commits.append(Commit(key, entries=entries, timeout_s=self._timeout_s))
        if commits:
            await self._source.commit_all(commits)

    async def transfer_everything(self) -> None:
        """Transfer every thread, also those of which only a tombstone is left."""
        rows = all_threads(self._source, self._tenant, page=_TOGETHER, timeout_s=self._timeout_s)
        async for row in rows:
            key = ThreadKey.of(self._tenant, row.id)
            await self._replicator.transfer(key, ChangeSet(everything=True))
        async for page in self.pages(TOMBSTONE):
            for key, tombstone in page:
                if not tombstone.key:
                    await self._replicator.transfer(key, ChangeSet(everything=True))
        for entry in await entries_of(self._source, NAMING_THREAD, NAMING, self._timeout_s):
            await self._replicator.transfer(NAMING_THREAD, ChangeSet(entries={(NAMING, entry.key)}))


def _union(entries: Sequence[EntryRecord]) -> ChangeSet:
    """Return what several entries name. If all have an epoch, the greatest is the result's."""
    union, parts = ChangeSet(), [changes_in(entry) for entry in entries]
    for changes in parts:
        union.add(changes)
    epochs = [changes.epoch for changes in parts if changes.epoch is not None]
    union.epoch = max(epochs) if epochs and len(epochs) == len(parts) else None
    return union
