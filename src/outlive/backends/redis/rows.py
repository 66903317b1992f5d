"""A thread's records as values in Redis: packed, checked and unpacked. The Lua files lay out the same values.

What the server adds at commit (place, time, parent, rank, lease) stands in front of what the client packed. The
client's part ends with a checksum of its own, which the server's short checksum takes in, so that every byte is
covered. Ids stand in the field names only, and the client's checksum binds a value to its field and thread.
"""

from __future__ import annotations

import functools
import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import ormsgpack

from outlive.backend import (
    NEXT,
    CheckpointRecord,
    EntryRecord,
    Rank,
    ThreadKey,
    ThreadRow,
    WriteRecord,
    escape,
    unescape,
)
from outlive.backend.entries import check_stored_kind
from outlive.backends.rules.view import Row
from outlive.errors import BadArgument, Corrupt, DamagedEntry

BUCKETS = 1024  # for ever: a thread's keys depend on it
CLOCK = "redis"  # leases are timed by the server
LAST = b"\xff"  # the last member of an order; its score is the revision
_NONE = 0xFFFFFFFF
_LETTERS = "mrocwe"  # meta, records, order, chunks, writes, entries
_RECORD = ("step", "source", "size", "added", "body", "projection", "format", "version")
_fields_of = attrgetter(*_RECORD)
_lengths = struct.Struct(">III")
_place = struct.Struct(">QQQI")
_row = re.compile(rb"(\d+ ){13}[0-9a-f]*")  # what the scripts take for one


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a thread: six of its own, two indexes and the roster of its bucket. All are in one slot.

    On a single server the identity of the store is added: there one script may look at both.
    """

    bucket: int
    all: tuple[str, ...]

    @classmethod
    @functools.lru_cache(1024)  # making them takes longer than all else that is done with them
    def of(cls, prefix: str, digest: bytes, *, is_single: bool) -> Keys:
        bucket = int.from_bytes(digest[:2], "big") % BUCKETS
        base = f"{prefix}{{{bucket}}}:{digest.hex()}:"
        own = [base + letter for letter in _LETTERS]
        store = (identity_key(prefix),) if is_single else ()
        return cls(
            bucket,
            (
                *own,
                threads_key(prefix, bucket),
                entries_key(prefix, bucket),
                roster_key(prefix, bucket),
                *store,
            ),
        )


def threads_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:threads"


def entries_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:entries"


def roster_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:roster"


BUCKET_KEYS = (threads_key, entries_key, roster_key)


def identity_key(prefix: str) -> str:
    return f"{prefix}identity"


def text(value: str) -> bytes:
    return escape(value).encode()


def plain(value: bytes) -> str:
    """Undo `text`; what was not made by it is damage."""
    try:
        return unescape(value.decode())
    except ValueError as error:
        raise Corrupt("a stored id cannot be read") from error


def pair_field(namespace: str, id: str) -> bytes:
    return text(namespace) + b"\0" + text(id)


def write_field(write: tuple[str, str, str, int]) -> bytes:
    return b"\0".join((text(write[0]), text(write[1]), text(write[2]), b"%d" % write[3]))


def entry_field(kind: str, key: str) -> bytes:
    return text(kind) + b"\0" + text(key)


def order_bytes(epoch: int, seq: int) -> bytes:
    return struct.pack(">QQ", epoch, seq)


def _sum(data: bytes) -> bytes:
    """The short checksum that a script can make too."""
    return hashlib.sha1(data).hexdigest()[:8].encode()  # noqa: S324  # against accidents, not against people


def _seal(thread: ThreadKey, field: bytes, blob: bytes) -> bytes:
    """The checksum of the client, over thread, field and content."""
    sealed = hashlib.blake2b(thread.digest, digest_size=8, person=b"outlive.redis")
    sealed.update(b"%d:" % len(field) + field)
    sealed.update(blob)
    return sealed.digest()


def chunk_crc(name: bytes, data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(name, zlib.crc32(data))


def stamp_of(thread: ThreadKey, name: bytes, stamp: bytes | None) -> tuple[int, bytes]:
    """Return the revision with which a chunk is stamped, and the checksum of its bytes."""
    said, _, check = (stamp or b"").rpartition(b" ")
    if check != _sum(name + said):
        raise Corrupt(f"the stamp of chunk {name.hex()} is damaged", thread=thread.id)
    revision, crc = said.split()
    return int(revision), crc


# Checkpoints ----------------------------------------------------------------------------------------------


def record_blob(thread: ThreadKey, field: bytes, record: CheckpointRecord) -> bytes:
    """Pack what the client knows of a record."""
    names = pack_names(record.chunks)
    run = b"" if record.run is None else text(record.run)
    lengths = _lengths.pack(len(names), len(record.body), _NONE if record.run is None else len(run))
    blob = b"".join((lengths, names, run, _packed(_fields_of(record))))
    return blob + _seal(thread, field, blob)


def _packed(values: Any) -> bytes:
    try:
        return ormsgpack.packb(values)
    except TypeError as error:  # a lone surrogate in a projection, or a number beyond 64 bits
        raise BadArgument(f"a record of this commit cannot be stored: {error}") from error


def record_value(thread: ThreadKey, field: bytes, record: CheckpointRecord) -> bytes:
    """Pack a whole record whose place is decided."""
    blob = record_blob(thread, field, record)
    parent = b"" if record.parent is None else text(record.parent)
    place = _place.pack(
        record.epoch, record.seq, record.created_at, _NONE if record.parent is None else len(parent)
    )
    return place + _sum(place + parent + blob[-8:]) + parent + blob


def record_of(thread: ThreadKey, field: bytes, value: bytes) -> CheckpointRecord:
    """Return a record, checked."""
    namespace, id = _ids(thread, field)
    try:
        return _record(thread, field, value, namespace, id)
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise Corrupt("its record is damaged", thread=thread.id, checkpoint=id) from error


def _record(thread: ThreadKey, field: bytes, value: bytes, namespace: str, id: str) -> CheckpointRecord:
    epoch, seq, created_at, length = _place.unpack_from(value)
    end = 36 + (0 if length == _NONE else length)
    parent, blob = value[36:end], value[end:]
    if value[28:36] != _sum(value[:28] + parent + blob[-8:]) or blob[-8:] != _seal(thread, field, blob[:-8]):
        raise ValueError("checksum")
    n_names, _, n_run = _lengths.unpack_from(blob)
    at = 12 + n_names + (0 if n_run == _NONE else n_run)
    step, source, size, added, body, projection, format, version = ormsgpack.unpackb(blob[at:-8])
    return CheckpointRecord(
        namespace, id, None if length == _NONE else plain(parent), None if n_run == _NONE else plain(blob[12 + n_names : at]),
        step, source, size, added, unpack_names(blob[12 : 12 + n_names]), body, projection, format, epoch, seq,
        created_at, version,
    )  # fmt: skip


def _ids(thread: ThreadKey, field: bytes) -> tuple[str, str]:
    namespace, nul, id = field.partition(b"\0")
    if not nul:
        raise Corrupt("the name of a record is damaged", thread=thread.id)
    try:
        return plain(namespace), plain(id)
    except Corrupt as error:
        raise Corrupt("the name of a record is damaged", thread=thread.id) from error


# Writes -----------------------------------------------------------------------------------------------------


def pack_names(names: Sequence[bytes]) -> bytes:
    """Write the names of chunks, each behind its length."""
    try:
        return b"".join([bytes((len(name),)) + name for name in names])
    except ValueError:
        raise BadArgument("the name of a chunk has at most 255 bytes") from None


def unpack_names(packed: bytes) -> tuple[bytes, ...]:
    names, at = [], 0
    while at < len(packed):
        end = at + 1 + packed[at]
        names.append(packed[at + 1 : end])
        at = end
    return tuple(names)


def rank_hex(rank: Rank) -> bytes:
    """Write a rank so that bytes compare as the numbers do."""
    if not all(0 <= number < 1 << 63 for number in rank):
        raise BadArgument(f"a rank has numbers from 0 to 2**63 - 1, not {rank!r}")
    return b"%016x%016x%016x" % rank


def _rank(value: bytes) -> Rank:
    return int(value[:16], 16), int(value[16:32], 16), int(value[32:48], 16)


def write_blob(thread: ThreadKey, field: bytes, write: WriteRecord) -> bytes:
    names = pack_names(write.chunks)
    blob = (
        struct.pack(">I", len(names)) + names + _packed((text(write.channel), text(write.path), write.body))
    )
    return blob + _seal(thread, field, blob)


def write_value(thread: ThreadKey, field: bytes, write: WriteRecord) -> bytes:
    blob, rank = write_blob(thread, field, write), rank_hex(write.rank)
    return rank + _sum(rank + blob[-8:]) + blob


def write_of(thread: ThreadKey, field: bytes, value: bytes | None) -> WriteRecord:
    """Return a write, checked."""
    parts = field.split(b"\0")
    try:
        namespace, checkpoint, task = (plain(part) for part in parts[:3])
        index = int(parts[3])
    except (ValueError, IndexError, Corrupt) as error:
        raise Corrupt("the name of a write is damaged", thread=thread.id) from error
    try:
        if value is None:
            raise ValueError("gone")
        blob = value[56:]
        if value[48:56] != _sum(value[:48] + blob[-8:]) or blob[-8:] != _seal(thread, field, blob[:-8]):
            raise ValueError("checksum")
        (n_names,) = struct.unpack_from(">I", blob)
        channel, path, body = ormsgpack.unpackb(blob[4 + n_names : -8])
        names = unpack_names(blob[4 : 4 + n_names])
        return WriteRecord(
            namespace, checkpoint, task, index, plain(channel), plain(path), body, names, _rank(value)
        )
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise Corrupt("a write is damaged", thread=thread.id, checkpoint=checkpoint) from error


# Entries ----------------------------------------------------------------------------------------------------


def entry_payload(thread: ThreadKey, field: bytes, body: bytes) -> bytes:
    return body + _seal(thread, field, body)


def entry_rank(entry: EntryRecord) -> bytes:
    return rank_hex((entry.epoch, 0 if entry.fence == NEXT else entry.fence, entry.revision))


def until_hex(until: int) -> bytes:
    if not 0 <= until < 1 << 63:
        raise BadArgument(f"the end of a lease is a number from 0 to 2**63 - 1, not {until!r}")
    return b"%016x" % until


def entry_value(thread: ThreadKey, field: bytes, entry: EntryRecord) -> bytes:
    head = entry_rank(entry) + until_hex(entry.until)
    status, clock = text(entry.status), text(entry.clock)
    tail = struct.pack(">II", len(status), len(clock)) + status + clock
    payload = entry_payload(thread, field, entry.body or b"")
    return head + _sum(head + tail + payload[-8:]) + tail + payload


def entry_of(thread: ThreadKey, field: bytes, value: bytes | None) -> EntryRecord:
    """Return an entry, checked."""
    kind, key = _ids(thread, field)
    check_stored_kind(kind, thread.id)
    try:
        if value is None:
            raise ValueError("gone")
        n_status, n_clock = struct.unpack_from(">II", value, 72)
        start = 80 + n_status + n_clock
        tail, payload = value[72:start], value[start:]
        if value[64:72] != _sum(value[:64] + tail + payload[-8:]) or payload[-8:] != _seal(
            thread, field, payload[:-8]
        ):
            raise ValueError("checksum")
        epoch, fence, revision = _rank(value)
        status, clock = plain(value[80 : 80 + n_status]), plain(value[80 + n_status : start])
        return EntryRecord(
            kind, key, payload[:-8], status, epoch, fence, revision, int(value[48:64], 16), clock
        )
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise DamagedEntry(thread.id, kind, key, "") from error


# The row of a thread ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stored:
    """The row of a thread, with its counts."""

    row: Row
    tokens: bytes  # in hex
    updated_at: int
    checkpoints: int
    writes: int
    entries: int
    bytes: int
    has_info: bool
    has_end: bool

    @property
    def is_listed(self) -> bool:
        return bool(self.checkpoints or self.writes or self.has_info)


def stored_of(thread: ThreadKey, raw: bytes | None) -> Stored | None:
    """Return the row of a thread, checked; None when there is none."""
    if raw is None:
        return None
    if raw.startswith(b"!"):  # what a script found out
        raise damage_of(thread, raw[1:])
    said, check = raw[:-9], raw[-8:]
    if _sum(thread.digest.hex().encode() + said) != check or not _row.fullmatch(said):
        raise Corrupt("its row is damaged", thread=thread.id)
    *numbers, tokens = said.split(b" ")
    g, v, e, s, c, u, n, w, k, b, x, i, z = map(int, numbers)
    return Stored(Row(g, v, e, s, c, x), tokens, u, n, w, k, b, bool(i), bool(z))


TORN = b"?"  # what a script says of a bucket whose roster is gone


def damage_of(thread: ThreadKey, found: bytes) -> Corrupt:
    """Return the error for what a script found out about a thread."""
    what = "the roster of its bucket is gone" if found == TORN else found.decode(errors="replace")
    return Corrupt(what, thread=thread.id)


def is_ending(ttl_ms: int) -> bool:
    """Tell whether keys that disagree may be those of a thread that a TTL is just taking, while a clock is set back."""
    return 0 <= ttl_ms < 1000


def is_torn(reply: Sequence[Any]) -> bool:
    """Tell whether a script gave up because the indexes of its bucket are not what they should be."""
    return bool(reply[0] == b"!" + TORN or (reply[0] == b"damaged" and reply[1] == TORN))


def info_value(thread: ThreadKey, info: bytes, projection: str | None, version: int) -> bytes:
    return info + _seal_info(thread, info, None if projection is None else projection.encode(), version)


def _seal_info(thread: ThreadKey, info: bytes, projection: bytes | None, version: int) -> bytes:
    """The version is sealed too: an older copy does not pass."""
    return _seal(thread, b"info", ormsgpack.packb((info, projection, version)))


def info_of(thread: ThreadKey, stored: Stored, value: bytes | None, projection: bytes | None) -> bytes | None:
    """Return the thread's own metadata, checked."""
    if (value is not None) != stored.has_info:
        raise Corrupt("its metadata is gone", thread=thread.id)
    if value is None:
        return None
    if value[-8:] != _seal_info(thread, value[:-8], projection, stored.row.info_version):
        raise Corrupt("its metadata is damaged", thread=thread.id)
    return value[:-8]


def summary(
    thread: ThreadKey, stored: Stored, reply: Sequence[Any], head: CheckpointRecord | None
) -> ThreadRow:
    row, projection = stored.row, reply[2]
    return ThreadRow(
        thread.id, row.generation, row.revision, row.epoch, row.seq, stored.checkpoints, stored.bytes, row.created_at,
        stored.updated_at, info_of(thread, stored, reply[1], projection), None if projection is None else projection.decode(),
        row.info_version, head,
    )  # fmt: skip


def pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a flat reply."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def pack(said: Any) -> bytes:
    """Write what a script is told. Its reader knows texts and numbers, no binary strings."""
    return ormsgpack.packb(_each_text(said))


def _each_text(said: Any) -> Any:
    if isinstance(said, bytes):
        return said.decode()
    return [_each_text(one) for one in said] if isinstance(said, list | tuple) else said
