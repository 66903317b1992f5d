"""Sealing a store anew under the newest key of its ring, while others go on.

Thread by thread, and in each thread in parts, what is not sealed under the newest key is opened and sealed again. Each part is one
commit: a crash leaves some of it done, and the next rotation goes on with the rest. Names of chunks, places, ranks and leases stay.
Others may save meanwhile; what they put is under the newest key of their own ring, so give every process the new ring first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

from outlive.backend import (
    ABSENT,
    RESERVED,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    ReencryptedBodies,
    Removal,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    commit,
)
from outlive.backend.entries import SEALED
from outlive.errors import Corrupt, EntryHeld, KeyMissing, OutliveError, StaleBase
from outlive.layers.encryption.layer import (
    NAMING_PLACE,
    Encrypted,
    place_of_checkpoint,
    place_of_chunk,
    place_of_entry,
    place_of_info,
    place_of_write,
)
from outlive.layers.encryption.naming_key import KEYS, NAMING, current_naming_key
from outlive.layers.replication.layer import Replicate

T = TypeVar("T")
Progress = Callable[[int, int | None], None]  # (threads done, how many there are if known)
_PAGE = 200
_BATCH_BYTES = 4 << 20  # sealed in one commit: others wait no longer than that takes
_TRIES = 20


@dataclass(slots=True)
class Rotated:
    """What `rotate` sealed anew. When nothing is left to do, all but `threads` is 0.

    `problems` says what it had to leave as it was, because no key of the ring opens it, or because the store cannot read it.
    """

    threads: int = 0
    checkpoints: int = 0
    chunks: int = 0
    writes: int = 0
    entries: int = 0
    infos: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        """How many records were sealed anew."""
        return self.checkpoints + self.chunks + self.writes + self.entries + self.infos


async def rotate(layer: Encrypted, tenant: str, progress: Progress | None) -> Rotated:
    """Seal everything of a tenant anew; return what was done.

    Of a pair each store by itself: sealing gives the same bytes in both. Until neither has anything left to do, for what is
    queued between them may bring back what one of them had before.
    """
    sides = layer.inner.stores.both if isinstance(layer.inner, Replicate) else (layer.inner,)
    rotations = [Rotation(Encrypted(side, layer.ring), tenant) for side in sides]
    before = -1
    while (total := sum(rotation.done.total for rotation in rotations)) > before:
        before = total
        for rotation in rotations:
            await rotation.run(progress)
    done = rotations[0].done
    done.problems = list(dict.fromkeys(one for rotation in rotations for one in rotation.done.problems))
    return done


class Rotation:
    """One rotation of one tenant in one store."""

    def __init__(self, layer: Encrypted, tenant: str) -> None:
        self._layer = layer
        self._inner = layer.inner
        self._ring = layer.ring
        self._tenant = tenant
        self.done = Rotated()

    async def run(self, progress: Progress | None) -> Rotated:
        """Look at everything once, and seal anew what needs it; the naming key first, for without it nothing can be read.

        A chunk that was stored again, or a fork that was made, behind its back is left to the next time.
        """
        if not self._layer.has_key:
            raise KeyMissing(None)
        await self._seal_naming_key()
        self.done.threads = 0
        await self._pass(progress)
        return self.done

    async def _pass(self, progress: Progress | None) -> None:
        async for row in self._rows():
            try:
                await self._thread(ThreadKey.of(self._tenant, row.id), row)
            except (
                Corrupt
            ) as error:  # the store itself cannot read it; the other threads can be sealed all the same
                self.done.problems.append(str(error))
            self.done.threads += 1
            if progress is not None:
                progress(self.done.threads, None)
        for tenant in (self._tenant, RESERVED):  # also of threads that have nothing else and are in no list
            for kind in SEALED:
                await self._entries(tenant, kind)

    async def _rows(self) -> AsyncIterator[ThreadRow]:
        after = None
        while True:
            page = await self._inner.threads(ThreadQuery(self._tenant, after=after, limit=_PAGE, heads=False))
            for row in page:
                yield row
            if len(page) < _PAGE:
                return
            after = page[-1].id

    async def _seal_naming_key(self) -> None:
        """Keep the naming key under the newest key beside the one that the store was made with."""
        key = await self._layer.identity(b"")
        held = await current_naming_key(self._inner)
        made_with = await self._inner.identity(b"")
        if self._ring.is_current(held.body or b"" if held is not None else made_with):
            return
        rank = ABSENT if held is None else held.rank
        body = self._ring.seal(NAMING_PLACE, key)
        entry = EntryRecord(NAMING, NAMING, body, revision=rank[2] + 1, expect=rank)
        try:
            await commit(self._inner, Commit(KEYS, entries=(entry,)))
        except EntryHeld:
            return  # another rotation did it
        self.done.entries += 1

    # One thread

    async def _thread(self, thread: ThreadKey, row: ThreadRow) -> None:
        """Seal a thread anew. Whoever deletes in between makes it begin again, with less to do each time."""
        for attempt in range(_TRIES):
            try:
                inventory = await self._inner.inventory(thread)
                inventory = await self._chunks(thread, inventory)
                await self._checkpoints(thread, inventory.generation)
                break
            except StaleBase:
                if attempt == _TRIES - 1:
                    raise
        await self._writes(thread)
        if row.info is not None:
            anew = self._again(place_of_info(thread), row.info, thread, "metadata")
            if anew is not None:
                await commit(
                    self._inner, Commit(thread, reencrypted=ReencryptedBodies(info=(row.info, anew)))
                )
                self.done.infos += 1

    def _again(
        self, place: bytes, sealed: bytes, thread: ThreadKey, what: str, *, is_named: bool = False
    ) -> bytes | None:
        """Return a record under the newest key; None when it is under that already, or when nobody can open it."""
        if self._ring.is_current(sealed):
            return None
        try:
            return self._ring.seal(place, self._ring.open(place, sealed), is_named=is_named)
        except OutliveError as error:
            why = error.what if isinstance(error, Corrupt) else str(error)
            self.done.problems.append(f"thread {thread.id!r}: {what}: {why}")
            return None

    async def _chunks(self, thread: ThreadKey, inventory: Inventory) -> Inventory:
        """Exchange the bytes of chunks. One that was stored again since the inventory is left to the next time."""
        generation = inventory.generation
        for names in _batches(inventory.chunks.items(), lambda item: item[1][0]):
            found = await self._inner.fetch(thread, [name for name, _ in names])
            again = {
                name: self._again(
                    place_of_chunk(thread, name), data, thread, f"chunk {name.hex()}", is_named=True
                )
                for name, data in found.items()
            }
            anew = tuple((name, data) for name, data in again.items() if data is not None)
            if anew:
                removal = Removal(chunks=tuple(name for name, _ in anew), chunks_until=inventory.revision)
                receipt = await commit(
                    self._inner, Commit(thread, chunks=anew, removal=removal, generation=generation)
                )
                generation = receipt.generation
                self.done.chunks += len(anew)
        return replace(inventory, generation=generation)

    async def _checkpoints(self, thread: ThreadKey, generation: int) -> None:
        stale = [record async for record in self._stale(thread)]
        for records in _batches(stale, lambda record: len(record.body) + 200):
            again = [
                (record, self._again(place_of_checkpoint(thread, record), record.body, thread, f"checkpoint {record.id!r}"))
                for record in records
            ]  # fmt: skip
            anew = tuple(replace(record, body=body) for record, body in again if body is not None)
            if not anew:
                continue
            receipt = await commit(self._inner, Commit(thread, rewrites=anew, generation=generation))
            generation = receipt.generation
            self.done.checkpoints += len(anew)

    async def _stale(self, thread: ThreadKey) -> AsyncIterator[CheckpointRecord]:
        before = None
        while True:
            _, page = await self._inner.history(HistoryQuery(thread, None, before=before, limit=_PAGE))
            for record in page:
                if not self._ring.is_current(record.body):
                    yield record
            if len(page) < _PAGE:
                return
            before = page[-1].order

    async def _writes(self, thread: ThreadKey) -> None:
        found = await self._inner.writes(thread, None)
        stale = [write for write in found if not self._ring.is_current(write.body)]
        for writes in _batches(stale, lambda write: len(write.body) + 200):
            again = [
                (write, self._again(place_of_write(thread, write), write.body, thread, f"write of {write.checkpoint!r}"))
                for write in writes
            ]  # fmt: skip
            pairs = tuple((write, body) for write, body in again if body is not None)
            if pairs:
                await commit(self._inner, Commit(thread, reencrypted=ReencryptedBodies(writes=pairs)))
                self.done.writes += len(pairs)

    async def _entries(self, tenant: str, kind: str) -> None:
        after = None
        while True:
            page = await self._inner.entries(EntryQuery(tenant, kind, after=after, limit=_PAGE))
            for key, entry in page:
                await self._entry(key, entry)
            if len(page) < _PAGE:
                return
            after = (page[-1][1].key, page[-1][0].digest)

    async def _entry(self, thread: ThreadKey, entry: EntryRecord) -> None:
        if entry.body is None:
            return
        what = f"{entry.kind} {entry.key!r}"
        anew = self._again(place_of_entry(thread, entry), entry.body, thread, what)
        if anew is not None:
            await commit(self._inner, Commit(thread, reencrypted=ReencryptedBodies(entries=((entry, anew),))))
            self.done.entries += 1


def _batches(rows: Iterable[T], weigh: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += weigh(row)
        if size >= _BATCH_BYTES or len(batch) >= _PAGE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
