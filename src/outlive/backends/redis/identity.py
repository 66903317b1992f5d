"""The identity of a store in Redis: its naming key, and which buckets are in use.

A bucket is noted before its first thread begins, so that the noted buckets include all that are in
use.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import ormsgpack

from outlive.backend import checksum
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.keys import BUCKETS, identity_key
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.backends.redis.topology import slot_of
from outlive.backends.server.attempts import AttemptFailed, Deadline, StoreReplaced
from outlive.errors import BadArgument, Corrupt, NewerFormat

FORMAT = 1
_KEY_GONE = "the naming key of this store is gone; restore it from a backup"
_KEY_DAMAGED = "the naming key of this store is damaged; restore it from a backup"


class Identity:
    """Makes sure that a store stays the one that was opened."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.key = identity_key(session.prefix)
        self.buckets: set[int] = set()
        self.packed_naming_key = b""  # as this process knows it
        self._slot = slot_of(self.key)
        self._losses = 0
        self._completed: bytes | None = None  # the restoration after the last full look

    # Opening

    async def adopt(self, offered: bytes) -> bytes:
        """Return the naming key of the store; a new store takes the offered one."""
        fields = await self.load()
        if b"key" not in fields:
            await self._check_new(fields)
            if not offered:
                return offered
            packed = ormsgpack.packb((FORMAT, BUCKETS, offered, checksum("naming key", BUCKETS, offered)))
            # Of two processes that begin a store, the first decides for both. A crash before the
            # count leaves a store whose first listing by time makes it.
            if await self._ask("HSETNX", "key", packed) and not self._session.is_sharded:
                await self._ask("HSETNX", "listed", "0")
            fields = await self.load()
        self.packed_naming_key = fields[b"key"]
        return _naming_key(self.packed_naming_key)

    async def _check_new(self, fields: dict[bytes, bytes]) -> None:
        """Refuse a store with data but no naming key: with another key the data is unreadable."""
        if not fields and not await self._used_buckets():
            return
        # Looked at again: another process may just have begun the store.
        if b"key" not in await self.load():
            raise Corrupt(_KEY_GONE)

    async def check_eviction(self) -> None:
        """Refuse servers that delete records when their memory is full, as far as they tell."""
        options = self._session.options
        replies = await self._session.ask_each_node(("CONFIG", "GET", "maxmemory-policy"))
        policies = {reply[1].decode() for reply in replies if isinstance(reply, list) and len(reply) == 2}
        for policy in sorted(policies):
            if policy.startswith("allkeys-") and not options.allow_eviction:
                raise BadArgument(
                    f"this Redis has maxmemory-policy {policy}: when its memory is full, it deletes checkpoints; "
                    "run CONFIG SET maxmemory-policy noeviction, or open with allow_eviction=True to accept the loss"
                )
            if policy.startswith("allkeys-") or (policy.startswith("volatile-") and options.ttl_ms):
                warnings.warn(
                    f"this Redis has maxmemory-policy {policy}: when its memory is full, it deletes threads "
                    "before their TTL ends; CONFIG SET maxmemory-policy noeviction keeps them",
                    stacklevel=2,
                )

    async def format(self) -> int:
        """Return the format that the store was made with."""
        fields = await self.load()
        if b"key" not in fields:
            raise Corrupt(_KEY_GONE)
        _naming_key(fields[b"key"])
        return int(ormsgpack.unpackb(fields[b"key"])[0])

    # Still the same store

    async def check_same(self, deadline: Deadline, *, is_first: bool = False) -> None:
        """Check that this is the store that was opened: after a loss, or when a thread begins.

        A server that came back empty gets its identity again from a process that still has the
        store open: in a Cluster here, on a single server by `restore`, when a script asks for it.
        If another process has started a new store meanwhile, nobody could check the names of this
        one's chunks.
        """
        losses = self._session.client.losses
        if (losses == self._losses and not is_first) or not self.packed_naming_key:
            return
        is_sharded = self._session.is_sharded
        call = self._registration(self.buckets) if is_sharded else Call(self._slot, ("HGET", self.key, "key"))
        try:
            stored = await self._session.client.send(call, deadline)
        except AttemptFailed:
            # Its node may be another one than that of the thread: the next commit asks again.
            return
        if stored is not None and stored != self.packed_naming_key:
            raise StoreReplaced
        self._losses = losses

    async def restore(self) -> None:
        """Put a lost naming key back. Unless the store is empty, any bucket may be in use."""
        fields = await self.load()
        if self.packed_naming_key and b"key" not in fields:
            buckets = set(range(BUCKETS)) if await self._used_buckets() else set()
            await self._register_all(buckets, self._session.deadline(None))

    # Buckets

    async def register(self, bucket: int, deadline: Deadline) -> None:
        """Note that a bucket is in use, before it is.

        On a single server the script that begins a thread does that.
        """
        if bucket not in self.buckets:
            await self._register_all({bucket}, deadline)

    async def _register_all(self, buckets: set[int], deadline: Deadline) -> None:
        await self._session.ask(self._registration(buckets), deadline.as_timeout_s())
        self.buckets |= buckets

    def _registration(self, buckets: Iterable[int]) -> Call:
        return Call.of(self._slot, script("register"), [self.key], self.packed_naming_key, *map(str, buckets))

    async def complete(self, deadline: Deadline) -> None:
        """Learn of buckets that other processes have begun to use."""
        flat = await self._session.ask(Call(self._slot, ("HGETALL", self.key)), deadline.as_timeout_s())
        fields = dict(rows.to_pairs(flat))
        is_complete = self._note(fields) and (b"key" in fields or not self.packed_naming_key)
        # In a Cluster the list is on one node and a thread on another: a failover of the first may
        # have lost what the second has. The process that restores a lost identity knows only the
        # buckets it has met.
        restored = fields.get(b"restored", b"")
        if not is_complete or (self._session.is_sharded and self._completed != restored):
            await self._find_missing(fields, deadline)
        self._completed = restored

    async def _find_missing(self, fields: Mapping[bytes, bytes], deadline: Deadline) -> None:
        """Note buckets that are in use and not noted, and put back a lost naming key."""
        used = await self._used_buckets(deadline)
        if used and b"key" not in fields and not self.packed_naming_key:
            raise Corrupt(_KEY_GONE)
        if b"key" not in fields and not self._session.is_sharded:
            await self.restore()
        elif used:
            await self._register_all(used, deadline)

    async def _used_buckets(self, deadline: Deadline | None = None) -> set[int]:
        """Return the buckets that have an index or a roster."""
        session = self._session
        timeout_s = None if deadline is None else deadline.as_timeout_s()
        if not session.is_sharded:
            call = Call.of(self._slot, script("used"), session.bucket_keys(0), str(BUCKETS))
            return set(await session.ask(call, timeout_s))
        calls = [
            Call(session.slot(bucket), ("EXISTS", *session.bucket_keys(bucket))) for bucket in range(BUCKETS)
        ]
        counts = await session.ask_all(calls, timeout_s)
        return {bucket for bucket, count in enumerate(counts) if count}

    def _note(self, fields: Mapping[bytes, bytes]) -> bool:
        """Learn which buckets are noted; tell whether the list is as long as it should be."""
        noted = {int(field) for field in fields if field.isdigit() and int(field) < BUCKETS}
        self.buckets = self.buckets | noted if self._session.is_sharded else noted
        return fields.get(b"buckets", b"0") == b"%d" % len(noted)

    # Reading

    async def load(self) -> dict[bytes, bytes]:
        """Return the fields of the identity, and note the buckets in them."""
        fields = dict(rows.to_pairs(await self._ask("HGETALL")))
        self._note(fields)
        return fields

    async def _ask(self, command: str, *args: Any) -> Any:
        return await self._session.ask(Call(self._slot, (command, self.key, *args)))

    async def audit(self) -> list[Corrupt]:
        """Check the naming key, and whether all buckets in use are noted."""
        # First: a bucket whose first thread begins meanwhile is noted together with it.
        used = await self._used_buckets()
        fields = dict(rows.to_pairs(await self._ask("HGETALL")))
        if b"key" not in fields:
            return [Corrupt(_KEY_GONE)] if fields or used else []
        try:
            _naming_key(fields[b"key"])
        except Corrupt as error:
            return [error]
        is_complete = self._note(fields)
        if self._session.is_sharded:
            self.buckets |= used
        elif not is_complete or used - self.buckets:
            return [Corrupt("the identity of this store does not name the buckets that are in use")]
        return []


def _naming_key(packed: bytes) -> bytes:
    try:
        format, *fields = ormsgpack.unpackb(packed)
        if isinstance(format, int) and format > FORMAT:
            raise NewerFormat("this store", format, FORMAT)
        buckets, key, check = fields
    except (ValueError, TypeError) as error:
        raise Corrupt(_KEY_DAMAGED) from error
    if check != checksum("naming key", buckets, key) or buckets != BUCKETS:
        raise Corrupt(_KEY_DAMAGED)
    return bytes(key)
