"""The row of a thread in SQLite and its heads: what every call reads first, and how they vouch for each other.

Every commit writes two rows: that of `thread`, and the head of the root namespace, which repeats the thread's revision. When they
differ, one of them was lost or is an older copy of itself. A head is also compared with the newest checkpoint that the index
finds, and with that checkpoint's checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import apsw

from outlive.backend import checksum, escape

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
# What every call asks of a thread: its row, the head of the root namespace, and that of the namespace it is about. A save also asks
# whether its checkpoint is there, and for the newest place in the index.
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
    """The newest checkpoint of a namespace, and how many there are; `id` is None when the root namespace has none."""

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
class Found:
    """What one statement found of a thread: nothing of it is checked yet."""

    row: Sequence[Any] | None = None
    heads: dict[str, Sequence[Any] | None] = field(default_factory=dict)  # by namespace
    has_checkpoint: bool = True  # or nobody asked
    newest: dict[str, tuple[int, int] | None] = field(
        default_factory=dict
    )  # by namespace: the place of the newest

    @classmethod
    def of(cls, row: Sequence[Any]) -> Found:
        """Return what a row says that begins with the columns of a thread and of its root's head."""
        return cls(row[:16], {"": row[16:24] if row[23] is not None else None})


def look_up(db: apsw.Connection, digest: bytes, namespace: str, id: str | None) -> Found:
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
        return Found(None, {"": heads[0] if heads else None}, has_checkpoint=False)
    (row,) = rows
    found = Found.of(row)
    if namespace:
        found.heads[namespace] = row[24:32] if row[31] is not None else None
    if id is not None:
        found.has_checkpoint = bool(row[-3])
        found.newest[namespace] = None if row[-1] is None else (row[-2], row[-1])
    return found


def checked_head(digest: bytes, name: str, row: Sequence[Any]) -> Head | None:
    """Return a head whose row is whole; None when it is damaged."""
    return Head(*row[:7]) if row[7] == checksum(digest, name, *row[:7]) else None


def put_head(db: apsw.Connection, digest: bytes, name: str, head: Head) -> None:
    db.execute(
        "insert or replace into head values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (digest, name, *head, checksum(digest, name, *head)),
    )
