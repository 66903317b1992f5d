"""The straight road of an ordinary save: one checkpoint, appended to the root namespace of a thread.

Most commits are of this kind, so they take a road of their own. It knows success only. Where a
commit or a thread is not what it expects (a new thread, a repeated id, a stale generation, another
head, a damaged row), nothing is changed, and the general road (`decide` and `Writer`) judges the
commit from the start. So there is one place for every refusal and for every kind of damage.

The road needs no read. This process remembers the row of the thread and that of its head as it
wrote or read them last, and the updates compare every column with what is stored: a row that
another process wrote, or that was damaged, is not found. The newest checkpoint of the index is
compared in the same way. A transaction that is rolled back forgets what was remembered.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import apsw
import ormsgpack

from outlive.backend import Commit, Receipt, ThreadKey, checksum, escape, stamped, unescape
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.tables import (
    CHECKPOINT,
    HEAD,
    READ_ROOT,
    RECENT_US,
    THREAD,
    THREAD_END,
    HeadColumns,
    ThreadColumns,
    chunk_crc,
)

_MAX_THREADS = 1000  # that are remembered


class Unusual(Exception):
    """The road turned out to be the wrong one after something was written: roll back, take the other."""


class ThreadRows(NamedTuple):
    """The row of a thread, and that of the head of its root namespace."""

    thread: ThreadColumns
    head: HeadColumns


class Remembered:
    """What this process knows of threads: their rows, and the keys of their chunks by name."""

    def __init__(self) -> None:
        self.rows: dict[bytes, ThreadRows] = {}
        self._keys: dict[bytes, tuple[int, dict[bytes, int]]] = {}

    def chunk_keys(self, digest: bytes, generation: int) -> dict[bytes, int]:
        """Return the keys of a thread in a generation, which keeps all chunks."""
        known = self._keys.get(digest)
        if known is None or known[0] != generation:
            if len(self._keys) >= _MAX_THREADS:
                self._keys.pop(next(iter(self._keys)))
            known = self._keys[digest] = (generation, {})
        return known[1]

    def keep(self, digest: bytes, rows: ThreadRows) -> None:
        if digest not in self.rows and len(self.rows) >= _MAX_THREADS:
            self.rows.pop(next(iter(self.rows)))
        self.rows[digest] = rows

    def forget(self) -> None:
        """Drop everything: what a transaction that was rolled back wrote is not true."""
        self.rows.clear()
        self._keys.clear()


def is_ordinary(commit: Commit) -> bool:
    """Tell whether a commit only appends one checkpoint and its chunks to the root namespace."""
    if len(commit.checkpoints) != 1 or commit.entries or commit.writes or commit.fence is not None:
        return False
    (draft,) = commit.checkpoints
    return not (
        draft.namespace
        or draft.seq
        or commit.replace
        or commit.merge
        or commit.removal is not None
        or commit.rewrites
        or commit.reencrypted is not None
        or commit.revision is not None
        or commit.metadata is not None
        or commit.metadata_version is not None
        or commit.expect_empty
        or commit.epoch is not None
        # Without a generation, chunks that it does not bring must be looked for.
        or (commit.generation is None and len(draft.chunks) > len(commit.chunks))
    )


_KEY_OF_CHUNK = "select key from chunk where thread = ? and name = ?"
_PUT_CHUNK = "insert into chunk(thread, name, revision, crc, data) values(?, ?, ?, ?, ?)"
_PUT_CHECKPOINT = (
    f"insert into checkpoint(thread, {CHECKPOINT}) values(?{', ?' * len(CHECKPOINT.split(', '))})"
)
_SAME_THREAD = f"where ({THREAD}) = ({', '.join('?' * THREAD_END)})"
_COUNT_UP = "revision = ?, seq = ?, checkpoints = ?, stored = ?, updated_at = ?, checksum = ?"
_PUT_THREAD = f"update thread set {_COUNT_UP} {_SAME_THREAD}"
_PUT_RECENT_THREAD = f"update thread set {_COUNT_UP}, recent = ? {_SAME_THREAD}"
_PUT_HEAD = (
    f"update head set revision = ?, epoch = ?, seq = ?, id = ?, checkpoints = ?, record = ?, checksum = ? "
    f"where digest = ? and namespace = '' and ({HEAD}) = ({', '.join('?' * len(HeadColumns._fields))}) "
    "and (select epoch, seq from checkpoint where thread = ? and namespace = '' order by epoch desc, seq desc limit 1) = (?, ?)"
)


def append(db: apsw.Connection, commit: Commit, remembered: Remembered) -> Receipt | None:
    """Append the checkpoint of an ordinary commit.

    None: not on this road, and nothing was changed. Raises `Unusual` when something was.
    """
    (draft,), digest = commit.checkpoints, commit.thread.digest
    rows = remembered.rows.get(digest) or _read(db, commit.thread)
    if rows is None:
        return None
    # 1. What the commit expects, by what is remembered.
    thread, head = rows
    key, epoch, seq, revision = thread.key, thread.epoch, thread.seq + 1, thread.revision + 1
    head_id = unescape(head.id)
    if (
        (commit.generation is not None and commit.generation != thread.generation)
        or (commit.expect_head is not None and commit.expect_head != ("", head_id))
        or (epoch, seq) <= (head.epoch, head.seq)
    ):
        return None
    brought = dict(commit.chunks)
    keys = remembered.chunk_keys(digest, thread.generation)
    for name in draft.chunks:
        if name not in keys and name not in brought:
            row = fetch_one(db, _KEY_OF_CHUNK, (key, name))
            if row is None:
                return None
            keys[name] = row[0]
    # 2. The row of the thread, if it is what is remembered. Nothing was changed before.
    now = time.time_ns() // 1000
    count, stored = thread.checkpoints + 1, thread.stored + len(draft.body)
    for data in brought.values():
        stored += len(data)
    columns = (
        *thread[:6], revision, epoch, seq, count, thread.entries, stored, thread.created_at, now, thread.metadata_version
    )  # fmt: skip
    thread_check = checksum(*columns)
    counted = (revision, seq, count, stored, now, thread_check)
    if now // RECENT_US == thread.updated_at // RECENT_US:
        db.execute(_PUT_THREAD, (*counted, *thread))
    else:
        db.execute(_PUT_RECENT_THREAD, (*counted, now // RECENT_US, *thread))
    if not db.changes():
        remembered.rows.pop(digest, None)
        return None
    try:
        # 3. The chunks, before the checkpoint that refers to them by key.
        for name, data in brought.items():
            db.execute(_PUT_CHUNK, (key, name, revision, chunk_crc(key, name, revision, data), data))
            keys[name] = db.last_insert_rowid()
        # 4. The head, if it is what is remembered and the newest in the index; then the checkpoint.
        record = stamped(
            draft, epoch=epoch, seq=seq, created_at=draft.created_at or now,
            parent=head_id if draft.follows else draft.parent, version=draft.version,
        )  # fmt: skip
        id, parent, run = escape(record.id), record.parent, record.run
        fields = (
            "", id, None if parent is None else escape(parent), None if run is None else escape(run), epoch, seq,
            record.step, record.source, record.created_at, record.size, record.added, record.format, record.version,
            record.projection, ormsgpack.packb([keys[name] for name in record.chunks]), checksum(*record.chunks), record.body,
        )  # fmt: skip
        check = checksum(key, *fields)
        place = (key, revision, epoch, seq, id, head.checkpoints + 1, check)
        new_head = HeadColumns(*place, checksum(digest, "", *place))
        db.execute(_PUT_HEAD, (*new_head[1:], digest, *head, key, head.epoch, head.seq))
        if not db.changes():
            raise Unusual
        db.execute(_PUT_CHECKPOINT, (key, *fields, check))
    except apsw.ConstraintError as error:  # the id, or a chunk, is stored already
        raise Unusual from error
    remembered.keep(digest, ThreadRows(ThreadColumns(*columns, thread_check), new_head))
    return Receipt(thread.generation, revision, (record,))


def _read(db: apsw.Connection, thread: ThreadKey) -> ThreadRows | None:
    """Read the rows of a thread; None if there is none, it has no head, or a row is damaged."""
    row = fetch_one(db, READ_ROOT, (thread.digest,))
    if row is None:
        return None
    columns, head = ThreadColumns(*row[:THREAD_END]), HeadColumns(*row[THREAD_END:])
    is_sound = (
        columns.listed
        and head.id is not None
        and columns.checksum == checksum(*columns[:-1])
        and head.checksum == checksum(thread.digest, "", *head[:-1])
        and (head.thread, head.revision) == (columns.key, columns.revision)
    )
    return ThreadRows(columns, head) if is_sound else None
