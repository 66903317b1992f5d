"""The rows of SQLite: their columns, the statements that read them, and what is derived from a row."""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from outlive.backend import CheckpointRecord, ThreadKey, WriteRecord, checksum, escape, unescape
from outlive.dataclass import dataclass

RECENT_US = 1_000_000  # what `recent` counts


class ThreadColumns(NamedTuple):
    """A row of `thread`, as it is in the file: nothing of it is checked."""

    key: Any = None
    digest: Any = None
    tenant: Any = None
    id: Any = None
    listed: Any = None
    generation: Any = None
    revision: Any = None
    epoch: Any = None
    seq: Any = None
    checkpoints: Any = None
    entries: Any = None
    stored: Any = None
    created_at: Any = None
    updated_at: Any = None
    metadata_version: Any = None
    checksum: Any = None


class HeadColumns(NamedTuple):
    """A row of `head`, as it is in the file: nothing of it is checked. All are None where there is no row."""

    thread: Any = None
    revision: Any = None
    epoch: Any = None
    seq: Any = None
    id: Any = None
    checkpoints: Any = None
    record: Any = None
    checksum: Any = None


NO_HEAD = HeadColumns()
THREAD = ", ".join(ThreadColumns._fields)
HEAD = ", ".join(HeadColumns._fields)
THREAD_END = len(ThreadColumns._fields)
ROOT_END = THREAD_END + len(HeadColumns._fields)
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
READ_ROOT = f"select {_THREAD}, {_ROOT} {_WITH_ROOT} where t.digest = ?1"
READ_OTHER = f"select {_THREAD}, {_ROOT}, {_OTHER} {_WITH_BOTH}"
SAVE_ROOT = (
    f"select {_THREAD}, {_ROOT}, {_HAS_IT}, (select epoch {_NEWEST}, (select seq {_NEWEST} "
    f"{_WITH_ROOT} where t.digest = ?1"
)
SAVE_OTHER = f"select {_THREAD}, {_ROOT}, {_OTHER}, {_HAS_IT}, (select epoch {_NEWEST}, (select seq {_NEWEST} {_WITH_BOTH}"
# Rows of threads, each with the head of its root namespace and its metadata.
THREADS = f"select {_THREAD}, {_ROOT}, t.metadata, t.metadata_json, t.metadata_checksum {_WITH_ROOT}"
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
COUNT_INDEXED = (
    "select count(*) from checkpoint i indexed by checkpoint_id cross join checkpoint c on c.key = i.key "
    "where i.thread = ? and c.id is i.id and c.namespace is i.namespace"
)
WRITES = (
    f"select 0, {WRITE} from write where thread = ?1 and namespace = ?2 and checkpoint = ?3 union all "
    f"select 1, writes, sum, checksum{', null' * 10} from tally where thread = ?1 and namespace = ?2 and checkpoint = ?3"
)
HAS = (
    "select exists(select 1 from checkpoint where thread = ?1 and id = ?3 and namespace = ?2), "
    "exists(select 1 from tally where thread = ?1 and namespace = ?2 and checkpoint = ?3) "
    "or exists(select 1 from write where thread = ?1 and namespace = ?2 and checkpoint = ?3)"
)
READ_TALLY = "select writes, sum, checksum from tally where thread = ? and namespace = ? and checkpoint = ?"
PUT_CHECKPOINT = (
    f"insert into checkpoint(thread, {CHECKPOINT}) values(?{', ?' * len(CHECKPOINT.split(', '))})"
)
PUT_WRITE = f"insert into write(thread, {WRITE}) values(?{', ?' * len(WRITE.split(', '))})"
PUT_TALLY = "insert or replace into tally(thread, namespace, checkpoint, writes, sum, checksum) values(?, ?, ?, ?, ?, ?)"
PUT_HEAD = (
    f"insert or replace into head(digest, namespace, {HEAD}) values(?, ?{', ?' * len(HeadColumns._fields)})"
)
# The tables with the rows of a thread.
TABLES = ("checkpoint", "checkpoint_version", "chunk", "write", "tally", "entry", "entry_version")
GONE = bytes(16)  # in place of the name of a chunk that is not there


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


@dataclass(slots=True)
class UncheckedThread:
    """The rows of a thread as one statement read them; nothing of them is checked yet."""

    row: ThreadColumns | None = None
    heads: dict[str, HeadColumns] = field(default_factory=dict)  # by namespace
    has_checkpoint: bool = True  # or nobody asked
    # By namespace: its (epoch, seq).
    newest: dict[str, tuple[int, int] | None] = field(default_factory=dict)


def listed_thread(row: Sequence[Any]) -> tuple[ThreadKey, UncheckedThread]:
    """Return the thread of a row of THREADS."""
    columns, root = ThreadColumns(*row[:THREAD_END]), HeadColumns(*row[THREAD_END:ROOT_END])
    key = ThreadKey(unescape(columns.tenant), unescape(columns.id or ""), bytes(columns.digest))
    return key, UncheckedThread(columns, {"": root})


def roster_key(thread: ThreadKey) -> tuple[str, str]:
    return escape(thread.tenant), escape(thread.id)


def metadata_checksum(thread_key: int, version: int, metadata: bytes, projection: str | None) -> bytes:
    """Return a checksum over the metadata of a thread and its version, to detect older copies."""
    return checksum(thread_key, version, metadata, projection)


def xor(checksums: Iterable[bytes | None]) -> int:
    """Return the xor of checksums: any missing, added or changed one shows, whatever the order."""
    return functools.reduce(
        operator.xor, (int.from_bytes(check) for check in checksums if check is not None), 0
    )


def chunk_crc(thread_key: int, name: bytes, revision: int, data: bytes) -> int:
    """Return a checksum over all of a chunk's row; it needs no key."""
    return zlib.crc32(b"%d:%d:" % (thread_key, revision) + name, zlib.crc32(data))


def checkpoint_row(thread_key: int, record: CheckpointRecord, chunk_keys: bytes) -> tuple[Any, ...]:
    """Return the values of PUT_CHECKPOINT; the last is the checksum."""
    fields = (
        thread_key, record.namespace and escape(record.namespace), escape(record.id),
        record.parent and escape(record.parent), record.run and escape(record.run), record.epoch, record.seq, record.step, record.source,
        record.created_at, record.size, record.added, record.format, record.version, record.projection, chunk_keys,
        checksum(*record.chunks), record.body,
    )  # fmt: skip
    return (*fields, checksum(*fields))


def write_row(thread_key: int, write: WriteRecord, chunk_keys: bytes) -> tuple[Any, ...]:
    """Return the values of PUT_WRITE; the last is the checksum."""
    fields = (
        thread_key, escape(write.namespace), escape(write.checkpoint), escape(write.task), write.index,
        escape(write.channel), escape(write.path), *write.rank, chunk_keys, checksum(*write.chunks), write.body,
    )  # fmt: skip
    return (*fields, checksum(*fields))


def tally_row(where: tuple[int, str, str], count: int, total: int) -> tuple[Any, ...]:
    """Return the values of PUT_TALLY: the number of writes, and the exclusive or of their checksums."""
    fields = (*where, count, total.to_bytes(8))
    return (*fields, checksum(*fields))
