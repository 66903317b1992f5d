"""Carrying records from one store into another: the merge that replication, catching up and failback share.

Chunks go first, then what refers to them in one merging commit; a crash between the two leaves chunks without a reader. What
was deleted goes before anything else: tombstones are merged, and what they name is removed. Whatever order
things are carried in, and however often, both stores come to the same (rule 7 of the waist).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from outlive.backend import (
    OUTBOX,
    TOMBSTONE,
    Backend,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Receipt,
    Removal,
    ThreadKey,
    ThreadQuery,
    WriteRecord,
    commit,
    tombstone_key,
)
from outlive.backend.entries import REPLICATED
from outlive.errors import Corrupt, OutliveError, StaleBase, StoreBusy
from outlive.layers.replication.note import ChangeSet, items_in
from outlive.runtime.runtime import Deadline

_PAGE = 1000
_BATCH_BYTES = 4 << 20
_TRIES = 8
_LEASE_S = 30.0  # of a run whose lease is not known: its owner renews it, or somebody waits a little longer
_GRAVE_S = 3600.0  # for which a tombstone stays when both have it: a save may still be on its way

IsNamed = Callable[[bytes, bytes], bool]  # (name, bytes): whether that is the name of these bytes


def replica_of(done: Commit, receipt: Receipt, epoch: int) -> Commit | None:
    """Return a commit as the other store gets it; None when it must be carried from the store itself."""
    if done.removal is not None or done.rewrites or (done.info is not None and done.info_version is None):
        return None
    leases = {(entry.kind, entry.key): entry.lease_s for entry in done.entries}
    entries = [
        replace(entry, until=0, clock="", lease_s=leases.get((entry.kind, entry.key)))
        for entry in receipt.entries
        if entry.kind in REPLICATED
    ]
    version = None if done.info_version is None else done.info_version + (not done.merge)
    return Commit(
        done.thread,
        checkpoints=receipt.checkpoints,
        chunks=done.chunks,
        writes=receipt.writes,
        entries=tuple(entries),
        info=done.info,
        info_projection=done.info_projection,
        info_version=version,
        merge=True,
        strict=True,
        requires_next_seq=not done.merge,
        epoch=epoch,
    )


class Replicator:
    """Brings what one store has into another, thread by thread."""

    def __init__(
        self, source: Backend, target: Backend, is_named: IsNamed, now: Callable[[], int], timeout_s: float
    ) -> None:
        self._source = source
        self._target = target
        self._is_named = is_named
        self._now = now
        self._timeout_s = timeout_s

    async def carry(self, key: ThreadKey, items: ChangeSet, epoch: int | None = None) -> None:
        """Bring items of a thread over. With an epoch, a thread that is in a later one refuses them."""
        for _ in range(_TRIES):
            try:
                if (merging := await self._prepare(key, items, epoch)) is not None:
                    await commit(self._target, merging)
                return await self._finish(key, items)
            except StaleBase:
                continue  # something was deleted or stored in between, in either store
        raise Corrupt("chunks that its records refer to are missing", thread=key.id)

    async def carry_all(self, threads: Sequence[tuple[ThreadKey, ChangeSet]]) -> list[OutliveError | None]:
        """Bring items of many threads over, by one call to the target; say for each what was in the way.

        Items with an epoch are refused by a thread that is in a later one.
        """
        results: list[OutliveError | None] = [None] * len(threads)
        ready: dict[int, Commit] = {}
        for at, (key, items) in enumerate(threads):
            try:
                if items.buried or items.rewritten or items.everything:
                    await self.carry(key, items, items.epoch)
                elif (merging := await self._prepare(key, items, items.epoch)) is not None:
                    ready[at] = merging
            except OutliveError as error:
                results[at] = error
        answers = await self._target.commit_all(list(ready.values())) if ready else []
        for at, answer in zip(ready, answers, strict=True):
            if isinstance(answer, OutliveError):
                results[at] = await self._again(*threads[at]) if isinstance(answer, StaleBase) else answer
        return results

    async def _again(self, key: ThreadKey, items: ChangeSet) -> OutliveError | None:
        try:
            await self.carry(key, items, items.epoch)
        except OutliveError as error:
            return error
        return None

    async def _prepare(self, key: ThreadKey, items: ChangeSet, epoch: int | None) -> Commit | None:
        """Send deletions and chunks; return the commit of all that refers to these, if there is any."""
        if items.buried or items.everything:
            await self._bury(key, items.erased, epoch)
        records = await self._records(key, items)
        writes = await self._writes(key, items)
        merging = Commit(
            key,
            checkpoints=tuple(records),
            writes=tuple(writes),
            entries=tuple(await self._entries(key, items)),
            merge=True,
            strict=epoch is not None,
            epoch=epoch,
            timeout_s=self._timeout_s,
        )
        if items.info or items.everything:
            rows = await self._source.threads(
                ThreadQuery(key.tenant, only=key.id, heads=False), timeout_s=self._timeout_s
            )
            if rows and rows[0].info is not None:
                merging.info, merging.info_projection = rows[0].info, rows[0].info_projection
                merging.info_version = rows[0].info_version
        if not (records or writes or merging.entries or merging.info is not None or items.moved):
            return None
        merging.chunks = await self.send_chunks(key, records, writes)
        return merging

    async def _finish(self, key: ThreadKey, items: ChangeSet) -> None:
        if items.rewritten:
            wanted = ChangeSet(pairs=items.rewritten)
            await self._rewrite(key, await self._records(key, wanted))
        if items.buried:
            await self._sweep(key, items.erased)

    # Reading the source

    async def _records(self, key: ThreadKey, items: ChangeSet) -> list[CheckpointRecord]:
        wanted = items.pairs | items.rewritten
        if items.everything:
            return await _all_records(self._source, key, self._timeout_s)
        if len(wanted) > 3:
            return await _all_records(self._source, key, self._timeout_s, wanted)
        found = [
            await self._source.read(key, namespace, id, chunks=False, timeout_s=self._timeout_s)
            for namespace, id in wanted
        ]
        return [reading.record for reading in found if reading.record is not None]

    async def _writes(self, key: ThreadKey, items: ChangeSet) -> list[WriteRecord]:
        if items.everything:
            return await self._source.writes(key, None, timeout_s=self._timeout_s)
        if not items.written:
            return []
        return await self._source.writes(key, list(items.written), timeout_s=self._timeout_s)

    async def _entries(self, key: ThreadKey, items: ChangeSet) -> list[EntryRecord]:
        if items.everything:
            return [leased(one) for kind in REPLICATED for one in await self._held(key, kind)]
        found: list[EntryRecord] = []
        for kind in sorted({kind for kind, _ in items.entries}):
            names = {name for other, name in items.entries if other == kind}
            prefix = next(iter(names)) if len(names) == 1 else ""
            held = await self._held(key, kind, prefix)
            found += [leased(one) for one in held if one.key in names]
        return found

    async def _held(self, key: ThreadKey, kind: str, prefix: str = "") -> list[EntryRecord]:
        return await all_entries(self._source, key, kind, self._timeout_s, prefix)

    # Chunks

    async def send_chunks(
        self, key: ThreadKey, records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]
    ) -> tuple[tuple[bytes, bytes], ...]:
        """Send what the target lacks; return the last of it, which goes with the records."""
        needed = {name: None for record in records for name in record.chunks}
        needed.update({name: None for write in writes for name in write.chunks})
        if not needed:
            return ()
        held = await self._target.inventory(key, timeout_s=self._timeout_s)
        batch: list[tuple[bytes, bytes]] = []
        for name, data in await self._fetch(key, [name for name in needed if name not in held.chunks]):
            if sum(len(one) for _, one in batch) + len(data) > _BATCH_BYTES and batch:
                await commit(self._target, Commit(key, chunks=tuple(batch), timeout_s=self._timeout_s))
                batch = []
            batch.append((name, data))
        return tuple(batch)

    async def _fetch(self, key: ThreadKey, names: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        for at in range(0, len(names), 64):
            data = await self._source.fetch(key, names[at : at + 64], timeout_s=self._timeout_s)
            for name in names[at : at + 64]:
                if name not in data:
                    raise StaleBase(key.id)  # deleted or rewritten since its record was read
                if not self._is_named(name, data[name]):  # damaged, or made by somebody without the key
                    raise Corrupt(
                        f"chunk {name.hex()} holds other bytes than it was named for", thread=key.id
                    )
                found.append((name, data[name]))
        return found

    # Deletions

    async def _bury(self, key: ThreadKey, erase: bool, epoch: int | None) -> None:
        """Remove what the source's tombstones name, and keep these."""
        graves = await self._held(key, TOMBSTONE)
        if not graves:
            return
        there = await self._there(key, TOMBSTONE)
        known = {grave.key: grave for grave in there}
        new = [one for one in graves if one.key not in known or known[one.key].rank < one.rank]
        whole = next((one for one in new if not one.key), None)
        generation, _ = await self._target.history(
            HistoryQuery(key, None, limit=1), timeout_s=self._timeout_s
        )
        records = await _all_records(self._target, key, self._timeout_s)
        by_key = {one.key: one for one in new}
        dead = [record for record in records if _is_dead(record, whole, by_key)]
        pairs = {(one.namespace, one.id) for one in dead}
        entries: tuple[EntryRecord, ...] = tuple(new)
        removal = Removal(checkpoints=tuple(pairs), erase=erase)
        if whole is not None:
            orphans, lives = await self._orphans(key, pairs)
            held = [one for kind in REPLICATED for one in await self._there(key, kind)]
            old = [one for one in held if one.fence > 0 and one.rank[:2] <= whole.rank[:2]]
            if len(dead) == len(records) and not lives and len(old) == len(held):
                removal = Removal(everything=True, erase=erase)
                entries = (*new, *(one for one in there if one.key not in by_key))
            else:
                removal = replace(removal, checkpoints=(*pairs, *orphans))
                entries = (*new, *(replace(one, gone=True, revision=one.revision + 1) for one in old))
        if new:
            expected = generation or None  # 0: there is no such thread
            burying = Commit(key, entries=entries, removal=removal, merge=True, generation=expected)
            burying.strict, burying.epoch = epoch is not None, epoch
            burying.timeout_s = self._timeout_s
            await commit(self._target, burying)
        await self._forget_graves(key, graves)

    async def _orphans(
        self, key: ThreadKey, dead: set[CheckpointKey]
    ) -> tuple[set[CheckpointKey], set[CheckpointKey]]:
        """Tell writes without a checkpoint apart: those that were deleted at the source, and those that are news to it.

        A write does not say when it was made. What the source has is alive, and so is what the target has queued for it.
        """
        there = await self._target.writes(key, None, timeout_s=self._timeout_s)
        here = await self._source.writes(key, None, timeout_s=self._timeout_s)
        alive = {(one.namespace, one.checkpoint) for one in here}
        for entry in await self._there(key, OUTBOX):
            alive |= items_in(entry).written
        pairs = {(one.namespace, one.checkpoint) for one in there} - dead
        return pairs - alive, pairs & alive

    async def _there(self, key: ThreadKey, kind: str) -> list[EntryRecord]:
        return await all_entries(self._target, key, kind, self._timeout_s)

    async def _forget_graves(self, key: ThreadKey, graves: Sequence[EntryRecord]) -> None:
        """Drop the tombstones of single checkpoints that both have had for long."""
        now = self._now()
        old = [one for one in graves if one.key and now - int.from_bytes(one.body or b"") > _GRAVE_S * 1e6]
        if old:
            entries = tuple(EntryRecord(TOMBSTONE, one.key, gone=True) for one in old)
            for store in (self._target, self._source):
                await commit(store, Commit(key, entries=entries, timeout_s=self._timeout_s))

    async def _sweep(self, key: ThreadKey, erase: bool) -> None:
        """Remove chunks that nobody refers to any more.

        When something always comes in between, the next deletion does it; but what is to be erased is not put off.
        """
        deadline = Deadline(self._timeout_s)
        while not await self._has_swept(key, erase):
            if not erase:
                return
            if not deadline.left_s():
                raise StoreBusy(
                    f"thread {key.id!r} changed whenever what is to be erased was looked for; try again"
                )

    async def _has_swept(self, key: ThreadKey, erase: bool) -> bool:
        held = await self._target.inventory(key, timeout_s=self._timeout_s)
        records = await _all_records(self._target, key, self._timeout_s)
        writes = await self._target.writes(key, None, timeout_s=self._timeout_s)
        rows: Iterable[CheckpointRecord | WriteRecord] = (*records, *writes)
        live = {name for row in rows for name in row.chunks}
        if dead := tuple(name for name in held.chunks if name not in live):
            removal = Removal(chunks=dead, chunks_until=held.revision, erase=erase)
            swept = Commit(key, removal=removal, generation=held.generation, timeout_s=self._timeout_s)
            try:
                await commit(self._target, swept)
            except StaleBase:  # something came in between
                return False
        return True

    async def _rewrite(self, key: ThreadKey, records: Sequence[CheckpointRecord]) -> None:
        """Keep the same content in the same chunks, so that what was erased is erased here too."""
        for record in records:
            there = await self._target.read(
                key, record.namespace, record.id, chunks=False, timeout_s=self._timeout_s
            )
            if there.record is None or there.record.version != record.version:
                continue
            if there.record.body != record.body or there.record.chunks != record.chunks:
                chunks = tuple(await self._fetch(key, record.chunks))
                again = Commit(key, rewrites=(record,), chunks=chunks, generation=there.generation)
                again.timeout_s = self._timeout_s
                await commit(self._target, again)


