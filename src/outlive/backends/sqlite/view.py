"""One thread in SQLite inside a transaction: its rows, read, checked, and made into records.

Every commit writes two rows: that of `thread`, and the head of the root namespace, which repeats
the thread's revision. When they differ, one of them was lost or is an older copy of itself. A head
is also compared with the newest checkpoint that the index finds, and with that checkpoint's
checksum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import ormsgpack

from outlive.backend import (
    CheckpointRecord,
    EntryRecord,
    ThreadKey,
    WriteRecord,
    checksum,
    escape,
    unescape,
)
from outlive.backends.rules.view import Counters
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.entries import StoredEntry, find_entry
from outlive.backends.sqlite.tables import (
    COUNT_INDEXED,
    GONE,
    HAS,
    HEAD,
    NO_HEAD,
    READ_OTHER,
    READ_ROOT,
    READ_TALLY,
    RECORD,
    ROOT_END,
    SAVE_OTHER,
    SAVE_ROOT,
    THREAD_END,
    WRITE,
    Head,
    HeadColumns,
    ThreadColumns,
    UncheckedThread,
    roster_key,
)
from outlive.errors import Corrupt


class SQLiteView:
    """The counters, heads and records of one thread, as far as a commit looks at them."""

    def __init__(
        self,
        db: apsw.Connection,
        thread: ThreadKey,
        namespace: str = "",  # the one that the caller is about
        *,
        draft: CheckpointRecord | None = None,
        deletes: bool = False,  # then it may be damaged
        unchecked: UncheckedThread | None = None,
    ) -> None:
        if unchecked is None:
            space = draft.namespace if draft is not None else namespace
            unchecked = look_up(db, thread.digest, space, None if draft is None else draft.id)
        self._db = db
        self._unchecked = unchecked
        self._no_draft: tuple[str, str] | None = None
        if draft is not None and not unchecked.has_checkpoint:
            self._no_draft = (draft.namespace, draft.id)
        self.thread = thread
        self.counters: Counters | None = None
        self.key = self.checkpoints = self.entries = self.stored = self.updated_at = 0
        self.is_listed = self.has_row = False
        # Of each, those that were looked for:
        self._heads: dict[str, Head | None] = {}
        self._chunks: dict[bytes, tuple[int, int] | None] = {}
        self._names: dict[int, bytes] = {}  # of chunks, by key
        self._entries: dict[tuple[str, str], StoredEntry] = {}
        self.have_writes: set[tuple[str, str]] = set()
        self.write_checksums: dict[tuple[str, str, str, int], bytes | None] = {}
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
                row.generation, row.revision, row.epoch, row.seq, row.created_at, row.metadata_version
            )

    def _disagreement(self) -> str | None:
        """Say what is wrong with the row of the thread, or with that of its root's head."""
        row, root = self._unchecked.row, self._unchecked.heads[""]
        if row is None:
            listed = "select 1 from roster where tenant = ? and id = ?"
            is_gone = root != NO_HEAD or fetch_one(self._db, listed, roster_key(self.thread)) is not None
            return "its row is gone" if is_gone else None
        if row.checksum != checksum(*row[:-1]):
            return "its row is damaged"
        if root == NO_HEAD:
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
        row = self._unchecked.row or ThreadColumns()
        root = self._unchecked.heads[""]
        if checked_head(self.thread.digest, "", root) is None:
            root = NO_HEAD
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

    @property
    def row(self) -> ThreadColumns | None:
        """The row of the thread as it is stored; it may be damaged."""
        return self._unchecked.row

    def _corrupt(self, problem: str, checkpoint: str | None = None) -> Corrupt:
        return Corrupt(problem, thread=self.thread.id, checkpoint=checkpoint)

    def head_row(self, namespace: str) -> Head | None:
        """Return the head of a namespace, checked by itself; None when it has no checkpoints."""
        if namespace not in self._heads:
            name, row = escape(namespace), self._unchecked.heads.get(namespace)
            if row is None:
                sql = f"select {HEAD} from head where digest = ? and namespace = ?"
                row = HeadColumns(*fetch_one(self._db, sql, (self.thread.digest, name)) or ())
            head = None if row == NO_HEAD else checked_head(self.thread.digest, name, row)
            if row != NO_HEAD and (head is None or head.thread != self.key):
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

    # What `decide` asks

    def find(self, namespace: str, id: str) -> CheckpointRecord | None:
        if self._no_draft == (namespace, id):
            return None
        row = fetch_one(
            self._db,
            f"{RECORD} where c.thread = ? and c.id = ? and c.namespace = ?",
            (self.key, escape(id), escape(namespace)),
        )
        if row is None:
            return None
        record = self.record(row)
        if (record.namespace, record.id) != (namespace, id):  # a damaged index leads to another row
            raise self._corrupt("the index leads to the record of another checkpoint", id)
        return record

    def head(self, namespace: str) -> str | None:
        head = self.check_head(namespace)
        return None if head is None else unescape(head.id or "")

    def count(self) -> int:
        return self.checkpoints

    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None:
        namespace, checkpoint, task, index = key
        row = fetch_one(
            self._db,
            f"select {WRITE} from write where thread = ? and namespace = ? and checkpoint = ? and task = ? and idx = ?",
            (self.key, escape(namespace), escape(checkpoint), escape(task), index),
        )
        self.write_checksums[key] = None if row is None else row[12]
        return None if row is None else self._write(row)

    def has(self, pair: tuple[str, str]) -> bool:
        is_there, is_written = fetch_one(self._db, HAS, (self.key, escape(pair[0]), escape(pair[1])))
        if is_written:
            self.have_writes.add(pair)
        return bool(is_there or is_written)

    def thread_metadata(self) -> bytes | None:
        row = fetch_one(self._db, "select metadata from thread where key = ?", (self.key,))
        return None if row is None else row[0]

    def entry(self, kind: str, key: str) -> EntryRecord | None:
        return self.stored_entry(kind, key).entry

    def stored_entry(self, kind: str, key: str) -> StoredEntry:
        stored = self._entries.get((kind, key))
        if stored is None:
            stored = (
                find_entry(self._db, self.key, self.thread.id, kind, key) if self.key else StoredEntry(None)
            )
            self._entries[kind, key] = stored
        return stored

    def note_entry(self, entry: EntryRecord, stored: StoredEntry) -> None:
        """Remember what the commit under way put in the place of an entry."""
        self._entries[entry.kind, entry.key] = stored

    def forget(self) -> None:
        """Everything is deleted: what was looked for is not there any more."""
        self._entries = dict.fromkeys(self._entries, StoredEntry(None))
        self.write_checksums = dict.fromkeys(self.write_checksums, None)

    def chunk(self, name: bytes) -> tuple[int, int] | None:
        if name not in self._chunks:
            sql = "select length(data), revision from chunk where thread = ? and name = ?"
            row = fetch_one(self._db, sql, (self.key, name))
            self._chunks[name] = None if row is None else (row[0], row[1])
        return self._chunks[name]

    def _chunk_names(self, keys: bytes, check: bytes, checkpoint: str) -> tuple[bytes, ...]:
        """Return the names of the chunks of a record by their keys, checked: no row of `chunk` can
        replace another.

        A chunk that is gone gets a name that no chunk has: the record can be listed and deleted,
        not loaded.
        """
        names = []
        for key in _keys(keys):
            name = self._names.get(key)
            if name is None:
                row = fetch_one(
                    self._db, "select name from chunk where key = ? and thread = ?", (key, self.key)
                )
                name = self._names[key] = row[0] if row is not None and isinstance(row[0], bytes) else GONE
            names.append(name)
        if GONE not in names and check != checksum(*names):
            raise self._corrupt("its chunks are damaged", checkpoint)
        return tuple(names)

    def check_index(self) -> None:
        """Make sure that every checkpoint is found by its id."""
        count = fetch_one(self._db, COUNT_INDEXED, (self.key,))[0]
        if count != self.checkpoints:
            raise self._corrupt(f"its index of ids has {count} checkpoints instead of {self.checkpoints}")

    # Rows to records

    def record(self, row: Sequence[Any]) -> CheckpointRecord:
        """Return the fields of a row and its version, if both are as they were written."""
        *fields, check, version = row
        if check != checksum(self.key, *fields):
            raise self._corrupt("its record is damaged", guess(row[1]))
        if version is not None and version != check:
            raise self._corrupt("its record is an older copy of itself", guess(row[1]))
        (
            ns, id, parent, run, epoch, seq, step, source, created_at, size, added, format, version, projection,
            keys, names, body,
        ) = fields  # fmt: skip
        return CheckpointRecord(
            namespace=unescape(ns),
            id=unescape(id),
            parent=None if parent is None else unescape(parent),
            run=None if run is None else unescape(run),
            step=step,
            source=source,
            size=size,
            added=added,
            chunks=self._chunk_names(keys, names, unescape(id)),
            body=body,
            projection=projection,
            format=format,
            version=version,
            epoch=epoch,
            seq=seq,
            created_at=created_at,
        )

    def _write(self, row: Sequence[Any]) -> WriteRecord:
        *fields, check = row
        if check != checksum(self.key, *fields):
            raise self._corrupt("a write is damaged", guess(row[1]))
        ns, checkpoint, task, index, channel, path, epoch, fence, revision, keys, names, body = fields
        return WriteRecord(
            unescape(ns), unescape(checkpoint), unescape(task), index, unescape(channel), unescape(path), body,
            self._chunk_names(keys, names, unescape(checkpoint)), (epoch, fence, revision),
        )  # fmt: skip

    def tally(self, namespace: str, checkpoint: str) -> tuple[int, int]:
        """Return how many writes a checkpoint has, and the exclusive or of their checksums."""
        where = (self.key, escape(namespace), escape(checkpoint))
        return self._checked_tally(where, fetch_one(self._db, READ_TALLY, where), checkpoint)

    def _checked_tally(
        self, where: tuple[int, str, str], row: Sequence[Any] | None, checkpoint: str
    ) -> tuple[int, int]:
        if row is None:
            return 0, 0
        if row[2] != checksum(*where, *row[:2]):
            raise self._corrupt("the count of its writes is damaged", checkpoint)
        return row[0], int.from_bytes(row[1])


