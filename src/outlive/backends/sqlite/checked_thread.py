"""The row of a thread in SQLite and its heads, which every call reads first, and their checks.

Every commit writes two rows: that of `thread`, and the head of the root namespace, which repeats
the thread's revision. When they differ, one of them was lost or is an older copy of itself. A head
is also compared with the newest checkpoint that the index finds, and with that checkpoint's
checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from outlive.backend import ThreadKey, checksum, escape, unescape
from outlive.backends.rules.view import Counters
from outlive.backends.sqlite.connection import fetch_one
from outlive.errors import Corrupt

RECENT_US = 1_000_000  # what `recent` counts


class ThreadColumns(NamedTuple):
    """A row of `thread`, as it is in the file: nothing of it is checked."""

    key: Any
    digest: Any
    tenant: Any
    id: Any
    listed: Any
    generation: Any
    revision: Any
    epoch: Any
    seq: Any
    checkpoints: Any
    entries: Any
    stored: Any
    created_at: Any
    updated_at: Any
    info_version: Any
    checksum: Any

    @classmethod
    def of(cls, row: Sequence[Any]) -> ThreadColumns:
        """Return the columns of the thread, which are the first of a row."""
        return cls(*row[: len(cls._fields)])

    @property
    def is_whole(self) -> bool:
        return bool(self.checksum == checksum(*self[:-1]))


class HeadColumns(NamedTuple):
    """A row of `head`, as it is in the file: nothing of it is checked."""

    thread: Any
    revision: Any
    epoch: Any
    seq: Any
    id: Any
    checkpoints: Any
    record: Any
    checksum: Any

    @classmethod
    def of(cls, row: Sequence[Any]) -> HeadColumns | None:
        """Return the columns of an outer join, which are all null without a head."""
        columns = cls(*row)
        return None if columns.checksum is None else columns


THREAD = ", ".join(ThreadColumns._fields)
HEAD = ", ".join(HeadColumns._fields)
_THREAD_END = len(ThreadColumns._fields)
_ROOT_END = _THREAD_END + len(HeadColumns._fields)
_THREAD, _ROOT, _OTHER = (
    ", ".join(f"{table}.{name}" for name in columns.split(", "))
    for table, columns in (("t", THREAD), ("h", HEAD), ("o", HEAD))
)
_WITH_ROOT = "from thread t left join head h on h.digest = t.digest and h.namespace = ''"
_WITH_BOTH = f"{_WITH_ROOT} left join head o on o.digest = t.digest and o.namespace = ?2 where t.digest = ?1"
_HAS_IT = "exists(select 1 from checkpoint where thread = t.key and id = ?3 and namespace = ?2)"
_NEWEST = "from checkpoint where thread = t.key and namespace = ?2 order by epoch desc, seq desc limit 1)"
# Every call reads the thread's row, the head of the root namespace, and that of its own namespace.
# A save also asks whether its checkpoint exists, and for the newest place in the index.
_READ_ROOT = f"select {_THREAD}, {_ROOT} {_WITH_ROOT} where t.digest = ?1"
_READ_OTHER = f"select {_THREAD}, {_ROOT}, {_OTHER} {_WITH_BOTH}"
_SAVE_ROOT = (
    f"select {_THREAD}, {_ROOT}, {_HAS_IT}, (select epoch {_NEWEST}, (select seq {_NEWEST} "
    f"{_WITH_ROOT} where t.digest = ?1"
)
_SAVE_OTHER = f"select {_THREAD}, {_ROOT}, {_OTHER}, {_HAS_IT}, (select epoch {_NEWEST}, (select seq {_NEWEST} {_WITH_BOTH}"
# Rows of threads, each with the head of its root namespace and its metadata.
THREADS = f"select {_THREAD}, {_ROOT}, t.info, t.info_json, t.info_checksum {_WITH_ROOT}"


class Head(NamedTuple):
    """The newest checkpoint of a namespace, and their count.

    `id` is None for an empty root namespace.
    """

    thread: int
    revision: int
    epoch: int
    seq: int
    id: str | None  # escaped
    checkpoints: int
    record: bytes | None

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.epoch, self.seq, self.id or "")


@dataclass(slots=True)
class UncheckedThread:
    """The rows of a thread as one statement read them; nothing of them is checked yet."""

    row: ThreadColumns | None = None
    heads: dict[str, HeadColumns | None] = field(default_factory=dict)  # by namespace
    has_checkpoint: bool = True  # or nobody asked
    # By namespace: its (epoch, seq).
    newest: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Sequence[Any]) -> UncheckedThread:
        """Return the thread of a row that begins with its columns and those of its root head."""
        return cls(ThreadColumns.of(row), {"": HeadColumns.of(row[_THREAD_END:_ROOT_END])})


def listed_key(row: Sequence[Any]) -> ThreadKey:
    """Return the thread of a row of THREADS."""
    columns = ThreadColumns.of(row)
    return ThreadKey(unescape(columns.tenant), unescape(columns.id or ""), bytes(columns.digest))


def look_up(db: apsw.Connection, digest: bytes, namespace: str, id: str | None) -> UncheckedThread:
    """Read the row of a thread with its heads; with an id, all that a save needs to know."""
    values: tuple[Any, ...] = (digest, escape(namespace))
    if id is None:
        sql, values = (_READ_OTHER, values) if namespace else (_READ_ROOT, values[:1])
    else:
        sql, values = (_SAVE_OTHER if namespace else _SAVE_ROOT), (*values, escape(id))
    rows: list[Any] = db.execute(sql, values).fetchall()
    if not rows:  # it is new, or its row is lost
        heads: list[Any] = db.execute(
            f"select {HEAD} from head where digest = ? and namespace = ''", values[:1]
        ).fetchall()
        return UncheckedThread(None, {"": HeadColumns(*heads[0]) if heads else None}, has_checkpoint=False)
    (row,) = rows
    stored = UncheckedThread.of(row)
    if namespace:
        stored.heads[namespace] = HeadColumns.of(row[_ROOT_END : _ROOT_END + len(HeadColumns._fields)])
    if id is not None:
        *_, has_checkpoint, epoch, seq = row
        stored.has_checkpoint = bool(has_checkpoint)
        stored.newest[namespace] = None if seq is None else (epoch, seq)
    return stored


def checked_head(digest: bytes, name: str, row: HeadColumns) -> Head | None:
    """Return a head whose row is whole; None when it is damaged."""
    *fields, check = row
    return Head(*fields) if check == checksum(digest, name, *fields) else None


def put_head(db: apsw.Connection, digest: bytes, name: str, head: Head) -> None:
    db.execute(
        "insert or replace into head values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (digest, name, *head, checksum(digest, name, *head)),
    )


class CheckedThread:
    """The counters and heads of one thread as they are inside a transaction."""

    def __init__(
        self, db: apsw.Connection, thread: ThreadKey, unchecked: UncheckedThread, *, deletes: bool
    ) -> None:
        self._db = db
        self._unchecked = unchecked
        self._heads: dict[str, Head | None] = {}  # those that were checked
        self.thread = thread
        self.counters: Counters | None = None
        self.key = self.checkpoints = self.entries = self.stored = self.updated_at = 0
        self.is_listed = self.has_row = False
        # The row of the thread counts when it and the head of the root namespace say the same.
        problem = self._disagreement()
        if problem is not None:
            if not deletes:
                raise self._corrupt(problem)
            self._salvage()
        elif self._unchecked.row is not None:
            row = self._unchecked.row
            self.has_row, self.key, self.is_listed = True, row.key, bool(row.listed)
            self.checkpoints, self.entries, self.stored = row.checkpoints, row.entries, row.stored
            self.updated_at = row.updated_at
            self.counters = Counters(
                row.generation, row.revision, row.epoch, row.seq, row.created_at, row.info_version
            )

    def _disagreement(self) -> str | None:
        """Say what is wrong with the row of the thread, or with that of its root's head."""
        row, root = self._unchecked.row, self._unchecked.heads[""]
        if row is None:
            listed = "select 1 from roster where tenant = ? and id = ?"
            is_gone = root is not None or fetch_one(self._db, listed, roster_key(self.thread)) is not None
            return "its row is gone" if is_gone else None
        if not row.is_whole:
            return "its row is damaged"
        if root is None:
            return "the head of namespace '' is gone"
        head = self._heads[""] = checked_head(self.thread.digest, "", root)
        if head is None:
            return "the head of namespace '' is damaged"
        if (head.thread, head.revision) != (row.key, row.revision):
            return (
                f"its row is of revision {row.revision} and its head of revision {head.revision}: "
                "one of them is an older copy of itself"
            )
        return None

    def _salvage(self) -> None:
        """Derive what a thread needs to start again after damage: no seq is used twice."""
        row = self._unchecked.row or ThreadColumns(*[None] * len(ThreadColumns._fields))
        root = self._unchecked.heads[""]
        if root is None or checked_head(self.thread.digest, "", root) is None:
            root = HeadColumns(*[None] * len(HeadColumns._fields))
        self.has_row, self.is_listed = self._unchecked.row is not None, True
        self.key = row.key or root.thread or 0
        if self.has_row:
            tenant = escape(self.thread.tenant)
            self._db.execute("update thread set tenant = ? where key = ?", (tenant, self.key))
        around = "select max(epoch), max(seq), count(*) from checkpoint where thread = ?"
        epoch, seq, self.checkpoints = fetch_one(self._db, around, (self.key,))
        (revision,) = fetch_one(self._db, "select max(revision) from chunk where thread = ?", (self.key,))
        if self.key:
            self.counters = Counters(
                0,
                _greatest(row.revision, root.revision, revision),
                _greatest(row.epoch, root.epoch, epoch),
                _greatest(row.seq, root.seq, seq),
                _greatest(row.created_at),
            )

    def _corrupt(self, problem: str, checkpoint: str | None = None) -> Corrupt:
        return Corrupt(problem, thread=self.thread.id, checkpoint=checkpoint)

    def head_row(self, namespace: str) -> Head | None:
        """Return the head of a namespace, checked by itself; None when it has no checkpoints."""
        if namespace not in self._heads:
            name = escape(namespace)
            if namespace in self._unchecked.heads:
                row = self._unchecked.heads[namespace]
            else:
                sql = f"select {HEAD} from head where digest = ? and namespace = ?"
                stored = fetch_one(self._db, sql, (self.thread.digest, name))
                row = None if stored is None else HeadColumns(*stored)
            head = None if row is None else checked_head(self.thread.digest, name, row)
            if row is not None and (head is None or head.thread != self.key):
                raise self._corrupt(f"the head of namespace {namespace!r} is damaged", guess(row.id))
            self._heads[namespace] = head
        head = self._heads[namespace]
        return None if head is None or head.id is None else head

    def check_head(self, namespace: str) -> Head | None:
        """Compare the head of a namespace with the newest place in the index, and return it."""
        head = self.head_row(namespace)
        if namespace not in self._unchecked.newest:
            sql = "select epoch, seq from checkpoint where thread = ? and namespace = ? order by epoch desc, seq desc limit 1"
            self._unchecked.newest[namespace] = fetch_one(self._db, sql, (self.key, escape(namespace)))
        newest = self._unchecked.newest[namespace]
        if newest != (None if head is None else (head.epoch, head.seq)):
            loss = "its newest checkpoint, or is an older copy of itself"
            raise self._corrupt(f"the head of namespace {namespace!r} has lost {loss}")
        return head


def _greatest(*counters: Any) -> int:
    """Return the greatest of counters that may be anything."""
    return max((count for count in counters if type(count) is int and 0 <= count < 1 << 53), default=0)


def guess(id: Any) -> str | None:
    """Name a checkpoint whose row is damaged, as far as it can be read."""
    return id if isinstance(id, str) else None


def roster_key(thread: ThreadKey) -> tuple[str, str]:
    return escape(thread.tenant), escape(thread.id)
