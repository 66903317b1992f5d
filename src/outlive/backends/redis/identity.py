"""The identity of a store in Redis: its naming key, and which buckets are in use.

A bucket is noted before its first thread, so that what is noted is a superset of what is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import ormsgpack

from outlive.backend import checksum
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call, Client
from outlive.backends.redis.rows import BUCKETS
from outlive.backends.redis.scripts import script
from outlive.backends.redis.topology import slot_of
from outlive.backends.server.attempts import AttemptFailed, Deadline, StoreReplaced
from outlive.errors import BadArgument, Corrupt, NewerFormat

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend

FORMAT = 1
_KEY_GONE = "the naming key of this store is gone; put it back from a backup"


class Identity:
    """What a store is known by."""

    def __init__(self, backend: RedisBackend, prefix: str) -> None:
        self._backend = backend
        self._prefix = prefix
        self.key = rows.identity_key(prefix)
        self._slot = slot_of(self.key)
        self.buckets: set[int] = set()
        self.own = b""  # the naming key as this process knows it, packed
        self._losses = 0
        self._completed: bytes | None = (
            None  # the restoration of the identity after which all buckets were looked at
        )

    async def adopt(self, offered: bytes) -> bytes:
        held = await self._load()
        if b"key" not in held:
            await self._check_new(held)
            if not offered:
                return offered
            value = ormsgpack.packb((FORMAT, BUCKETS, offered, checksum("naming key", BUCKETS, offered)))
            await self._ask("HSETNX", "key", value)
            held = await self._load()
        self.own = held[b"key"]
        return _naming_key(self.own)

    async def _check_new(self, held: dict[bytes, bytes]) -> None:
        """Make sure that a store without a naming key is new: another key would make all that is there unreadable."""
        if not held and not await self._used():
            return
        if b"key" not in await self._load():  # nobody else was just about to begin it
            raise Corrupt(_KEY_GONE)

    async def _used(self, deadline: Deadline | None = None) -> set[int]:
        """Return the buckets that have an index or a roster."""
        timeout_s = None if deadline is None else deadline.remaining_s()
        if not self._backend.is_sharded:
            call = Call.of(self._slot, script("used"), self._keys_of(0), str(BUCKETS))
            (found,) = await self._backend.ask_all([call], timeout_s)
            return set(found)
        calls = [
            Call(self._backend.slot(bucket), ("EXISTS", *self._keys_of(bucket))) for bucket in range(BUCKETS)
        ]
        replies = await self._backend.ask_all(calls, timeout_s)
        return {bucket for bucket, is_there in enumerate(replies) if is_there}

    def _keys_of(self, bucket: int) -> list[str]:
        return [key_of(self._prefix, bucket) for key_of in rows.BUCKET_KEYS]

    async def reassure(self, link: Client, deadline: Deadline, *, is_first: bool = False) -> None:
        """Make sure, after a server was lost or when a thread begins, that the store is still the one that was opened.

        A server that came back empty gets its identity again from whoever still has the store open: in a Cluster here, on a
        single server by `restore`, which the scripts ask for. Where somebody else has begun a new store meanwhile, this
        one's chunks would have names that nobody can check.
        """
        losses = link.losses
        if (losses == self._losses and not is_first) or not self.own:
            return
        is_sharded = self._backend.is_sharded
        call = self._registration(self.buckets) if is_sharded else Call(self._slot, ("HGET", self.key, "key"))
        try:
            held = await link.one(call, deadline)
        except AttemptFailed:
            return  # its node may be another one than that of the thread: the next commit asks again
        if held is not None and held != self.own:
            raise StoreReplaced("this store was emptied and begun anew by another process; open it again")
        self._losses = losses

    async def _ask(self, name: str, *args: Any) -> Any:
        (reply,) = await self._backend.ask_all([Call(self._slot, (name, self.key, *args))])
        return reply

    async def _load(self) -> dict[bytes, bytes]:
        held = dict(rows.pairs(await self._ask("HGETALL")))
        self._note(held)
        return held

    def _note(self, held: Mapping[bytes, bytes]) -> bool:
        """Learn which buckets are in use; tell whether the list is as long as it should be."""
        noted = {int(field) for field in held if field.isdigit() and int(field) < BUCKETS}
        self.buckets = self.buckets | noted if self._backend.is_sharded else noted
        return held.get(b"buckets", b"0") == b"%d" % len(noted)

    def _registration(self, buckets: Iterable[int]) -> Call:
        return Call.of(self._slot, script("register"), [self.key], self.own, *map(str, buckets))

    async def register(self, bucket: int, deadline: Deadline) -> None:
        """Note that a bucket is in use, before it is. On a single server the script that begins a thread does that."""
        if bucket not in self.buckets:
            await self._note_all({bucket}, deadline)

    async def _note_all(self, buckets: set[int], deadline: Deadline) -> None:
        await self._backend.ask_all([self._registration(buckets)], deadline.remaining_s())
        self.buckets |= buckets

    async def check_eviction(self, *, allowed: bool, has_ttl: bool) -> None:
        """Refuse a server that throws records away when its memory is full. Who may not ask is not told."""
        for policy in await self._backend.policies():
            if policy.startswith("allkeys-") and not allowed:
                raise BadArgument(
                    f"this Redis has maxmemory-policy {policy}: when its memory is full, it deletes checkpoints; "
                    "run CONFIG SET maxmemory-policy noeviction, or open with allow_eviction=True to take the loss"
                )
            if policy.startswith("allkeys-") or (policy.startswith("volatile-") and has_ttl):
                warnings.warn(
                    f"this Redis has maxmemory-policy {policy}: when its memory is full, it deletes threads that "
                    "have not ended; CONFIG SET maxmemory-policy noeviction keeps them",
                    stacklevel=2,
                )

    async def complete(self, deadline: Deadline) -> None:
        """Learn of buckets that others began to use."""
        calls = [Call(self._slot, ("HGETALL", self.key))]
        (flat,) = await self._backend.ask_all(calls, deadline.remaining_s())
        held = dict(rows.pairs(flat))
        is_whole = self._note(held) and (b"key" in held or not self.own)
        # In a Cluster the list is on one node and a thread on another: a failover of the one may have lost what the other has.
        # Who restores an identity that was lost there knows only the buckets that it has met.
        restored = held.get(b"restored", b"")
        if not is_whole or (self._backend.is_sharded and self._completed != restored):
            await self._find_all(held, deadline)
        self._completed = restored

    async def _find_all(self, held: Mapping[bytes, bytes], deadline: Deadline) -> None:
        """Look for buckets that are in use and not noted. A naming key that is gone is put back by who knows it."""
        used = await self._used(deadline)
        if used and b"key" not in held and not self.own:
            raise Corrupt(_KEY_GONE)
        if b"key" not in held and not self._backend.is_sharded:
            await self.restore()
        elif used:
            await self._note_all(used, deadline)

    async def restore(self) -> None:
        """Put a naming key that is gone back. Unless the store was emptied, all buckets may have been in use."""
        held = await self._load()
        if self.own and b"key" not in held:
            noted = set(range(BUCKETS)) if await self._used() else set()
            await self._note_all(noted, self._backend.deadline(None))

    async def format(self) -> int:
        """Return the format that the store was made with."""
        held = await self._load()
        if b"key" not in held:
            raise Corrupt(_KEY_GONE)
        _naming_key(held[b"key"])
        return int(ormsgpack.unpackb(held[b"key"])[0])

    async def audit(self) -> list[Corrupt]:
        """Check the naming key, and whether all buckets in use are noted."""
        used = await self._used()  # first: a bucket that is begun meanwhile is noted with it
        held = dict(rows.pairs(await self._ask("HGETALL")))
        if b"key" not in held:
            return [Corrupt(_KEY_GONE)] if held or used else []
        try:
            _naming_key(held[b"key"])
        except Corrupt as error:
            return [error]
        is_whole = self._note(held)
        if self._backend.is_sharded:
            self.buckets |= used
        elif not is_whole or used - self.buckets:
            return [Corrupt("the identity of this store does not name the buckets that are in use")]
        return []


def _naming_key(value: bytes) -> bytes:
    try:
        format, buckets, key, check = ormsgpack.unpackb(value)
    except (ValueError, TypeError) as error:
        raise Corrupt("the naming key of this store is damaged; put it back from a backup") from error
    if isinstance(format, int) and format > FORMAT:
        raise NewerFormat("this store", format, FORMAT)
    if check != checksum("naming key", buckets, key) or buckets != BUCKETS:
        raise Corrupt("the naming key of this store is damaged; put it back from a backup")
    return bytes(key)
