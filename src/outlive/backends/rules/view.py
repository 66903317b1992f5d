"""What a commit is decided on and what results: counters of a thread, a view of it, an effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from outlive.backend import CheckpointKey, CheckpointRecord, Commit, EntryRecord, ThreadKey, WriteRecord
from outlive.dataclass import dataclass

Records = tuple[CheckpointRecord, ...]


@dataclass(slots=True)
class Counters:
    """The counters of a thread."""

    generation: int
    revision: int
    epoch: int
    seq: int
    created_at: int
    metadata_version: int = 0


class View(Protocol):
    """How `decide` looks at one thread. Everything that it answers is of one moment."""

    @property
    def counters(self) -> Counters | None:
        """The counters; None if nothing was ever committed. A deleted thread keeps its counters."""
        ...

    @property
    def is_listed(self) -> bool:
        """Tell whether the thread has checkpoints, writes, its own metadata, or an entry that lists it."""
        ...

    def find(self, namespace: str, id: str) -> CheckpointRecord | None:
        """Return a stored checkpoint."""
        ...

    def head(self, namespace: str) -> str | None:
        """Return the id of the checkpoint with the greatest order in a namespace."""
        ...

    def count(self) -> int:
        """Return how many checkpoints the thread has, in all namespaces."""
        ...

    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None:
        """Return a pending write by (namespace, checkpoint, task, index)."""
        ...

    def has(self, pair: CheckpointKey) -> bool:
        """Tell whether there is this checkpoint, or writes on it."""
        ...

    def entry(self, kind: str, key: str) -> EntryRecord | None:
        """Return an entry."""
        ...

    def chunk(self, name: bytes) -> tuple[int, int] | None:
        """Return the (stored bytes, revision) of a chunk."""
        ...

    def thread_metadata(self) -> bytes | None:
        """Return the metadata of the thread."""
        ...


class HasChunks(Protocol):
    """What knows the size and revision of a chunk."""

    def chunk(self, name: bytes) -> tuple[int, int] | None: ...


@dataclass(slots=True)
class Effect:
    """A commit resolved: what to remove and what to put, in the order in which to apply it.

    `everything`, `removed`, `removed_chunks`; then `chunks`, `checkpoints` and `rewrites`,
    `writes`, `entries`, the metadata, and `counters`.
    """

    thread: ThreadKey
    counters: Counters  # the new counters
    at: int  # when the thread was updated: microseconds since 1970 (UTC)
    checkpoints: Records = ()  # put; one with the same namespace and id is overwritten
    rewrites: Records = ()  # the same
    replaced: Records = ()  # the old form of what is put again, for indexes and counters
    chunks: tuple[tuple[bytes, bytes], ...] = ()  # a stored one keeps its bytes; all get the new revision
    writes: tuple[WriteRecord, ...] = ()  # put; one with the same key is overwritten
    entries: tuple[EntryRecord, ...] = ()  # put, or removed if `gone`
    removed: tuple[CheckpointKey, ...] = ()  # with their writes; some have only writes
    removed_chunks: tuple[bytes, ...] = ()
    everything: bool = False  # all of the thread but its counters
    erase: bool = False  # leave no byte of what is removed in the files
    metadata: bytes | None = None
    metadata_projection: str | None = None


def write_order(write: WriteRecord) -> tuple[str, str, str, str, int]:
    """Order writes as they are handed out: by path, task and index."""
    return (write.namespace, write.checkpoint, write.path, write.task, write.index)


def fitting(
    records: list[CheckpointRecord], view: HasChunks, max_bytes: int
) -> tuple[list[CheckpointRecord], list[bytes]]:
    """Return the first records whose chunks fit into a size, at least one, and the chunk names."""
    names: dict[bytes, None] = {}
    total = 0
    for count, record in enumerate(records):
        new = [name for name in dict.fromkeys(record.chunks) if name not in names]
        total += sum((view.chunk(name) or (0, 0))[0] for name in new)
        if count and total > max_bytes:
            return records[:count], list(names)
        names.update(dict.fromkeys(new))
    return records, list(names)


def brought(commit: Commit) -> set[CheckpointKey]:
    """Return the (namespace, id) of all checkpoints that a commit has, or has writes of."""
    pairs = {draft.key for draft in commit.checkpoints}
    return pairs | {write.checkpoint_key for write in commit.writes}


def named(commit: Commit) -> set[bytes]:
    """Return the chunks that the records of a commit refer to."""
    rows: Iterable[CheckpointRecord | WriteRecord] = (*commit.checkpoints, *commit.rewrites, *commit.writes)
    return {name for row in rows for name in row.chunks}
