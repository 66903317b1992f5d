"""The transfer between two stores that replication, catching up and failback share.

What was deleted goes before anything else: tombstones are merged, and what they name is removed.
Then come chunks, then what refers to them in one merging commit (`backend/transfer.py`). In
whatever order things are transferred, and however often, both stores come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from outlive.backend import (
    OUTBOX,
    TOMBSTONE,
    WALL,
    Backend,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    HistoryQuery,
    Receipt,
    Removal,
    ThreadKey,
    WriteRecord,
    all_records,
    commit,
    lineage,
    thread_record,
)
from outlive.backend.entries import REPLICATED
from outlive.backend.transfer import (
    PAGE,
    Check,
    Tombstones,
    Transfer,
    entries_of,
    fetch_chunks,
    find_records,
    names_of,
)
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, OutliveError, StaleBase, StoreBusy
from outlive.layers.replication.outbox_entry import ChangeSet, changes_in
from outlive.runtime.runtime import Deadline

_TRIES = 8
# Of a run whose lease is not known: its owner renews it, or another process waits a little longer.
_LEASE_S = 30.0
# How long a tombstone stays when both stores have it: a save may still be on its way.
_TOMBSTONE_S = 3600.0

IsNamed = Callable[[bytes, bytes], bool]  # (name, bytes): whether that is the name of these bytes


def replica_of(done: Commit, receipt: Receipt, epoch: int) -> Commit | None:
    """Return a commit for the other store; None when it must be read from the store itself."""
    if (
        done.removal is not None
        or done.rewrites
        or (done.metadata is not None and done.metadata_version is None)
    ):
        return None
    leases = {(entry.kind, entry.key): entry.lease_s for entry in done.entries}
    entries = [
        _timed(entry, leases.get((entry.kind, entry.key)))
        for entry in receipt.entries
        if entry.kind in REPLICATED
    ]
    version = None if done.metadata_version is None else done.metadata_version + (not done.merge)
    return Commit(
        done.thread,
        checkpoints=receipt.checkpoints,
        chunks=done.chunks,
        writes=receipt.writes,
        entries=tuple(entries),
        metadata=done.metadata,
        metadata_projection=done.metadata_projection,
        metadata_version=version,
        merge=True,
        strict=True,
        requires_next_seq=not done.merge,
        epoch=epoch,
    )


@dataclass(frozen=True, slots=True)
class Replicator:
    """Brings what one store has into another, thread by thread."""

    source: Backend
    target: Backend
    is_named: IsNamed
    now: Callable[[], int]
    timeout_s: float

    async def transfer(self, key: ThreadKey, changes: ChangeSet, epoch: int | None = None) -> None:
        """Transfer changes of a thread. With an epoch, a thread in a later one refuses them."""
        for _ in range(_TRIES):
            try:
                if (merge := await self._prepare(key, changes, epoch)) is not None:
                    await commit(self.target, merge)
                # A crash from here on leaves the outbox entry of these changes, so they are
                # transferred again.
                if changes.rewritten:
                    await self._rewrite(
                        key, await self._records(key, ChangeSet(checkpoints=changes.rewritten))
                    )
                if changes.deleted:
                    await self._sweep(key, changes.erased)
                return
            except StaleBase:
                continue  # something was deleted or stored in between, in either store
        raise Corrupt("chunks that its records refer to are missing", thread=key.id)

    async def transfer_all(self, threads: Sequence[tuple[ThreadKey, ChangeSet]]) -> list[OutliveError | None]:
        """Transfer changes of many threads, by one call to the target; return an error for each.

        Changes with an epoch are refused by a thread that is in a later one.
        """
        results: list[OutliveError | None] = [None] * len(threads)
        ready: dict[int, Commit] = {}
        # 1. Prepare a merging commit of each thread. Deletions, rewrites and whole threads need more
        #    than one commit, and are transferred one by one.
        for at, (key, changes) in enumerate(threads):
            try:
                if changes.deleted or changes.rewritten or changes.everything:
                    await self.transfer(key, changes, changes.epoch)
                elif (merge := await self._prepare(key, changes, changes.epoch)) is not None:
                    ready[at] = merge
            except OutliveError as error:
                results[at] = error
        # 2. Send all by one call. A crash before it leaves chunks that nothing names yet, and a crash at
        #    any time the outbox entries: the same is transferred again, which changes nothing.
        answers = await self.target.commit_all(list(ready.values())) if ready else []
        for at, answer in zip(ready, answers, strict=True):
            results[at] = answer if isinstance(answer, OutliveError) else None
            # 3. Something came in between in this thread: read it again, and transfer it alone.
            if isinstance(answer, StaleBase):
                key, changes = threads[at]
                try:
                    await self.transfer(key, changes, changes.epoch)
                    results[at] = None
                except OutliveError as error:
                    results[at] = error
        return results

    async def _prepare(self, key: ThreadKey, changes: ChangeSet, epoch: int | None) -> Commit | None:
        """Send deletions and chunks; return the commit of what refers to these, if any."""
        # 1. Deletions first: a tombstone keeps what is merged after it from bringing back what was
        #    deleted.
        if changes.deleted or changes.everything:
            await self._transfer_tombstones(key, changes.erased, epoch)
        # 2. What changed, as the source has it now: it may be newer than the change, which is merged
        #    with the same result.
        merge = Commit(
            key,
            checkpoints=tuple(await self._records(key, changes)),
            writes=tuple(await self._writes(key, changes)),
            entries=tuple(await self._entries(key, changes)),
            merge=True,
            strict=epoch is not None,
            epoch=epoch,
            timeout_s=self.timeout_s,
        )
        if changes.metadata or changes.everything:
            row = await thread_record(self.source, key, timeout_s=self.timeout_s)
            if row is not None and row.metadata is not None:
                merge.metadata, merge.metadata_projection = row.metadata, row.metadata_projection
                merge.metadata_version = row.metadata_version
        has_records = merge.checkpoints or merge.writes or merge.entries or merge.metadata is not None
        # 3. Chunks go ahead of what refers to them: a crash leaves chunks that a repetition names, or the
        #    next deletion removes. A thread that only moved to another epoch moves in the target too, by
        #    a commit without records.
        return await self.with_chunks(merge) if has_records or changes.moved else None

    # Reading the source

    async def _records(self, key: ThreadKey, changes: ChangeSet) -> list[CheckpointRecord]:
        if changes.everything:
            return await self._all_records(self.source, key)
        return await find_records(self.source, key, changes.checkpoints | changes.rewritten, self.timeout_s)

    async def _all_records(self, backend: Backend, key: ThreadKey) -> list[CheckpointRecord]:
        return await all_records(backend, HistoryQuery(key, None, limit=PAGE), timeout_s=self.timeout_s)

    async def _writes(self, key: ThreadKey, changes: ChangeSet) -> list[WriteRecord]:
        if not (changes.everything or changes.written):
            return []
        wanted = None if changes.everything else list(changes.written)
        return await self.source.writes(key, wanted, timeout_s=self.timeout_s)

    async def _entries(self, key: ThreadKey, changes: ChangeSet) -> list[EntryRecord]:
        kinds = REPLICATED if changes.everything else sorted({kind for kind, _ in changes.entries})
        entries: list[EntryRecord] = []
        for kind in kinds:
            names = {name for other, name in changes.entries if other == kind}
            prefix = next(iter(names)) if len(names) == 1 and not changes.everything else ""
            stored = await entries_of(self.source, key, kind, self.timeout_s, prefix)
            entries += [renewed(entry) for entry in stored if changes.everything or entry.key in names]
        present = {(entry.kind, entry.key) for entry in entries}
        for (kind, name), (epoch, fence, revision) in changes.removed.items():
            if (kind, name) not in present:  # otherwise it was stored again
                entries.append(
                    EntryRecord(kind, name, epoch=epoch, fence=fence, revision=revision, gone=True)
                )
        return entries

    # Chunks

    async def with_chunks(self, merge: Commit) -> Commit:
        """Send the chunks that the target lacks; return the commit with the last of them."""
        key, check, put = merge.thread, self._check(merge.thread), partial(commit, self.target)
        transfer = Transfer(self.source, self.target, key, check, put, timeout_s=self.timeout_s)
        return await transfer.with_chunks(merge)

    def _check(self, key: ThreadKey) -> Check:
        def check(name: bytes, data: bytes | None) -> bytes:
            if data is None:
                raise StaleBase(key.id)  # deleted or rewritten since its record was read
            if not self.is_named(name, data):  # damaged, or made by somebody without the key
                raise Corrupt(f"chunk {name.hex()} holds other bytes than it was named for", thread=key.id)
            return data

        return check

    # Deletions

    async def _transfer_tombstones(self, key: ThreadKey, erase: bool, epoch: int | None) -> None:
        """Remove what the source's tombstones name, and store these tombstones."""
        tombstones = await entries_of(self.source, key, TOMBSTONE, self.timeout_s)
        if not tombstones:
            return
        target_tombstones = await self._stored(key, TOMBSTONE)
        known = {tombstone.key: tombstone.rank for tombstone in target_tombstones}
        new = [entry for entry in tombstones if entry.key not in known or known[entry.key] < entry.rank]
        if new:
            removing = await self._removal_by(key, new, target_tombstones, erase)
            removing.strict, removing.epoch = epoch is not None, epoch
            removing.timeout_s = self.timeout_s
            # Tombstones and what they remove are one commit: a crash leaves neither a gap nor a way
            # back.
            await commit(self.target, removing)
        await self._drop_old_tombstones(key, tombstones)

    async def _removal_by(
        self,
        key: ThreadKey,
        new: Sequence[EntryRecord],
        target_tombstones: Sequence[EntryRecord],
        erase: bool,
    ) -> Commit:
        """Return the commit that stores new tombstones and removes what they cover."""
        generation, _ = await self.target.history(HistoryQuery(key, None, limit=1), timeout_s=self.timeout_s)
        records = await self._all_records(self.target, key)
        tombstones = Tombstones(new)
        dead = {record.key for record in records if tombstones.cover(record)}
        entries: tuple[EntryRecord, ...] = tuple(new)
        removal = Removal(checkpoints=tuple(dead), erase=erase)
        if (whole := tombstones.whole) is not None:
            # The thread was deleted in the source. What the target has of its own since then stays.
            orphans, live = await self._orphans(key, dead)
            stored = [entry for kind in REPLICATED for entry in await self._stored(key, kind)]
            old = [entry for entry in stored if entry.fence > 0 and entry.rank[:2] <= whole.rank[:2]]
            if len(dead) == len(records) and not live and len(old) == len(stored):
                removal = Removal(everything=True, erase=erase)
                keys = {entry.key for entry in new}
                entries = (*new, *(entry for entry in target_tombstones if entry.key not in keys))
            else:
                removal = replace(removal, checkpoints=(*dead, *orphans))
                entries = (*new, *(replace(entry, gone=True, revision=entry.revision + 1) for entry in old))
        # Generation 0 means that there is no such thread.
        return Commit(key, entries=entries, removal=removal, merge=True, generation=generation or None)

    async def _orphans(
        self, key: ThreadKey, dead: set[CheckpointKey]
    ) -> tuple[set[CheckpointKey], set[CheckpointKey]]:
        """Tell writes without a checkpoint apart: those that were deleted at the source, and those
        that are news to it.

        A write does not say when it was made. What the source has is alive, and so is what the
        target has queued for it.
        """
        target_writes = await self.target.writes(key, None, timeout_s=self.timeout_s)
        source_writes = await self.source.writes(key, None, timeout_s=self.timeout_s)
        live = {write.checkpoint_key for write in source_writes}
        for entry in await self._stored(key, OUTBOX):
            live |= changes_in(entry).written
        written = {write.checkpoint_key for write in target_writes} - dead
        return written - live, written & live

    async def _stored(self, key: ThreadKey, kind: str) -> list[EntryRecord]:
        return await entries_of(self.target, key, kind, self.timeout_s)

    async def _drop_old_tombstones(self, key: ThreadKey, tombstones: Sequence[EntryRecord]) -> None:
        """Drop the tombstones of single checkpoints that both have had for long."""
        before = self.now() - _TOMBSTONE_S * 1e6
        old = [entry.key for entry in tombstones if entry.key and int.from_bytes(entry.body or b"") < before]
        if old:
            entries = tuple(EntryRecord(TOMBSTONE, name, gone=True) for name in old)
            for store in (self.target, self.source):
                await commit(store, Commit(key, entries=entries, timeout_s=self.timeout_s))

    async def _sweep(self, key: ThreadKey, erase: bool) -> None:
        """Remove chunks that no record names any more.

        When something always comes in between, the next deletion does it; but what is to be erased
        is not put off.
        """
        deadline = Deadline(self.timeout_s)
        while not await self._has_swept(key, erase):
            if not erase:
                return
            if not deadline.remaining_s():
                raise StoreBusy(
                    f"thread {key.id!r} changed at each attempt to erase what was deleted from it; try again"
                )

    async def _has_swept(self, key: ThreadKey, erase: bool) -> bool:
        # The inventory is read before the records: what is stored in between has a later revision,
        # and stays.
        inventory = await self.target.inventory(key, timeout_s=self.timeout_s)
        records = await self._all_records(self.target, key)
        writes = await self.target.writes(key, None, timeout_s=self.timeout_s)
        live = set(names_of(records, writes))
        if dead := tuple(name for name in inventory.chunks if name not in live):
            removal = Removal(chunks=dead, chunks_until=inventory.revision, erase=erase)
            sweep = Commit(key, removal=removal, generation=inventory.generation, timeout_s=self.timeout_s)
            try:
                await commit(self.target, sweep)
            except StaleBase:  # something came in between
                return False
        return True

    async def _rewrite(self, key: ThreadKey, records: Sequence[CheckpointRecord]) -> None:
        """Store the same content in the same chunks, so that what was erased is erased here too."""
        # Each record by a commit of its own: a crash leaves the rest to the outbox entry.
        for record in records:
            stored = await self.target.read(
                key, record.namespace, record.id, chunks=False, timeout_s=self.timeout_s
            )
            if stored.record is None or stored.record.version != record.version:
                continue
            if stored.record.body != record.body or stored.record.chunks != record.chunks:
                chunks = fetch_chunks(self.source, key, record.chunks, self._check(key), self.timeout_s)
                rewrite = Commit(key, rewrites=(record,), generation=stored.generation)
                rewrite.chunks = tuple([chunk async for chunk in chunks])
                rewrite.timeout_s = self.timeout_s
                await commit(self.target, rewrite)


def renewed(entry: EntryRecord) -> EntryRecord:
    """Return an entry whose lease begins again: it is timed by the clock of its store."""
    lease_s = _LEASE_S if entry.until and entry.status == "running" else None
    return _timed(entry, lease_s)


def _timed(entry: EntryRecord, lease_s: float | None) -> EntryRecord:
    """Return an entry whose lease its new store times; a wall time is the same everywhere."""
    return entry if entry.clock == WALL else replace(entry, until=0, clock="", lease_s=lease_s)


async def line_of(backend: Backend, key: ThreadKey, namespace: str, timeout_s: float) -> set[str]:
    """Return the ids of the head of a namespace and of its ancestors."""
    records = await all_records(backend, HistoryQuery(key, namespace, limit=PAGE), timeout_s=timeout_s)
    return {record.id for record in lineage(records)}
