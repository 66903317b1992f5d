"""What a user gets back: checkpoints, pending writes, interrupts, threads and reports.

Values, no I/O.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Literal, get_args

from outlive.dataclass import dataclass
from outlive.errors import BadArgument, Corrupt, OutliveError

Source = Literal["input", "loop", "update", "fork", "interrupt", "failure", "final"]
SOURCES = frozenset(get_args(Source))

# Channels whose writes steer a run instead of adding to it: the last one wins, whatever its place.
CONTROL = {"__error__": -1, "__scheduled__": -2, "__interrupt__": -3, "__resume__": -4}


class New(enum.Enum):
    """The type of `outlive.NEW`."""

    NEW = "NEW"

    def __repr__(self) -> str:
        return "outlive.NEW"


NEW: Final = New.NEW  # `thread.save(state, expect=NEW)`: the thread must not have a checkpoint yet


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


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointInfo:
    """One saved step without its state, as `save` returns it and `history` lists it.

    `state_bytes` is the size of the state, `new_bytes` what this save added to the store. `seq` and
    `created_at` are None until a save with durability="async" is stored. Two of them are equal when
    thread, namespace and id are.
    """

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
    state_bytes: int
    new_bytes: int
    metadata: Mapping[str, Any]
    next_nodes: tuple[str, ...] = ()
    completed_tasks: tuple[str, ...] = ()
    interrupts: tuple[Interrupt, ...] = ()

    @property
    def cursor(self) -> str:
        """This checkpoint's position as text, for `thread.history(before=...)`.

        It stays valid after the checkpoint is deleted.
        """
        if self.seq is None:
            raise BadArgument(
                f'checkpoint {self.id!r} has no position yet: it was saved with durability="async"; call thread.flush() '
                "and read it again"
            )
        return format_cursor(self.epoch, self.seq, self.id)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CheckpointInfo):
            return NotImplemented
        return (self.thread, self.namespace, self.id) == (other.thread, other.namespace, other.id)

    def __hash__(self) -> int:
        return hash((self.thread, self.namespace, self.id))

    def __repr__(self) -> str:
        place = f"#{self.seq}" if self.seq is not None else "on its way"
        step = "" if self.step is None else f" step={self.step}"
        size = f"{self.state_bytes:,} bytes"
        return f"<{type(self).__name__} {self.id} {place} of {self.thread!r}{step} {self.source} {size}>"

    def _repr_html_(self) -> str:
        """Show the checkpoint in a notebook."""
        from outlive.notebook import table

        return table(f"Checkpoint of thread {self.thread!r}", ("field", "value"), self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        from outlive.notebook import preview

        rows = zip(COLUMNS, self._cells(), strict=True)
        metadata = [(f"metadata {key!r}", preview(value)) for key, value in list(self.metadata.items())[:8]]
        return [*((name, cell) for name, cell in rows if cell), *metadata]

    def _cells(self) -> tuple[str, ...]:
        """Return what a table says of the checkpoint, by the names of its columns."""
        return (
            "" if self.seq is None else f"@{self.seq}",
            self.id,
            self.namespace,
            "" if self.step is None else str(self.step),
            self.source,
            self.run or "",
            "" if self.created_at is None else f"{self.created_at:%Y-%m-%d %H:%M:%S %Z}",
            f"{self.state_bytes:,} bytes, {self.new_bytes:,} new",
        )


COLUMNS = ("seq", "id", "namespace", "step", "source", "run", "saved", "size")  # of `_cells`


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Checkpoint(CheckpointInfo):
    """One saved step with its state, from `thread.checkpoint()` or `thread.history(states=True)`."""

    state: Any = None
    _pending_writes: tuple[PendingWrite, ...] | None = None

    @classmethod
    def of(
        cls, info: CheckpointInfo, state: Any, pending_writes: tuple[PendingWrite, ...] | None = None
    ) -> Checkpoint:
        """Add its state to a checkpoint, and its pending writes if they were read."""
        listed = {field.name: getattr(info, field.name) for field in fields(CheckpointInfo)}
        return cls(**listed, state=state, _pending_writes=pending_writes)

    def _rows(self) -> list[tuple[str, str]]:
        from outlive.notebook import ROWS, preview

        if not isinstance(self.state, dict):
            return [*CheckpointInfo._rows(self), ("state", preview(self.state))]
        shown = [(f"state[{preview(key)}]", preview(self.state[key])) for key in list(self.state)[:ROWS]]
        more = [("state", f"… {len(self.state) - ROWS:,} more keys")] if len(self.state) > ROWS else []
        return [*CheckpointInfo._rows(self), *shown, *more]

    @property
    def pending_writes(self) -> tuple[PendingWrite, ...]:
        """The writes that tasks left on this checkpoint, by path, task and index."""
        if self._pending_writes is None:
            raise BadArgument(f"history() reads no pending writes; use thread.checkpoint({self.id!r})")
        return self._pending_writes

    @property
    def resume_values(self) -> dict[str, Any]:
        """The values that interrupts were resumed with, by interrupt id."""
        return {write.task: write.value for write in self.pending_writes if write.channel == "__resume__"}

    @property
    def open_interrupts(self) -> tuple[Interrupt, ...]:
        """The interrupts that have no resume value yet."""
        resumed = self.resume_values
        return tuple(interrupt for interrupt in self.interrupts if interrupt.id not in resumed)


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
    head: CheckpointInfo | None = None

    @property
    def cursor(self) -> str:
        """Return the place after which `store.threads(order="updated", after=...)` continues."""
        return f"{micros(self.updated_at)} {self.id}"


@dataclass(frozen=True, slots=True)
class StoreSize:
    """All threads of a store, added up."""

    threads: int
    checkpoints: int
    stored_bytes: int


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


class Diff(list[Change]):
    """The list of changes that `thread.diff` returns; a notebook shows it as a table."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Show the first changes in a notebook."""
        from outlive.notebook import ROWS, preview, table

        rows = [
            (
                change.path,
                change.kind,
                "" if change.kind == "added" else preview(change.old),
                "" if change.kind == "removed" else preview(change.new),
            )
            for change in self[: 5 * ROWS]
        ]
        count = "no changes" if not self else "1 change" if len(self) == 1 else f"{len(self):,} changes"
        return table(count, ("path", "kind", "old", "new"), rows, is_more=len(self) > len(rows))


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a deletion took away. With `dry_run` it is what it would take."""

    checkpoints: int = 0
    chunks: int = 0
    rewritten: int = 0
    freed_bytes: int = 0
    erased: bool = False  # with erase=True: no unread byte is left


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that `verify` found wrong.

    `thread` and `checkpoint` say where, as far as that is known.
    """

    thread: str | None
    checkpoint: str | None
    message: str

    @classmethod
    def of(cls, error: OutliveError, thread: str | None = None, checkpoint: str | None = None) -> Problem:
        """Return what an error says, at the place that it names or else at the given one."""
        if isinstance(error, Corrupt):
            return cls(error.thread or thread, error.checkpoint or checkpoint, error.what)
        return cls(getattr(error, "thread", None) or thread, checkpoint, str(error))

    def __str__(self) -> str:
        named = (("thread", self.thread), ("checkpoint", self.checkpoint))
        where = " ".join(f"{name} {value!r}" for name, value in named if value is not None)
        return f"{where}: {self.message}" if where else self.message


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` checked, and the problems that it found."""

    threads: int
    checkpoints: int
    chunks: int
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        """Tell whether no problem was found."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a thread holds.

    `state_bytes` is what whole states would have taken, uncompressed.
    """

    threads: int
    checkpoints: int
    stored_bytes: int
    state_bytes: int


def parse_thread_cursor(text: str) -> tuple[int, str] | None:
    """Return (updated_at, id) of the cursor of a thread; None when the text is none."""
    at, space, id = text.partition(" ")
    return (int(at), id) if space and at.isascii() and at.isdigit() and len(at) <= 16 else None


def format_cursor(epoch: int, seq: int, id: str) -> str:
    """Return a place in a thread's history as text."""
    return f"cursor:{epoch}.{seq}:{id}"


def parse_cursor(text: str) -> tuple[int, int, str] | None:
    """Return (epoch, seq, id) of a cursor; None when the text is none."""
    match = _CURSOR.fullmatch(text)
    return None if match is None else (int(match[1]), int(match[2]), match[3])


_CURSOR = re.compile(r"cursor:([0-9]{1,15})\.([0-9]{1,15}):(.+)", re.DOTALL)


def matches(metadata: Mapping[str, Any], filter: Mapping[str, Any]) -> bool:
    """Tell whether metadata has every key of a filter with an equal value.

    What lacks a key does not match, not even None.
    """
    return all(key in metadata and _is_equal(metadata[key], value) for key, value in filter.items())


def _is_equal(stored: Any, wanted: Any) -> bool:
    """Compare two values.

    Arrays are equal as a whole; values that hold arrays and cannot be compared are not.
    """
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
