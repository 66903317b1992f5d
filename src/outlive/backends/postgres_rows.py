"""Records as rows of PostgreSQL and back: parameters and results in the server's binary format."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg import pq

from ..backend import CheckpointRecord, Entry, ThreadRow, WriteRecord, checksum, escape, unescape
from ..entry_kind import check_stored_kind
from ..errors import BadArgument, Corrupt, DamagedEntry
from .view import Row

CLOCK = "postgresql"  # the name of the server's clock in leases
CHECKPOINT = (
    "c.namespace, c.id, c.parent, c.run, c.source, c.metadata::text, c.epoch, c.seq, c.step, c.created_at, c.size, "
    "c.added, c.version, c.format::bigint, c.chunks, c.body, c.checksum || c.stamp"
)
WRITE = "w.namespace, w.checkpoint, w.task, w.channel, w.path, w.idx, w.epoch, w.fence, w.revision, w.chunks, w.body, w.checksum"
ENTRY = "e.kind, e.key, e.status, e.clock, e.epoch, e.fence, e.revision, e.until, e.body, e.checksum"
THREAD = (
    "t.id, t.generation, t.revision, t.epoch, t.seq, t.checkpoints, t.stored, t.created_at, t.updated_at, t.info, "
    "t.metadata::text, t.info_version, t.info_checksum"
)
_NAME = 16  # bytes of a chunk's name

Cells = Sequence[bytes | None]


# Parameters -------------------------------------------------------------------------------------------------


def digest(*texts: str) -> bytes:
    """Return what stands for texts in an index: they may be too long for one."""
    joined = "\0".join(map(escape, texts)).encode()
    return hashlib.blake2b(joined, digest_size=16, person=b"outlive.name").digest()


@functools.lru_cache(maxsize=4096)
def space(namespace: str) -> bytes:
    """Return what stands for a namespace."""
    return digest(namespace) if namespace else b""


def text(value: str | None) -> bytes | None:
    return None if value is None else escape(value).encode()


def number(value: int | None) -> bytes | None:
    try:
        return None if value is None else value.to_bytes(8, "big", signed=True)
    except OverflowError:
        raise BadArgument(f"PostgreSQL keeps whole numbers of 64 bits, and {value} has more") from None


def flag(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def document(value: str | None) -> bytes | None:
    """Return JSON as jsonb: a version before the text."""
    return None if value is None else b"\1" + value.encode()


def blobs(values: Sequence[bytes | None]) -> bytes:
    """Return an array of bytea."""
    return _array(_BYTEA, values)


def texts(values: Sequence[str]) -> bytes:
    """Return an array of text."""
    return _array(_TEXT, [text(value) for value in values])


_BYTEA, _TEXT, _JSONB = 17, 25, 3802  # as the server numbers types


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [struct.pack(">iiIii", 1, 1, kind, len(values), 1)]
    for value in values:
        parts += (b"\xff\xff\xff\xff",) if value is None else (len(value).to_bytes(4, "big"), value)
    return b"".join(parts)


def span(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """Return the range in which the first characters of a name lie that has this prefix and comes after another."""
    low = escape(prefix)[:INDEXED]
    high = low.rstrip(_LAST)
    if high:
        following = chr(ord(high[-1]) + 1)
        high = high[:-1] + ("\ue000" if following == "\ud800" else following)
    if after is not None:
        low = max(low, escape(after)[:INDEXED])
    return low.encode(), (high or _LAST * INDEXED).encode()


INDEXED = 400  # characters of a name that an index holds
_LAST = "\U0010ffff"


def checkpoint_checksum(record: CheckpointRecord) -> bytes:
    """Cover what the client wrote."""
    return checksum(
        escape(record.namespace), escape(record.id), record.run and escape(record.run), escape(record.source), record.step,
        record.size, record.added, record.format, record.version, b"".join(record.chunks), record.body,
    )  # fmt: skip


def checkpoint_stamp(record: CheckpointRecord) -> bytes:
    """Cover what the server gave; the function stamp_1 of the schema says the same."""
    parent = "" if record.parent is None else f" {escape(record.parent)}"
    said = f"{record.epoch} {record.seq} {record.created_at}{parent}"
    return hashlib.sha256(said.encode()).digest()[:8]


def write_checksum(write: WriteRecord) -> bytes:
    texts = map(escape, (write.namespace, write.checkpoint, write.task, write.channel, write.path))
    return checksum(*texts, write.index, b"".join(write.chunks), write.body)


def entry_checksum(entry: Entry) -> bytes:
    return checksum(escape(entry.kind), escape(entry.key), entry.body or b"")


def info_checksum(info: bytes) -> bytes:
    return checksum("info", info)


def documents(values: Sequence[dict[str, Any]]) -> bytes:
    """Return an array of jsonb."""
    return _array(_JSONB, [document(json.dumps(value)) for value in values])


def checkpoint_document(record: CheckpointRecord) -> dict[str, Any]:
    """Return a record, but for its bytes."""
    return {
        "name": digest(record.namespace, record.id).hex(),
        "space": space(record.namespace).hex(),
        "epoch": record.epoch,
        "seq": record.seq,
        "created_at": record.created_at,
        "size": record.size,
        "added": record.added,
        "step": record.step,
        "version": record.version,
        "format": record.format,
        "namespace": escape(record.namespace),
        "id": escape(record.id),
        "parent": None if record.parent is None else escape(record.parent),
        "run": None if record.run is None else escape(record.run),
        "source": escape(record.source),
        "metadata": record.projection,
        "checksum": checkpoint_checksum(record).hex(),
        "stamp": checkpoint_stamp(record).hex(),
    }


def write_documents(writes: Iterable[WriteRecord]) -> list[dict[str, Any]]:
    """Return writes, but for their bytes."""
    return [
        {
            "pair": digest(write.namespace, write.checkpoint).hex(),
            "task_digest": digest(write.task).hex(),
            "index": write.index,
            "stamp": write.index < 0 and write.rank == (0, 0, 0),
            "epoch": write.rank[0],
            "fence": write.rank[1],
            "revision": write.rank[2],
            "namespace": escape(write.namespace),
            "checkpoint": escape(write.checkpoint),
            "task": escape(write.task),
            "channel": escape(write.channel),
            "path": escape(write.path),
            "checksum": write_checksum(write).hex(),
        }
        for write in writes
    ]


def entry_documents(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return entries, but for their bodies."""
    return [
        {
            "name": digest(entry.kind, entry.key).hex(),
            "kind": escape(entry.kind),
            "key": escape(entry.key),
            "status": escape(entry.status),
            "epoch": entry.epoch,
            "fence": entry.fence,
            "revision": entry.revision,
            "until": entry.until,
            "clock": escape(entry.clock),
            "lease_us": None if entry.lease_s is None else lease_us(entry.lease_s),
            "expect": entry.expect,
            "expect_lapsed": entry.expect_lapsed,
            "gone": entry.gone,
            "checksum": entry_checksum(entry).hex(),
        }
        for entry in entries
    ]


