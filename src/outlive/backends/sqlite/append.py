"""The fast path of an ordinary save: a checkpoint of the root namespace, pending writes, entries.

Most commits are of this kind, so they have a path of their own. It only knows success. Where a
commit or a thread is not what it expects (a new thread, a repeated id, a stale generation, another
head, a damaged row), nothing is changed, and the general path (`decide` and `Writer`) judges the
commit from the start. So there is one place for every refusal and for every kind of damage.

The fast path reads nothing of a thread that this process has written before. It remembers the row
of the thread and that of its head as it wrote or read them last, and the updates compare every
column with what is stored: a row that another process wrote, or that was damaged, is not found. The
newest checkpoint of the index is compared in the same way. The keys of chunks are remembered with
the row of their thread, and count only while that is the stored one: a file that was restored from
a backup under an open store may have other chunks in the same generation. A transaction that is
rolled back forgets what was remembered.

What a run writes is of this kind too: a step, or a checkpoint, with the renewal of its leases. The
entries that were written last are remembered with the row of their thread. Their updates compare
the status of an entry and the checksums of both of its rows, and write the other columns. A fence
is compared with what is remembered, which the row of the thread vouches for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import apsw
import ormsgpack

from outlive.backend import (
    NEXT,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Receipt,
    ThreadKey,
    WriteRecord,
    checksum,
    escape,
    stamped,
    unescape,
)
from outlive.backend.clock import Clock, clock
from outlive.backend.entries import KINDS
from outlive.backends.rules.decide import resolved_entry
from outlive.backends.rules.snapshot import adds_only
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.entries import EntryMoved, StoredEntry, put_entry
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
_MAX_ENTRIES = 8  # of a thread
_MAX_BODY = 8 << 10  # bytes of one
_NO_ENTRY = StoredEntry(None)


EntryKey = tuple[str, str]  # (kind, key)


class Unusual(Exception):
    """The fast path met something unusual after it had written: roll back, and take the general path."""


class ThreadRows:
    """The row of a thread, that of the head of its root namespace, the keys of its chunks by name, some entries."""

    __slots__ = ("entries", "head", "head_id", "keys", "thread")

    def __init__(
        self,
        thread: ThreadColumns,
        head: HeadColumns,
        keys: dict[bytes, int],
        entries: dict[EntryKey, StoredEntry],
    ) -> None:
        self.thread = thread
        self.entries = entries
        self.head = head
        self.head_id = None if head.id is None else unescape(head.id)
        self.keys = keys


def note_entry(entries: dict[EntryKey, StoredEntry], key: EntryKey, stored: StoredEntry) -> None:
    """Remember an entry as it was written; the oldest one is forgotten when there are many."""
    entries.pop(key, None)
    if stored.entry is None or len(stored.entry.body or b"") > _MAX_BODY:
        return
    if len(entries) >= _MAX_ENTRIES:
        del entries[next(iter(entries))]
    entries[key] = stored


class Remembered:
    """The rows of threads as this process wrote or read them last."""

    def __init__(self) -> None:
        self.rows: dict[bytes, ThreadRows] = {}

    def of(
        self, digest: bytes, stored: ThreadColumns | None, generation: int
    ) -> tuple[dict[bytes, int], dict[EntryKey, StoredEntry]]:
        """Return what is known of the chunks and entries of a thread; a generation keeps all chunks."""
        known = self.rows.get(digest)
        if known is None or known.thread != stored or known.thread.generation != generation:
            return {}, {}
        return known.keys, known.entries

    def keep(self, digest: bytes, rows: ThreadRows) -> None:
        """Keep the rows of a listed thread; others take the general path."""
        if not rows.thread.listed:
            self.rows.pop(digest, None)
            return
        if digest not in self.rows and len(self.rows) >= _MAX_THREADS:
            self.rows.pop(next(iter(self.rows)))
        self.rows[digest] = rows

    def forget(self) -> None:
        """Drop everything: what a transaction that was rolled back wrote is not true."""
        self.rows.clear()


def is_ordinary(commit: Commit) -> bool:
    """Tell whether a commit only adds: a checkpoint to the root namespace, first writes of tasks, entries."""
    if commit.epoch is not None or not adds_only(commit):
        return False
    for draft in commit.checkpoints:
        if draft.namespace:
            return False
    for write in commit.writes:
        if write.index < 0:  # of a control write the last one wins
            return False
    for entry in commit.entries:
        if (
            entry.gone
            or entry.fence == NEXT
            or entry.expect is not None
            or entry.expect_lapsed
            or entry.kind not in KINDS
        ):
            return False
    return bool(commit.checkpoints or commit.writes or commit.entries)


def append(db: apsw.Connection, commit: Commit, remembered: Remembered) -> Receipt | None:
    """Do a commit, if it is ordinary, inside the transaction of the caller.

    None: it belongs on the general path, and nothing was changed. Raises `Unusual` when something
    was: the caller rolls back. A crash before the caller commits leaves nothing of it.
    """
    if not is_ordinary(commit):
        return None
    digest = commit.thread.digest
    rows = remembered.rows.get(digest) or _read(db, commit.thread, remembered)
    if rows is None or not _is_expected(db, commit, rows):
        return None
    # 1. The row of the thread, if the stored one is what is remembered. Until here nothing was
    #    changed. What follows also changes what is remembered: a rollback forgets all of that.
    lease_clock = clock() if commit.entries else None
    now = time.time_ns() // 1000 if lease_clock is None else lease_clock.now
    thread = _put_thread(db, commit, rows, now)
    if thread is None:
        remembered.rows.pop(digest, None)
        return None
    head_id = rows.head_id
    records: tuple[CheckpointRecord, ...] = ()
    try:
        # 2. Chunks, before the rows that refer to them by key.
        for name, data in commit.chunks:
            crc = chunk_crc(thread.key, name, thread.revision, data)
            db.execute(_PUT_CHUNK, (thread.key, name, thread.revision, crc, data))
            rows.keys[name] = db.last_insert_rowid()
        # 3. The checkpoint and the head; a head without a new checkpoint repeats the revision.
        if commit.checkpoints:
            (draft,), old = commit.checkpoints, rows.head
            record = stamped(
                draft, epoch=thread.epoch, seq=thread.seq, created_at=draft.created_at or now,
                parent=rows.head_id if draft.follows else draft.parent, version=draft.version,
            )  # fmt: skip
            row = checkpoint_row(
                thread.key, record, ormsgpack.packb([*map(rows.keys.__getitem__, record.chunks)])
            )
            columns = (
                thread.key,
                thread.revision,
                record.epoch,
                record.seq,
                row[2],
                old.checkpoints + 1,
                row[-1],
            )
            newest = (thread.key, old.epoch, old.seq)  # in the index too
            head = _put_head(db, _PUT_HEAD_OF_NEWEST, digest, old, columns, *newest)
            db.execute(PUT_CHECKPOINT, row)
            head_id, records = record.id, (record,)
        else:
            columns = (thread.key, thread.revision, *rows.head[2:-1])
            sql = _PUT_HEAD if head_id is not None else _PUT_NO_HEAD
            head = _put_head(db, sql, digest, rows.head, columns)
        # 4. Writes, each in a place that is free.
        if commit.writes:
            _put_writes(db, commit.writes, thread.key, rows.keys)
        # 5. Entries, each new or in the place of the one that is remembered.
        entries: tuple[EntryRecord, ...] = ()
        if lease_clock is not None:
            entries = _put_entries(db, commit.entries, thread.key, rows.entries, lease_clock)
    except (
        apsw.ConstraintError,
        EntryMoved,
    ) as error:  # an id, a write, a chunk or an entry is stored already
        raise Unusual from error
    rows.thread, rows.head, rows.head_id = thread, head, head_id
    return Receipt(thread.generation, thread.revision, records, entries=entries, writes=commit.writes)


def _read(db: apsw.Connection, thread: ThreadKey, remembered: Remembered) -> ThreadRows | None:
    """Read and remember the rows of a thread; None if there is none, it has no head, or a row is damaged."""
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
    if not is_sound:
        return None
    rows = ThreadRows(columns, head, {}, {})
    remembered.keep(thread.digest, rows)
    return rows


def _is_expected(db: apsw.Connection, commit: Commit, rows: ThreadRows) -> bool:
    """Tell whether a commit fits what is remembered, which the updates compare with what is stored."""
    thread, head, keys = rows.thread, rows.head, rows.keys
    if (
        (commit.generation is not None and commit.generation != thread.generation)
        or (commit.expect_head is not None and commit.expect_head != ("", rows.head_id))
        or (thread.epoch, thread.seq) < (head.epoch, head.seq)
        or (rows.head_id is None and commit.checkpoints)
        or ((commit.entries or commit.fence is not None) and not _holds(commit, rows.entries))
    ):
        return False
    # Every chunk that it names must be brought, or be there in the generation that it names.
    brought = dict(commit.chunks)
    records: Sequence[CheckpointRecord | WriteRecord] = (*commit.checkpoints, *commit.writes)
    for record in records:
        for name in record.chunks:
            if name in brought:
                continue
            if commit.generation is None:
                return False
            if name not in keys:
                stored = fetch_one(db, _KEY_OF_CHUNK, (thread.key, name))
                if stored is None:
                    return False
                keys[name] = stored[0]
    return True


def _holds(commit: Commit, entries: dict[EntryKey, StoredEntry]) -> bool:
    """Tell whether a fence is that of a running entry, and each entry is new or renews one."""
    fence = commit.fence
    if fence is not None:
        holder = entries.get((fence.kind, fence.key), _NO_ENTRY).entry
        if holder is None or holder.status != "running" or holder.as_fence() != fence:
            return False
    for entry in commit.entries:
        stored = entries.get((entry.kind, entry.key), _NO_ENTRY).entry
        if stored is None:
            if entry.body is None:  # the body of one that is not remembered
                return False
        elif entry.status != stored.status or entry.rank < stored.rank:
            return False
    return len(commit.entries) < 2 or len({(entry.kind, entry.key) for entry in commit.entries}) == len(
        commit.entries
    )


# What `_make` of the two calls, without the call.
_thread_columns: Callable[[Iterable[Any]], ThreadColumns] = partial(tuple.__new__, ThreadColumns)
_head_columns: Callable[[Iterable[Any]], HeadColumns] = partial(tuple.__new__, HeadColumns)
_SAME_THREAD = f"where ({THREAD}) = ({', '.join('?' * THREAD_END)})"
_COUNTS = "revision = ?, seq = ?, checkpoints = ?, entries = ?, stored = ?, updated_at = ?, checksum = ?"
_PUT_THREAD = f"update thread set {_COUNTS} {_SAME_THREAD}"
_PUT_RECENT_THREAD = f"update thread set {_COUNTS}, recent = ? {_SAME_THREAD}"
_KEY_OF_CHUNK = "select key from chunk where thread = ? and name = ?"
_PUT_CHUNK = "insert into chunk(thread, name, revision, crc, data) values(?, ?, ?, ?, ?)"
_PUT_HEAD = (
    "update head set revision = ?, epoch = ?, seq = ?, id = ?, checkpoints = ?, record = ?, checksum = ? "
    f"where digest = ? and namespace = '' and ({HEAD}) = ({', '.join('?' * len(HeadColumns._fields))})"
)
_PUT_NO_HEAD = _PUT_HEAD.replace(") = (", ") is (")  # NULL equals nothing, and is NULL
_PUT_HEAD_OF_NEWEST = (
    f"{_PUT_HEAD} and (select epoch, seq from checkpoint where thread = ? and namespace = '' "
    "order by epoch desc, seq desc limit 1) = (?, ?)"
)


def _put_thread(db: apsw.Connection, commit: Commit, rows: ThreadRows, now: int) -> ThreadColumns | None:
    """Return the new row, if the stored one is what is remembered."""
    old = rows.thread
    count, seq, entries, stored = old.checkpoints, old.seq, old.entries, old.stored
    for entry in commit.entries:
        entries += (entry.kind, entry.key) not in rows.entries
    for _, data in commit.chunks:
        stored += len(data)
    for draft in commit.checkpoints:
        count, seq, stored = count + 1, seq + 1, stored + len(draft.body)
    fields = (
        *old[:6], old.revision + 1, old.epoch, seq, count, entries, stored, old.created_at, now,
        old.metadata_version,
    )  # fmt: skip
    check = checksum(*fields)
    counts = (old.revision + 1, seq, count, entries, stored, now, check)
    if now // RECENT_US == old.updated_at // RECENT_US:
        db.execute(_PUT_THREAD, (*counts, *old))
    else:
        db.execute(_PUT_RECENT_THREAD, (*counts, now // RECENT_US, *old))
    return _thread_columns((*fields, check)) if db.changes() else None


def _put_head(
    db: apsw.Connection, sql: str, digest: bytes, old: HeadColumns, new: Sequence[Any], *conditions: int
) -> HeadColumns:
    check = checksum(digest, "", *new)
    db.execute(sql, (*new[1:], check, digest, *old, *conditions))
    if not db.changes():
        raise Unusual
    return _head_columns((*new, check))


def _put_writes(db: apsw.Connection, writes: Sequence[WriteRecord], key: int, keys: dict[bytes, int]) -> None:
    changes: dict[CheckpointKey, tuple[int, int]] = {}
    for write in writes:
        row = write_row(key, write, ormsgpack.packb([*map(keys.__getitem__, write.chunks)]))
        db.execute(PUT_WRITE, row)
        count, total = changes.get(write.checkpoint_key, (0, 0))
        changes[write.checkpoint_key] = (count + 1, total ^ int.from_bytes(row[-1]))
    for (namespace, checkpoint), (count, change) in changes.items():
        where = (key, escape(namespace), escape(checkpoint))
        old = fetch_one(db, READ_TALLY, where)
        if old is not None:
            if old[2] != checksum(*where, *old[:2]):
                raise Unusual
            count, change = old[0] + count, int.from_bytes(old[1]) ^ change
        db.execute(PUT_TALLY, tally_row(where, count, change))


def _put_entries(
    db: apsw.Connection,
    entries: Sequence[EntryRecord],
    key: int,
    remembered: dict[EntryKey, StoredEntry],
    lease_clock: Clock,
) -> tuple[EntryRecord, ...]:
    put = []
    for entry in entries:
        entry_key = (entry.kind, entry.key)
        old = remembered.get(entry_key, _NO_ENTRY)
        new = resolved_entry(entry, old.entry, 0, lease_clock)
        note_entry(remembered, entry_key, put_entry(db, key, new, old, must_be_new=True))
        put.append(new)
    return tuple(put)