def look_up(db: apsw.Connection, digest: bytes, namespace: str, id: str | None) -> UncheckedThread:
    """Read the row of a thread with its heads; with an id, all that a save needs to know."""
    values: tuple[Any, ...] = (digest, escape(namespace))
    if id is None:
        sql, values = (READ_OTHER, values) if namespace else (READ_ROOT, values[:1])
    else:
        sql, values = (SAVE_OTHER if namespace else SAVE_ROOT), (*values, escape(id))
    rows: list[Any] = db.execute(sql, values).fetchall()
    if not rows:  # it is new, or its row is lost
        root = fetch_one(db, f"select {HEAD} from head where digest = ? and namespace = ''", values[:1])
        return UncheckedThread(None, {"": HeadColumns(*root or ())}, has_checkpoint=False)
    (row,) = rows
    stored = UncheckedThread(ThreadColumns(*row[:THREAD_END]), {"": HeadColumns(*row[THREAD_END:ROOT_END])})
    if namespace:
        stored.heads[namespace] = HeadColumns(*row[ROOT_END : ROOT_END + len(NO_HEAD)])
    if id is not None:
        *_, has_checkpoint, epoch, seq = row
        stored.has_checkpoint = bool(has_checkpoint)
        stored.newest[namespace] = None if seq is None else (epoch, seq)
    return stored


def checked_head(digest: bytes, name: str, row: HeadColumns) -> Head | None:
    """Return a head whose row is whole; None when it is damaged."""
    *fields, check = row
    return Head(*fields) if check == checksum(digest, name, *fields) else None


def _greatest(*counters: Any) -> int:
    """Return the greatest of counters that may be anything."""
    return max((count for count in counters if type(count) is int and 0 <= count < 1 << 53), default=0)


def guess(id: Any) -> str | None:
    """Name a checkpoint whose row is damaged, as far as it can be read."""
    return id if isinstance(id, str) else None


def _keys(packed: bytes) -> list[int]:
    keys = ormsgpack.unpackb(packed)
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        raise Corrupt("a list of chunks is damaged")
    return keys
