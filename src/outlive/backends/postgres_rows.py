"""Records as rows of PostgreSQL and back: parameters and results in the server's binary format."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence

from psycopg import pq

from ..backend import CheckpointRecord, Entry, ThreadRow, WriteRecord, checksum, escape, unescape
from ..errors import Corrupt
from .rules import Row

CLOCK = "postgresql"  # the name of the server's clock in leases
CHECKPOINT = (
    "c.namespace, c.id, c.parent, c.run, c.source, c.metadata::text, c.epoch, c.seq, c.step, c.created_at, c.size, "
    "c.added, c.version, c.format::bigint, c.chunks, c.body, c.checksum"
)
WRITE = "w.namespace, w.checkpoint, w.task, w.channel, w.path, w.idx, w.epoch, w.fence, w.revision, w.chunks, w.body"
ENTRY = "e.kind, e.key, e.status, e.clock, e.epoch, e.fence, e.revision, e.until, e.body"
THREAD = (
    "t.id, t.generation, t.revision, t.epoch, t.seq, t.checkpoints, t.stored, t.created_at, t.updated_at, t.info, "
    "t.metadata::text, t.info_version"
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
    return None if value is None else value.to_bytes(8, "big", signed=True)


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


_BYTEA, _TEXT = 17, 25  # as the server numbers types


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
    """Cover what the client wrote; the server's own fields are given by the server."""
    names = b"".join(record.chunks)
    return checksum(
        escape(record.namespace),
        escape(record.id),
        record.step,
        record.size,
        record.format,
        names,
        record.body,
    )


def write_document(writes: Iterable[WriteRecord]) -> str:
    """Return writes, but for their bytes, as the server's function reads them."""
    return json.dumps(
        [
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
            }
            for write in writes
        ]
    )


def entry_document(entries: Iterable[Entry]) -> str:
    """Return entries, but for their bodies, as the server's function reads them."""
    return json.dumps(
        [
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
                "lease_us": None if entry.lease_s is None else int(entry.lease_s * 1e6),
                "expect": entry.expect,
                "expect_lapsed": entry.expect_lapsed,
                "gone": entry.gone,
            }
            for entry in entries
        ]
    )


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


def to_checkpoint(cells: Cells, thread: str) -> CheckpointRecord:
    """Return the record of a row of CHECKPOINT; a damaged one is not handed out."""
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
    if checkpoint_checksum(record) != cells[16]:
        raise Corrupt("its row does not match its checksum", thread=thread, checkpoint=record.id)
    return record


def to_write(cells: Cells) -> WriteRecord:
    return WriteRecord(
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


def to_entry(cells: Cells) -> Entry:
    return Entry(
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


def to_thread_row(cells: Cells, head: CheckpointRecord | None) -> ThreadRow:
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
