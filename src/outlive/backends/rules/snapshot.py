"""What `decide` may ask about a thread, fetched beforehand: how a server's thread is looked at.

An ordinary save is decided by the server itself, in one round trip (`is_plain`). All other commits
(replacing, merging, rewriting, removing, metadata) are rare and many-sided: the backend reads what
`Wanted` lists, in a transaction or at a known revision, lets `decide` judge it here, and applies
the effect if nothing moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from typing import TypeVar

from outlive.backend import (
    OUTBOX,
    TOMBSTONE,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ReencryptedBodies,
    WriteRecord,
    tombstone_key,
)
from outlive.backends.rules.view import Counters, brought, named
from outlive.dataclass import dataclass

T = TypeVar("T")
WriteKey = tuple[str, str, str, int]  # (namespace, checkpoint, task, index)


def is_plain(commit: Commit) -> bool:
    """Tell whether a commit only adds, and what it shares is of a generation that it names."""
    return adds_only(commit) and (commit.generation is not None or not unbrought(commit))


def adds_only(commit: Commit) -> bool:
    """Tell whether a commit only adds: at most one checkpoint, its chunks, writes, entries."""
    return not (
        commit.replace
        or commit.merge
        or commit.removal is not None
        or commit.rewrites
        or commit.reencrypted is not None
        or commit.revision is not None
        or commit.metadata is not None
        or commit.metadata_version is not None
        or commit.expect_empty
        or len(commit.checkpoints) > 1
        or (commit.checkpoints and commit.checkpoints[0].seq)
    )


def is_apart(commit: Commit) -> bool:
    """Tell whether a commit may follow plain ones that it has not seen.

    It neither puts nor expects what they put.
    """
    return not (
        commit.checkpoints
        or commit.writes
        or any(entry.kind != OUTBOX or entry.gone for entry in commit.entries)
        or commit.reencrypted is not None
        or commit.revision is not None
        or commit.merge
        or (commit.removal is not None and commit.removal.everything and commit.removal.leaves_tombstones)
        or commit.expect_empty
        or commit.expect_head is not None
        or commit.fence is not None
        or commit.epoch is not None
    )


def removes_only(commit: Commit) -> bool:
    """Tell whether a commit puts nothing."""
    return (
        is_apart(commit)
        and not (commit.chunks or commit.rewrites or commit.entries)
        and commit.metadata is None
    )


def is_deletion(commit: Commit) -> bool:
    """Tell whether a commit only deletes its thread, in whatever state that is."""
    return (
        commit.removal is not None
        and commit.removal.everything
        and removes_only(commit)
        and commit.metadata_version is None
        and commit.generation is None
    )


def unbrought(commit: Commit) -> set[bytes]:
    """Return the chunks that a commit names without carrying them."""
    return named(commit) - {name for name, _ in commit.chunks}


@dataclass(slots=True)
class Wanted:
    """What must be fetched before a commit can be judged."""

    checkpoints: list[CheckpointKey]
    namespaces: list[str]  # whose heads, as whole records
    writes: list[WriteKey]
    pairs: list[CheckpointKey]  # of which to know whether they have writes
    entries: list[tuple[str, str]]  # (kind, key)
    chunks: list[bytes]  # of which to know size and revision

    @classmethod
    def of(cls, commit: Commit) -> Wanted:
        removal, reencrypted = commit.removal, commit.reencrypted or ReencryptedBodies()
        pairs = list(removal.checkpoints) if removal is not None else []
        records = (*commit.checkpoints, *commit.rewrites)
        entries = [
            (entry.kind, entry.key) for entry in (*commit.entries, *(old for old, _ in reencrypted.entries))
        ]
        if commit.fence is not None:
            entries.append((commit.fence.kind, commit.fence.key))
        # A merge must not bring back what was removed: look for tombstones.
        if commit.merge or any(draft.seq for draft in commit.checkpoints):
            keys = [tombstone_key(*draft.key) for draft in commit.checkpoints]
            entries += [(TOMBSTONE, key) for key in ("", *keys)]
        chunks = set(removal.chunks) if removal is not None else set()
        if commit.generation is None:
            chunks |= unbrought(commit)
        namespaces = [record.namespace for record in commit.checkpoints]
        if commit.expect_head is not None:
            namespaces.append(commit.expect_head[0])
        return cls(
            checkpoints=_once([*pairs, *(record.key for record in records)]),
            namespaces=_once(namespaces),
            writes=_once(write.key for write in (*commit.writes, *(old for old, _ in reencrypted.writes))),
            pairs=_once([*pairs, *(brought(commit) if commit.expect_empty else ())]),
            entries=_once(entries),
            chunks=list(chunks),
        )


def _once(items: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(items))


@dataclass(slots=True)
class Snapshot:
    """A thread as it was at one revision, as far as one commit looks at it: a `View`."""

    counters: Counters | None
    is_listed: bool = False
    checkpoints: int = 0
    records: dict[CheckpointKey, CheckpointRecord] = field(default_factory=dict)
    heads: dict[str, CheckpointRecord] = field(default_factory=dict)
    written: dict[WriteKey, WriteRecord] = field(default_factory=dict)
    pairs: set[CheckpointKey] = field(default_factory=set)
    entries: dict[tuple[str, str], EntryRecord] = field(default_factory=dict)
    chunks: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    metadata: bytes | None = None

    def find(self, namespace: str, id: str) -> CheckpointRecord | None:
        head = self.heads.get(namespace)
        return head if head is not None and head.id == id else self.records.get((namespace, id))

    def head(self, namespace: str) -> str | None:
        head = self.heads.get(namespace)
        return None if head is None else head.id

    def count(self) -> int:
        return self.checkpoints

    def write(self, key: WriteKey) -> WriteRecord | None:
        return self.written.get(key)

    def has(self, pair: CheckpointKey) -> bool:
        return self.find(*pair) is not None or pair in self.pairs

    def entry(self, kind: str, key: str) -> EntryRecord | None:
        return self.entries.get((kind, key))

    def chunk(self, name: bytes) -> tuple[int, int] | None:
        return self.chunks.get(name)

    def thread_metadata(self) -> bytes | None:
        return self.metadata


def done_before(commit: Commit, seen: Snapshot) -> Receipt:
    """Return the receipt of a commit that was done the first time it came: what is stored now."""
    assert seen.counters is not None
    records = [seen.find(*draft.key) for draft in commit.checkpoints]
    stored_entries = [seen.entry(entry.kind, entry.key) for entry in commit.entries]
    return Receipt(
        seen.counters.generation,
        seen.counters.revision,
        checkpoints=tuple(record for record in records if record is not None),
        entries=tuple(stored or entry for stored, entry in zip(stored_entries, commit.entries, strict=True)),
        writes=commit.writes,
        removed=int(commit.removal is not None),
    )
