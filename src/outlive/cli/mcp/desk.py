"""What the tools work with: the store, opened when it is first needed, and what is hidden in it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outlive.cli.mcp.size import MAX_STATE_BYTES, count_fitting
from outlive.dataclass import dataclass
from outlive.errors import BadArgument
from outlive.view.redaction import Redaction
from outlive.view.units import format_size

if TYPE_CHECKING:
    from outlive.backend import CheckpointRecord
    from outlive.cli.context import Call
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint
    from outlive.view.opened_store import OpenedStore


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool answers, in the shape of --json."""

    items: Sequence[dict[str, Any]]
    next: str | None = None
    notes: Sequence[str] = ()


class Desk:
    """The store of a server."""

    def __init__(self, call: Call, *, write: bool, redaction: Redaction) -> None:
        self._call, self._redaction = call, redaction
        self.is_writable = write
        self._opened = contextlib.ExitStack()
        self._store: OpenedStore | None = None
        self._lock = threading.Lock()

    @property
    def store(self) -> OpenedStore:
        """The store. One that cannot be opened now is tried again by the next tool; nothing is created."""
        return self.open()

    def open(self) -> OpenedStore:
        """Open the store, unless it is open."""
        with self._lock:
            if self._store is None:
                self._store = self._opened.enter_context(self._call.open(writes=self.is_writable))
            return self._store

    def close(self) -> None:
        self._opened.close()

    def clean(self, value: Any) -> Any:
        """Return a value in which what is to be hidden is hidden."""
        return self._redaction.clean(value)

    def load(self, thread: Thread, record: CheckpointRecord) -> Checkpoint | None:
        """Load a checkpoint with its state, unless that is too large; what is to be hidden is hidden in it."""
        if record.size > MAX_STATE_BYTES:
            raise BadArgument(
                f"this state has {format_size(record.size)}, and tools load {format_size(MAX_STATE_BYTES)} "
                "at most; use outlive show --path in a shell"
            )
        checkpoint = thread.checkpoint(record.id)
        return None if checkpoint is None else self._redaction.clean_checkpoint(checkpoint)


def page_from(items: Sequence[dict[str, Any]], start: int, total: int) -> Answer:
    """Return those of a page that fit in an answer; `next` is the place of the one after them."""
    count = count_fitting(items)
    end = start + count
    return Answer(items[:count], str(end) if end < total else None)
