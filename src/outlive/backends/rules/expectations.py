"""The expectations of a commit: fences, epochs, generations, heads, entries and chunks."""

from __future__ import annotations

from collections.abc import Iterable

from outlive.backend import (
    ABSENT,
    NEXT,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Fence,
    WriteRecord,
)
from outlive.backends.rules.clock import Clock, has_lapsed
from outlive.backends.rules.view import Counters, Effect, View
from outlive.errors import (
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    OutOfTurn,
    StaleBase,
    ThreadNotEmpty,
)


def check(commit: Commit, view: View, row: Counters | None, clock: Clock) -> None:
    """Raise for the first expectation that fails: the fence first, so that a zombie learns that."""
    thread = commit.thread.id
    if commit.fence is not None:
        _check_fence(thread, commit.fence, view)
    keeps_epoch = commit.epoch is not None and (commit.strict or not commit.merge)
    if keeps_epoch and row is not None and (commit.epoch or 0) < row.epoch:
        raise EpochPassed(thread, commit.epoch or 0, row.epoch)
    if commit.merge and commit.requires_next_seq:
        _check_turn(commit, view, row)
    if commit.generation is not None and (row is None or row.generation != commit.generation):
        raise StaleBase(thread)
    if commit.revision is not None and (row is None or row.revision != commit.revision):
        raise StaleBase(thread)
    if commit.expect_empty:
        _check_empty(commit, view)
    if commit.expect_head is not None:
        _check_head(commit, *commit.expect_head, view)
    version = row.info_version if row else 0
    if commit.info_version is not None and not commit.merge and commit.info_version != version:
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


def brought(commit: Commit) -> set[CheckpointKey]:
    """Return the (namespace, id) of all checkpoints that a commit has, or has writes of."""
    pairs = {draft.key for draft in commit.checkpoints}
    return pairs | {write.checkpoint_key for write in commit.writes}


def _check_turn(commit: Commit, view: View, row: Counters | None) -> None:
    """Check that the commit is the next one: nothing is missing before it or newer."""
    following = row.seq + 1 if row is not None else 1
    is_out = any(draft.seq != following and view.find(*draft.key) is None for draft in commit.checkpoints)
    for entry in commit.entries:
        stored = view.entry(entry.kind, entry.key)
        is_out = is_out or (stored is not None and not entry.gone and entry.rank < stored.rank)
    if is_out:
        raise OutOfTurn(commit.thread.id)


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
    """A retry after a lost reply offers what is stored."""
    return (entry.rank, entry.status, entry.body, entry.gone) == (
        stored.rank,
        stored.status,
        stored.body,
        False,
    )


def finds_chunks(commit: Commit, view: View) -> bool:
    """Make sure that chunks exist that a commit names without their data; tell if it names any.

    For a commit without a generation: they must exist, and a sweep that is under way must learn
    that they are used again.
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


def named(commit: Commit) -> set[bytes]:
    """Return the chunks that the records of a commit refer to."""
    rows: Iterable[CheckpointRecord | WriteRecord] = (*commit.checkpoints, *commit.rewrites, *commit.writes)
    return {name for row in rows for name in row.chunks}
