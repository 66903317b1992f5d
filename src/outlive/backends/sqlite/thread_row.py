"""The row of a thread in SQLite and its heads, checked against each other."""

from __future__ import annotations

from typing import Any

import apsw

from outlive.backend import ThreadKey, checksum, escape
from outlive.backends.rules.view import Row
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.heads import HEAD, Found, Head, checked_head
from outlive.errors import Corrupt


class ThreadRows:
    """The counters and heads of one thread as they are inside a transaction."""

    def __init__(self, db: apsw.Connection, thread: ThreadKey, found: Found, *, deletes: bool) -> None:
        self._db = db
        self._found = found
        self._heads: dict[str, Head | None] = {}  # those that were checked
        self.thread = thread
        self.row: Row | None = None
        self.key = self.checkpoints = self.entries = self.stored = self.updated_at = 0
        self.is_listed = self.has_row = False
        self._load(deletes)

    def _load(self, deletes: bool) -> None:
        """Take over the row of the thread when it and the root's head say the same."""
        problem = self._disagreement()
        if problem is not None:
            if not deletes:
                raise self._corrupt(problem)
            self._salvage()
        elif self._found.row is not None:
            row = self._found.row
            self.has_row, self.key, self.is_listed = True, row[0], bool(row[4])
            self.checkpoints, self.entries, self.stored, self.updated_at = row[9], row[10], row[11], row[13]
            self.row = Row(row[5], row[6], row[7], row[8], row[12], row[14])

    def _disagreement(self) -> str | None:
        """Say what is wrong with the row of the thread, or with that of its root's head."""
        row, root = self._found.row, self._found.heads[""]
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
        """Tell from damaged rows and those around them what a thread needs that begins again: no seq is used again."""
        row, root = self._found.row or [None] * 16, self._found.heads[""]
        if root is None or checked_head(self.thread.digest, "", root) is None:
            root = [None] * 8
        self.has_row, self.is_listed = self._found.row is not None, True
        self.key = row[0] or root[0] or 0
        if self.has_row:
            tenant = escape(self.thread.tenant)
            self._db.execute("update thread set tenant = ? where key = ?", (tenant, self.key))
        around = "select max(epoch), max(seq), count(*) from checkpoint where thread = ?"
        epoch, seq, self.checkpoints = fetch_one(self._db, around, (self.key,))
        (revision,) = fetch_one(self._db, "select max(revision) from chunk where thread = ?", (self.key,))
        if self.key:
            self.row = Row(
                0,
                _greatest(row[6], root[1], revision),
                _greatest(row[7], root[2], epoch),
                _greatest(row[8], root[3], seq),
                _greatest(row[12]),
            )

    def _corrupt(self, what: str, checkpoint: str | None = None) -> Corrupt:
        return Corrupt(what, thread=self.thread.id, checkpoint=checkpoint)

    def head_row(self, namespace: str) -> Head | None:
        """Return the head of a namespace, checked by itself; None when it has no checkpoints."""
        if namespace not in self._heads:
            name = escape(namespace)
            if namespace in self._found.heads:
                row = self._found.heads[namespace]
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
        if namespace not in self._found.newest:
            sql = "select epoch, seq from checkpoint where thread = ? and namespace = ? order by epoch desc, seq desc limit 1"
            self._found.newest[namespace] = fetch_one(self._db, sql, (self.key, escape(namespace)))
        newest = self._found.newest[namespace]
        if newest != (None if head is None else (head.epoch, head.seq)):
            what = "its newest checkpoint, or is an older copy of itself"
            raise self._corrupt(f"the head of namespace {namespace!r} has lost {what}")
        return head

    def save_row(self, row: Row, counts: tuple[int, int, int], at: int, listed: bool) -> None:
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
            what = (
                "insert or replace into roster values(?, ?)"
                if listed
                else "delete from roster where tenant = ? and id = ?"
            )
            self._db.execute(what, _roster_key(self.thread))


def _greatest(*counters: Any) -> int:
    """Return the greatest of counters that may be anything."""
    return max(
        (fetch_one for fetch_one in counters if type(fetch_one) is int and 0 <= fetch_one < 1 << 53),
        default=0,
    )


def guess(id: Any) -> str | None:
    """Name a checkpoint whose row is damaged, as far as it can be read."""
    return id if isinstance(id, str) else None


def _roster_key(thread: ThreadKey) -> tuple[str, str]:
    return escape(thread.tenant), escape(thread.id)