def lease_us(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise BadArgument(f"a lease is a number of seconds below a thousand million, not {seconds!r}")
    return int(seconds * 1e6)


# Results ------------------------------------------------------------------------------------------------------


def rows(result: pq.abc.PGresult) -> Iterator[list[bytes | None]]:
    """Iterate over the rows of a result."""
    get, columns = result.get_value, range(result.nfields)
    for row in range(result.ntuples):
        yield [get(row, column) for column in columns]


def to_number(cell: bytes | None) -> int:
    return 0 if cell is None else int.from_bytes(cell, "big", signed=True)


def to_text(cell: bytes | None) -> str:
    return "" if cell is None else unescape(cell.decode())


def to_maybe_text(cell: bytes | None) -> str | None:
    return None if cell is None else unescape(cell.decode())


def to_numbers(cell: bytes | None) -> list[int]:
    return [to_number(value) for value in to_blobs(cell)]


def to_blobs(cell: bytes | None) -> list[bytes]:
    """Return the elements of an array."""
    if cell is None or len(cell) <= 12:  # no dimension: it is empty
        return []
    found, at = [], 20
    while at < len(cell):
        size = int.from_bytes(cell[at : at + 4], "big")
        found.append(cell[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def to_names(cell: bytes | None) -> tuple[bytes, ...]:
    joined = cell or b""
    return tuple(joined[at : at + _NAME] for at in range(0, len(joined), _NAME))


def to_checkpoint(cells: Cells, thread: str, *, check: bool = True) -> CheckpointRecord:
    """Return the record of a row of CHECKPOINT; a damaged one is not handed out, unless it is to be removed."""
    record = CheckpointRecord(
        namespace=to_text(cells[0]),
        id=to_text(cells[1]),
        parent=to_maybe_text(cells[2]),
        run=to_maybe_text(cells[3]),
        source=to_text(cells[4]),
        projection=None if cells[5] is None else cells[5].decode(),
        epoch=to_number(cells[6]),
        seq=to_number(cells[7]),
        step=None if cells[8] is None else to_number(cells[8]),
        created_at=to_number(cells[9]),
        size=to_number(cells[10]),
        added=to_number(cells[11]),
        version=to_number(cells[12]),
        format=to_number(cells[13]),
        chunks=to_names(cells[14]),
        body=cells[15] or b"",
    )
    if check and checkpoint_checksum(record) + checkpoint_stamp(record) != cells[16]:
        raise Corrupt("its row does not match its checksum", thread=thread, checkpoint=record.id)
    return record


def to_write(cells: Cells, thread: str) -> WriteRecord:
    write = WriteRecord(
        namespace=to_text(cells[0]),
        checkpoint=to_text(cells[1]),
        task=to_text(cells[2]),
        channel=to_text(cells[3]),
        path=to_text(cells[4]),
        index=to_number(cells[5]),
        rank=(to_number(cells[6]), to_number(cells[7]), to_number(cells[8])),
        chunks=to_names(cells[9]),
        body=cells[10] or b"",
    )
    if write_checksum(write) != cells[11]:
        raise Corrupt(
            "a pending write does not match its checksum", thread=thread, checkpoint=write.checkpoint
        )
    return write


def to_entry(cells: Cells, thread: str) -> Entry:
    entry = Entry(
        kind=to_text(cells[0]),
        key=to_text(cells[1]),
        status=to_text(cells[2]),
        clock=to_text(cells[3]),
        epoch=to_number(cells[4]),
        fence=to_number(cells[5]),
        revision=to_number(cells[6]),
        until=to_number(cells[7]),
        body=cells[8] or b"",
    )
    if entry_checksum(entry) != cells[9]:
        raise DamagedEntry(thread, entry.kind, entry.key, entry.status)
    check_stored_kind(entry.kind, thread)
    return entry


def to_thread_row(cells: Cells, head: CheckpointRecord | None) -> ThreadRow:
    if cells[9] is not None and info_checksum(cells[9]) != cells[12]:
        raise Corrupt("its metadata does not match its checksum", thread=to_text(cells[0]))
    return ThreadRow(
        id=to_text(cells[0]),
        generation=to_number(cells[1]),
        revision=to_number(cells[2]),
        epoch=to_number(cells[3]),
        seq=to_number(cells[4]),
        checkpoints=to_number(cells[5]),
        stored=to_number(cells[6]),
        created_at=to_number(cells[7]),
        updated_at=to_number(cells[8]),
        info=cells[9],
        info_projection=None if cells[10] is None else cells[10].decode(),
        info_version=to_number(cells[11]),
        head=head,
    )


def to_row(cells: Cells) -> Row:
    """Return the counters (generation, revision, epoch, seq, created_at, info_version)."""
    return Row(*(to_number(cell) for cell in cells))
