"""A thread's records as values in Redis: packed, checked and unpacked. Lua uses the same layout.

A value begins with what the server adds at commit (position, time, parent, rank, lease), then has
its short checksum, then the payload that the client packed. The payload ends with a checksum of its
own, which the server's checksum covers, so that every byte is covered. Ids are in the field names
only; the client's checksum binds a value to its field and thread.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import ormsgpack

from outlive.backend import (
    NEXT,
    CheckpointRecord,
    EntryRecord,
    Rank,
    ThreadKey,
    ThreadRecord,
    WriteRecord,
)
from outlive.backend.entries import check_stored_kind
from outlive.backends.redis.keys import to_bytes, to_text
from outlive.backends.rules.view import Counters
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, Corrupt, DamagedEntry

CLOCK = "redis"  # leases are timed by the server
LAST = b"\xff"  # the last member of an order; its score is the revision
_NONE = 0xFFFFFFFF  # instead of the length of a text that is None
_CLIENT_FIELDS = ("step", "source", "size", "added", "body", "projection", "format", "version")
_client_values = attrgetter(*_CLIENT_FIELDS)
_lengths = struct.Struct(">III")
_position = struct.Struct(">QQQI")
_row_pattern = re.compile(rb"(\d+ ){14}[0-9a-f]*")  # the same as ROW in thread.lua


def server_checksum(data: bytes) -> bytes:
    """Return the short checksum that a script can compute too."""
    # Against accidents, not attacks.
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()[:8].encode()


_hasher = hashlib.blake2b(digest_size=8, person=b"outlive.redis")


def _client_checksum(thread: ThreadKey, field: bytes, payload: bytes) -> bytes:
    """Return the checksum of the client, over thread, field and content."""
    hasher = _hasher.copy()  # a copy takes half the time of a new one
    hasher.update(thread.digest + b"%d:" % len(field) + field)
    hasher.update(payload)
    return hasher.digest()


def _check_value(thread: ThreadKey, field: bytes, head: bytes, check: bytes, payload: bytes) -> None:
    """Compare both checksums of a value; raise ValueError when one is wrong."""
    is_sound = check == server_checksum(head + payload[-8:])
    if not is_sound or payload[-8:] != _client_checksum(thread, field, payload[:-8]):
        raise ValueError("checksum")


def chunk_checksum(name: bytes, data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(name, zlib.crc32(data))


def parse_stamp(thread: ThreadKey, name: bytes, stamp: bytes | None) -> tuple[int, bytes]:
    """Return the revision that stored a chunk last, and the checksum of its bytes."""
    content, _, check = (stamp or b"").rpartition(b" ")
    if check != server_checksum(name + content):
        raise Corrupt(f"the stamp of chunk {name.hex()} is damaged", thread=thread.id)
    revision, crc = content.split()
    return int(revision), crc


# Checkpoints --------------------------------------------------------------------------------------


def pack_record_payload(thread: ThreadKey, field: bytes, record: CheckpointRecord) -> bytes:
    """Pack what the client knows of a record, with its checksum."""
    names = pack_names(record.chunks)
    run = b"" if record.run is None else to_bytes(record.run)
    lengths = _lengths.pack(len(names), len(record.body), _NONE if record.run is None else len(run))
    payload = b"".join((lengths, names, run, _pack_values(_client_values(record))))
    return payload + _client_checksum(thread, field, payload)


def _pack_values(values: Any) -> bytes:
    try:
        return ormsgpack.packb(values)
    except TypeError as error:  # a lone surrogate in a projection, or a number beyond 64 bits
        raise BadArgument(f"a record of this commit cannot be stored: {error}") from error


def pack_record(thread: ThreadKey, field: bytes, record: CheckpointRecord) -> bytes:
    """Pack a whole record, whose position is decided."""
    payload = pack_record_payload(thread, field, record)
    parent = b"" if record.parent is None else to_bytes(record.parent)
    position = _position.pack(
        record.epoch, record.seq, record.created_at, _NONE if record.parent is None else len(parent)
    )
    return position + server_checksum(position + parent + payload[-8:]) + parent + payload


def parse_record(thread: ThreadKey, field: bytes, value: bytes) -> CheckpointRecord:
    """Return a record, checked."""
    namespace, id = _split_field(thread, field)
    try:
        return _unpack_record(thread, field, value, namespace, id)
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise Corrupt("its record is damaged", thread=thread.id, checkpoint=id) from error


def _unpack_record(
    thread: ThreadKey, field: bytes, value: bytes, namespace: str, id: str
) -> CheckpointRecord:
    epoch, seq, created_at, length = _position.unpack_from(value)
    end = 36 + (0 if length == _NONE else length)
    parent, payload = value[36:end], value[end:]
    _check_value(thread, field, value[:28] + parent, value[28:36], payload)
    n_names, _, n_run = _lengths.unpack_from(payload)
    at = 12 + n_names + (0 if n_run == _NONE else n_run)
    step, source, size, added, body, projection, format, version = ormsgpack.unpackb(payload[at:-8])
    return CheckpointRecord(
        namespace, id, None if length == _NONE else to_text(parent), None if n_run == _NONE else to_text(payload[12 + n_names : at]),
        step, source, size, added, unpack_names(payload[12 : 12 + n_names]), body, projection, format, epoch, seq,
        created_at, version,
    )  # fmt: skip


def _split_field(thread: ThreadKey, field: bytes) -> tuple[str, str]:
    namespace, nul, id = field.partition(b"\0")
    if not nul:
        raise Corrupt("the name of a record is damaged", thread=thread.id)
    try:
        return to_text(namespace), to_text(id)
    except Corrupt as error:
        raise Corrupt("the name of a record is damaged", thread=thread.id) from error


# Writes -------------------------------------------------------------------------------------------


def pack_names(names: Sequence[bytes]) -> bytes:
    """Pack the names of chunks, each after its length."""
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


def pack_rank(rank: Rank) -> bytes:
    """Pack a rank so that bytes compare as the numbers do."""
    if not all(0 <= number < 1 << 63 for number in rank):
        raise BadArgument(f"a rank has numbers from 0 to 2**63 - 1, not {rank!r}")
    return b"%016x%016x%016x" % rank


def _parse_rank(value: bytes) -> Rank:
    return int(value[:16], 16), int(value[16:32], 16), int(value[32:48], 16)


def pack_write_payload(thread: ThreadKey, field: bytes, write: WriteRecord) -> bytes:
    names = pack_names(write.chunks)
    payload = (
        struct.pack(">I", len(names))
        + names
        + _pack_values((to_bytes(write.channel), to_bytes(write.path), write.body))
    )
    return payload + _client_checksum(thread, field, payload)


def pack_write(thread: ThreadKey, field: bytes, write: WriteRecord) -> bytes:
    payload, rank = pack_write_payload(thread, field, write), pack_rank(write.rank)
    return rank + server_checksum(rank + payload[-8:]) + payload


def parse_write(thread: ThreadKey, field: bytes, value: bytes | None) -> WriteRecord:
    """Return a write, checked."""
    parts = field.split(b"\0")
    try:
        namespace, checkpoint, task = (to_text(part) for part in parts[:3])
        index = int(parts[3])
    except (ValueError, IndexError, Corrupt) as error:
        raise Corrupt("the name of a write is damaged", thread=thread.id) from error
    try:
        if value is None:
            raise ValueError("gone")
        payload = value[56:]
        _check_value(thread, field, value[:48], value[48:56], payload)
        (n_names,) = struct.unpack_from(">I", payload)
        channel, path, body = ormsgpack.unpackb(payload[4 + n_names : -8])
        names = unpack_names(payload[4 : 4 + n_names])
        return WriteRecord(
            namespace,
            checkpoint,
            task,
            index,
            to_text(channel),
            to_text(path),
            body,
            names,
            _parse_rank(value),
        )
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise Corrupt("a write is damaged", thread=thread.id, checkpoint=checkpoint) from error


# Entries ------------------------------------------------------------------------------------------


def pack_entry_payload(thread: ThreadKey, field: bytes, body: bytes) -> bytes:
    return body + _client_checksum(thread, field, body)


def pack_entry_rank(entry: EntryRecord) -> bytes:
    return pack_rank((entry.epoch, 0 if entry.fence == NEXT else entry.fence, entry.revision))


def pack_lease_end(until: int) -> bytes:
    if not 0 <= until < 1 << 63:
        raise BadArgument(f"the end of a lease is a number from 0 to 2**63 - 1, not {until!r}")
    return b"%016x" % until


def pack_entry(thread: ThreadKey, field: bytes, entry: EntryRecord) -> bytes:
    head = pack_entry_rank(entry) + pack_lease_end(entry.until)
    status, clock = to_bytes(entry.status), to_bytes(entry.clock)
    tail = struct.pack(">II", len(status), len(clock)) + status + clock
    payload = pack_entry_payload(thread, field, entry.body or b"")
    return head + server_checksum(head + tail + payload[-8:]) + tail + payload


def parse_entry(thread: ThreadKey, field: bytes, value: bytes | None) -> EntryRecord:
    """Return an entry, checked."""
    kind, key = _split_field(thread, field)
    check_stored_kind(kind, thread.id)
    try:
        if value is None:
            raise ValueError("gone")
        n_status, n_clock = struct.unpack_from(">II", value, 72)
        start = 80 + n_status + n_clock
        tail, payload = value[72:start], value[start:]
        _check_value(thread, field, value[:64] + tail, value[64:72], payload)
        epoch, fence, revision = _parse_rank(value)
        status, clock = to_text(value[80 : 80 + n_status]), to_text(value[80 + n_status : start])
        return EntryRecord(
            kind, key, payload[:-8], status, epoch, fence, revision, int(value[48:64], 16), clock
        )
    except (ValueError, TypeError, struct.error, Corrupt) as error:
        raise DamagedEntry(thread.id, kind, key, "") from error


# The row of a thread ------------------------------------------------------------------------------


@dataclass(slots=True)
class StoredThread:
    """The row of a thread, with its counts."""

    row: Counters
    tokens: bytes  # in hex
    updated_at: int
    checkpoints: int
    writes: int
    entries: int
    bytes: int
    has_info: bool
    has_end: bool
    listing: int  # entries that list it

    @property
    def is_listed(self) -> bool:
        return bool(self.checkpoints or self.writes or self.has_info or self.listing)


def parse_row(thread: ThreadKey, raw: bytes | None) -> StoredThread | None:
    """Return the row of a thread, checked; None when there is none."""
    if raw is None:
        return None
    if raw.startswith(b"!"):  # the script found damage
        raise damage_error(thread, raw[1:])
    content, check = raw[:-9], raw[-8:]
    expected = server_checksum(thread.digest.hex().encode() + content)
    if check != expected or not _row_pattern.fullmatch(content):
        raise Corrupt("its row is damaged", thread=thread.id)
    *numbers, tokens = content.split(b" ")
    generation, revision, epoch, seq, created_at, updated_at, *counts = map(int, numbers)
    checkpoints, writes, entries, stored_bytes, metadata_version, has_info, has_end, listing = counts
    row = Counters(generation, revision, epoch, seq, created_at, metadata_version)
    return StoredThread(
        row, tokens, updated_at, checkpoints, writes, entries, stored_bytes, bool(has_info), bool(has_end), listing
    )  # fmt: skip


TORN = b"?"  # a script found the roster of the bucket or the identity gone


def damage_error(thread: ThreadKey, reason: bytes) -> Corrupt:
    """Return the error for damage that a script found."""
    problem = "the roster of its bucket is gone" if reason == TORN else reason.decode(errors="replace")
    return Corrupt(problem, thread=thread.id)


def is_ending(ttl_ms: int) -> bool:
    """Tell whether keys may disagree because a TTL ends now, while a clock is set back."""
    return 0 <= ttl_ms < 1000


def is_torn_reply(reply: Sequence[Any]) -> bool:
    """Tell whether a script stopped because the roster of its bucket or the identity is gone."""
    return bool(reply[0] == b"!" + TORN or (reply[0] == b"damaged" and reply[1] == TORN))


def pack_metadata(thread: ThreadKey, metadata: bytes, projection: str | None, version: int) -> bytes:
    return metadata + _metadata_checksum(
        thread, metadata, None if projection is None else projection.encode(), version
    )


def _metadata_checksum(thread: ThreadKey, metadata: bytes, projection: bytes | None, version: int) -> bytes:
    """Return the checksum of metadata. It covers the version too: an older copy does not pass."""
    return _client_checksum(thread, b"metadata", ormsgpack.packb((metadata, projection, version)))


def parse_metadata(
    thread: ThreadKey, stored: StoredThread, value: bytes | None, projection: bytes | None
) -> bytes | None:
    """Return the metadata of a thread, checked."""
    if (value is not None) != stored.has_info:
        raise Corrupt("its metadata is gone", thread=thread.id)
    if value is None:
        return None
    if value[-8:] != _metadata_checksum(thread, value[:-8], projection, stored.row.metadata_version):
        raise Corrupt("its metadata is damaged", thread=thread.id)
    return value[:-8]


def thread_record(
    thread: ThreadKey, stored: StoredThread, reply: Sequence[Any], head: CheckpointRecord | None
) -> ThreadRecord:
    row, projection = stored.row, reply[2]
    return ThreadRecord(
        thread.id, row.generation, row.revision, row.epoch, row.seq, stored.checkpoints, stored.bytes, row.created_at,
        stored.updated_at, parse_metadata(thread, stored, reply[1], projection), None if projection is None else projection.decode(),
        row.metadata_version, head,
    )  # fmt: skip


def to_pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a flat reply."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def pack_args(args: Any) -> bytes:
    """Pack the arguments of a script. Its reader knows texts and numbers, no binary strings."""
    return ormsgpack.packb(_decoded(args))


def _decoded(value: Any) -> Any:
    if isinstance(value, _NESTED):
        return [
            item if type(item) in _PLAIN else item.decode() if type(item) is bytes else _decoded(item)
            for item in value
        ]
    return value.decode() if isinstance(value, bytes) else value


_NESTED = (list, tuple)  # `list | tuple` would make a type at each call
_PLAIN = frozenset({str, int, bool})  # most values: they need no call
