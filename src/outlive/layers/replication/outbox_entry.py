"""Outbox entries: what a commit changed and the other store has yet to get.

The entry is part of the commit that it describes, so there is no moment at which one is stored
without the other. It names what changed; the content is read when it is transferred. So entries can
be transferred in any order, together, and more than once.

An entry of strict mode also has the epoch in which its commit was decided. Such a commit is
acknowledged only when the other store has it. So if the other store lacks it and its thread is in a
later epoch there, the commit was never acknowledged (`withdrawal.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace

import ormsgpack

from outlive.backend import (
    ABSENT,
    OUTBOX,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Rank,
    Receipt,
    WriteRecord,
    escape,
    unescape,
)
from outlive.backend.entries import REPLICATED
from outlive.dataclass import dataclass
from outlive.errors import Corrupt


@dataclass(slots=True)
class ChangeSet:
    """What is to be transferred, of one thread."""

    checkpoints: set[CheckpointKey] = field(default_factory=set)
    written: set[CheckpointKey] = field(default_factory=set)  # checkpoints with new writes
    entries: set[tuple[str, str]] = field(default_factory=set)  # (kind, key)
    # Those of them that were removed, with the rank up to which they are.
    removed: dict[tuple[str, str], Rank] = field(default_factory=dict)
    rewritten: set[CheckpointKey] = field(default_factory=set)
    metadata: bool = False
    deleted: bool = False  # something was deleted
    erased: bool = False  # and no byte of it may stay
    everything: bool = False  # all that the thread has
    moved: bool = False  # the thread moved to another epoch
    size: int = 0  # bytes, about
    epoch: int | None = None  # of strict mode: the commit is acknowledged when both stores have it

    def add(self, other: ChangeSet) -> None:
        self.checkpoints |= other.checkpoints
        self.written |= other.written
        self.entries |= other.entries
        for name, rank in other.removed.items():
            self.removed[name] = max(rank, self.removed.get(name, ABSENT))
        self.rewritten |= other.rewritten
        self.metadata |= other.metadata
        self.deleted |= other.deleted
        self.erased |= other.erased
        self.everything |= other.everything
        self.moved |= other.moved
        self.size += other.size

    def __bool__(self) -> bool:
        sets = (self.checkpoints, self.written, self.entries, self.rewritten)
        return any(sets) or self.metadata or self.deleted or self.everything


def changes_of(commit: Commit) -> ChangeSet:
    """Return what a commit changes, without renewed leases and chunks that no record names."""
    removal = commit.removal
    is_renewal = commit.fence is not None and not commit.checkpoints
    entries = {
        (entry.kind, entry.key)
        for entry in commit.entries
        if entry.kind in REPLICATED and not (is_renewal and entry.body is None and entry.lease_s is not None)
    }
    rows: Iterable[CheckpointRecord | WriteRecord] = (*commit.checkpoints, *commit.writes)
    size = sum(len(data) for _, data in commit.chunks) + sum(len(row.body) for row in rows)
    return ChangeSet(
        checkpoints={draft.key for draft in commit.checkpoints},
        written={write.checkpoint_key for write in commit.writes},
        entries=entries,
        removed={
            (entry.kind, entry.key): entry.rank
            for entry in commit.entries
            if entry.gone and entry.kind in REPLICATED
        },
        rewritten={record.key for record in commit.rewrites},
        metadata=commit.metadata is not None,
        deleted=removal is not None,
        erased=removal is not None and removal.erase,
        size=size + sum(len(entry.body or b"") for entry in commit.entries),
    )


def outbox_entry(key: str, changes: ChangeSet, epoch: int | None) -> EntryRecord:
    """Return the entry that names changes; with an epoch in strict mode."""
    flags = (changes.metadata, changes.deleted, changes.erased, changes.everything, changes.moved)
    sets = (changes.checkpoints, changes.written, changes.entries, changes.rewritten)
    names = [[[escape(first), escape(second)] for first, second in sorted(pairs)] for pairs in sets]
    removed = [[escape(kind), escape(name), list(rank)] for (kind, name), rank in changes.removed.items()]
    return EntryRecord(OUTBOX, key, ormsgpack.packb([changes.size, list(flags), names, epoch, removed]))


def changes_in(entry: EntryRecord) -> ChangeSet:
    """Return the changes that an entry names: everything of its thread, when it cannot be read
    (another version wrote it).
    """
    try:
        size, flags, names, epoch, ranks = ormsgpack.unpackb(entry.body or b"")
        metadata, deleted, erased, everything, moved = flags
        checkpoints, written, entries, rewritten = (
            {(unescape(first), unescape(second)) for first, second in pairs} for pairs in names
        )
        removed = {
            (unescape(kind), unescape(name)): (first, second, third)
            for kind, name, (first, second, third) in ranks
        }
    except (ValueError, TypeError, Corrupt):
        return ChangeSet(deleted=True, everything=True)
    return ChangeSet(
        checkpoints,
        written,
        entries,
        removed,
        rewritten,
        metadata,
        deleted,
        erased,
        everything,
        moved,
        size,
        epoch,
    )


def leaving_tombstones(commit: Commit) -> Commit:
    """Return a commit with tombstones for what it removes: the other store must not return it."""
    if commit.removal is None:
        return commit
    return replace(commit, removal=replace(commit.removal, leaves_tombstones=True))


def without_outbox(commit: Commit, receipt: Receipt) -> Receipt:
    """Return a receipt of what its caller sent."""
    if not receipt.entries:
        return receipt
    sent = {(entry.kind, entry.key) for entry in commit.entries}
    receipt.entries = tuple(entry for entry in receipt.entries if (entry.kind, entry.key) in sent)
    return receipt


def age_s(keys: Iterable[str], now: int) -> float:
    """Return the age of the oldest entry: a key begins with the moment at which it was made."""
    oldest = min((int(key[:16], 16) for key in keys), default=now)
    return max(0.0, (now - oldest) / 1e6)
