"""Copying checkpoints: into another thread, or into another store.

Into another thread the chunks go first, then the records in one commit. A crash between the two
leaves chunks that no record names, which the next deletion in that thread removes, and never half a
thread. Another store gets what it does not have yet, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from outlive.backend import (
    TOMBSTONE,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    ThreadRecord,
    WriteRecord,
    retry_stale,
    thread_record,
)
from outlive.backend.entries import COPIED
from outlive.backend.transfer import (
    Check,
    Tombstones,
    Transfer,
    entries_of,
    fetch_chunks,
    find_records,
    names_of,
)
from outlive.backend.undecrypted import refuse_undecrypted
from outlive.errors import CheckpointMissing, Corrupt, MetadataMoved, StaleBase
from outlive.threads.engine import Engine, Located
from outlive.threads.metadata import check_vacant, drop_stray_writes, pack_metadata, unpack_metadata

_PAGE = 500  # records in one commit
_TRIES = 8

Row = CheckpointRecord | WriteRecord | EntryRecord
R = TypeVar("R", bound=Row)


async def fork_thread(
    engine: Engine, source: ThreadKey, target: ThreadKey, place: tuple[str, str | None]
) -> None:
    """Copy one checkpoint, by (namespace, id) or the head of the namespace, into an empty thread."""

    async def attempt() -> bool | None:
        reading = await engine.backend.read(source, *place, chunks=False)
        if reading.record is None:
            raise CheckpointMissing(source.id, place[1])
        record = replace(reading.record, source="fork")
        origin = (source.id, record.id)
        return await _copy(engine, source, target, [record], reading.writes, reading.generation, origin)

    await retry_stale(source.id, attempt)


async def copy_thread(engine: Engine, source: ThreadKey, target: ThreadKey) -> None:
    """Copy the whole history of a thread, in all namespaces, into an empty thread."""

    async def attempt() -> bool | None:
        generation = (await engine.backend.inventory(source)).generation
        records = await engine.records(source)
        if not records:
            raise CheckpointMissing(source.id, None)
        writes = await engine.backend.writes(source, None)
        return await _copy(engine, source, target, records, writes, generation, None)

    await retry_stale(source.id, attempt)


async def _copy(
    engine: Engine,
    source: ThreadKey,
    target: ThreadKey,
    records: Sequence[CheckpointRecord],
    writes: Sequence[WriteRecord],
    generation: int,
    origin: tuple[str, str] | None,
) -> bool | None:
    """Copy into an empty thread; None when a deletion came in between and the records must be read again."""
    row = await thread_record(engine.backend, source, heads=True)
    metadata, forked_from = unpack_metadata(engine, row)
    packed = pack_metadata(engine, metadata, origin or forked_from)
    try:
        await _into_thread(engine, source, target, records, writes, packed)
    except (Corrupt, StaleBase):
        if not await engine.has_moved(source, generation):
            raise
        return None
    return True


async def _into_thread(
    engine: Engine,
    source: ThreadKey,
    target: ThreadKey,
    records: Sequence[CheckpointRecord],
    writes: Sequence[WriteRecord],
    metadata: tuple[bytes, str | None],
) -> None:
    """Copy records into an empty thread of the same store, which copies the chunks itself."""
    names = names_of(records, writes)
    checkpoints = {record.key for record in records} | {write.checkpoint_key for write in writes}

    async def attempt() -> Receipt:
        version = await check_vacant(engine, target)  # before anything is copied into it
        await drop_stray_writes(engine, target, checkpoints)
        generation = await engine.backend.share(source, target, names)
        # A crash here leaves chunks that no record names.
        stored = (await engine.backend.inventory(target)).chunks
        if missing := [name for name in names if name not in stored]:
            raise Corrupt(f"chunk {missing[0].hex()} is missing", thread=source.id)
        commit = Commit(target, checkpoints=tuple(records), writes=tuple(writes), expect_empty=True)
        commit.metadata, commit.metadata_projection, commit.metadata_version = *metadata, version
        commit.generation = generation  # a sweep in between would have removed the chunks
        return await engine.commit(commit)

    # Another process may write to the target, or delete there.
    await retry_stale(target.id, attempt, errors=(StaleBase, MetadataMoved))


async def into_store(source: Engine, target: Engine, key: ThreadKey, row: ThreadRecord) -> int:
    """Copy a thread, or what is new of it, into another store; return how many checkpoints."""
    for _ in range(_TRIES):
        try:
            return await _Copy(source, target, key).run(row)
        except StaleBase:
            pass  # something was deleted in one of the stores: look again at what is left to do
        except Corrupt:
            if not await source.has_moved(key, row.generation):
                raise
        current = await thread_record(source.backend, key, heads=True)
        if current is None:
            return 0  # deleted meanwhile
        row = current
    raise StaleBase(key.id)


def _tombstone_before(
    tombstones: Tombstones, records: Sequence[CheckpointRecord], stored: Sequence[CheckpointRecord]
) -> EntryRecord | None:
    """Return the tombstone after which a thread that was deleted from the target is placed there.

    None if it was not deleted, or if the target has more of it than a part that was copied so.
    """
    whole = tombstones.whole
    if whole is None or not any(map(tombstones.cover, records)):
        return None
    places = {record.key: record.order for record in stored}
    is_back = any(places.get(record.key) == _after(whole, record).order for record in records)
    return whole if is_back or not stored else None


def _after(tombstone: EntryRecord | None, row: R) -> R:
    """Return a row with a place or fence after a tombstone: what was deleted stays deleted."""
    if tombstone is None or isinstance(row, WriteRecord):
        return row
    epoch = max(row.epoch, tombstone.epoch)
    if isinstance(row, CheckpointRecord):
        return replace(row, epoch=epoch, seq=row.seq + tombstone.until)
    return replace(row, epoch=epoch, fence=row.fence + tombstone.fence)


class _Copy:
    """One thread on its way into another store: what is new there, oldest first, page by page.

    A crash leaves the oldest part of the thread, each checkpoint whole. The next copy continues
    after it.
    """

    def __init__(self, source: Engine, target: Engine, key: ThreadKey) -> None:
        self._source = source
        self._target = target
        self._key = key
        check = _checks(source, key)
        self._transfer = Transfer(source.backend, target.backend, key, check, self._put, target.namer.name)

    async def run(self, row: ThreadRecord) -> int:
        source, target, key = self._source.backend, self._target.backend, self._key
        stored = await self._target.records(key)
        records = list(reversed(await self._source.records(key)))
        tombstones = Tombstones(await entries_of(target, key, TOMBSTONE))
        deletion = _tombstone_before(tombstones, records, stored)
        records = [_after(deletion, record) for record in records]
        deleted = {record.key for record in records if tombstones.cover(record)}
        # What the target has is not sent: a commit would count as use of the thread there.
        new = _new([record for record in records if record.key not in deleted], stored)
        await self._send("checkpoints", new)
        writes = [write for write in await source.writes(key, None) if write.checkpoint_key not in deleted]
        await self._send("writes", _new(writes, await target.writes(key, None)))
        for kind in COPIED:
            entries = [_after(deletion, entry) for entry in await entries_of(source, key, kind)]
            await self._send("entries", _new(entries, await entries_of(target, key, kind)))
        await self._send_info(row)
        return len(new)

    async def _send(self, field: str, rows: Sequence[Any]) -> None:
        for at in range(0, len(rows), _PAGE):
            page = tuple(rows[at : at + _PAGE])
            for row in page:
                with Located(self._key, None if field == "entries" else row.key[1]):
                    refuse_undecrypted(row.body or b"")
            commit = Commit(self._key, merge=True)
            setattr(commit, field, page)
            # All of a page is there after this commit, or nothing of it.
            await self._put(await self._transfer.with_chunks(commit))

    async def _send_info(self, row: ThreadRecord) -> None:
        if row.metadata is None:
            return
        refuse_undecrypted(row.metadata)
        there = await thread_record(self._target.backend, self._key)
        if there is not None and (there.metadata_version, there.metadata or b"") >= (
            row.metadata_version,
            row.metadata,
        ):
            return
        commit = Commit(
            self._key, merge=True, metadata=row.metadata, metadata_projection=row.metadata_projection
        )
        commit.metadata_version = row.metadata_version
        await self._put(commit)

    async def _put(self, commit: Commit) -> Receipt:
        """Do a commit in the target, and read back every record and every chunk of it."""
        receipt = await self._target.commit(commit)
        try:
            await self._compare(commit)
        except Corrupt:
            if not await self._target.has_moved(self._key, receipt.generation):
                raise  # else another process has deleted it there
        return receipt

    async def _compare(self, commit: Commit) -> None:
        wanted = {record.key for record in commit.checkpoints}
        records = await find_records(self._target.backend, self._key, wanted)
        stored = {record.key: record for record in records}
        for record in commit.checkpoints:
            there = stored.get(record.key)
            with Located(self._key, record.id):
                if there is None:
                    raise Corrupt("the copy does not have it")
                is_same = (there.version, there.body) == (record.version, record.body)
                if is_same and there.chunks != record.chunks:
                    raise Corrupt("the copy has other content")
        names = [name for name, _ in commit.chunks]
        async for _ in fetch_chunks(self._target.backend, self._key, names, _checks(self._target, self._key)):
            pass


def _checks(engine: Engine, key: ThreadKey) -> Check:
    def check(name: bytes, data: bytes | None) -> bytes:
        with Located(key, None):
            engine.raw(name, data)
        assert data is not None
        return data

    return check


def _precedence(row: Row) -> tuple[Any, ...]:
    if isinstance(row, CheckpointRecord):
        return (row.version, row.body)
    return (row.rank, row.status if isinstance(row, EntryRecord) else "", row.body or b"")


def _new(rows: Iterable[R], stored: Iterable[R]) -> list[R]:
    """Return the rows that a merge would store: new ones, and newer ones."""
    there = {row.key: _precedence(row) for row in stored}
    return [row for row in rows if row.key not in there or there[row.key] < _precedence(row)]
