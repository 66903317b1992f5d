"""Records as rows of PostgreSQL and back: parameters and results in the server's binary format."""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from psycopg import pq

from outlive.backend import (
    CheckpointKey,
    CheckpointRecord,
    EntryRecord,
    ThreadKey,
    ThreadRecord,
    WriteRecord,
    checksum,
    escape,
    unescape,
)
from outlive.backend.entries import KINDS, LISTING, check_stored_kind, wakes
from outlive.backends.rules.view import Counters, write_order
from outlive.errors import BadArgument, Corrupt, DamagedEntry

CLOCK = "postgresql"  # the name of the server's clock in leases
CHECKPOINT = (
    "c.namespace, c.id, c.parent, c.run, c.source, c.metadata::text, c.epoch, c.seq, c.step, c.created_at, c.size, "
    "c.added, c.version, c.format::bigint, c.chunks, c.body, c.checksum, c.row_checksum"
)
WRITE = "w.namespace, w.checkpoint, w.task, w.channel, w.path, w.idx, w.epoch, w.fence, w.revision, w.chunks, w.body, w.checksum, w.row_checksum"
ENTRY = "e.kind, e.key, e.status, e.clock, e.epoch, e.fence, e.revision, e.until, e.body, e.checksum, e.row_checksum"
THREAD = (
    "t.id, t.generation, t.revision, t.epoch, t.seq, t.checkpoints, t.stored, t.created_at, t.updated_at, t.metadata, "
    "t.metadata_json::text, t.metadata_version, t.metadata_checksum, t.digest"
)
_NAME = 16  # bytes of a chunk's name
# Kinds that do not list their thread, of which it may have many: they are added up apart from the
# others. So a thread whose sum of the others is not 0 is listed.
MANY = tuple(kind for kind in KINDS if kind not in LISTING)

Cells = Sequence[bytes | None]


# Parameters --------------------------------------------------------------------------------------


def digest(*texts: str) -> bytes:
    """Return the digest of texts for an index: they may be too long for one."""
    joined = "\0".join(map(escape, texts)).encode()
    return hashlib.blake2b(joined, digest_size=16, person=b"outlive.name").digest()


@functools.lru_cache(maxsize=4096)
def space(namespace: str) -> bytes:
    """Return the digest of a namespace."""
    return digest(namespace) if namespace else b""


@functools.lru_cache(maxsize=64)
def tenant_digest(tenant: str) -> bytes:
    return digest(tenant)


@functools.lru_cache(maxsize=4096)  # every write of a run names its entry and that of its place
def entry_name(kind: str, key: str) -> bytes:
    """Return the digest of an entry; those of many and those of few are apart in the index."""
    return (b"\1" if kind in MANY else b"\0") + digest(kind, key)


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


def numbers(values: Sequence[int | None]) -> bytes:
    """Return an array of bigint."""
    try:  # all at once takes a fifth of the time
        cells = [cell for value in values for cell in (8, value)]
        return struct.pack(f">iiIii{'iq' * len(values)}", 1, 1, _BIGINT, len(values), 1, *cells)
    except struct.error:  # there is a null, or a number that is too great
        pass
    return _array(_BIGINT, [number(value) for value in values])


def flags(values: Sequence[bool]) -> bytes:
    """Return an array of boolean."""
    return _array(_BOOL, [flag(value) for value in values])


def texts(values: Sequence[str]) -> bytes:
    """Return an array of text."""
    return _array(_TEXT, [text(value) for value in values])


_BOOL, _BYTEA, _BIGINT, _TEXT, _JSONB = 16, 17, 20, 25, 3802  # as the server numbers types


def _array(kind: int, values: Sequence[bytes | None]) -> bytes:
    parts = [struct.pack(">iiIii", 1, 1, kind, len(values), 1)]
    for value in values:
        parts += (b"\xff\xff\xff\xff",) if value is None else (len(value).to_bytes(4, "big"), value)
    return b"".join(parts)


