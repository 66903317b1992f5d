"""A database of LangGraph's as the mover reads it: thread by thread, page by page, never written to.

A reader gives rows as they are stored. What they say is found out by `decoding.py`, so that one bad row is one problem and not
the end of the reading. While a thread is being read, all of it is seen as of one moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from outlive.backends.server.urls import hide_secrets
from outlive.errors import BadURL

CheckpointKey = tuple[str, str]  # (namespace, checkpoint id)
WriteKey = tuple[str, str, str, int]  # (namespace, checkpoint id, task, index)
Typed = tuple[str | None, bytes | None]  # as a serializer gave them

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
class Row:
    """A checkpoint as it is stored: whole in `whole`, or its fields in `fields` and its channels beside them."""

    namespace: str
    id: str
    parent: str | None
    metadata: Any  # JSON as bytes or text, or what was read from it
    whole: Typed | None = None
    fields: Any = None
    channels: list[tuple[str, str, Typed]] = field(default_factory=list)  # (channel, version, value)
    sends: list[Typed] = field(default_factory=list)  # what an old parent has left for this one
    writes: list[WriteRow] = field(default_factory=list)

    @property
    def pair(self) -> CheckpointKey:
        return (self.namespace, self.id)


class ThreadView(Protocol):
    """One thread of a source, at one moment."""

    def pairs(self) -> list[CheckpointKey]:
        """Return its checkpoints in their order: by id, whatever their namespace."""
        ...

    def write_keys(self) -> set[WriteKey]:
        """Return what identifies its writes, also of those whose checkpoint is not there."""
        ...

    def rows(self, pairs: Sequence[CheckpointKey]) -> Iterator[Row]:
        """Read checkpoints with their writes; they are given in the order in which they were asked for."""
        ...

    def lone_writes(self) -> list[WriteRow]:
        """Return the writes whose checkpoint is not there."""
        ...


class Source(Protocol):
    """A database of LangGraph's."""

    shown: str

    def count(self) -> int:
        """Count the checkpoints."""
        ...

    def threads(self) -> Iterator[str]:
        """Iterate over thread ids; nothing is held in between."""
        ...

    def unreadable(self) -> list[str]:
        """Say what cannot even be listed."""
        ...

    def thread(self, id: str) -> AbstractContextManager[ThreadView]:
        """Look at one thread."""
        ...

    def close(self) -> None: ...


def open_source(url: str) -> Source:
    """Open a database of LangGraph's for reading: sqlite:///old.db, postgresql://host/database."""
    if not isinstance(url, str):
        raise BadURL(
            f"the source is named by a URL, such as sqlite:///old.db, not by {type(url).__name__} {url!r:.100}"
        )
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from outlive.adapters.langgraph.importer.sqlite import SQLiteSource

        return SQLiteSource(url)
    if scheme in ("postgresql", "postgres"):
        from outlive.adapters.langgraph.importer.postgres import PostgresSource

        return PostgresSource(url)
    raise BadURL(
        f"{hide_secrets(url)[:200]!r} is no database of LangGraph's that can be read; "
        "use sqlite:///old.db, or postgresql://user@host/database"
    )
