"""The rows of one thread in SQLite inside a transaction: read, checked, and made into records."""

from __future__ import annotations

import functools
import itertools
import operator
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import ormsgpack

from outlive.backend import (
    CheckpointRecord,
    Cursor,
    EntryRecord,
    HistoryQuery,
    ThreadKey,
    ThreadRecord,
    WriteRecord,
    checksum,
    escape,
    unescape,
)
from outlive.backends.rules.view import Counters, write_order
from outlive.backends.sqlite.checked_thread import CheckedThread, UncheckedThread, guess, look_up
from outlive.backends.sqlite.connection import fetch_one
from outlive.backends.sqlite.entries import StoredEntry, find_entry
from outlive.errors import Corrupt

CHECKPOINT = "namespace, id, parent, run, epoch, seq, step, source, created_at, size, added, format, version, metadata, chunks, names, body, checksum"
WRITE = (
    "namespace, checkpoint, task, idx, channel, path, epoch, fence, revision, chunks, names, body, checksum"
)
_VERSION = (
    "(select v.checksum from checkpoint_version v "
    "where v.thread = c.thread and v.namespace = c.namespace and v.id = c.id)"
)
RECORD = f"select {', '.join(f'c.{name}' for name in CHECKPOINT.split(', '))}, {_VERSION} from checkpoint c"
# Ids in the index that their own rows have too: a page of it may have been replaced by one of
# another index.
_COUNT_INDEXED = (
    "select count(*) from checkpoint i indexed by checkpoint_id cross join checkpoint c on c.key = i.key "
    "where i.thread = ? and c.id is i.id and c.namespace is i.namespace"
)
_WRITES = (
    f"select 0, {WRITE} from write where thread = ?1 and namespace = ?2 and checkpoint = ?3 union all "
    f"select 1, writes, sum, checksum{', null' * 10} from tally where thread = ?1 and namespace = ?2 and checkpoint = ?3"
)
_HAS = (
    "select exists(select 1 from checkpoint where thread = ?1 and id = ?3 and namespace = ?2), "
    "exists(select 1 from tally where thread = ?1 and namespace = ?2 and checkpoint = ?3) "
    "or exists(select 1 from write where thread = ?1 and namespace = ?2 and checkpoint = ?3)"
)
# The tables with the rows of a thread.
TABLES = ("checkpoint", "checkpoint_version", "chunk", "write", "tally", "entry", "entry_version")
GONE = bytes(16)  # in place of the name of a chunk that is not there


class KnownKeys:
    """Keys of chunks, by thread and name.

    They are valid for a generation, which keeps all chunks.
    """

    def __init__(self) -> None:
        self._threads: dict[bytes, tuple[int, dict[bytes, int]]] = {}

    def of(self, digest: bytes, row: Counters) -> dict[bytes, int]:
        """Return the keys of a thread in its present generation."""
        known = self._threads.get(digest)
        if known is None or known[0] != row.generation:
            if len(self._threads) >= _KNOWN_THREADS:
                self._threads.pop(next(iter(self._threads)))
            known = self._threads[digest] = (row.generation, {})
        return known[1]

    def forget(self) -> None:
        """Drop everything: what a transaction that was rolled back said is not true."""
        self._threads.clear()


_KNOWN_THREADS = 1000