def span(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """Return the range of the first characters of names with a prefix that come after another."""
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


def checkpoint_row_checksum(thread: bytes, record: CheckpointRecord, checksum: bytes) -> int:
    """Cover what the server gave; the function checkpoint_row_checksum_1 says the same."""
    parent = "" if record.parent is None else f" {escape(record.parent)}"
    return _row_checksum(thread + checksum, f"{record.epoch} {record.seq} {record.created_at}{parent}")


def write_row_checksum(thread: bytes, write: WriteRecord, checksum: bytes) -> int:
    return _row_checksum(thread + checksum, "{} {} {}".format(*write.rank))


def entry_row_checksum(thread: ThreadKey, entry: EntryRecord, checksum: bytes) -> int:
    names = "\n".join(map(escape, (entry.clock, entry.status, entry.kind, entry.key)))
    lasting = _row_checksum(
        thread.digest + entry_name(entry.kind, entry.key) + digest(thread.tenant) + checksum,
        f"{entry.epoch} {entry.fence} {entry.revision}\n{names}",
    )
    return lasting ^ entry.until


def _row_checksum(covered: bytes, text: str) -> int:
    return int.from_bytes(hashlib.sha256(covered + text.encode()).digest()[:8], "big", signed=True)


def write_checksum(write: WriteRecord) -> bytes:
    texts = map(escape, (write.namespace, write.checkpoint, write.task, write.channel, write.path))
    return checksum(*texts, write.index, b"".join(write.chunks), write.body)


def entry_checksum(entry: EntryRecord) -> bytes:
    return checksum(escape(entry.kind), escape(entry.key), entry.body or b"")


def metadata_checksum(metadata: bytes) -> bytes:
    return checksum("metadata", metadata)


def documents(values: Sequence[dict[str, Any]]) -> bytes:
    """Return an array of jsonb."""
    return _array(_JSONB, [document(json.dumps(value)) for value in values])


def checkpoint_document(thread: ThreadKey, record: CheckpointRecord) -> dict[str, Any]:
    """Return a record, but for its bytes."""
    checksum = checkpoint_checksum(record)
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
        "checksum": checksum.hex(),
        "row_checksum": checkpoint_row_checksum(thread.digest, record, checksum),
    }


