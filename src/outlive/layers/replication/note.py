"""Notes: what a commit changed and the other store has yet to get.

A note is an entry of kind "queue" in the very commit that it tells of, so there is no moment at which one is stored
without the other. It names what changed; how that looks is read when it is carried over, so that
notes can be carried in any order, together, and more than once.

A note of the strict mode also says in which epoch its commit was decided. Such a commit is acknowledged only when the other store has
it. So if the other store does not have it and its thread is in a later epoch there, the commit was never acknowledged (`withdrawal.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import ormsgpack

from outlive.backend import (
    OUTBOX,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    WriteRecord,
    escape,
    unescape,
)
from outlive.backend.entries import REPLICATED
from outlive.errors import Corrupt


@dataclass(slots=True)
class ChangeSet:
    """What is to be carried over, of one thread."""

    pairs: set[CheckpointKey] = field(default_factory=set)  # (namespace, id) of checkpoints
    written: set[CheckpointKey] = field(default_factory=set)  # (namespace, checkpoint) of writes
    entries: set[CheckpointKey] = field(default_factory=set)  # (kind, key)
    rewritten: set[CheckpointKey] = field(default_factory=set)
    info: bool = False
    buried: bool = False  # something was deleted
    erased: bool = False  # and no byte of it may stay
    everything: bool = False  # whatever the thread has
    moved: bool = False  # the thread went on to another epoch
    size: int = 0  # bytes, about
    epoch: int | None = None  # of a note in strict mode: its commit is acknowledged when both stores have it

    def add(self, other: ChangeSet) -> None:
        self.pairs |= other.pairs
        self.written |= other.written
        self.entries |= other.entries
        self.rewritten |= other.rewritten
        self.info |= other.info
        self.buried |= other.buried
        self.erased |= other.erased
        self.everything |= other.everything
        self.moved |= other.moved
        self.size += other.size

    def __bool__(self) -> bool:
        sets = (self.pairs, self.written, self.entries, self.rewritten)
        return any(sets) or self.info or self.buried or self.everything


def items_of(commit: Commit) -> ChangeSet:
    """Return what a commit is about to change. Renewed leases and chunks that nobody names yet are not carried."""
    removal = commit.removal
    renews = commit.fence is not None and not commit.checkpoints
    entries = {
        (entry.kind, entry.key)
        for entry in commit.entries
        if entry.kind in REPLICATED and not (renews and entry.body is None and entry.lease_s is not None)
    }
    rows: Iterable[CheckpointRecord | WriteRecord] = (*commit.checkpoints, *commit.writes)
    size = sum(len(data) for _, data in commit.chunks) + sum(len(row.body) for row in rows)
    return ChangeSet(
        pairs={(draft.namespace, draft.id) for draft in commit.checkpoints},
        written={(write.namespace, write.checkpoint) for write in commit.writes},
        entries=entries,
        rewritten={(record.namespace, record.id) for record in commit.rewrites},
        info=commit.info is not None,
        buried=removal is not None,
        erased=removal is not None and removal.erase,
        size=size + sum(len(entry.body or b"") for entry in commit.entries),
    )


def note(key: str, items: ChangeSet, epoch: int | None) -> EntryRecord:
    """Return the entry that tells of items; with an epoch in strict mode."""
    flags = (items.info, items.buried, items.erased, items.everything, items.moved)
    sets = (items.pairs, items.written, items.entries, items.rewritten)
    said = [[[escape(one), escape(two)] for one, two in sorted(pairs)] for pairs in sets]
    return EntryRecord(OUTBOX, key, ormsgpack.packb([items.size, list(flags), said, epoch]))


def items_in(entry: EntryRecord) -> ChangeSet:
    """Return the items that an entry tells of: all of its thread, when it cannot be read (another version wrote it)."""
    try:
        size, flags, said, epoch = ormsgpack.unpackb(entry.body or b"")
        info, buried, erased, everything, moved = flags
        pairs, written, entries, rewritten = (
            {(unescape(one), unescape(two)) for one, two in part} for part in said
        )
    except (ValueError, TypeError, Corrupt):
        return ChangeSet(buried=True, everything=True)
    return ChangeSet(pairs, written, entries, rewritten, info, buried, erased, everything, moved, size, epoch)


def buried(commit: Commit) -> Commit:
    """Return a commit that leaves tombstones of what it removes, so that it does not come back from the other store."""
    return (
        commit
        if commit.removal is None
        else replace(commit, removal=replace(commit.removal, leaves_tombstones=True))
    )


def without_notes(commit: Commit, receipt: Receipt) -> Receipt:
    """Return a receipt that speaks of what its caller sent."""
    if not receipt.entries:
        return receipt
    asked = {(entry.kind, entry.key) for entry in commit.entries}
    receipt.entries = tuple(entry for entry in receipt.entries if (entry.kind, entry.key) in asked)
    return receipt


def age_s(keys: Iterable[str], now: int) -> float:
    """Return the age of the oldest note, whose key begins with the moment that it was made at."""
    oldest = min((int(key[:16], 16) for key in keys), default=now)
    return max(0.0, (now - oldest) / 1e6)
