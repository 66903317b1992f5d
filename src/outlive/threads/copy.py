"""Copying checkpoints: into another thread, or into another store.

Into another thread the chunks go first, then the records in one commit. A crash between the two leaves chunks that
nobody reads, which the next deletion in that thread takes along, and never half a thread. Into another store goes what that has not
yet, oldest first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlive.backend import (
    TOMBSTONE,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    WriteRecord,
    tombstone_key,
)
from outlive.backend.entries import COPIED
from outlive.errors import Corrupt, MetadataMoved, StaleBase, refuse_unopened
from outlive.threads.engine import Engine, Located
from outlive.threads.metadata import check_vacant, drop_stray_writes

_BATCH = 32
_BATCH_BYTES = 8 << 20
_PAGE = 500
CheckpointKey = tuple[str, str]  # (namespace, id)
_TRIES = 8


async def into_thread(
    engine: Engine,
    source: ThreadKey,
    target: ThreadKey,
    records: Sequence[CheckpointRecord],
    writes: Sequence[WriteRecord],
    info: tuple[bytes, str | None],
) -> None:
    """Copy records into an empty thread of the same store; the chunks are copied by the store itself."""
    names = _names(records, writes)
    pairs = {(record.namespace, record.id) for record in records} | {write.key[:2] for write in writes}
    for attempt in range(_TRIES):
        version = await check_vacant(engine, target)  # before anything is copied into it
        await drop_stray_writes(engine, target, pairs)
        generation = await engine.backend.share(source, target, names)
        held = await engine.backend.inventory(target)
        if missing := [name for name in names if name not in held.chunks]:
            raise Corrupt(f"chunk {missing[0].hex()} is missing", thread=source.id)
        commit = Commit(
            target,
            checkpoints=tuple(records),
            writes=tuple(writes),
            info=info[0],
            info_projection=info[1],
            info_version=version,
            expect_empty=True,
            generation=generation,  # a sweep in between would have taken the chunks away
        )
        try:
            await engine.commit(commit)
            return
        except (StaleBase, MetadataMoved):  # somebody else wrote to the target
            if attempt + 1 == _TRIES:
                raise


async def into_store(source: Engine, target: Engine, key: ThreadKey, row: ThreadRow) -> int:
    """Copy a whole thread into another store, which may have a part of it; return how many checkpoints were new there."""
    for _ in range(_TRIES):
        try:
            return await _Merge(source, target, key).run(row)
        except StaleBase:
            pass  # somebody deleted here or there: look again at what is left to do
        except Corrupt:
            if not await source.has_moved(key, row.generation):
                raise
        rows = await source.backend.threads(ThreadQuery(key.tenant, only=key.id))
        if not rows:
            return 0  # deleted meanwhile
        row = rows[0]
    raise StaleBase(key.id)


async def entries_into_store(
    source: Engine, target: Engine, tenant: str, kind: str, skip: Container[str]
) -> None:
    """Copy the entries of threads that have nothing else, and are in no list: runs that died before they saved."""
    after = None
    while True:
        page = await source.backend.entries(EntryQuery(tenant, kind, after=after, limit=_PAGE))
        for key, entry in page:
            if key.id not in skip and _outranks(entry, await _same_entry(target, key, entry)):
                await target.commit(Commit(key, entries=(entry,), merge=True))
        if len(page) < _PAGE:
            return
        after = (page[-1][1].key, page[-1][0].digest)


@dataclass(frozen=True, slots=True)
class _Raising:
    """By how much places and fences are greater in the target: there the thread was deleted, and what was before stays deleted."""

    epoch: int = 0
    seq: int = 0
    fence: int = 0

    def record(self, record: CheckpointRecord) -> CheckpointRecord:
        if not self.seq:
            return record
        return replace(record, epoch=max(record.epoch, self.epoch), seq=record.seq + self.seq)

    def entry(self, entry: EntryRecord) -> EntryRecord:
        if not self.fence:
            return entry
        return replace(entry, epoch=max(entry.epoch, self.epoch), fence=entry.fence + self.fence)


class _Graves:
    """The tombstones of a thread in the target, which is or was one of a pair."""

    def __init__(self, graves: Sequence[EntryRecord]) -> None:
        self._tombstones_for = {grave.key: grave for grave in graves}

    def holds(self, record: CheckpointRecord) -> bool:
        """Tell whether a merge would leave a record out."""
        keys = ("", tombstone_key(record.namespace, record.id))
        found = [self._tombstones_for[key] for key in keys if key in self._tombstones_for]
        return any((record.epoch, record.seq) <= (grave.epoch, grave.until) for grave in found)

    def raising(
        self, records: Sequence[CheckpointRecord], there: Mapping[CheckpointKey, CheckpointRecord]
    ) -> _Raising:
        """Let a thread that was deleted come back behind its tombstone, if it has gone, or has come back in part."""
        whole = self._tombstones_for.get("")
        if whole is None or not any(self.holds(record) for record in records):
            return _Raising()
        raising = _Raising(whole.epoch, whole.until, whole.fence)
        both = [
            (record, there[pair]) for record in records if (pair := (record.namespace, record.id)) in there
        ]
        is_back = any(raising.record(record).order == held.order for record, held in both)
        return raising if is_back or not there else _Raising()


class _Merge:
    """One thread on its way into another store: what is new there, oldest first, in parts that are each one commit.

    A crash leaves a beginning of the thread, each checkpoint whole. The next copy goes on behind it.
    """

    def __init__(self, source: Engine, target: Engine, key: ThreadKey) -> None:
        self._source = source
        self._target = target
        self._key = key
        self._renamed: dict[bytes, bytes] = {}  # names by the other store's key
        self._held: set[bytes] = set()  # chunks that the target has
        self._chunks: dict[bytes, bytes] = {}  # on their way
        self._bytes = 0
        self._raised = _Raising()

    async def run(self, row: ThreadRow) -> int:
        source, target, key = self._source.backend, self._target.backend, self._key
        self._held = set((await target.inventory(key)).chunks)
        there = {(old.namespace, old.id): old for old in await self._target.records(key)}
        found = list(reversed(await self._source.records(key)))
        graves = _Graves([grave async for page in _pages(self._target, key, TOMBSTONE) for grave in page])
        self._raised = graves.raising(found, there)
        placed = [self._raised.record(record) for record in found]
        left = {(one.namespace, one.id) for one in placed if graves.holds(one)}
        records = [one for one in placed if (one.namespace, one.id) not in left and _is_new(one, there)]
        await self._records(records)
        written = {write.key: write for write in await target.writes(key, None)}
        await self._writes(
            [
                write
                for write in await source.writes(key, None)
                if write.key[:2] not in left and _is_newer(write, written.get(write.key))
            ]
        )
        for kind in COPIED:
            await self._entries(kind)
        await self._info(row)
        return len(records)

    async def _info(self, row: ThreadRow) -> None:
        if row.info is None:
            return
        refuse_unopened(row.info)
        rows = await self._target.backend.threads(
            ThreadQuery(self._key.tenant, only=self._key.id, heads=False)
        )
        if any((there.info_version, there.info or b"") >= (row.info_version, row.info) for there in rows):
            return
        await self._commit(info=row.info, info_projection=row.info_projection, info_version=row.info_version)

    async def _records(self, records: Sequence[CheckpointRecord]) -> None:
        batch: list[CheckpointRecord] = []
        for record in records:
            with Located(self._key, record.id):
                refuse_unopened(record.body)
            await self._bring(record.chunks)
            batch.append(replace(record, chunks=self._names(record.chunks)))
            if self._bytes >= _BATCH_BYTES or len(batch) >= _PAGE:
                await self._commit(checkpoints=tuple(batch))
                batch = []
        if batch:
            await self._commit(checkpoints=tuple(batch))

    async def _writes(self, writes: Sequence[WriteRecord]) -> None:
        for at in range(0, len(writes), _PAGE):
            batch = []
            for write in writes[at : at + _PAGE]:
                with Located(self._key, write.checkpoint):
                    refuse_unopened(write.body)
                await self._bring(write.chunks)
                batch.append(replace(write, chunks=self._names(write.chunks)))
            await self._commit(writes=tuple(batch))

    async def _entries(self, kind: str) -> None:
        """Bring what the target has not. What it has is not sent: a commit would count as use of the thread there."""
        there: dict[str, EntryRecord] = {}
        async for page in _pages(self._target, self._key, kind):
            there.update((entry.key, entry) for entry in page)
        async for page in _pages(self._source, self._key, kind):
            raised = [self._raised.entry(entry) for entry in page]
            new = tuple(entry for entry in raised if _outranks(entry, there.get(entry.key)))
            if new:
                await self._commit(entries=new)

    async def _bring(self, names: Sequence[bytes]) -> None:
        """Read chunks that were not read yet, and check each against its name."""
        new = [name for name in dict.fromkeys(names) if name not in self._renamed]
        for at in range(0, len(new), _BATCH):
            batch = new[at : at + _BATCH]
            found = await self._source.backend.fetch(self._key, batch)
            for name in batch:
                with Located(self._key, None):
                    self._source.raw(name, found.get(name))
                data = found[name]
                self._renamed[name] = there = self._target.namer.name(data)
                if there not in self._held:
                    self._chunks[there] = data
                    self._bytes += len(data)
            if self._bytes >= _BATCH_BYTES:
                await self._commit()

    def _names(self, names: Iterable[bytes]) -> tuple[bytes, ...]:
        return tuple(self._renamed[name] for name in names)

    async def _commit(self, **fields: Any) -> None:
        """Put what has gathered, with the chunks it needs. Without a generation the store makes sure that the others are there."""
        chunks, self._chunks, self._bytes = self._chunks, {}, 0
        commit = Commit(self._key, chunks=tuple(chunks.items()), merge=True, **fields)
        receipt = await self._target.commit(commit)
        self._held |= chunks.keys()
        await self._check(commit.checkpoints, list(chunks), receipt.generation)

    async def _check(
        self, records: Sequence[CheckpointRecord], chunks: Sequence[bytes], generation: int
    ) -> None:
        """Read back what a commit has put: every record, and every chunk against its name."""
        try:
            await self._compare(records, chunks)
        except Corrupt:
            if not await self._target.has_moved(self._key, generation):
                raise  # else somebody deletes there, and it went with that

    async def _compare(self, records: Sequence[CheckpointRecord], chunks: Sequence[bytes]) -> None:
        there = await self._read_back(records)
        for record in records:
            held = there.get((record.namespace, record.id))
            with Located(self._key, record.id):
                if held is None:
                    raise Corrupt("the copy lacks it")
                is_this = (held.version, held.body) == (record.version, record.body)
                if is_this and held.chunks != record.chunks:
                    raise Corrupt("the copy is another")
        for at in range(0, len(chunks), _BATCH):
            batch = chunks[at : at + _BATCH]
            found = await self._target.backend.fetch(self._key, batch)
            for name in batch:
                with Located(self._key, None):
                    self._target.raw(name, found.get(name))

    async def _read_back(
        self, records: Sequence[CheckpointRecord]
    ) -> dict[tuple[str, str], CheckpointRecord]:
        """Return records as the target has them, by one page where it has nothing of its own between them."""
        if not records:
            return {}
        backend = self._target.backend
        epoch, seq, _ = max(record.order for record in records)
        _, page = await backend.history(
            HistoryQuery(self._key, None, before=(epoch, seq + 1, ""), limit=len(records) + 50)
        )
        found = {(record.namespace, record.id): record for record in page}
        for record in records:
            if (record.namespace, record.id) not in found:
                reading = await backend.read(self._key, record.namespace, record.id, chunks=False)
                if reading.record is not None:
                    found[record.namespace, record.id] = reading.record
        return found


async def _pages(engine: Engine, key: ThreadKey, kind: str) -> AsyncIterator[list[EntryRecord]]:
    """Iterate over the entries of a thread, page by page."""
    after = None
    while True:
        page = await engine.backend.entries(
            EntryQuery(key.tenant, kind, thread=key, after=after, limit=_PAGE)
        )
        yield [entry for _, entry in page]
        if len(page) < _PAGE:
            return
        after = (page[-1][1].key, page[-1][0].digest)


async def _same_entry(engine: Engine, key: ThreadKey, entry: EntryRecord) -> EntryRecord | None:
    found = await engine.backend.entries(
        EntryQuery(key.tenant, entry.kind, thread=key, prefix=entry.key, limit=1)
    )
    return next((held for _, held in found if held.key == entry.key), None)


def _outranks(entry: EntryRecord, held: EntryRecord | None) -> bool:
    """Tell whether a merge would put an entry in the place of another."""
    if held is None:
        return True
    mine, theirs = ((one.rank, one.status, one.body or b"") for one in (entry, held))
    return mine > theirs


def _is_new(record: CheckpointRecord, there: Mapping[tuple[str, str], CheckpointRecord]) -> bool:
    held = there.get((record.namespace, record.id))
    return held is None or (held.version, held.body) < (record.version, record.body)


def _is_newer(write: WriteRecord, held: WriteRecord | None) -> bool:
    return held is None or (held.rank, held.body) < (write.rank, write.body)


def _names(records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]) -> list[bytes]:
    names = {name: None for record in records for name in record.chunks}
    names.update({name: None for write in writes for name in write.chunks})
    return list(names)