def write_documents(writes: Iterable[WriteRecord]) -> list[dict[str, Any]]:
    """Return writes, but for their bytes."""
    return [
        {
            "pair": digest(*write.checkpoint_key).hex(),
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


def checksummed_writes(thread: ThreadKey, writes: Iterable[WriteRecord]) -> list[dict[str, Any]]:
    """Return writes whose ranks are known, with their row checksums."""
    writes = list(writes)
    return [
        {**row, "row_checksum": write_row_checksum(thread.digest, write, bytes.fromhex(row["checksum"]))}
        for write, row in zip(writes, write_documents(writes), strict=True)
    ]


def entry_documents(entries: Iterable[EntryRecord]) -> list[dict[str, Any]]:
    """Return entries, but for their bodies."""
    return [
        {
            "name": entry_name(entry.kind, entry.key).hex(),
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
            **({"wakes": True} if wakes((entry,)) else {}),
        }
        for entry in entries
    ]


def checksummed_entries(thread: ThreadKey, entries: Iterable[EntryRecord]) -> list[dict[str, Any]]:
    """Return entries whose fences and leases are known, with their row checksums."""
    entries = list(entries)
    return [
        {**row, "row_checksum": entry_row_checksum(thread, entry, bytes.fromhex(row["checksum"]))}
        for entry, row in zip(entries, entry_documents(entries), strict=True)
    ]


def lease_us(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise BadArgument(f"a lease is a number of seconds below a thousand million, not {seconds!r}")
    return int(seconds * 1e6)


# Results -----------------------------------------------------------------------------------------


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
    blobs, at = [], 20
    while at < len(cell):
        size = int.from_bytes(cell[at : at + 4], "big")
        blobs.append(cell[at + 4 : at + 4 + size])
        at += 4 + size
    return blobs


def to_names(cell: bytes | None) -> tuple[bytes, ...]:
    joined = cell or b""
    return tuple(joined[at : at + _NAME] for at in range(0, len(joined), _NAME))


def to_checkpoint(cells: Cells, thread: ThreadKey, *, check: bool = True) -> CheckpointRecord:
    """Return the record of a row of CHECKPOINT. A damaged one is returned only for its removal."""
    try:
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
    except Corrupt as error:  # an id that cannot be read
        raise Corrupt(error.what, thread=thread.id) from None
    if check:
        checksum = checkpoint_checksum(record)
        if checksum != cells[16] or checkpoint_row_checksum(thread.digest, record, checksum) != to_number(
            cells[17]
        ):
            raise Corrupt("its row does not match its checksum", thread=thread.id, checkpoint=record.id)
    return record


def to_writes(answer: Iterable[Cells], thread: ThreadKey) -> list[WriteRecord]:
    """Return the writes of rows of WRITE, in order. Raise when a checkpoint has others."""
    writes: list[WriteRecord] = []
    tallies: dict[CheckpointKey, tuple[int, int]] = {}
    sums: dict[CheckpointKey, tuple[int, int]] = {}
    for cells in answer:
        pair = to_text(cells[0]), to_text(cells[1])
        if not cells[11]:
            tallies[pair] = to_number(cells[6]), to_number(cells[7])
            continue
        writes.append(_to_write(cells, thread))
        count, total = sums.get(pair, (0, 0))
        sums[pair] = count + 1, total ^ to_number(cells[12])
    for pair in {*tallies, *sums}:
        if tallies.get(pair) != sums.get(pair):
            raise Corrupt(
                "its pending writes are not all that were stored", thread=thread.id, checkpoint=pair[1]
            )
    return sorted(writes, key=write_order)


def _to_write(cells: Cells, thread: ThreadKey) -> WriteRecord:
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
    checksum = write_checksum(write)
    if checksum != cells[11] or write_row_checksum(thread.digest, write, checksum) != to_number(cells[12]):
        raise Corrupt(
            "a pending write does not match its checksum", thread=thread.id, checkpoint=write.checkpoint
        )
    return write


def to_entry(cells: Cells, thread: ThreadKey) -> EntryRecord:
    entry = EntryRecord(
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
    checksum = entry_checksum(entry)
    if checksum != cells[9] or entry_row_checksum(thread, entry, checksum) != to_number(cells[10]):
        raise DamagedEntry(thread.id, entry.kind, entry.key, entry.status)
    check_stored_kind(entry.kind, thread.id)
    return entry


def to_thread_row(cells: Cells, key: ThreadKey, head: CheckpointRecord | None) -> ThreadRecord:
    if (None if cells[9] is None else metadata_checksum(cells[9])) != cells[12]:
        raise Corrupt("its metadata does not match its checksum", thread=key.id)
    if key.digest != cells[13] or key.id != to_text(cells[0]):
        raise Corrupt("its row says that it is another thread", thread=key.id)
    return ThreadRecord(
        id=key.id,
        generation=to_number(cells[1]),
        revision=to_number(cells[2]),
        epoch=to_number(cells[3]),
        seq=to_number(cells[4]),
        checkpoints=to_number(cells[5]),
        stored=to_number(cells[6]),
        created_at=to_number(cells[7]),
        updated_at=to_number(cells[8]),
        metadata=cells[9],
        metadata_projection=None if cells[10] is None else cells[10].decode(),
        metadata_version=to_number(cells[11]),
        head=head,
    )


def to_row(cells: Cells) -> Counters:
    """Return the counters (generation, revision, epoch, seq, created_at, metadata_version)."""
    return Counters(*(to_number(cell) for cell in cells))
