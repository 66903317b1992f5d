"""What a user gets back: checkpoints, pending writes, interrupts, threads and reports. Values, no I/O."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlive.errors import BadArgument

SOURCES = frozenset(("input", "loop", "update", "fork", "interrupt", "failure", "final"))

# Channels whose writes steer a run instead of adding to it: the last one wins, whatever its place.
CONTROL = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}


class _NotRead:
    def __repr__(self) -> str:
        return "<not read>"


NOT_READ: Any = _NotRead()


@dataclass(frozen=True, slots=True)
class Interrupt:
    """A question that a node put to a person; it is open until it has a resume value."""

    id: str
    node: str
    payload: Any = None


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """What a finished task wrote before the step as a whole was saved."""

    task: str
    index: int
    channel: str
    value: Any
    path: str = ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One saved step. `seq` and `created_at` are None while a save with durability="async" is on its way."""

    thread: str
    id: str
    namespace: str
    parent: str | None
    seq: int | None
    epoch: int
    step: int | None
    source: str
    run: str | None
    created_at: dt.datetime | None
    size: int
    added: int
    metadata: Mapping[str, Any]
    next_nodes: tuple[str, ...] = ()
    completed_tasks: tuple[str, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()
    _state: Any = field(default=NOT_READ, repr=False)
    _writes: Any = field(default=NOT_READ, repr=False)

    @property
    def state(self) -> Any:
        """The saved state. A listing reads none: use `thread.load(checkpoint.id)`."""
        if self._state is NOT_READ:
            raise BadArgument(f"this listing read no state; use thread.load({self.id!r})")
        return self._state

    @property
    def pending_writes(self) -> tuple[PendingWrite, ...]:
        """The writes that tasks left on this checkpoint, by path, task and index."""
        if self._writes is NOT_READ:
            raise BadArgument(f"this listing read no writes; use thread.checkpoint({self.id!r})")
        return self._writes  # type: ignore[no-any-return]

    @property
    def resume_values(self) -> dict[str, Any]:
        """Interrupt id → the value that it was resumed with."""
        return {write.task: write.value for write in self.pending_writes if write.channel == "__resume__"}

    @property
    def open_interrupts(self) -> tuple[Interrupt, ...]:
        """The interrupts that have no resume value yet."""
        resumed = self.resume_values
        return tuple(interrupt for interrupt in self.interrupts if interrupt.id not in resumed)

    @property
    def cursor(self) -> str:
        """The place of this checkpoint as text, for `thread.history(before=...)`. It stays valid when the checkpoint is deleted."""
        if self.seq is None:
            raise BadArgument(
                f'checkpoint {self.id!r} has no place yet: it was saved with durability="async"; call thread.flush() '
                "and read it again"
            )
        return format_cursor(self.epoch, self.seq, self.id)

    def __repr__(self) -> str:
        place = f"#{self.seq}" if self.seq is not None else "on its way"
        step = "" if self.step is None else f" step={self.step}"
        return f"<Checkpoint {self.id} {place} of {self.thread!r}{step} {self.source} {self.size:,} bytes>"


@dataclass(frozen=True, slots=True)
class ThreadInfo:
    """A thread in a listing."""

    id: str
    checkpoints: int
    stored_bytes: int
    created_at: dt.datetime
    updated_at: dt.datetime
    metadata: Mapping[str, Any]
    forked_from: tuple[str, str] | None = None  # (thread, checkpoint)
    head: Checkpoint | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two states. `kind` is added, removed or changed."""

    path: str
    kind: str
    old: Any = None
    new: Any = None

    def __str__(self) -> str:
        if self.kind == "added":
            return f"+ {self.path}: {self.new!r}"
        if self.kind == "removed":
            return f"- {self.path}: {self.old!r}"
        return f"~ {self.path}: {self.old!r} → {self.new!r}"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a deletion took away. With `dry_run` it is what it would take."""

    checkpoints: int = 0
    chunks: int = 0
    rewritten: int = 0
    freed_bytes: int = 0
    erased: bool = False  # with erase=True: no byte of what nobody holds is left


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` looked at and found."""

    threads: int
    checkpoints: int
    chunks: int
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a thread or a store holds. `state_bytes` is what whole states would have taken, uncompressed."""

    threads: int
    checkpoints: int
    stored_bytes: int
    state_bytes: int


def format_cursor(epoch: int, seq: int, id: str) -> str:
    """Return a place in a thread's history as text."""
    return f"cursor:{epoch}.{seq}:{id}"


def parse_cursor(text: str) -> tuple[int, int, str] | None:
    """Return (epoch, seq, id) of a cursor; None when the text is none."""
    found = _CURSOR.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]), found[3])


_CURSOR = re.compile(r"cursor:([0-9]{1,15})\.([0-9]{1,15}):(.+)", re.DOTALL)


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Tell whether metadata has every key of a filter with an equal value. What lacks a key does not match, not even None."""
    return all(key in metadata and _is_equal(metadata[key], value) for key, value in filter.items())


def _is_equal(stored: Any, wanted: Any) -> bool:
    """Compare two values. Arrays are equal as a whole; values that hold arrays and cannot be compared are not."""
    try:
        equal = stored == wanted
        if hasattr(equal, "shape") and hasattr(equal, "all"):  # numpy compares element by element
            return getattr(stored, "shape", ()) == getattr(wanted, "shape", ()) and bool(equal.all())
        return bool(equal)
    except (ValueError, TypeError):
        return False


def moment(micros: int) -> dt.datetime:
    """Return microseconds since 1970 as an aware datetime in UTC."""
    return _EPOCH + dt.timedelta(microseconds=micros)


def micros(when: dt.datetime) -> int:
    """Return an aware datetime as microseconds since 1970."""
    if not isinstance(when, dt.datetime) or when.tzinfo is None:
        raise BadArgument(f"a moment must be a datetime with a time zone, not {when!r}")
    return (when - _EPOCH) // dt.timedelta(microseconds=1)


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
