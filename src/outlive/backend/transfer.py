"""Bring records of a thread from one store into another: what copies and replication share.

Chunks go first, in commits of a few megabytes, and the last of them with the records that name
them. A crash in between leaves chunks that no record names, which the next deletion in that thread
removes; a record never comes without its chunks. Records are merged (rule 7 of the backend
protocol), so they may come late, twice or in any order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace

from outlive.backend.paging import all_entries
from outlive.backend.protocol import Backend, EntryQuery, HistoryQuery
from outlive.backend.records import (
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    WriteRecord,
    tombstone_key,
)
from outlive.dataclass import dataclass

BATCH_BYTES = 4 << 20  # of chunks in one commit
PAGE = 1000
_FETCH = 32  # chunks read by one call

# (name, bytes): returns the bytes, or raises what is wrong with them.
Check = Callable[[bytes, bytes | None], bytes]
Rename = Callable[[bytes], bytes]  # the name of these bytes in the target
Put = Callable[[Commit], Awaitable[Receipt]]


@dataclass(slots=True)
class Transfer:
    """The chunks of one thread on their way into another store.

    Without `rename` both stores name chunks alike, and what the target has is not read. With it
    every chunk is read, since its bytes give its other name. `put` does a commit in the target.
    """

    source: Backend
    target: Backend
    key: ThreadKey
    check: Check
    put: Put
    rename: Rename | None = None
    timeout_s: float | None = None
    _names: dict[bytes, bytes] = field(default_factory=dict)  # name in the source → in the target
    _stored: set[bytes] | None = None  # names that the target has; None: not asked yet

    async def with_chunks(self, commit: Commit) -> Commit:
        """Send chunks that a commit names and the target lacks; return it with the last of them.

        It names no generation, so the target refuses it (StaleBase) when a deletion there has
        removed one of the others meanwhile.
        """
        names = [name for name in names_of(commit.checkpoints, commit.writes) if name not in self._names]
        stored = await self._stored_names() if names else set()
        if self.rename is None:
            names = [name for name in names if name not in stored]
        batch: dict[bytes, bytes] = {}
        size = 0
        chunks = fetch_chunks(self.source, self.key, names, self.check, self.timeout_s)
        async for name, data in chunks:
            self._names[name] = renamed = name if self.rename is None else self.rename(data)
            if renamed in stored:
                continue
            if batch and size + len(data) > BATCH_BYTES:
                # A crash after this commit leaves chunks that no record names. The next transfer
                # sees them in the inventory.
                await self.put(Commit(self.key, chunks=tuple(batch.items()), timeout_s=self.timeout_s))
                batch, size = {}, 0
            stored.add(renamed)
            batch[renamed] = data
            size += len(data)
        commit.chunks = tuple(batch.items())
        if self.rename is not None:
            commit.checkpoints = tuple(
                replace(record, chunks=self._renamed(record)) for record in commit.checkpoints
            )
            commit.writes = tuple(replace(write, chunks=self._renamed(write)) for write in commit.writes)
        return commit

    async def _stored_names(self) -> set[bytes]:
        if self._stored is None:
            self._stored = set((await self.target.inventory(self.key, timeout_s=self.timeout_s)).chunks)
        return self._stored

    def _renamed(self, row: CheckpointRecord | WriteRecord) -> tuple[bytes, ...]:
        return tuple(self._names[name] for name in row.chunks)


def names_of(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> list[bytes]:
    """Return the names of the chunks that rows refer to, each once."""
    names = {name: None for record in records for name in record.chunks}
    names.update({name: None for write in writes for name in write.chunks})
    return list(names)


async def fetch_chunks(
    backend: Backend, key: ThreadKey, names: Sequence[bytes], check: Check, timeout_s: float | None = None
) -> AsyncIterator[tuple[bytes, bytes]]:
    """Read chunks, and check each against its name."""
    for at in range(0, len(names), _FETCH):
        batch = names[at : at + _FETCH]
        chunks = await backend.fetch(key, batch, timeout_s=timeout_s)
        for name in batch:
            yield name, check(name, chunks.get(name))


class Tombstones:
    """The deletions in a thread, in a store that is or was part of a pair."""

    def __init__(self, entries: Iterable[EntryRecord]) -> None:
        self._by_key = {entry.key: entry for entry in entries}
        self.whole = self._by_key.get("")  # of the whole thread

    def cover(self, record: CheckpointRecord) -> bool:
        """Tell whether a record was deleted: a merge leaves it out."""
        entries = (self.whole, self._by_key.get(tombstone_key(*record.key)))
        return any(
            entry is not None and (record.epoch, record.seq) <= (entry.epoch, entry.until)
            for entry in entries
        )


async def find_records(
    backend: Backend, key: ThreadKey, wanted: set[CheckpointKey], timeout_s: float | None = None
) -> list[CheckpointRecord]:
    """Return those of the wanted checkpoints that are stored; mostly they are the newest."""
    if len(wanted) <= 3:
        results = [
            await backend.read(key, namespace, id, chunks=False, timeout_s=timeout_s)
            for namespace, id in wanted
        ]
        return [result.record for result in results if result.record is not None]
    records: dict[CheckpointKey, CheckpointRecord] = {}
    query = HistoryQuery(key, None, limit=min(PAGE, 2 * len(wanted) + 16))
    while len(records) < len(wanted):
        _, page = await backend.history(query, timeout_s=timeout_s)
        records.update({pair: row for row in page if (pair := row.key) in wanted})
        if len(page) < query.limit:
            break
        query = replace(query, before=page[-1].order, limit=PAGE)
    return list(records.values())


async def entries_of(
    backend: Backend, key: ThreadKey, kind: str, timeout_s: float | None = None, prefix: str = ""
) -> list[EntryRecord]:
    """Return the entries of one kind that a thread has."""
    query = EntryQuery(key.tenant, kind, thread=key, prefix=prefix, limit=PAGE)
    return [entry for _, entry in await all_entries(backend, query, timeout_s=timeout_s)]
