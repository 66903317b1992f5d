"""What a commit is decided on and what results: counters of a thread, a view of it, an effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outlive.backend import CheckpointKey, CheckpointRecord, EntryRecord, ThreadKey, WriteRecord

Records = tuple[CheckpointRecord, ...]


@dataclass(slots=True)
class Counters:
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
    def counters(self) -> Counters | None: ...
    @property
    def is_listed(self) -> bool: ...
    def find(self, namespace: str, id: str) -> CheckpointRecord | None: ...
    def head(self, namespace: str) -> str | None: ...
    def count(self) -> int: ...
    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None: ...
    def has(self, pair: CheckpointKey) -> bool: ...  # the checkpoint, or writes on it
    def entry(self, kind: str, key: str) -> EntryRecord | None: ...
    def chunk(self, name: bytes) -> tuple[int, int] | None: ...
    def info(self) -> bytes | None: ...


class HasChunks(Protocol):
    """What knows the size and revision of a chunk."""

    def chunk(self, name: bytes) -> tuple[int, int] | None: ...


@dataclass(slots=True)
class Effect:
    """A commit resolved: what to put and what to remove. `at` is the moment, in microseconds."""

    thread: ThreadKey
    counters: Counters
    at: int
    checkpoints: Records = ()
    rewrites: Records = ()
    replaced: Records = ()  # the old form of what is put again
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    entries: tuple[EntryRecord, ...] = ()
    removed: tuple[CheckpointKey, ...] = ()
    removed_chunks: tuple[bytes, ...] = ()
    everything: bool = False
    erase: bool = False
    info: bytes | None = None
    info_projection: str | None = None


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
