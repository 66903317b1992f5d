"""What a commit does, decided once for every engine.

Servers decide a plain save themselves, in one round trip (`snapshot.is_plain`), and are held to the
same rules by the contract.

`decide` reads a thread through a `View` and either refuses the commit or returns its `Effect`: the
exact rows to put and to remove. A backend then applies the effect in its own way, removals first.
Nothing is changed while deciding, so a refusal, or a crash before the effect is applied, leaves the
thread as it was.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import cast

from outlive.backend import (
    ABSENT,
    NEXT,
    TOMBSTONE,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Fence,
    Receipt,
    ReencryptedBodies,
    Removal,
    WriteRecord,
    stamped,
)
from outlive.backend.clock import Clock, has_lapsed
from outlive.backend.entries import check_kinds
from outlive.backends.rules.merge import (
    after_tombstones,
    check_turn,
    entry_wins,
    greatest_fence,
    merged_metadata,
    metadata_version,
    record_wins,
    tombstones,
    tombstones_for,
    wanted_chunks,
)
from outlive.backends.rules.view import Counters, Effect, View, brought, named
from outlive.errors import (
    BadArgument,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    StaleBase,
    ThreadNotEmpty,
)


def decide(commit: Commit, view: View, clock: Clock) -> tuple[Effect | None, Receipt]:
    """Return what a commit does and its receipt; no effect when its checkpoint is there already."""
    # 1. A commit that was done before is answered as done. This comes before all expectations: a
    #    client that repeats a commit because it lost the answer must not be told that the head has
    #    moved, by its own save.
    if commit.entries:
        check_kinds(commit.entries)
    counters = view.counters
    existing = _repeated(commit, view) if commit.replace else _existing(commit, view)
    if existing is not None and counters is not None:
        return None, Receipt(counters.generation, counters.revision, existing=existing)
    # 2. What the commit expects must hold; one refusal refuses all of it. A new thread gets its
    #    counters here.
    _check(commit, view, counters, clock)
    counters = counters or Counters(new_generation(), 0, 0, 0, clock.now)
    # 3. What is removed: of what the commit names, only what is there.
    removal = commit.removal or _NOTHING
    removed = tuple([key for key in removal.checkpoints if view.has(key)])
    dead_chunks, freed = _dead_chunks(removal, view) if removal.chunks else ((), 0)
    # 4. What is put: drafts get their place in the order, rewrites keep theirs.
    placed = _Placing(commit, view, counters, clock.now)
    rewrites = _rewritten(commit, view) if commit.rewrites else []
    metadata = merged_metadata(commit, view, counters) if commit.metadata is not None else None
    reencrypted = _Reencrypted(commit.reencrypted, view) if commit.reencrypted is not None else _UNCHANGED
    # 5. A new generation tells savers that a chunk which they share may be gone, and sweeps that a
    #    chunk which they are about to delete is used again: both are refused (StaleBase) and read
    #    again.
    shares_unseen = commit.generation is None and _shares_chunks(commit, view)
    is_disturbed = bool(
        removal.everything or removed or dead_chunks or rewrites or shares_unseen or placed.disturbs
    )
    new = Counters(
        generation=new_generation() if is_disturbed else counters.generation,
        revision=max(counters.revision + 1, greatest_fence(commit))
        if commit.merge
        else counters.revision + 1,
        epoch=placed.epoch,
        seq=placed.seq,
        created_at=counters.created_at,
        metadata_version=0
        if removal.everything
        else metadata_version(commit, counters)
        if metadata is not None
        else counters.metadata_version,
    )
    # 6. Writes and entries are ranked by the new revision, so they come after the counters.
    writes = _writes(commit, view, new) if commit.writes else ()
    entries = _entries(commit, view, new, clock) if commit.entries else []
    if removal.leaves_tombstones:
        entries = [*entries, *tombstones(removal, removed, new, clock)]
    # 7. The effect is complete, and nothing has been changed yet. The backend applies it in one
    #    transaction: a crash leaves the thread as it was, or all of the effect.
    effect = Effect(
        thread=commit.thread,
        counters=new,
        at=clock.now,
        checkpoints=tuple(placed.stored),
        rewrites=tuple([record for _, record in rewrites]),
        replaced=(*placed.replaced, *[old for old, _ in rewrites]),
        chunks=wanted_chunks(commit, (*placed.stored, *writes)) if commit.merge else commit.chunks,
        writes=(*writes, *reencrypted.writes),
        entries=(*entries, *reencrypted.entries),
        removed=removed,
        removed_chunks=dead_chunks,
        everything=removal.everything,
        erase=removal.erase,
        metadata=reencrypted.metadata if metadata is None else metadata,
        metadata_projection=commit.metadata_projection,
    )
    # Pending writes on ids that were never saved are removed too, and are not counted as
    # checkpoints.
    count = sum(view.find(*key) is not None for key in removed)
    if removal.everything:
        count = view.count() or int(view.is_listed)
    return effect, Receipt(
        new.generation, new.revision, effect.checkpoints, None, effect.entries, effect.writes, count, freed
    )


def new_generation() -> int:
    """Return a new random generation: a thread created again never looks like the one before."""
    return int.from_bytes(os.urandom(8)) >> 1


_NOTHING = Removal()


def _existing(commit: Commit, view: View) -> CheckpointRecord | None:
    """Return the stored record of a commit that was done before."""
    for draft in commit.checkpoints:
        if not draft.seq and (stored := view.find(draft.namespace, draft.id)) is not None:
            return stored
    return None


def _repeated(commit: Commit, view: View) -> CheckpointRecord | None:
    """Return the stored record of a replacing commit whose very content is stored already."""
    pairs = [(draft, view.find(draft.namespace, draft.id)) for draft in commit.checkpoints]
    if pairs and all(stored is not None and _is_repeat(draft, stored) for draft, stored in pairs):
        return pairs[0][1]
    return None


def _is_repeat(draft: CheckpointRecord, stored: CheckpointRecord) -> bool:
    fields, old = (
        (record.body, record.chunks, record.size, record.run, record.step, record.source,
         None if draft.follows else record.parent)
        for record in (draft, stored)
    )  # fmt: skip
    return not draft.seq and fields == old


# What a commit expects ----------------------------------------------------------------------------


def _check(commit: Commit, view: View, counters: Counters | None, clock: Clock) -> None:
    """Raise for the first expectation that fails.

    The fence comes first: a process that has lost its run learns that, and not that the head moved.
    """
    thread = commit.thread.id
    if commit.fence is not None:
        _check_fence(thread, commit.fence, view)
    keeps_epoch = commit.epoch is not None and (commit.strict or not commit.merge)
    if keeps_epoch and counters is not None and (commit.epoch or 0) < counters.epoch:
        raise EpochPassed(thread, commit.epoch or 0, counters.epoch)
    if commit.merge and commit.requires_next_seq:
        check_turn(commit, view, counters)
    if commit.generation is not None and (counters is None or counters.generation != commit.generation):
        raise StaleBase(thread)
    if commit.revision is not None and (counters is None or counters.revision != commit.revision):
        raise StaleBase(thread)
    if commit.expect_empty:
        _check_empty(commit, view)
    if commit.expect_head is not None:
        _check_head(commit, *commit.expect_head, view)
    version = counters.metadata_version if counters else 0
    if commit.metadata_version is not None and not commit.merge and commit.metadata_version != version:
        raise MetadataMoved(thread)
    for entry in commit.entries:
        if not commit.merge:
            _check_entry(thread, entry, view.entry(entry.kind, entry.key), clock)


def _check_empty(commit: Commit, view: View) -> None:
    """Refuse a copy into a thread with checkpoints, or with writes that would pass for copies."""
    if view.count():
        raise ThreadNotEmpty(commit.thread.id)
    if any(view.has(pair) for pair in brought(commit)):
        raise StaleBase(commit.thread.id)


def _check_fence(thread: str, fence: Fence, view: View) -> None:
    entry = view.entry(fence.kind, fence.key)
    if entry is None or entry.as_fence() != fence or entry.status != "running":
        raise LeaseLost(thread, fence.kind, fence.key, fence.number, entry.fence if entry else None)


def _check_head(commit: Commit, namespace: str, expected: str | None, view: View) -> None:
    head = view.head(namespace)
    if head != expected:
        raise HeadMoved(commit.thread.id, namespace, expected, head)


def _check_entry(thread: str, entry: EntryRecord, stored: EntryRecord | None, clock: Clock) -> None:
    if stored is not None and _same_entry(entry, stored):
        return
    rank = stored.rank if stored is not None else ABSENT
    is_stale = entry.fence != NEXT and not entry.gone and entry.rank < rank
    is_unexpected = entry.expect is not None and rank != entry.expect
    is_held = entry.expect_lapsed and stored is not None and not has_lapsed(stored, clock)
    if is_stale or is_unexpected or is_held:
        raise EntryHeld(thread, entry.kind, entry.key, stored)


def _same_entry(entry: EntryRecord, stored: EntryRecord) -> bool:
    """Tell whether an entry is stored as it is: a retry after a lost reply offers it again."""
    return (entry.rank, entry.status, entry.body, entry.gone) == (
        stored.rank,
        stored.status,
        stored.body,
        False,
    )


def _shares_chunks(commit: Commit, view: View) -> bool:
    """Tell whether a commit refers to stored chunks, which it does not bring. Raises StaleBase if one is missing.

    For a commit that names no generation: nothing else says whether these chunks still exist, and a
    sweep that is under way must learn that they are used again.
    """
    brought = {name for name, _ in commit.chunks}
    missing = named(commit) - brought
    if any(view.chunk(name) is None for name in missing):
        raise StaleBase(commit.thread.id)
    return bool(missing)


def check_found(effect: Effect, view: View) -> None:
    """Make sure that all chunks of new checkpoints exist, for engines that do not check it.

    A chunk may be missing because the write that brought it was refused or withdrawn.
    """
    wanted = {name for record in effect.checkpoints for name in record.chunks}
    wanted.difference_update([name for name, _ in effect.chunks])
    if any(view.chunk(name) is None for name in wanted):
        raise StaleBase(effect.thread.id)


# What is put and removed -------------------------------------------------------------------------


class _Placing:
    """Assigns each draft its place in the order: the next seq, or the seq of another store."""

    def __init__(self, commit: Commit, view: View, counters: Counters, now: int) -> None:
        self._commit = commit
        self._view = view
        self._now = now
        # Namespace → the head as this commit leaves it so far.
        self._heads: dict[str, CheckpointRecord] = {}
        self.seq = counters.seq
        self.epoch = max(counters.epoch, commit.epoch or 0)
        self.stored: list[CheckpointRecord] = []
        self.replaced: list[CheckpointRecord] = []
        brings_seqs = any(draft.seq for draft in commit.checkpoints)
        self._shift = after_tombstones(commit, view, counters) if brings_seqs and not commit.merge else (0, 0)
        for draft in commit.checkpoints:
            self._place(draft)
        self.disturbs = bool(self.replaced) or brings_seqs

    def _place(self, draft: CheckpointRecord) -> None:
        """Add the record of a draft to `stored`, unless a stored record or a tombstone wins."""
        # 1. Only a replacement, or a record of another store, can meet a stored record of its id.
        commit = self._commit
        old = self._view.find(draft.namespace, draft.id) if commit.replace or draft.seq else None
        if old is not None and draft.seq and not record_wins(commit, draft, old):
            return
        is_judged = commit.merge and not commit.overrules
        if is_judged and draft.seq and tombstones_for(draft, self._view):
            return  # it was deleted here after it was made
        # 2. Its place: its own, that of the record it replaces, or the next.
        if draft.seq:
            epoch, seq = max(draft.epoch, self._shift[0]), draft.seq + self._shift[1]
        elif old is not None:
            epoch, seq = old.epoch, old.seq
        else:
            epoch, seq = self.epoch, self.seq + 1
        self.seq, self.epoch = max(self.seq, seq), max(self.epoch, epoch)
        # 3. Its parent: the one it names, or what is the head now.
        parent = draft.parent
        if draft.follows and old is not None:
            parent = old.parent
        elif draft.follows:
            head = self._heads.get(draft.namespace)
            parent = self._view.head(draft.namespace) if head is None else head.id
        record = stamped(
            draft,
            epoch=epoch,
            seq=seq,
            created_at=draft.created_at or (old.created_at if old else self._now),
            parent=parent,
            version=old.version + 1 if old is not None and not draft.seq else draft.version,
        )
        if old is not None:
            self.replaced.append(old)
        if len(commit.checkpoints) > 1:
            self._note_head(record)
        self.stored.append(record)

    def _note_head(self, record: CheckpointRecord) -> None:
        """Remember what later drafts of this commit follow: the greatest, maybe not the last."""
        head = self._heads.get(record.namespace)
        if head is None and (id := self._view.head(record.namespace)) is not None:
            head = self._view.find(record.namespace, id)
        if head is None or record.order >= head.order:
            head = record
        self._heads[record.namespace] = head


def _rewritten(commit: Commit, view: View) -> list[tuple[CheckpointRecord, CheckpointRecord]]:
    """Return (old, new) of rewrites, which change where content is stored, never the content."""
    pairs = []
    for new in commit.rewrites:
        old = view.find(new.namespace, new.id)
        if old is None:
            raise BadArgument(f"checkpoint {new.id!r} cannot be rewritten: it does not exist")
        pairs.append((old, replace(old, chunks=new.chunks, body=new.body)))
    return pairs


def _writes(commit: Commit, view: View, counters: Counters) -> tuple[WriteRecord, ...]:
    """Return the writes to store: the first of an index wins, unless its checkpoint is replaced.

    A control write gets a rank, and the last one wins.
    """
    accepted: dict[tuple[str, str, str, int], WriteRecord] = {}
    for write in commit.writes:
        stored = accepted.get(write.key) or (None if commit.replace else view.write(write.key))
        if write.index < 0 and write.rank == ABSENT:
            accepted[write.key] = replace(write, rank=(counters.epoch, 0, counters.revision))
        elif stored is None or _outranks(commit, write, stored):
            accepted[write.key] = write
    return tuple(accepted.values())


def _outranks(commit: Commit, write: WriteRecord, stored: WriteRecord) -> bool:
    if write.index < 0:
        return (write.rank, write.body) > (stored.rank, stored.body)
    return commit.merge and write.body > stored.body  # two stores each had a first one


class _Reencrypted:
    """What gets other bytes: only records that did not change since they were read."""

    def __init__(self, bodies: ReencryptedBodies, view: View) -> None:
        writes = [(view.write(old.key), old.body, new) for old, new in bodies.writes]
        entries = [(view.entry(old.kind, old.key), old.body, new) for old, new in bodies.entries]
        self.writes = tuple(
            [replace(write, body=new) for write, old, new in writes if write and write.body == old]
        )
        self.entries = tuple(
            [replace(entry, body=new) for entry, old, new in entries if entry and entry.body == old]
        )
        self.metadata = (
            bodies.metadata[1]
            if bodies.metadata is not None and bodies.metadata[0] == view.thread_metadata()
            else None
        )


_UNCHANGED = _Reencrypted(ReencryptedBodies(), cast(View, None))


def _entries(commit: Commit, view: View, counters: Counters, clock: Clock) -> list[EntryRecord]:
    accepted = []
    is_judged = commit.merge and not commit.overrules
    tombstone = view.entry(TOMBSTONE, "") if is_judged else None
    for entry in commit.entries:
        # A merge brings back no run or lock that was taken before the thread was deleted here.
        is_claim = entry.fence > 0 and entry.kind != TOMBSTONE
        if tombstone is not None and is_claim and entry.rank[:2] <= tombstone.rank[:2]:
            continue
        stored = view.entry(entry.kind, entry.key)
        if is_judged and stored is not None and not entry_wins(entry, stored):
            continue
        accepted.append(resolved_entry(entry, stored, counters.revision, clock))
    return accepted


def resolved_entry(
    entry: EntryRecord, stored: EntryRecord | None, revision: int, clock: Clock
) -> EntryRecord:
    """Return an entry as a commit of this revision stores it."""
    body, status = entry.body, entry.status
    if body is None:
        body = stored.body if stored is not None else b""
        status = status or (stored.status if stored is not None else "")
    until, since = entry.until, entry.clock
    if entry.lease_s is not None:
        until, since = clock.end_of(entry.lease_s, entry.clock)
    fence = revision if entry.fence == NEXT else entry.fence
    # Not by `replace`, which costs four times as much: a step of a run stores three entries.
    return EntryRecord(
        entry.kind, entry.key, body, status, entry.epoch, fence, entry.revision, until, since, gone=entry.gone
    )


def _dead_chunks(removal: Removal, view: View) -> tuple[tuple[bytes, ...], int]:
    """Return the chunks that a sweep removes, and their bytes.

    A chunk that was stored again after the sweep read it stays.
    """
    dead, freed = [], 0
    for name in dict.fromkeys(removal.chunks):
        stored = view.chunk(name)
        if stored is not None and stored[1] <= removal.chunks_until:
            dead.append(name)
            freed += stored[0]
    return tuple(dead), freed
