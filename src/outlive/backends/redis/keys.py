"""The keys of threads, buckets and the store in Redis, and the names of fields in their hashes."""

from __future__ import annotations

import functools

from outlive.backend import escape, unescape
from outlive.dataclass import dataclass
from outlive.errors import Corrupt

BUCKETS = 1024  # must never change: a thread's keys depend on it
_LETTERS = "mrocwe"  # meta, records, order, chunks, writes, entries


@dataclass(frozen=True, slots=True)
class Keys:
    """Six keys of a thread, and the indexes and the roster of its bucket, all in one slot.

    On a single server the identity of the store is added: there one script may read both. And the
    index by time is one for all buckets there.
    """

    bucket: int
    all: tuple[str, ...]

    @property
    def row(self) -> str:
        return self.all[0]

    @property
    def chunks(self) -> str:
        return self.all[3]

    @property
    def threads_index(self) -> str:
        return self.all[6]

    @classmethod
    @functools.lru_cache(1024)  # making them takes longer than using them
    def of(cls, prefix: str, digest: bytes, *, is_single: bool) -> Keys:
        bucket = int.from_bytes(digest[:2], "big") % BUCKETS
        base = f"{prefix}{{{bucket}}}:{digest.hex()}:"
        own = [base + letter for letter in _LETTERS]
        store = (identity_key(prefix),) if is_single else ()
        shared = [key_of(prefix, bucket) for key_of in BUCKET_KEYS]
        return cls(bucket, (*own, *shared, recent_key(prefix, None if is_single else bucket), *store))


def wake_channel(prefix: str, tenant: str) -> bytes:
    """Return the channel on which a script publishes that there is work (`ring` in thread.lua)."""
    return f"{prefix}wake:".encode() + to_bytes(tenant)


def threads_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:threads"


def entries_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:entries"


def roster_key(prefix: str, bucket: int) -> str:
    return f"{prefix}{{{bucket}}}:roster"


def recent_key(prefix: str, bucket: int | None) -> str:
    """Return the key of the index by time: of a bucket, or of all of a single server."""
    return f"{prefix}recent" if bucket is None else f"{prefix}{{{bucket}}}:recent"


BUCKET_KEYS = (threads_key, entries_key, roster_key)


def identity_key(prefix: str) -> str:
    return f"{prefix}identity"


def to_bytes(value: str) -> bytes:
    """Encode a text, also one that is no valid Unicode and one with NUL."""
    return escape(value).encode()


def to_text(value: bytes) -> str:
    """Undo `to_bytes`; raise Corrupt for what it never returns."""
    try:
        return unescape(value.decode())
    except ValueError as error:
        raise Corrupt("a stored id cannot be read") from error


def checkpoint_field(namespace: str, id: str) -> bytes:
    return to_bytes(namespace) + b"\0" + to_bytes(id)


def write_field(write: tuple[str, str, str, int]) -> bytes:
    return b"\0".join((to_bytes(write[0]), to_bytes(write[1]), to_bytes(write[2]), b"%d" % write[3]))


def entry_field(kind: str, key: str) -> bytes:
    return to_bytes(kind) + b"\0" + to_bytes(key)
