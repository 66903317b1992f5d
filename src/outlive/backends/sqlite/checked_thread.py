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

from outlive.backend import ThreadKey, checksum, escape
from outlive.backends.rules.view import Counters
from outlive.backends.sqlite.connection import fetch_one
from outlive.errors import Corrupt

THREAD = (
    "key, digest, tenant, id, listed, generation, revision, epoch, seq, checkpoints, entries, stored, created_at, updated_at, "
    "info_version, checksum"
)
HEAD = "thread, revision, epoch, seq, id, checkpoints, record, checksum"
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

    row: Sequence[Any] | None = None
    heads: dict[str, Sequence[Any] | None] = field(default_factory=dict)  # by namespace
    has_checkpoint: bool = True  # or nobody asked
    # By namespace: its (epoch, seq).
    newest: dict[str, tuple[int, int] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Sequence[Any]) -> UncheckedThread:
        """Return the thread of a row that begins with its columns and those of its root head."""
        return cls(row[:16], {"": row[16:24] if row[23] is not None else None})


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
        return UncheckedThread(None, {"": heads[0] if heads else None}, has_checkpoint=False)
    (row,) = rows
    stored = UncheckedThread.of(row)
    if namespace:
        stored.heads[namespace] = row[24:32] if row[31] is not None else None
    if id is not None:
        stored.has_checkpoint = bool(row[-3])
        stored.newest[namespace] = None if row[-1] is None else (row[-2], row[-1])
    return stored


def checked_head(digest: bytes, name: str, row: Sequence[Any]) -> Head | None:
    """Return a head whose row is whole; None when it is damaged."""
    return Head(*row[:7]) if row[7] == checksum(digest, name, *row[:7]) else None


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
            self.has_row, self.key, self.is_listed = True, row[0], bool(row[4])
            self.checkpoints, self.entries, self.stored, self.updated_at = row[9], row[10], row[11], row[13]
            self.counters = Counters(row[5], row[6], row[7], row[8], row[12], row[14])

    def _disagreement(self) -> str | None:
        """Say what is wrong with the row of the thread, or with that of its root's head."""
        row, root = self._unchecked.row, self._unchecked.heads[""]
        if row is None:
            listed = "select 1 from roster where tenant = ? and id = ?"
            is_gone = root is not None or fetch_one(self._db, listed, _roster_key(self.thread)) is not None
            return "its row is gone" if is_gone else None
        if row[15] != checksum(*row[:15]):
            return "its row is damaged"
        if root is None:
            return "the head of namespace '' is gone"
        head = self._heads[""] = checked_head(self.thread.digest, "", root)
        if head is None:
            return "the head of namespace '' is damaged"
        if (head.thread, head.revision) != (row[0], row[6]):
            return (
                f"its row is of revision {row[6]} and its head of revision {head.revision}: "
                "one of them is an older copy of itself"
            )
        return None

    def _salvage(self) -> None:
        """Derive what a thread needs to start again after damage: no seq is used twice."""
        row, root = self._unchecked.row or [None] * 16, self._unchecked.heads[""]
        if root is None or checked_head(self.thread.digest, "", root) is None:
            root = [None] * 8
        self.has_row, self.is_listed = self._unchecked.row is not None, True
        self.key = row[0] or root[0] or 0
        if self.has_row:
            tenant = escape(self.thread.tenant)
            self._db.execute("update thread set tenant = ? where key = ?", (tenant, self.key))
        around = "select max(epoch), max(seq), count(*) from checkpoint where thread = ?"
        epoch, seq, self.checkpoints = fetch_one(self._db, around, (self.key,))
        (revision,) = fetch_one(self._db, "select max(revision) from chunk where thread = ?", (self.key,))
        if self.key:
            self.counters = Counters(
                0,
                _greatest(row[6], root[1], revision),
                _greatest(row[7], root[2], epoch),
                _greatest(row[8], root[3], seq),
                _greatest(row[12]),
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
                row = fetch_one(self._db, sql, (self.thread.digest, name))
            head = None if row is None else checked_head(self.thread.digest, name, row)
            if row is not None and (head is None or head.thread != self.key):
                raise self._corrupt(f"the head of namespace {namespace!r} is damaged", guess(row[4]))
            self._heads[namespace] = head
        head = self._heads[namespace]
        return None if head is None or head.id is None else head

    def newest_head(self, namespace: str) -> Head | None:
        """Return the head of a namespace, compared with the newest place in the index."""
        head = self.head_row(namespace)
        if namespace not in self._unchecked.newest:
            sql = "select epoch, seq from checkpoint where thread = ? and namespace = ? order by epoch desc, seq desc limit 1"
            self._unchecked.newest[namespace] = fetch_one(self._db, sql, (self.key, escape(namespace)))
        newest = self._unchecked.newest[namespace]
        if newest != (None if head is None else (head.epoch, head.seq)):
            loss = "its newest checkpoint, or is an older copy of itself"
            raise self._corrupt(f"the head of namespace {namespace!r} has lost {loss}")
        return head

    def save_row(self, row: Counters, counts: tuple[int, int, int], at: int, listed: bool) -> None:
        """Write the row of the thread. One without anything keeps its counters, and not its id."""
        is_empty = not listed and not counts[1]
        fields = (
            self.key, self.thread.digest, escape(self.thread.tenant), None if is_empty else escape(self.thread.id), int(listed),
            row.generation, row.revision, row.epoch, row.seq, *counts, row.created_at, at, row.info_version,
        )  # fmt: skip
        counters = (
            "generation = ?, revision = ?, epoch = ?, seq = ?, checkpoints = ?, "
            "entries = ?, stored = ?, created_at = ?, updated_at = ?, info_version = ?, checksum = ? where key = ?"
        )
        if listed and self.is_listed:  # the id stays: what is not written leaves its index alone
            self._db.execute(f"update thread set {counters}", (*fields[5:], checksum(*fields), self.key))
            return
        self._db.execute(
            f"update thread set id = ?, listed = ?, {counters}", (*fields[3:], checksum(*fields), self.key)
        )
        if listed != self.is_listed:
            statement = (
                "insert or replace into roster values(?, ?)"
                if listed
                else "delete from roster where tenant = ? and id = ?"
            )
            self._db.execute(statement, _roster_key(self.thread))


def _greatest(*counters: Any) -> int:
    """Return the greatest of counters that may be anything."""
    return max((count for count in counters if type(count) is int and 0 <= count < 1 << 53), default=0)


def guess(id: Any) -> str | None:
    """Name a checkpoint whose row is damaged, as far as it can be read."""
    return id if isinstance(id, str) else None


def _roster_key(thread: ThreadKey) -> tuple[str, str]:
    return escape(thread.tenant), escape(thread.id)
