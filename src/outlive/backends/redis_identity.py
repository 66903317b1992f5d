"""The identity of a store in Redis: its naming key, and which buckets are in use.

A bucket is noted before its first thread, so that what is noted is a superset of what is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ormsgpack

from ..backend import checksum
from ..errors import BadArgument, Corrupt, NewerFormat
from . import redis_rows as rows
from .redis_links import Call, Link
from .redis_nodes import slot_of
from .redis_rows import BUCKETS
from .server import BegunAnew, Deadline, Lost

if TYPE_CHECKING:
    from .redis import RedisBackend

FORMAT = 1


class Identity:
    """What a store is known by."""

    def __init__(self, backend: RedisBackend, prefix: str) -> None:
        self._backend = backend
        self._prefix = prefix
        self.key = f"{prefix}identity"
        self._slot = slot_of(self.key)
        self.buckets: set[int] = set()
        self.own = b""  # the naming key as this process knows it, packed
        self._losses = 0
        self._is_complete = False  # all buckets were looked at once

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
            raise Corrupt("the naming key of this store is gone; put it back from a backup")

    async def _used(self, deadline: Deadline | None = None) -> set[int]:
        """Return the buckets that have a thread or an entry."""
        calls = [
            Call(
                self._backend.slot(bucket),
                ("EXISTS", rows.threads_key(self._prefix, bucket), rows.entries_key(self._prefix, bucket)),
            )
            for bucket in range(BUCKETS)
        ]
        replies = await self._backend.ask_all(calls, None if deadline is None else deadline.remaining_s())
        return {bucket for bucket, is_there in enumerate(replies) if is_there}

    async def reassure(self, link: Link, deadline: Deadline, *, is_first: bool = False) -> None:
        """Make sure, after a server was lost or when a thread begins, that the store is still the one that was opened.

        A server that came back empty gets its identity again from whoever still has the store open. Where somebody
        else has begun a new store meanwhile, this one's chunks would have names that nobody can check.
        """
        losses = link.losses
        if (losses == self._losses and not is_first) or not self.own:
            return
        buckets = [part for bucket in self.buckets for part in (str(bucket), "1")]
        commands: list[tuple[Any, ...]] = [
            ("HSETNX", self.key, "key", self.own),
            ("HGET", self.key, "key"),
        ]
        if buckets:
            commands.append(("HSET", self.key, *buckets))
        try:
            replies = await link.all([Call(self._slot, command) for command in commands], deadline)
        except Lost:
            return  # its node may be another one than that of the thread: the next commit asks again
        if replies[1] != self.own:
            raise BegunAnew("this store was emptied and begun anew by another process; open it again")
        self._losses = losses

    async def _ask(self, name: str, *args: Any) -> Any:
        (reply,) = await self._backend.ask_all([Call(self._slot, (name, self.key, *args))])
        return reply

    async def _load(self) -> dict[bytes, bytes]:
        held = dict(rows.pairs(await self._ask("HGETALL")))
        self._note(list(held))
        return held

    def _note(self, fields: Sequence[bytes]) -> None:
        self.buckets.update(int(field) for field in fields if field != b"key")

    async def register(self, bucket: int, deadline: Deadline) -> None:
        """Note that a bucket is in use, before it is. On a single server the script that begins a thread does that."""
        if bucket not in self.buckets:
            await self._backend.ask_all(
                [Call(self._slot, ("HSET", self.key, str(bucket), "1"))], deadline.remaining_s()
            )
            self.buckets.add(bucket)

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
        calls = [Call(self._slot, ("HKEYS", self.key))]
        (fields,) = await self._backend.ask_all(calls, deadline.remaining_s())
        self._note(fields)
        if self._backend.is_sharded and not self._is_complete:
            # The list is on one node and a thread on another: a failover of the one may have lost what the other has.
            for bucket in await self._used(deadline) - self.buckets:
                await self.register(bucket, deadline)
        self._is_complete = True

    async def format(self) -> int:
        """Return the format that the store was made with."""
        return int(ormsgpack.unpackb((await self._load())[b"key"])[0])

    async def audit(self) -> list[Corrupt]:
        """Check the naming key."""
        held = await self._load()
        if b"key" not in held:
            return (
                [Corrupt("the naming key of this store is gone; put it back from a backup")] if held else []
            )
        try:
            _naming_key(held[b"key"])
        except Corrupt as error:
            return [error]
        return []


def _naming_key(value: bytes) -> bytes:
    try:
        format, buckets, key, check = ormsgpack.unpackb(value)
    except ValueError as error:
        raise Corrupt("the naming key of this store is damaged; put it back from a backup") from error
    if isinstance(format, int) and format > FORMAT:
        raise NewerFormat("this store", format, FORMAT)
    if check != checksum("naming key", buckets, key) or buckets != BUCKETS:
        raise Corrupt("the naming key of this store is damaged; put it back from a backup")
    return bytes(key)
