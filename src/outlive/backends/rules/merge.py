"""Records of another store: which of them a commit takes over, and what deletions here say to that.

For commits with `merge`, and for copies, whose records bring their own seq. Merging is commutative,
associative and idempotent, whatever the order in which changes arrive.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlive.backend import (
    TOMBSTONE,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Rank,
    Removal,
    WriteRecord,
    tombstone_key,
)
from outlive.backend.clock import Clock
from outlive.backends.rules.view import Counters, View
from outlive.errors import OutOfTurn


def check_turn(commit: Commit, view: View, counters: Counters | None) -> None:
    """Check that the commit is the next one: nothing is missing before it or newer."""
    following = counters.seq + 1 if counters is not None else 1
    is_out = any(draft.seq != following and view.find(*draft.key) is None for draft in commit.checkpoints)
    for entry in commit.entries:
        stored = view.entry(entry.kind, entry.key)
        is_out = is_out or (stored is not None and not entry.gone and entry.rank < stored.rank)
    if is_out:
        raise OutOfTurn(commit.thread.id)


def greatest_fence(commit: Commit) -> int:
    """Return the greatest fence that a merge brings: the next one that is given here must be
    greater.

    Fences are revisions, and revisions order control writes. So the process that takes over a run
    copied from another store outranks all that was copied with it.
    """
    fences = [entry.fence for entry in commit.entries if entry.kind != TOMBSTONE]
    return max([0, *fences, *[write.rank[2] for write in commit.writes]])


def record_wins(commit: Commit, draft: CheckpointRecord, old: CheckpointRecord) -> bool:
    """Tell whether a record of another store wins: only if it was replaced there.

    Ties are decided by the order: a save that was repeated after a failover counts in the later
    epoch.
    """
    if commit.overrules:
        return True
    if draft.version == old.version:
        sent, stored = ((record.order, record.body, record.size, record.chunks) for record in (draft, old))
        return commit.merge and sent > stored
    return draft.version > old.version


def entry_wins(entry: EntryRecord, stored: EntryRecord) -> bool:
    """Tell whether an entry of another store replaces the stored one."""
    if entry.gone:
        return entry.rank >= stored.rank
    return _rank(entry) > _rank(stored)


def _rank(entry: EntryRecord) -> tuple[Rank, str, bytes]:
    return entry.rank, entry.status, entry.body or b""


def wanted_chunks(
    commit: Commit, records: Iterable[CheckpointRecord | WriteRecord]
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the chunks of a merge that accepted records refer to: others may be erased here."""
    if not (commit.checkpoints or commit.writes):
        return commit.chunks
    wanted = {name for record in records for name in record.chunks}
    return tuple([(name, data) for name, data in commit.chunks if name in wanted])


def tombstones(
    removal: Removal, removed: Iterable[CheckpointKey], counters: Counters, clock: Clock
) -> list[EntryRecord]:
    """Return entries that record what was removed: up to which seq and revision, and when."""
    keys = [""] if removal.everything else [tombstone_key(*pair) for pair in removed]
    at = clock.now.to_bytes(8)
    return [
        EntryRecord(TOMBSTONE, key, at, epoch=counters.epoch, fence=counters.revision, until=counters.seq)
        for key in keys
    ]


def tombstones_for(draft: CheckpointRecord, view: View) -> list[EntryRecord]:
    """Return the tombstones of a deletion here that came after the checkpoint was saved."""
    keys = ("", tombstone_key(draft.namespace, draft.id))
    order = (draft.epoch, draft.seq)
    tombstones = [view.entry(TOMBSTONE, key) for key in keys]
    return [tomb for tomb in tombstones if tomb is not None and order <= (tomb.epoch, tomb.until)]


def after_tombstones(commit: Commit, view: View, counters: Counters) -> tuple[int, int]:
    """Return the (epoch, seq) after which copied records are placed in a deleted thread.

    No seq is used again. And where a tombstone applies, the other store of a pair would take the
    copies for the deleted records.
    """
    drafts = [draft for draft in commit.checkpoints if draft.seq]
    tombstones = [tombstone for draft in drafts for tombstone in tombstones_for(draft, view)]
    places = [(tombstone.epoch, tombstone.until) for tombstone in tombstones]
    if commit.expect_empty and any(draft.seq <= counters.seq for draft in drafts):
        places.append((counters.epoch, counters.seq))
    return max(places, default=(0, 0))


def merged_metadata(commit: Commit, view: View, counters: Counters) -> bytes | None:
    """Return the thread's metadata when it changes."""
    if not commit.merge or commit.overrules:
        return commit.metadata
    stored, sent = (
        (counters.metadata_version, view.thread_metadata() or b""),
        (commit.metadata_version or 0, commit.metadata or b""),
    )
    return commit.metadata if sent > stored else None


def metadata_version(commit: Commit, counters: Counters) -> int:
    """Return the version of metadata that changes."""
    if commit.merge:
        return max(0 if commit.overrules else counters.metadata_version, commit.metadata_version or 0)
    return counters.metadata_version + 1
