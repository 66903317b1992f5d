"""The straight road of an ordinary save: a checkpoint of the root namespace, pending writes, or both.

Most commits are of this kind, so they take a road of their own. It knows success only. Where a
commit or a thread is not what it expects (a new thread, a repeated id, a stale generation, another
head, a damaged row), nothing is changed, and the general road (`decide` and `Writer`) judges the
commit from the start. So there is one place for every refusal and for every kind of damage.

The road reads nothing of a thread that this process has written before. It remembers the row of the
thread and that of its head as it wrote or read them last, and the updates compare every column with
what is stored: a row that another process wrote, or that was damaged, is not found. The newest
checkpoint of the index is compared in the same way. The keys of chunks are remembered with the row
of their thread, and count only while that is the stored one: a file that was restored from a backup
under an open store may have other chunks in the same generation. A transaction that is rolled back
forgets what was remembered.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import apsw
import ormsgpack

from outlive.backend import (
    CheckpointKey,
    CheckpointRecord,
    Commit,
    Receipt,
    ThreadKey,
    checksum,
    escape,
    stamped,
    unescape,
)
from outlive.backends.rules.snapshot import is_plain
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.tables import (
    HEAD,
    PUT_CHECKPOINT,
    PUT_TALLY,
    PUT_WRITE,
    READ_ROOT,
    READ_TALLY,
    RECENT_US,
    THREAD,
    THREAD_END,
    HeadColumns,
    ThreadColumns,
    checkpoint_row,
    chunk_crc,
    tally_row,
    write_row,
)

_MAX_THREADS = 1000  # that are remembered


class Unusual(Exception):
    """The road turned out to be the wrong one after something was written: roll back, take the other."""


class ThreadRows(NamedTuple):
    """The row of a thread, that of the head of its root namespace, and the keys of its chunks by name."""

    thread: ThreadColumns
    head: HeadColumns
    keys: dict[bytes, int]


class Remembered:
    """The rows of threads as this process wrote or read them last."""

    def __init__(self) -> None:
        self.rows: dict[bytes, ThreadRows] = {}

    def chunk_keys(self, digest: bytes, stored: ThreadColumns | None, generation: int) -> dict[bytes, int]:
        """Return what is known of the chunks of a thread; a generation keeps all of them."""
        known = self.rows.get(digest)
        if known is None or known.thread != stored or known.thread.generation != generation:
            return {}
        return known.keys

    def keep(self, digest: bytes, rows: ThreadRows) -> None:
        """Keep the rows of a listed thread with a head; others take the general road."""
        if not rows.thread.listed or rows.head.id is None:
            self.rows.pop(digest, None)
            return
        if digest not in self.rows and len(self.rows) >= _MAX_THREADS:
            self.rows.pop(next(iter(self.rows)))
        self.rows[digest] = rows

    def forget(self) -> None:
        """Drop everything: what a transaction that was rolled back wrote is not true."""
        self.rows.clear()


def is_ordinary(commit: Commit) -> bool:
    """Tell whether a commit only adds a checkpoint to the root namespace, or first writes of tasks."""
    if commit.entries or commit.fence is not None or commit.epoch is not None:
        return False
    for draft in commit.checkpoints:
        if draft.namespace:
            return False
    for write in commit.writes:
        if write.index < 0:  # of a control write the last one wins
            return False
    return bool(commit.checkpoints or commit.writes) and is_plain(commit)


def append(db: apsw.Connection, commit: Commit, remembered: Remembered) -> Receipt | None:
    """Do an ordinary commit.

    None: it belongs on the general road, and nothing was changed. Raises `Unusual` when something
    was.
    """
    rows = remembered.rows.get(commit.thread.digest) or _read(db, commit.thread)
    if rows is None or not _is_expected(commit, rows):
        return None
    return _Append(db, commit, remembered, rows).run()


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
    return ThreadRows(columns, head, {}) if is_sound else None


def _is_expected(commit: Commit, rows: ThreadRows) -> bool:
    """Tell whether a commit fits what is remembered, which the updates compare with what is stored."""
    thread, head, _ = rows
    return (
        (commit.generation is None or commit.generation == thread.generation)
        and (commit.expect_head is None or commit.expect_head == ("", unescape(head.id)))
        and (thread.epoch, thread.seq) >= (head.epoch, head.seq)
    )


_SAME_THREAD = f"where ({THREAD}) = ({', '.join('?' * THREAD_END)})"
_COUNTS = "revision = ?, seq = ?, checkpoints = ?, stored = ?, updated_at = ?, checksum = ?"
_PUT_THREAD = f"update thread set {_COUNTS} {_SAME_THREAD}"
_PUT_RECENT_THREAD = f"update thread set {_COUNTS}, recent = ? {_SAME_THREAD}"
_KEY_OF_CHUNK = "select key from chunk where thread = ? and name = ?"
_PUT_CHUNK = "insert into chunk(thread, name, revision, crc, data) values(?, ?, ?, ?, ?)"
_PUT_HEAD = (
    "update head set revision = ?, epoch = ?, seq = ?, id = ?, checkpoints = ?, record = ?, checksum = ? "
    f"where digest = ? and namespace = '' and ({HEAD}) = ({', '.join('?' * len(HeadColumns._fields))})"
)
_PUT_HEAD_OF_NEWEST = (
    f"{_PUT_HEAD} and (select epoch, seq from checkpoint where thread = ? and namespace = '' "
    "order by epoch desc, seq desc limit 1) = (?, ?)"
)


class _Append:
    """One ordinary commit to a thread whose rows are remembered."""

    def __init__(self, db: apsw.Connection, commit: Commit, remembered: Remembered, rows: ThreadRows) -> None:
        self._db = db
        self._commit = commit
        self._remembered = remembered
        self._thread, self._head, self._keys = rows
        self._now = time.time_ns() // 1000

    def run(self) -> Receipt | None:
        commit, digest = self._commit, self._commit.thread.digest
        if not self._find_chunks():
            return None
        # 1. The row of the thread, if it is what is remembered. Nothing was changed before.
        thread = self._put_thread()
        if thread is None:
            self._remembered.rows.pop(digest, None)
            return None
        try:
            # 2. Chunks, before the rows that refer to them by key.
            for name, data in commit.chunks:
                crc = chunk_crc(thread.key, name, thread.revision, data)
                self._db.execute(_PUT_CHUNK, (thread.key, name, thread.revision, crc, data))
                self._keys[name] = self._db.last_insert_rowid()
            # 3. The checkpoint and the head; a head without a new checkpoint repeats the revision.
            records = tuple([self._placed(draft, thread) for draft in commit.checkpoints])
            head = self._put_checkpoint(thread, records[0]) if records else self._put_revision(thread)
            # 4. Writes, each in a place that is free.
            if commit.writes:
                self._put_writes(thread.key)
        except apsw.ConstraintError as error:  # an id, a write or a chunk is stored already
            raise Unusual from error
        self._remembered.keep(digest, ThreadRows(thread, head, self._keys))
        return Receipt(thread.generation, thread.revision, records, writes=commit.writes)

    def _find_chunks(self) -> bool:
        """Look up the keys of shared chunks; False if one is gone."""
        brought = {name for name, _ in self._commit.chunks}
        for rows in (self._commit.checkpoints, self._commit.writes):
            for row in rows:
                for name in row.chunks:
                    if name not in self._keys and name not in brought:
                        found = fetch_one(self._db, _KEY_OF_CHUNK, (self._thread.key, name))
                        if found is None:
                            return False
                        self._keys[name] = found[0]
        return True

    def _packed_keys(self, names: Sequence[bytes]) -> bytes:
        return ormsgpack.packb([self._keys[name] for name in names])

    def _put_thread(self) -> ThreadColumns | None:
        """Return the new row, if the stored one is what is remembered."""
        old, now = self._thread, self._now
        stored = old.stored + sum([len(data) for _, data in self._commit.chunks])
        count, seq = old.checkpoints, old.seq
        for draft in self._commit.checkpoints:
            count, seq, stored = count + 1, seq + 1, stored + len(draft.body)
        fields = (
            *old[:6], old.revision + 1, old.epoch, seq, count, old.entries, stored, old.created_at, now,
            old.metadata_version,
        )  # fmt: skip
        check = checksum(*fields)
        counts = (old.revision + 1, seq, count, stored, now, check)
        if now // RECENT_US == old.updated_at // RECENT_US:
            self._db.execute(_PUT_THREAD, (*counts, *old))
        else:
            self._db.execute(_PUT_RECENT_THREAD, (*counts, now // RECENT_US, *old))
        return ThreadColumns(*fields, check) if self._db.changes() else None

    def _placed(self, draft: CheckpointRecord, thread: ThreadColumns) -> CheckpointRecord:
        parent = unescape(self._head.id) if draft.follows else draft.parent
        created_at = draft.created_at or self._now
        return stamped(
            draft, epoch=thread.epoch, seq=thread.seq, created_at=created_at, parent=parent, version=draft.version
        )  # fmt: skip

    def _put_checkpoint(self, thread: ThreadColumns, record: CheckpointRecord) -> HeadColumns:
        """Put a checkpoint after the remembered head, if that is the newest in the index too."""
        old = self._head
        row = checkpoint_row(thread.key, record, self._packed_keys(record.chunks))
        place = (record.epoch, record.seq, row[2], old.checkpoints + 1, row[-1])
        head = self._put_head(_PUT_HEAD_OF_NEWEST, thread, place, thread.key, old.epoch, old.seq)
        self._db.execute(PUT_CHECKPOINT, row)
        return head

    def _put_revision(self, thread: ThreadColumns) -> HeadColumns:
        """Put the new revision into the head, which stays."""
        return self._put_head(_PUT_HEAD, thread, self._head[2:-1])

    def _put_head(
        self, sql: str, thread: ThreadColumns, place: Sequence[Any], *conditions: int
    ) -> HeadColumns:
        digest = self._commit.thread.digest
        fields: tuple[Any, ...] = (thread.key, thread.revision, *place)
        check = checksum(digest, "", *fields)
        self._db.execute(sql, (*fields[1:], check, digest, *self._head, *conditions))
        if not self._db.changes():
            raise Unusual
        return HeadColumns._make((*fields, check))

    def _put_writes(self, key: int) -> None:
        changes: dict[CheckpointKey, tuple[int, int]] = {}
        for write in self._commit.writes:
            row = write_row(key, write, self._packed_keys(write.chunks))
            self._db.execute(PUT_WRITE, row)
            count, total = changes.get(write.checkpoint_key, (0, 0))
            changes[write.checkpoint_key] = (count + 1, total ^ int.from_bytes(row[-1]))
        for (namespace, checkpoint), (count, change) in changes.items():
            where = (key, escape(namespace), escape(checkpoint))
            old = fetch_one(self._db, READ_TALLY, where)
            if old is not None:
                if old[2] != checksum(*where, *old[:2]):
                    raise Unusual
                count, change = old[0] + count, int.from_bytes(old[1]) ^ change
            self._db.execute(PUT_TALLY, tally_row(where, count, change))
