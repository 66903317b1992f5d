"""What a commit does, decided once for all local backends.

`decide` looks at a thread through a `View`, refuses the commit or returns its `Effect`: the exact rows to
put and to remove. A backend then applies the effect in its own way. Nothing is changed while deciding, so
a refusal leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ..backend import CheckpointRecord, Commit, Entry, Receipt, Removal, ThreadKey, WriteRecord, stamped
from ..errors import (
    BadArgument,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    StaleBase,
    ThreadNotEmpty,
)


@dataclass(frozen=True, slots=True)
class Row:
    """The counters of a thread."""

    generation: int
    revision: int
    epoch: int
    seq: int
    created_at: int
    info_version: int = 0


class View(Protocol):
    """How `decide` looks at one thread."""

    @property
    def row(self) -> Row | None: ...
    def find(self, namespace: str, id: str) -> CheckpointRecord | None: ...
    def head(self, namespace: str) -> str | None: ...
    def count(self) -> int: ...
    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None: ...
    def entry(self, kind: str, key: str) -> Entry | None: ...
    def chunk(self, name: bytes) -> tuple[int, int] | None: ...


@dataclass(frozen=True, slots=True)
class Effect:
    """A commit resolved: what to put and what to remove. `at` is the moment, in microseconds."""

    thread: ThreadKey
    row: Row
    at: int
    checkpoints: tuple[CheckpointRecord, ...] = ()
    rewrites: tuple[CheckpointRecord, ...] = ()
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    entries: tuple[Entry, ...] = ()
    replaced: tuple[CheckpointRecord, ...] = ()  # the old form of what is put again
    removed: tuple[tuple[str, str], ...] = ()
    removed_chunks: tuple[bytes, ...] = ()
    everything: bool = False
    info: bytes | None = None
    info_projection: str | None = None


def decide(
    commit: Commit, view: View, *, now: int, now_lease: int, token: int
) -> tuple[Effect | None, Receipt]:
    """Return what a commit does and its receipt; no effect when its checkpoint is there already.

    `now` stamps records; `now_lease` is a clock that never jumps, for leases; `token` is a new generation.
    """
    row = view.row
    existing = None if commit.replace else _existing(commit, view)
    if existing is not None and row is not None:
        return None, Receipt(row.generation, row.revision, existing=existing)
    _check(commit, view, row, now_lease)
    row = row or Row(token, 0, 0, 0, now)
    removal = commit.removal or Removal()
    removed = tuple(pair for pair in removal.checkpoints if view.find(*pair) is not None)
    chunks, freed = _doomed_chunks(removal, view)
    stored, replaced, seq, epoch = _stamp(commit, view, row, now)
    rewrites = _rewritten(commit, view)
    forgets = removal.everything or bool(removed or chunks or commit.rewrites)
    new = Row(
        generation=token if forgets else row.generation,
        revision=row.revision + 1,
        epoch=max(row.epoch, epoch),
        seq=seq,
        created_at=row.created_at,
        info_version=row.info_version + (commit.info is not None),
    )
    effect = Effect(
        thread=commit.thread,
        row=new,
        at=now,
        checkpoints=stored,
        rewrites=tuple(new for _, new in rewrites),
        replaced=(*replaced, *(old for old, _ in rewrites)),
        chunks=commit.chunks,
        writes=tuple(write for write in commit.writes if _accepted(write, view.write(write.key))),
        entries=_entries(commit.entries, view, now_lease),
        removed=removed,
        removed_chunks=chunks,
        everything=removal.everything,
        info=commit.info,
        info_projection=commit.info_projection,
    )
    gone = view.count() if removal.everything else len(removed)
    return effect, Receipt(new.generation, new.revision, stored, None, effect.entries, gone, freed)


def _existing(commit: Commit, view: View) -> CheckpointRecord | None:
    for draft in commit.checkpoints:
        if not draft.seq and (found := view.find(draft.namespace, draft.id)) is not None:
            return found
    return None


def _check(commit: Commit, view: View, row: Row | None, now_lease: int) -> None:
    """Raise for the first expectation that does not hold: fence first, so that a zombie learns just that."""
    thread = commit.thread.id
    if commit.fence is not None:
        _check_fence(thread, *commit.fence, view)
    if row is not None and commit.epoch < row.epoch and any(not draft.seq for draft in commit.checkpoints):
        raise EpochPassed(thread, commit.epoch, row.epoch)
    if commit.generation is not None and (row is None or row.generation != commit.generation):
        raise StaleBase(thread)
    if commit.expect_empty and view.count():
        raise ThreadNotEmpty(thread)
    if commit.expect_head is not None:
        namespace, expected = commit.expect_head
        head = view.head(namespace)
        if head != expected:
            raise HeadMoved(thread, namespace, expected, head)
    if commit.info_version is not None and commit.info_version != (row.info_version if row else 0):
        raise MetadataMoved(thread)
    for entry in commit.entries:
        _check_entry(thread, entry, view.entry(entry.kind, entry.key), now_lease)


def _check_fence(thread: str, run: str, fence: int, view: View) -> None:
    held = view.entry("run", run)
    if held is None or held.fence != fence or held.status != "running":
        raise LeaseLost(thread, run, fence, held.fence if held else None)


def _check_entry(thread: str, entry: Entry, stored: Entry | None, now_lease: int) -> None:
    fence = stored.fence if stored else 0
    if entry.expect_fence is not None and fence != entry.expect_fence:
        raise EntryHeld(thread, entry.kind, entry.key, fence, stored.until if stored else 0)
    if entry.expect_lapsed and stored is not None and stored.until > now_lease:
        raise EntryHeld(thread, entry.kind, entry.key, fence, stored.until)


Records = tuple[CheckpointRecord, ...]


def _stamp(commit: Commit, view: View, row: Row, now: int) -> tuple[Records, Records, int, int]:
    """Give the drafts their places: the next seq, or the one they were born with."""
    seq, epoch, stored, replaced = row.seq, row.epoch, [], []
    for draft in commit.checkpoints:
        old = view.find(draft.namespace, draft.id) if commit.replace or draft.seq else None
        if draft.seq:
            if old is not None and not commit.replace:
                continue  # a copy of what is here
            place = (draft.epoch, draft.seq)
        elif old is not None:
            place = (old.epoch, old.seq)
        else:
            place = (max(commit.epoch, row.epoch), seq + 1)
        seq, epoch = max(seq, place[1]), max(epoch, place[0])
        parent = view.head(draft.namespace) if draft.follows else draft.parent
        if draft.follows and old is not None:
            parent = old.parent
        if old is not None:
            replaced.append(old)
        created_at = draft.created_at or (old.created_at if old else now)
        stored.append(stamped(draft, epoch=place[0], seq=place[1], created_at=created_at, parent=parent))
    return tuple(stored), tuple(replaced), seq, epoch


def _rewritten(commit: Commit, view: View) -> list[tuple[CheckpointRecord, CheckpointRecord]]:
    """Let a rewrite change only where the content is kept, never what the record says."""
    found = []
    for new in commit.rewrites:
        old = view.find(new.namespace, new.id)
        if old is None:
            raise BadArgument(f"checkpoint {new.id!r} cannot be rewritten: it is not there")
        found.append((old, replace(old, chunks=new.chunks, body=new.body)))
    return found


def _accepted(write: WriteRecord, stored: WriteRecord | None) -> bool:
    return stored is None or (write.index < 0 and write.rank >= stored.rank)


def _entries(entries: Sequence[Entry], view: View, now_lease: int) -> tuple[Entry, ...]:
    accepted = []
    for entry in entries:
        stored = view.entry(entry.kind, entry.key)
        if stored is not None and entry.rank < stored.rank:
            continue
        until = entry.until if entry.lease_s is None else now_lease + int(entry.lease_s * 1e6)
        accepted.append(replace(entry, until=until, lease_s=None, expect_fence=None, expect_lapsed=False))
    return tuple(accepted)


def _doomed_chunks(removal: Removal, view: View) -> tuple[tuple[bytes, ...], int]:
    doomed, freed = [], 0
    for name in removal.chunks:
        held = view.chunk(name)
        if held is not None and held[1] <= removal.chunks_until:
            doomed.append(name)
            freed += held[0]
    return tuple(doomed), freed
