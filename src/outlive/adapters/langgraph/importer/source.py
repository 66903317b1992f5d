"""A LangGraph database as the importer reads it: thread by thread, page by page, never written to.

A reader returns rows as they are stored; `decoder.py` decodes them, so that one bad row is one
problem and does not end the reading. All of a thread is read as of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

CheckpointKey = tuple[str, str]  # (namespace, checkpoint id)
WriteKey = tuple[str, str, str, int]  # (namespace, checkpoint id, task, index)
Typed = tuple[str | None, bytes | None]  # the type and bytes that a serializer returned

PAGE = 32


@dataclass(frozen=True, slots=True)
class WriteRow:
    """A pending write as it is stored."""

    namespace: str
    checkpoint: str
    task: str
    path: str
    index: int
    channel: str
    value: Typed

    @property
    def key(self) -> WriteKey:
        return (self.namespace, self.checkpoint, self.task, self.index)


@dataclass(slots=True)
class CheckpointRow:
    """A checkpoint as it is stored: whole in `whole`, or its fields in `fields` and its channels beside them."""

    namespace: str
    id: str
    parent: str | None
    metadata: Any  # JSON as bytes or text, or what was read from it
    whole: Typed | None = None
    fields: Any = None
    channels: list[tuple[str, str, Typed]] = field(default_factory=list)  # (channel, version, value)
    sends: list[Typed] = field(default_factory=list)  # found in the writes of an old parent
    writes: list[WriteRow] = field(default_factory=list)


class ThreadView(Protocol):
    """One thread of a source, at one moment."""

    def checkpoint_keys(self) -> list[CheckpointKey]:
        """Return its checkpoints in their order: by id, in all namespaces."""
        ...

    def write_keys(self) -> set[WriteKey]:
        """Return the keys of its writes, also of those whose checkpoint is not there."""
        ...

    def rows(self, keys: Sequence[CheckpointKey]) -> Iterator[CheckpointRow]:
        """Read checkpoints with their writes, in the order of `keys`."""
        ...

    def lone_writes(self) -> list[WriteRow]:
        """Return the writes whose checkpoint is not there."""
        ...


class Source(Protocol):
    """A LangGraph database."""

    shown: str  # its URL, without secrets

    def count(self) -> int:
        """Count the checkpoints."""
        ...

    def threads(self) -> Iterator[str]:
        """Iterate over thread ids; no transaction stays open in between."""
        ...

    def unreadable(self) -> list[str]:
        """Describe the rows that cannot even be listed."""
        ...

    def thread(self, id: str) -> AbstractContextManager[ThreadView]:
        """Read one thread, as of one moment."""
        ...

    def close(self) -> None: ...