class SQLiteView(CheckedThread):
    """One thread as it is inside a transaction."""

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
        super().__init__(db, thread, unchecked, deletes=deletes)
        self._no_draft: tuple[str, str] | None = None
        if draft is not None and not unchecked.has_checkpoint:
            self._no_draft = (draft.namespace, draft.id)
        # Of each, those that were looked for:
        self._chunks: dict[bytes, tuple[int, int] | None] = {}
        self._names: dict[int, bytes] = {}  # of chunks, by key
        self._entries: dict[tuple[str, str], StoredEntry] = {}
        self.have_writes: set[tuple[str, str]] = set()
        self.write_checksums: dict[tuple[str, str, str, int], bytes | None] = {}

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
        is_there, is_written = fetch_one(self._db, _HAS, (self.key, escape(pair[0]), escape(pair[1])))
        if is_written:
            self.have_writes.add(pair)
        return bool(is_there or is_written)

    def info(self) -> bytes | None:
        row = fetch_one(self._db, "select info from thread where key = ?", (self.key,))
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

    # Records

    def newest(self, namespace: str, at: int | None) -> CheckpointRecord | None:
        if at is not None:
            return self._newest_at(namespace, at)
        head = self.head_row(namespace)
        place = (self.key, escape(namespace))
        newest = f"{RECORD} where c.thread = ? and c.namespace = ? order by c.epoch desc, c.seq desc limit 1"
        row = fetch_one(self._db, newest, place)
        if head is None and row is None:
            return None
        if head is None:
            raise self._corrupt(f"the head of namespace {namespace!r} is gone")
        if row is not None and row[1] != head.id:  # two of one place, or the head is not the newest
            row = fetch_one(self._db, newest.replace("seq desc", "seq desc, c.id desc"), place)
        if row is None or (row[4], row[5], row[1]) < head.order:
            raise self._corrupt("the newest checkpoint is gone", unescape(head.id or ""))
        if (row[4], row[5], row[1]) != head.order:
            raise self._corrupt(
                f"the head of namespace {namespace!r} is an older copy of itself", guess(row[1])
            )
        record = self.record(row)
        if row[17] != head.record:
            raise self._corrupt("its record is an older copy of itself", record.id)
        return record

    def _newest_at(self, namespace: str, at: int) -> CheckpointRecord | None:
        """Look at all rows: SQL would pass over one whose time or place is damaged."""
        self.check_count(namespace)
        records = list(self._records(namespace, None))
        return next((record for record in records if record.created_at <= at), None)

    def page(self, query: HistoryQuery) -> list[CheckpointRecord]:
        if query.before is None:
            self.check_count(query.namespace)
            if query.namespace is not None:
                # Its place may have been changed to that of another page.
                self.check_head(query.namespace)
        records = self._records(query.namespace, query.before)
        matches = (record for record in records if query.run is None or record.run == query.run)
        return list(itertools.islice(matches, query.limit))

    def _records(self, namespace: str | None, before: Cursor | None) -> Iterator[CheckpointRecord]:
        """Yield records, newest first, each one checked."""
        where, values = "thread = ?", [self.key]
        if namespace is not None:
            where, values = where + " and namespace = ?", [*values, escape(namespace)]  # type: ignore[list-item]
        if before is not None:
            where, values = where + " and (epoch, seq, id) < (?, ?, ?)", [*values, *before]  # type: ignore[list-item]
        sql = f"{RECORD} where {where} order by epoch desc, seq desc, id desc"
        for row in self._db.execute(sql, values):
            yield self.record(row)

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

    def check_absent(self, namespace: str) -> None:
        """Make sure that what was not found was never there: look at every row, and count them."""
        self.check_count(namespace)
        for _ in self._records(namespace, None):
            pass
        self.check_index()

    def check_index(self) -> None:
        """Make sure that every checkpoint is found by its id."""
        count = fetch_one(self._db, _COUNT_INDEXED, (self.key,))[0]
        if count != self.checkpoints:
            raise self._corrupt(f"its index of ids has {count} checkpoints instead of {self.checkpoints}")

    def check_count(self, namespace: str | None) -> None:
        """Compare how many checkpoints there are with how many there should be."""
        head = None if namespace is None else self.head_row(namespace)
        expected = self.checkpoints if namespace is None else head.checkpoints if head else 0
        count = self._count_rows(namespace)
        if count != expected:
            where = "it" if namespace is None else f"namespace {namespace!r}"
            raise self._corrupt(f"{where} has {count} checkpoints instead of {expected}")

    def _count_rows(self, namespace: str | None) -> int:
        if namespace is None:
            row = fetch_one(self._db, "select count(*) from checkpoint where thread = ?", (self.key,))
        else:
            sql = "select count(*) from checkpoint where thread = ? and namespace = ?"
            row = fetch_one(self._db, sql, (self.key, escape(namespace)))
        return int(row[0])

    def data(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        chunks = {}
        for name in names:
            row = fetch_one(
                self._db, "select data from chunk where thread = ? and name = ?", (self.key, name)
            )
            if row is not None:
                chunks[name] = row[0]
        return chunks

    def writes_of(self, namespace: str, checkpoint: str) -> list[WriteRecord]:
        where = (self.key, escape(namespace), escape(checkpoint))
        rows: list[Any] = self._db.execute(_WRITES, where).fetchall()
        if not rows:
            return []
        tally = rows.pop()[1:4] if rows[-1][0] else None
        count, total = self._checked_tally(where, tally, checkpoint)
        if len(rows) != count:
            raise self._corrupt(f"it has {len(rows)} writes instead of {count}", checkpoint)
        if xor(row[13] for row in rows) != total:
            raise self._corrupt("one of its writes is damaged or is an older copy of itself", checkpoint)
        return sorted((self._write(row[1:]) for row in rows), key=write_order)

    def tally(self, namespace: str, checkpoint: str) -> tuple[int, int]:
        """Return how many writes a checkpoint has, and the exclusive or of their checksums."""
        where = (self.key, escape(namespace), escape(checkpoint))
        sql = "select writes, sum, checksum from tally where thread = ? and namespace = ? and checkpoint = ?"
        return self._checked_tally(where, fetch_one(self._db, sql, where), checkpoint)

    def _checked_tally(
        self, where: tuple[int, str, str], row: Sequence[Any] | None, checkpoint: str
    ) -> tuple[int, int]:
        if row is None:
            return 0, 0
        if row[2] != checksum(*where, *row[:2]):
            raise self._corrupt("the count of its writes is damaged", checkpoint)
        return row[0], int.from_bytes(row[1])

    def written(self) -> list[tuple[str, str]]:
        sql = "select namespace, checkpoint from tally where thread = ? union select namespace, checkpoint from write where thread = ?"
        return [(unescape(ns), unescape(id)) for ns, id in self._db.execute(sql, (self.key, self.key))]

    def _write(self, row: Sequence[Any]) -> WriteRecord:
        *fields, check = row
        if check != checksum(self.key, *fields):
            raise self._corrupt("a write is damaged", guess(row[1]))
        ns, checkpoint, task, index, channel, path, epoch, fence, revision, keys, names, body = fields
        return WriteRecord(
            unescape(ns), unescape(checkpoint), unescape(task), index, unescape(channel), unescape(path), body,
            self._chunk_names(keys, names, unescape(checkpoint)), (epoch, fence, revision),
        )  # fmt: skip

    def summary(
        self, info: bytes | None, projection: str | None, check: bytes | None, heads: bool = True
    ) -> ThreadRecord:
        assert self.counters is not None
        row = self.counters
        if check != (None if info is None else info_checksum(self.key, row.info_version, info, projection)):
            raise self._corrupt("its metadata is damaged")
        head = self.newest("", None) if heads else None
        return ThreadRecord(
            self.thread.id, row.generation, row.revision, row.epoch, row.seq, self.checkpoints, self.stored,
            row.created_at, self.updated_at, info, projection, row.info_version, head,
        )  # fmt: skip


def info_checksum(thread_key: int, version: int, info: bytes, projection: str | None) -> bytes:
    """Return a checksum over the metadata of a thread and its version, to detect older copies."""
    return checksum(thread_key, version, info, projection)


def xor(checksums: Iterable[bytes | None]) -> int:
    """Return the xor of checksums: any missing, added or changed one shows, whatever the order."""
    return functools.reduce(
        operator.xor, (int.from_bytes(check) for check in checksums if check is not None), 0
    )


def chunk_crc(thread_key: int, name: bytes, revision: int, data: bytes) -> int:
    """Return a checksum over all of a chunk's row; it needs no key."""
    return zlib.crc32(b"%d:%d:" % (thread_key, revision) + name, zlib.crc32(data))


def _keys(packed: bytes) -> list[int]:
    keys = ormsgpack.unpackb(packed)
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        raise Corrupt("a list of chunks is damaged")
    return keys
