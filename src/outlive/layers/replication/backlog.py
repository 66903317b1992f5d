"""The backlog: what one store of a pair has queued for the other one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Iterable, Sequence

from outlive.backend import (
    OUTBOX,
    RESERVED,
    TOMBSTONE,
    Backend,
    CheckpointKey,
    Commit,
    EntryQuery,
    EntryRecord,
    ThreadKey,
    ThreadQuery,
)
from outlive.backend.entries import REPLICATED
from outlive.errors import CallerError, Corrupt, EpochPassed, OutliveError
from outlive.layers.encryption.naming_key import KEYS, NAMING
from outlive.layers.replication.note import ChangeSet, age_s, items_in
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.transfer import Replicator, all_entries
from outlive.runtime.runtime import Runtime

_PAGE = 500
_TOGETHER = 64  # threads whose items go to the other store by one call
_OTHERS_S = 5.0  # after which the notes of another process are taken to be left behind

Noted = tuple[ThreadKey, EntryRecord]
Settle = Callable[[ThreadKey, ChangeSet], Awaitable[None]]


class Backlog:
    """The notes in one store, and how they are worked off."""

    def __init__(
        self,
        source: Backend,
        carrier: Replicator,
        tenant: str,
        runtime: Runtime,
        timeout_s: float,
        settle: Settle | None = None,
    ) -> None:
        self._source = source
        self._carrier = carrier
        self._settle = settle  # does what is to be done when a thread of the other store has moved on
        self._tenant = tenant
        self._runtime = runtime
        self._timeout_s = timeout_s
        self.carried: dict[ThreadKey, set[CheckpointKey]] = {}  # checkpoints that the other store has got

    async def notes(self) -> AsyncIterator[Noted]:
        """Iterate over what is queued, oldest first."""
        async for page in self._pages(OUTBOX):
            for noted in page:
                yield noted

    async def _pages(self, kind: str, tenants: Sequence[str] = ()) -> AsyncIterator[list[Noted]]:
        """Iterate over entries of the tenant, and unless told otherwise over those of the store itself."""
        for tenant in tenants or (self._tenant, RESERVED):
            after: tuple[str, bytes] | None = None
            while True:
                page = await self._source.entries(
                    EntryQuery(tenant, kind, after=after, limit=_PAGE), timeout_s=self._timeout_s
                )
                yield page
                if len(page) < _PAGE:
                    break
                after = (page[-1][1].key, page[-1][0].digest)

    async def items_of(self, thread: ThreadKey, done: Collection[str] = ()) -> ChangeSet:
        """Return all that is queued of one thread, but for what is done."""
        return _together([entry for entry in await self._notes_of(thread) if entry.key not in done])

    async def count(self, done: Collection[str] = (), mine: str | None = None) -> tuple[int, int, float]:
        """Return how many commits are queued, their bytes, and the age of the oldest in seconds."""
        keys, size = [], 0
        async for _, entry in self.notes():
            if entry.key not in done and mine in (None, entry.key[16:24]):
                keys.append(entry.key)
                size += items_in(entry).size
        return len(keys), size, age_s(keys, self._runtime.now())

    async def drain(self, queue: Queue | None, mine: str | None) -> int:
        """Go through what is queued once, carry it over and take it off; return how many commits.

        `mine` leaves alone what other processes have queued just now. One thread that cannot be carried does not keep the others:
        what stood in its way is raised at the end.
        """
        count, failure = 0, None
        async for page in self._pages(OUTBOX):
            in_flight = set(queue.in_flight) if queue is not None else set()
            due = {(key, entry.key) for key, entry in page if self._is_due(entry.key, mine, in_flight)}
            threads = {key for key, _ in due}
            notes = [one for one in page if one[0] in threads]
            if len(page) == _PAGE and len(due) < len(notes):
                notes = [(key, one) for key in threads for one in await self._notes_of(key)]
            done, error = await self._carry(notes, due)
            count, failure = count + done, failure or error
        if failure is not None:
            raise failure
        return count

    async def _notes_of(self, thread: ThreadKey) -> list[EntryRecord]:
        return await all_entries(self._source, thread, OUTBOX, self._timeout_s)

    def _is_due(self, key: str, mine: str | None, in_flight: set[str]) -> bool:
        if key in in_flight:
            return False
        recent = self._runtime.now() - int(_OTHERS_S * 1e6)
        return mine in (None, key[16:24]) or int(key[:16], 16) < recent

    async def _carry(
        self, found: Sequence[Noted], due: Collection[tuple[ThreadKey, str]]
    ) -> tuple[int, OutliveError | None]:
        """Carry over all that these notes name, and take off those that are due.

        Whatever is carried of a thread goes with all that came before it, whoever queued that: what follows a save that is missing in the other
        store would be taken there for what comes next.
        """
        groups: dict[tuple[ThreadKey, int | None], list[EntryRecord]] = {}
        for key, entry in found:  # apart by epoch: a thread may refuse those of one and take those of another
            groups.setdefault((key, items_in(entry).epoch), []).append(entry)
        rows = [
            (key, _together(notes), [note.key for note in notes if (key, note.key) in due])
            for (key, _), notes in groups.items()
        ]
        count, failure = 0, None
        for at in range(0, len(rows), _TOGETHER):
            batch = rows[at : at + _TOGETHER]
            results = await self._carry_batch([(key, items) for key, items, _ in batch])
            done = [row for row, error in zip(batch, results, strict=True) if error is None]
            await self.take_off([(key, keys) for key, _, keys in done if keys])
            for key, items, keys in done:
                self.carried.setdefault(key, set()).update(items.pairs)
                count += len(keys)
            failure = failure or next((error for error in results if error is not None), None)
            if failure is not None and not isinstance(failure, Corrupt | CallerError):
                raise failure  # it is the store's, not the thread's: the others would fail too
        return count, failure

    async def _carry_batch(self, batch: Sequence[tuple[ThreadKey, ChangeSet]]) -> list[OutliveError | None]:
        results = await self._carrier.carry_all(batch)
        for at, (key, items) in enumerate(batch):
            if isinstance(results[at], EpochPassed) and self._settle is not None:
                try:
                    await self._settle(key, items)
                except OutliveError as error:
                    results[at] = error
                else:
                    results[at] = None
        return results

    async def take_off(self, done: Iterable[tuple[ThreadKey, list[str]]]) -> None:
        """Take notes off the queue. One that stays is carried once more, which changes nothing."""
        commits = [
            Commit(
                key,
                entries=tuple(EntryRecord(OUTBOX, name, gone=True) for name in names),
                timeout_s=self._timeout_s,
            )
            for key, names in done
        ]
        if commits:
            await self._source.commit_all(commits)

    async def carry_everything(self) -> None:
        """Carry over every thread, also those that are in no list: with entries alone, or with a tombstone alone."""
        listed: set[bytes] = set()
        after: str | None = None
        while True:
            rows = await self._source.threads(
                ThreadQuery(self._tenant, after=after, limit=_TOGETHER, heads=False),
                timeout_s=self._timeout_s,
            )
            for row in rows:
                key = ThreadKey.of(self._tenant, row.id)
                listed.add(key.digest)
                await self._carrier.carry(key, ChangeSet(everything=True))
            if len(rows) < _TOGETHER:
                break
            after = rows[-1].id
        await self._carry_unlisted(listed)
        async for page in self._pages(TOMBSTONE):
            for key, grave in page:
                if not grave.key:
                    await self._carrier.carry(key, ChangeSet(everything=True))
        for key, entry in await self._source.entries(
            EntryQuery(KEYS.tenant, NAMING), timeout_s=self._timeout_s
        ):
            await self._carrier.carry(key, ChangeSet(entries={(NAMING, entry.key)}))

    async def _carry_unlisted(self, listed: Container[bytes]) -> None:
        """Carry over what runs have stored that did not save yet."""
        for kind in REPLICATED:
            async for page in self._pages(kind, (self._tenant,)):
                found: dict[ThreadKey, set[CheckpointKey]] = {}
                for key, entry in page:
                    if key.digest not in listed:
                        found.setdefault(key, set()).add((kind, entry.key))
                for key, entries in found.items():
                    await self._carrier.carry(key, ChangeSet(entries=entries))


def _together(notes: Sequence[EntryRecord]) -> ChangeSet:
    """Return what several notes name. They have an epoch when each of them has one: the greatest."""
    items, told = ChangeSet(), [items_in(entry) for entry in notes]
    for one in told:
        items.add(one)
    epochs = [one.epoch for one in told if one.epoch is not None]
    items.epoch = max(epochs) if epochs and len(epochs) == len(told) else None
    return items