def leased(entry: EntryRecord) -> EntryRecord:
    """A lease is timed by the clock of its store: elsewhere it begins anew."""
    lease_s = _LEASE_S if entry.until and entry.status == "running" else None
    return replace(entry, until=0, clock="", lease_s=lease_s)


def _is_dead(record: CheckpointRecord, whole: EntryRecord | None, graves: dict[str, EntryRecord]) -> bool:
    found = (whole, graves.get(tombstone_key(record.namespace, record.id)))
    return any(one is not None and (record.epoch, record.seq) <= (one.epoch, one.until) for one in found)


async def _all_records(
    backend: Backend, key: ThreadKey, timeout_s: float, wanted: set[CheckpointKey] | None = None
) -> list[CheckpointRecord]:
    """Return the records of a thread, of one generation; those that are wanted are mostly the newest."""
    limit = _PAGE if wanted is None else min(_PAGE, 2 * len(wanted) + 16)
    while True:
        first, page = await backend.history(HistoryQuery(key, None, limit=limit), timeout_s=timeout_s)
        generation, found = first, page
        left = None if wanted is None else wanted - {(one.namespace, one.id) for one in page}
        while len(page) == limit and generation == first and (left is None or left):
            limit = _PAGE
            generation, page = await backend.history(
                HistoryQuery(key, None, before=page[-1].order, limit=limit), timeout_s=timeout_s
            )
            found = found + page
            left = None if left is None else left - {(one.namespace, one.id) for one in page}
        if generation == first:
            break
    return [one for one in found if wanted is None or (one.namespace, one.id) in wanted]


async def lineage(backend: Backend, key: ThreadKey, namespace: str, timeout_s: float) -> list[str]:
    """Return the ids of the head of a namespace and of its ancestors."""
    records = [one for one in await _all_records(backend, key, timeout_s) if one.namespace == namespace]
    parents = {one.id: one.parent for one in records}
    line: dict[str, None] = {}
    at = records[0].id if records else None
    while at is not None and at in parents and at not in line:
        line[at] = None
        at = parents[at]
    return list(line)


async def all_entries(
    backend: Backend, key: ThreadKey, kind: str, timeout_s: float, prefix: str = ""
) -> list[EntryRecord]:
    """Return the entries of one kind that a thread has."""
    found: list[EntryRecord] = []
    after: tuple[str, bytes] | None = None
    while True:
        page = await backend.entries(
            EntryQuery(key.tenant, kind, thread=key, prefix=prefix, after=after, limit=_PAGE),
            timeout_s=timeout_s,
        )
        found += [entry for _, entry in page]
        if len(page) < _PAGE:
            return found
        after = (page[-1][1].key, key.digest)
