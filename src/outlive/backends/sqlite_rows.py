"""The rows of one thread in SQLite, as they are inside a transaction: found, checked, and made into records."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import ormsgpack

from ..backend import (
    CheckpointRecord,
    Cursor,
    Entry,
    ThreadKey,
    ThreadRow,
    WriteRecord,
    checksum,
    escape,
    unescape,
)
from ..entry_kind import check_stored_kind
from ..errors import Corrupt, DamagedEntry
from .memory import write_order
from .view import Row

CHECKPOINT = "namespace, id, parent, run, epoch, seq, step, source, created_at, size, added, format, version, metadata, chunks, names, body, checksum"
WRITE = (
    "namespace, checkpoint, task, idx, channel, path, epoch, fence, revision, chunks, names, body, checksum"
)
ENTRY = "kind, key, status, epoch, fence, revision, until, clock, body, checksum"
THREAD = (
    "key, digest, tenant, id, listed, generation, revision, epoch, seq, checkpoints, entries, stored, created_at, updated_at, "
    "info_version, checksum"
)


HEAD = "epoch, seq, id, checkpoints, checksum"
# What a save asks of its thread: its row, whether the checkpoint is there, and the head. (A join would be
# prepared anew for every value that is bound.)
_FOR_SAVE = (
    f"select {THREAD}, exists(select 1 from checkpoint where thread = t.key and id = ?3 and namespace = ?2) "
    f"from thread t where digest = ?1 union all "
    f"select {HEAD}{', null' * 12} from head where digest = ?1 and namespace = ?2"
)
_HAS = (
    "select exists(select 1 from checkpoint where thread = ?1 and id = ?3 and namespace = ?2), "
    "exists(select 1 from tally where thread = ?1 and namespace = ?2 and checkpoint = ?3) "
    "or exists(select 1 from write where thread = ?1 and namespace = ?2 and checkpoint = ?3)"
)
GONE = bytes(16)  # in place of the name of a chunk that is not there


class KnownKeys:
    """Keys of chunks, by thread and name. No chunk goes without a new generation, so within one they hold."""

    def __init__(self) -> None:
        self._threads: dict[bytes, tuple[int, dict[bytes, int]]] = {}

    def of(self, digest: bytes, row: Row) -> dict[bytes, int]:
        """Return the keys of a thread in its present generation."""
        held = self._threads.get(digest)
        if held is None or held[0] != row.generation:
            if len(self._threads) >= _KNOWN_THREADS:
                self._threads.pop(next(iter(self._threads)))
            held = self._threads[digest] = (row.generation, {})
        return held[1]

    def forget(self) -> None:
        """Drop everything: what a transaction that was rolled back said is not true."""
        self._threads.clear()


_KNOWN_THREADS = 1000


class Rows:
    """One thread as it is inside a transaction."""

    def __init__(
        self,
        db: apsw.Connection,
        thread: ThreadKey,
        row: Sequence[Any] | None = None,
        draft: CheckpointRecord | None = None,
        *,
        deletes: bool = False,  # then it may be damaged
    ) -> None:
        self._db = db
        self.thread = thread
        self.row: Row | None = None
        self.key = self.checkpoints = self.entries = self.stored = self.updated_at = 0
        self.is_listed = False
        self._heads: dict[str, Sequence[Any] | None] = {}
        self._unchecked: dict[str, Sequence[Any] | None] = {}  # heads that came along with the row
        self._no_draft: tuple[str, str] | None = None
        self._chunks: dict[bytes, tuple[int, int] | None] = {}  # those that were looked for
        self.have_writes: set[tuple[str, str]] = set()  # of those that were looked for
        self.absent_writes: set[tuple[str, str, str, int]] = (
            set()
        )  # writes that were looked for and are not there
        self._names: dict[int, bytes] = {}  # of chunks, by key
        found = row or self._find_row(draft)
        if found is not None:
            self._load(found, deletes)
        elif one(db, "select 1 from roster where tenant = ? and id = ?", _roster_key(thread)) is not None:
            if not deletes:
                raise Corrupt("its row is gone", thread=thread.id)
            self.is_listed = True

    def _find_row(self, draft: CheckpointRecord | None) -> Sequence[Any] | None:
        """Return the thread's row; with a draft, look at what its commit asks next in the same statement."""
        digest = self.thread.digest
        if draft is None:
            row: Any = one(self._db, f"select {THREAD} from thread where digest = ?", (digest,))
            return row  # type: ignore[no-any-return]
        rows: list[Any] = self._db.execute(
            _FOR_SAVE, (digest, escape(draft.namespace), escape(draft.id))
        ).fetchall()
        if not rows or rows[0][16] is None:
            return None
        self._unchecked[draft.namespace] = rows[1][:5] if len(rows) > 1 else None
        if not rows[0][16]:
            self._no_draft = (draft.namespace, draft.id)
        return rows[0][:16]  # type: ignore[no-any-return]

    def _load(self, row: Sequence[Any], deletes: bool) -> None:
        *fields, check = row
        if check != checksum(*fields):
            if not deletes:
                raise Corrupt("its row is damaged", thread=self.thread.id)
            self._salvage(row)
            return
        self.key, self.is_listed = row[0], bool(row[4])
        self.checkpoints, self.entries, self.stored, self.updated_at = row[9], row[10], row[11], row[13]
        self.row = Row(row[5], row[6], row[7], row[8], row[12], row[14])

    def _salvage(self, row: Sequence[Any]) -> None:
        """Tell from a damaged row and those around it what a thread needs that begins anew: no seq is used again."""
        self.key, self.is_listed = row[0], True
        self._db.execute("update thread set tenant = ? where key = ?", (escape(self.thread.tenant), self.key))
        around = "select max(epoch), max(seq), count(*) from checkpoint where thread = ?"
        epoch, seq, self.checkpoints = one(self._db, around, (self.key,))
        (revision,) = one(self._db, "select max(revision) from chunk where thread = ?", (self.key,))
        self.row = Row(
            0,
            _greatest(row[6], revision),
            _greatest(row[7], epoch),
            _greatest(row[8], seq),
            _greatest(row[12]),
        )

    def _corrupt(self, what: str, checkpoint: str | None = None) -> Corrupt:
        return Corrupt(what, thread=self.thread.id, checkpoint=checkpoint)

    # What `decide` asks

    def find(self, namespace: str, id: str) -> CheckpointRecord | None:
        if self._no_draft == (namespace, id):
            return None
        row = one(
            self._db,
            f"select {CHECKPOINT} from checkpoint where thread = ? and id = ? and namespace = ?",
            (self.key, escape(id), escape(namespace)),
        )
        return None if row is None else self._record(row)

    def head(self, namespace: str) -> str | None:
        row = self.head_row(namespace)
        return None if row is None else unescape(row[2])

    def count(self) -> int:
        return self.checkpoints

    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None:
        namespace, checkpoint, task, index = key
        row = one(
            self._db,
            f"select {WRITE} from write where thread = ? and namespace = ? and checkpoint = ? and task = ? and idx = ?",
            (self.key, escape(namespace), escape(checkpoint), escape(task), index),
        )
        if row is None:
            self.absent_writes.add(key)
            return None
        return self._write(row)

    def has(self, pair: tuple[str, str]) -> bool:
        is_there, is_written = one(self._db, _HAS, (self.key, escape(pair[0]), escape(pair[1])))
        if is_written:
            self.have_writes.add(pair)
        return bool(is_there or is_written)

    def info(self) -> bytes | None:
        row = one(self._db, "select info from thread where key = ?", (self.key,))
        return None if row is None else row[0]

    def entry(self, kind: str, key: str) -> Entry | None:
        row = one(
            self._db,
            f"select {ENTRY} from entry where thread = ? and kind = ? and key = ?",
            (self.key, escape(kind), escape(key)),
        )
        return None if row is None else entry_of(self.key, self.thread.id, row)

    def chunk(self, name: bytes) -> tuple[int, int] | None:
        if name not in self._chunks:
            sql = "select length(data), revision from chunk where thread = ? and name = ?"
            row = one(self._db, sql, (self.key, name))
            self._chunks[name] = None if row is None else (row[0], row[1])
        return self._chunks[name]

    def chunk_key(self, name: bytes) -> int | None:
        """Return the key under which a chunk is stored."""
        row = one(self._db, "select key from chunk where thread = ? and name = ?", (self.key, name))
        return None if row is None else row[0]

    def _chunk_names(self, keys: bytes, check: bytes, checkpoint: str) -> tuple[bytes, ...]:
        """Return the names behind the keys of a record, checked: no row of `chunk` can stand in for another.

        A chunk that is gone gets a name that no chunk has: the record can be listed and deleted, not loaded.
        """
        names = []
        for key in _keys(keys):
            name = self._names.get(key)
            if name is None:
                row = one(self._db, "select name from chunk where key = ? and thread = ?", (key, self.key))
                name = self._names[key] = row[0] if row is not None else GONE
            names.append(name)
        if GONE not in names and check != checksum(*names):
            raise self._corrupt("its chunks are damaged", checkpoint)
        return tuple(names)

    # Records

    def newest(self, namespace: str, at: int | None) -> CheckpointRecord | None:
        if at is not None:
            return self._newest_at(namespace, at)
        head = self.head_row(namespace)
        if head is None:
            if self._count_rows(namespace):
                raise self._corrupt(f"the head of namespace {namespace!r} is gone")
            return None
        record = self.find(namespace, unescape(head[2]))
        if record is None:
            raise self._corrupt("the newest checkpoint is gone", unescape(head[2]))
        return record

    def _newest_at(self, namespace: str, at: int) -> CheckpointRecord | None:
        """Look at all rows: SQL would pass over one whose time or place is damaged."""
        self.check_count(namespace)
        records = list(self._records(namespace, None))
        return next((record for record in records if record.created_at <= at), None)

    def page(
        self, namespace: str | None, before: Cursor | None, limit: int, run: str | None
    ) -> list[CheckpointRecord]:
        if before is None:
            self.check_count(namespace)
        found = (record for record in self._records(namespace, before) if run is None or record.run == run)
        return list(itertools.islice(found, limit))

    def _records(self, namespace: str | None, before: Cursor | None) -> Iterator[CheckpointRecord]:
        """Yield records, newest first, each one checked."""
        where, values = "thread = ?", [self.key]
        if namespace is not None:
            where, values = where + " and namespace = ?", [*values, escape(namespace)]  # type: ignore[list-item]
        if before is not None:
            where, values = where + " and (epoch, seq, id) < (?, ?, ?)", [*values, *before]  # type: ignore[list-item]
        sql = f"select {CHECKPOINT} from checkpoint where {where} order by epoch desc, seq desc, id desc"
        for row in self._db.execute(sql, values):
            yield self._record(row)

    def _record(self, row: Sequence[Any]) -> CheckpointRecord:
        *fields, check = row
        if check != checksum(self.key, *fields):
            raise self._corrupt("its record is damaged", _guess(row[1]))
        (
            ns,
            id,
            parent,
            run,
            epoch,
            seq,
            step,
            source,
            created_at,
            size,
            added,
            format,
            version,
            projection,
            keys,
            names,
            body,
        ) = fields
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

    def head_row(self, namespace: str) -> Sequence[Any] | None:
        """Return (epoch, seq, id, count, checksum) of a namespace, checked."""
        if namespace in self._heads:
            return self._heads[namespace]
        name = escape(namespace)
        row: Sequence[Any] | None = (
            self._unchecked[namespace] if namespace in self._unchecked else self._select_head(name)
        )
        if row is not None and row[4] != checksum(self.thread.digest, name, *row[:4]):
            raise self._corrupt(f"the head of namespace {namespace!r} is damaged", _guess(row[2]))
        self._heads[namespace] = row
        return row

    def _select_head(self, name: str) -> Any:
        sql = f"select {HEAD} from head where digest = ? and namespace = ?"
        return one(self._db, sql, (self.thread.digest, name))

    def check_absent(self, namespace: str) -> None:
        """Make sure that what was not found was never there: look at every row, and count them."""
        self.check_count(namespace)
        for _ in self._records(namespace, None):
            pass

    def check_count(self, namespace: str | None) -> None:
        """Compare how many checkpoints there are with how many there should be."""
        head = None if namespace is None else self.head_row(namespace)
        expected = self.checkpoints if namespace is None else head[3] if head else 0
        count = self._count_rows(namespace)
        if count != expected:
            where = "it" if namespace is None else f"namespace {namespace!r}"
            raise self._corrupt(f"{where} has {count} checkpoints instead of {expected}")

    def _count_rows(self, namespace: str | None) -> int:
        if namespace is None:
            row = one(self._db, "select count(*) from checkpoint where thread = ?", (self.key,))
        else:
            sql = "select count(*) from checkpoint where thread = ? and namespace = ?"
            row = one(self._db, sql, (self.key, escape(namespace)))
        return int(row[0])

    def data(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {}
        for name in names:
            row = one(self._db, "select data from chunk where thread = ? and name = ?", (self.key, name))
            if row is not None:
                found[name] = row[0]
        return found

    def writes_of(self, namespace: str, checkpoint: str) -> list[WriteRecord]:
        where = (self.key, escape(namespace), escape(checkpoint))
        rows = self._db.execute(
            f"select {WRITE} from write where thread = ? and namespace = ? and checkpoint = ?", where
        ).fetchall()
        tally = one(
            self._db,
            "select writes, checksum from tally where thread = ? and namespace = ? and checkpoint = ?",
            where,
        )
        if tally is not None and tally[1] != checksum(*where, tally[0]):
            raise self._corrupt("the count of its writes is damaged", checkpoint)
        if len(rows) != (tally[0] if tally else 0):
            raise self._corrupt(
                f"it has {len(rows)} writes instead of {tally[0] if tally else 0}", checkpoint
            )
        return sorted((self._write(row) for row in rows), key=write_order)

    def written(self) -> list[tuple[str, str]]:
        sql = "select namespace, checkpoint from tally where thread = ? union select namespace, checkpoint from write where thread = ?"
        return [(unescape(ns), unescape(id)) for ns, id in self._db.execute(sql, (self.key, self.key))]

    def _write(self, row: Sequence[Any]) -> WriteRecord:
        *fields, check = row
        if check != checksum(self.key, *fields):
            raise self._corrupt("a write is damaged", _guess(row[1]))
        ns, checkpoint, task, index, channel, path, epoch, fence, revision, keys, names, body = fields
        return WriteRecord(
            unescape(ns), unescape(checkpoint), unescape(task), index, unescape(channel), unescape(path), body,
            self._chunk_names(keys, names, unescape(checkpoint)), (epoch, fence, revision),
        )  # fmt: skip

    def summary(
        self, info: bytes | None, projection: str | None, check: bytes | None, heads: bool = True
    ) -> ThreadRow:
        assert self.row is not None
        if check != (None if info is None else checksum(self.key, info, projection)):
            raise self._corrupt("its metadata is damaged")
        row = self.row
        head = self.newest("", None) if heads else None
        return ThreadRow(
            self.thread.id, row.generation, row.revision, row.epoch, row.seq, self.checkpoints, self.stored,
            row.created_at, self.updated_at, info, projection, row.info_version, head,
        )  # fmt: skip

    # The thread's own row

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

    def audit(self) -> list[Corrupt]:
        """Look at every row of the thread."""
        found: list[Corrupt] = []

        def guarded(look: Any) -> None:
            try:
                look()
            except Corrupt as error:
                found.append(error)

        if self.row is None:
            return found
        guarded(lambda: self.check_count(None))
        info = one(self._db, "select info, info_json, info_checksum from thread where key = ?", (self.key,))
        guarded(lambda: self.summary(*info))
        for row in self._db.execute(
            f"select {CHECKPOINT} from checkpoint where thread = ?", (self.key,)
        ).fetchall():
            guarded(lambda row=row: self._record(row))
        heads = "select namespace from head where digest = ? union select namespace from checkpoint where thread = ?"
        for (namespace,) in self._db.execute(heads, (self.thread.digest, self.key)).fetchall():
            guarded(lambda namespace=namespace: self._audit_head(unescape(namespace)))
        guarded(lambda: [self.writes_of(*pair) for pair in self.written()])
        for row in self._db.execute(f"select {ENTRY} from entry where thread = ?", (self.key,)).fetchall():
            guarded(lambda row=row: entry_of(self.key, self.thread.id, row))
        count = one(self._db, "select count(*) from entry where thread = ?", (self.key,))[0]
        if count != self.entries:
            found.append(self._corrupt(f"it has {count} entries instead of {self.entries}"))
        sql = "select name, revision, crc, data from chunk where thread = ?"
        for name, revision, crc, data in self._db.execute(sql, (self.key,)):
            if crc != chunk_crc(self.key, name, revision, data):
                found.append(self._corrupt(f"chunk {name.hex()} is damaged"))
        return found

    def _audit_head(self, namespace: str) -> None:
        self.newest(namespace, None)
        self.check_count(namespace)


def entry_of(thread_key: int, thread: str, row: Sequence[Any]) -> Entry:
    *fields, check = row
    if check != checksum(thread_key, *fields):
        if not all(isinstance(field, str) for field in fields[:3]):
            raise Corrupt(f"an entry of kind {row[0]!r} is damaged", thread=thread)
        raise DamagedEntry(thread, *[unescape(field) for field in fields[:3]])
    kind, key, status, epoch, fence, revision, until, clock, body = fields
    check_stored_kind(kind, thread)
    return Entry(kind, unescape(key), body, unescape(status), epoch, fence, revision, until, clock)


def chunk_crc(thread_key: int, name: bytes, revision: int, data: bytes) -> int:
    """Return a checksum over all of a chunk's row; it needs no key."""
    return zlib.crc32(b"%d:%d:" % (thread_key, revision) + name, zlib.crc32(data))


def _keys(packed: bytes) -> list[int]:
    keys = ormsgpack.unpackb(packed)
    if not isinstance(keys, list) or not all(isinstance(key, int) for key in keys):
        raise Corrupt("a list of chunks is damaged")
    return keys


def thread_key(tenant: str, id: str | None, digest: bytes) -> ThreadKey:
    return ThreadKey(unescape(tenant), unescape(id or ""), bytes(digest))


def _greatest(*counters: Any) -> int:
    """Return the greatest of counters that may be anything."""
    return max((one for one in counters if type(one) is int and 0 <= one < 1 << 53), default=0)


def _guess(id: Any) -> str | None:
    """Name a checkpoint whose row is damaged, as far as it can be read."""
    return id if isinstance(id, str) else None


def one(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """Return the first row or None, leaving no statement open."""
    rows = db.execute(sql, values).fetchall()
    return rows[0] if rows else None


def _roster_key(thread: ThreadKey) -> tuple[str, str]:
    return escape(thread.tenant), escape(thread.id)
