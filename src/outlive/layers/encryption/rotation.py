"""Encrypting a store again under the newest key of its ring, while other processes use it.

Thread by thread, and in each thread in parts, what is not under the newest key is decrypted and
encrypted again. Each part is one commit: a crash leaves some of it done, and the next rotation does
the rest. Names of chunks, places, ranks and leases stay. Other processes may save meanwhile under
the newest key of their own ring, so give every process the new ring first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import TypeVar

from outlive.backend import (
    ABSENT,
    NAMING_THREAD,
    RESERVED,
    Backend,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    ReencryptedBodies,
    Removal,
    ThreadKey,
    ThreadRecord,
    WriteRecord,
    all_records,
    all_threads,
    commit,
    entry_pages,
    retry_stale,
)
from outlive.backend.entries import ENCRYPTED, NAMING
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, EntryHeld, KeyMissing, OutliveError
from outlive.layers.encryption.keyring import KeyRing
from outlive.layers.encryption.layer import (
    NAMING_AAD,
    Encrypted,
    aad_of_checkpoint,
    aad_of_chunk,
    aad_of_entry,
    aad_of_metadata,
    aad_of_write,
    current_naming_key,
)

T = TypeVar("T")
Progress = Callable[[int, int | None], None]  # (threads done, how many there are if known)
_PAGE = 200
_BATCH_BYTES = 4 << 20  # encrypted in one commit: others wait no longer than that takes
_TRIES = 20


@dataclass(slots=True)
class Rotated:
    """What `rotate` encrypted again. When nothing is left to do, all but `threads` is 0.

    `problems` lists what it had to leave as it was, because no key of the ring decrypts it, or
    because the store cannot read it.
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
        """How many records were encrypted again."""
        return self.checkpoints + self.chunks + self.writes + self.entries + self.infos


