"""Bring records of a thread from one store into another: what copies and replication share.

Chunks go first, in commits of a few megabytes, and the last of them with the records that name them. A crash in between leaves
chunks that no record names, which the next deletion in that thread removes; a record never comes without its chunks. Records are
merged (rule 7 of the backend protocol), so they may come late, twice or in any order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from outlive.backend.protocol import (
    Backend,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    WriteRecord,
    tombstone_key,
)

BATCH_BYTES = 4 << 20  # of chunks in one commit
PAGE = 1000
_FETCH = 32  # chunks read by one call

CheckpointKey = tuple[str, str]  # (namespace, id)
Check = Callable[
    [bytes, bytes | None], bytes
]  # (name, bytes): return the bytes, or raise what is wrong with them
Rename = Callable[[bytes], bytes]  # the name of these bytes in the target
Put = Callable[[Commit], Awaitable[Receipt]]


@dataclass(slots=True)
class Transfer:
    """The chunks of one thread on their way into another store.

    Without `rename` both stores name chunks alike, and what the target has is not read. With it every chunk is read, since its bytes
    give its other name. `put` does a commit in the target.
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

    async def with_chunks(self, sent: Commit) -> Commit:
        """Send the chunks that a commit names and the target lacks; return the commit with the last of them.

        It names no generation, so the target refuses it (StaleBase) when a deletion there has removed one of the others meanwhile.
        """
        names = [name for name in names_of(sent.checkpoints, sent.writes) if name not in self._names]
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
                # A crash after this commit leaves chunks that no record names. The next transfer finds them in the inventory.
                await self.put(Commit(self.key, chunks=tuple(batch.items()), timeout_s=self.timeout_s))
                batch, size = {}, 0
            stored.add(renamed)
            batch[renamed] = data
            size += len(data)
        sent.chunks = tuple(batch.items())
        if self.rename is not None:
            sent.checkpoints = tuple(
                replace(record, chunks=self._renamed(record)) for record in sent.checkpoints
            )
            sent.writes = tuple(replace(write, chunks=self._renamed(write)) for write in sent.writes)
        return sent

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
    """What was deleted from a thread in a store that is or was one of a pair."""

    def __init__(self, entries: Iterable[EntryRecord]) -> None:
        self._by_key = {entry.key: entry for entry in entries}
        self.whole = self._by_key.get("")  # of the whole thread

    def cover(self, record: CheckpointRecord) -> bool:
        """Tell whether a record was deleted: a merge leaves it out."""
        found = (self.whole, self._by_key.get(tombstone_key(record.namespace, record.id)))
        return any(
            entry is not None and (record.epoch, record.seq) <= (entry.epoch, entry.until) for entry in found
        )


async def all_records(
    backend: Backend,
    key: ThreadKey,
    timeout_s: float | None = None,
    wanted: set[CheckpointKey] | None = None,
) -> list[CheckpointRecord]:
    """Return the records of a thread, newest first, of one generation; those that are wanted are mostly the newest."""
    limit = PAGE if wanted is None else min(PAGE, 2 * len(wanted) + 16)
    while True:
        first, page = await backend.history(key, None, limit=limit, timeout_s=timeout_s)
        generation, records = first, page
        left = None if wanted is None else wanted - {(row.namespace, row.id) for row in page}
        while len(page) == limit and generation == first and (left is None or left):
            limit = PAGE
            generation, page = await backend.history(
                key, None, before=page[-1].order, limit=limit, timeout_s=timeout_s
            )
            records = records + page
            left = None if left is None else left - {(row.namespace, row.id) for row in page}
        if generation == first:
            return [row for row in records if wanted is None or (row.namespace, row.id) in wanted]


async def all_entries(
    backend: Backend, key: ThreadKey, kind: str, timeout_s: float | None = None, prefix: str = ""
) -> list[EntryRecord]:
    """Return the entries of one kind that a thread has."""
    pages = entry_pages(backend, key.tenant, kind, thread=key, prefix=prefix, timeout_s=timeout_s)
    return [entry async for page in pages for _, entry in page]


async def entry_pages(
    backend: Backend,
    tenant: str,
    kind: str,
    *,
    thread: ThreadKey | None = None,
    prefix: str = "",
    timeout_s: float | None = None,
) -> AsyncIterator[list[tuple[ThreadKey, EntryRecord]]]:
    """Iterate over the entries of one kind, of one thread or of all threads of a tenant."""
    after: tuple[str, bytes] | None = None
    while True:
        page = await backend.entries(
            tenant, kind, thread=thread, prefix=prefix, after=after, limit=PAGE, timeout_s=timeout_s
        )
        yield page
        if len(page) < PAGE:
            return
        after = (page[-1][1].key, page[-1][0].digest)