async def rotate(
    stores: Sequence[Backend], ring: KeyRing, tenant: str, progress: Progress | None = None
) -> Rotated:
    """Encrypt everything of a tenant again; return what was done.

    Each store of a pair is encrypted by itself: the same record gets the same bytes in both. It is
    repeated until neither has anything left to do, since what is queued between them may bring back
    what one of them had before.
    """
    rotations = [Rotation(Encrypted(store, ring), tenant) for store in stores]
    before = -1
    while (total := sum(rotation.done.total for rotation in rotations)) > before:
        before = total
        for rotation in rotations:
            await rotation.run(progress)
    done = rotations[0].done
    problems = [problem for rotation in rotations for problem in rotation.done.problems]
    done.problems = list(dict.fromkeys(problems))
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
        """Look at everything once, and encrypt again what needs it.

        A chunk that is stored again, or a fork that is made, after it looked there is left to the
        next time.
        """
        if not self._layer.has_key:
            raise KeyMissing(None)
        # First the naming key, without which nothing can be read: a crash after it leaves a store
        # that the new ring opens.
        await self._encrypt_naming_key()
        self.done.threads = 0
        async for row in all_threads(self._inner, self._tenant, page=_PAGE):
            try:
                await self._thread(ThreadKey.of(self._tenant, row.id), row)
            except Corrupt as error:  # the store cannot read this thread; encrypt the others
                self.done.problems.append(str(error))
            self.done.threads += 1
            if progress is not None:
                progress(self.done.threads, None)
        # Also those of the store itself, which are in no list.
        for tenant in (self._tenant, RESERVED):
            for kind in ENCRYPTED:
                async for page in entry_pages(self._inner, EntryQuery(tenant, kind, limit=_PAGE)):
                    for key, entry in page:
                        await self._entry(key, entry)
        return self.done

    async def _encrypt_naming_key(self) -> None:
        """Keep the naming key under the newest key beside the one that the store was made with."""
        key = await self._layer.identity(b"")
        rotated = await current_naming_key(self._inner)
        stored = await self._inner.identity(b"") if rotated is None else rotated.body or b""
        if self._ring.is_current(stored):
            return
        rank = ABSENT if rotated is None else rotated.rank
        body = self._ring.encrypt(NAMING_AAD, key)
        entry = EntryRecord(NAMING, NAMING, body, revision=rank[2] + 1, expect=rank)
        try:
            await commit(self._inner, Commit(NAMING_THREAD, entries=(entry,)))
        except EntryHeld:
            return  # another rotation did it
        self.done.entries += 1

    # One thread

    async def _thread(self, thread: ThreadKey, row: ThreadRecord) -> None:
        """Encrypt a thread again. A deletion in between makes it start over, with less to do."""

        async def attempt() -> bool:
            inventory = await self._inner.inventory(thread)
            await self._checkpoints(thread, await self._chunks(thread, inventory))
            return True

        await retry_stale(thread.id, attempt, attempts=_TRIES)
        await self._writes(thread)
        if row.metadata is not None:
            metadata = self._reencrypted(aad_of_metadata(thread), row.metadata, thread, "metadata")
            if metadata is not None:
                await self._exchange(thread, ReencryptedBodies(metadata=(row.metadata, metadata)))
                self.done.infos += 1

    async def _exchange(self, thread: ThreadKey, bodies: ReencryptedBodies) -> None:
        await commit(self._inner, Commit(thread, reencrypted=bodies))

    def _reencrypted(
        self, aad: bytes, encrypted: bytes, thread: ThreadKey, record: str, *, is_named: bool = False
    ) -> bytes | None:
        """Return a record under the newest key; None when it has that key, or no key decrypts it."""
        if self._ring.is_current(encrypted):
            return None
        try:
            return self._ring.encrypt(aad, self._ring.decrypt(aad, encrypted), is_named=is_named)
        except OutliveError as error:
            why = error.what if isinstance(error, Corrupt) else str(error)
            self.done.problems.append(f"thread {thread.id!r}: {record}: {why}")
            return None

    async def _chunks(self, thread: ThreadKey, inventory: Inventory) -> int:
        """Exchange the bytes of chunks; return the generation. One that was stored since the
        inventory is left to the next time.
        """
        generation = inventory.generation
        for batch in _batches(inventory.chunks.items(), lambda item: item[1][0]):
            chunks = []
            for name, data in (await self._inner.fetch(thread, [name for name, _ in batch])).items():
                aad, label = aad_of_chunk(thread, name), f"chunk {name.hex()}"
                if (encrypted := self._reencrypted(aad, data, thread, label, is_named=True)) is not None:
                    chunks.append((name, encrypted))
            if chunks:
                # A chunk that one commit removes and puts gets the new bytes; there is no moment
                # without it.
                names = tuple(name for name, _ in chunks)
                removal = Removal(chunks=names, chunks_until=inventory.revision)
                exchange = Commit(thread, chunks=tuple(chunks), removal=removal, generation=generation)
                generation = (await commit(self._inner, exchange)).generation
                self.done.chunks += len(chunks)
        return generation

    async def _checkpoints(self, thread: ThreadKey, generation: int) -> None:
        def reencrypted(record: CheckpointRecord) -> bytes | None:
            label = f"checkpoint {record.id!r}"
            return self._reencrypted(aad_of_checkpoint(thread, record), record.body, thread, label)

        records = await all_records(self._inner, HistoryQuery(thread, None, limit=_PAGE))
        stale = [record for record in records if not self._ring.is_current(record.body)]
        for batch in _batches(stale, lambda record: len(record.body) + 200):
            rewrites = tuple(
                replace(record, body=body) for record in batch if (body := reencrypted(record)) is not None
            )
            if rewrites:
                receipt = await commit(self._inner, Commit(thread, rewrites=rewrites, generation=generation))
                generation = receipt.generation
                self.done.checkpoints += len(rewrites)

    async def _writes(self, thread: ThreadKey) -> None:
        def reencrypted(write: WriteRecord) -> bytes | None:
            label = f"write of {write.checkpoint!r}"
            return self._reencrypted(aad_of_write(thread, write), write.body, thread, label)

        writes = await self._inner.writes(thread, None)
        stale = [write for write in writes if not self._ring.is_current(write.body)]
        for batch in _batches(stale, lambda write: len(write.body) + 200):
            bodies = tuple((write, body) for write in batch if (body := reencrypted(write)) is not None)
            if bodies:
                await self._exchange(thread, ReencryptedBodies(writes=bodies))
                self.done.writes += len(bodies)

    async def _entry(self, thread: ThreadKey, entry: EntryRecord) -> None:
        if entry.body is None:
            return
        label = f"{entry.kind} {entry.key!r}"
        body = self._reencrypted(aad_of_entry(thread, entry), entry.body, thread, label)
        if body is not None:
            await self._exchange(thread, ReencryptedBodies(entries=((entry, body),)))
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
