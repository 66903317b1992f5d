"""What belongs to no single thread: the store's identity, the buckets in use, and listings over all of them.

A thread's bucket is one of 1,024 by its digest, each with an index of threads and one of entries in the slot of its
threads. Which buckets are in use stands beside the identity, written before the first thread of a bucket: a superset.
A listing asks the buckets in use for a few lines each, by one exchange with each node, merges them, and asks
again those that ran out.
"""

from __future__ import annotations

import heapq
import warnings
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import ormsgpack

from ..backend import CheckpointRecord, Entry, EntryCursor, ThreadKey, ThreadRow, checksum
from ..errors import BadArgument, Corrupt, NewerFormat, StoreUnavailable
from . import redis_rows as rows
from .redis_links import Call, Link
from .redis_nodes import slot_of
from .redis_rows import BUCKETS, Keys, pack, text
from .redis_scripts import script
from .server import Deadline, Lost

if TYPE_CHECKING:
    from .redis import RedisBackend

FORMAT = 1
_FEW = 4  # lines of a bucket that are asked for at first
Line = tuple[bytes, int]  # (member, bucket)


class Listing:
    """The identity and the indexes of a store."""

    def __init__(self, backend: RedisBackend, prefix: str) -> None:
        self._backend = backend
        self._prefix = prefix
        self._key = f"{prefix}identity"
        self._slot = slot_of(self._key)
        self._buckets: set[int] = set()
        self._own = b""  # the identity as this process knows it
        self._losses = 0
        self._is_complete = False  # all buckets were looked at once

    # Identity

    async def identity(self, offered: bytes) -> bytes:
        held = await self._load()
        if b"key" not in held:
            if held:
                raise Corrupt("the naming key of this store is gone")
            value = ormsgpack.packb((FORMAT, BUCKETS, offered, checksum("naming key", BUCKETS, offered)))
            await self._ask("HSETNX", "key", value)
            held = await self._load()
        self._own = held[b"key"]
        return _naming_key(self._own)

    async def reassure(self, link: Link, deadline: Deadline) -> None:
        """Make sure, after a server was lost, that the store is still the one that was opened.

        A server that came back empty gets its identity again from whoever still has the store open. Where somebody
        else has begun a new store meanwhile, this one's chunks would have names that nobody can check.
        """
        losses = link.losses
        if losses == self._losses or not self._own:
            return
        buckets = [part for bucket in self._buckets for part in (str(bucket), "1")]
        commands: list[tuple[Any, ...]] = [
            ("HSETNX", self._key, "key", self._own),
            ("HGET", self._key, "key"),
        ]
        if buckets:
            commands.append(("HSET", self._key, *buckets))
        try:
            replies = await link.all([Call(self._slot, command) for command in commands], deadline)
        except Lost:
            return  # its node may be another one than that of the thread: the next commit asks again
        if replies[1] != self._own:
            raise StoreUnavailable("this store was emptied and begun anew by another process; open it again")
        self._losses = losses

    async def _ask(self, name: str, *args: Any) -> Any:
        (reply,) = await self._backend.ask_all([Call(self._slot, (name, self._key, *args))])
        return reply

    async def _load(self) -> dict[bytes, bytes]:
        held = dict(rows.pairs(await self._ask("HGETALL")))
        self._note(list(held))
        return held

    def _note(self, fields: Sequence[bytes]) -> None:
        self._buckets.update(int(field) for field in fields if field != b"key")

    def registration(self, bucket: int) -> Call | None:
        """Return the call that notes a bucket as used; None when it is noted."""
        return None if bucket in self._buckets else Call(self._slot, ("HSET", self._key, str(bucket), "1"))

    def note(self, bucket: int) -> None:
        self._buckets.add(bucket)

    async def register(self, bucket: int, deadline: Deadline) -> None:
        """Note that a bucket is in use, before it is. A single server is told in one exchange with the first commit."""
        if (call := self.registration(bucket)) is not None:
            await self._backend.ask_all([call], deadline.remaining_s())
            self.note(bucket)

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

    # Threads

    async def threads(
        self, tenant: str, prefix: str, after: str | None, limit: int, heads: bool, deadline: Deadline
    ) -> list[ThreadRow]:
        start = text(tenant) + b"\0"
        low, high = _range(start, text(prefix), None if after is None else text(after))

        async def ask(places: Sequence[tuple[int, bytes]], count: int) -> list[Call]:
            return [
                Call(
                    self._backend.slot(bucket),
                    ("ZRANGEBYLEX", rows.threads_key(self._prefix, bucket), place, high, "LIMIT", 0, count),
                )
                for bucket, place in places
            ]

        merge = await self._merge(ask, low, limit, deadline)
        found: list[ThreadRow] = []
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            keys = [ThreadKey.of(tenant, rows.plain(member[len(start) :])) for member, _ in lines]
            calls = [
                self._backend.call(self._backend.keys(key), "summary", pack((heads, member)))
                for key, (member, _) in zip(keys, lines, strict=True)
            ]
            replies = await self._backend.ask_all(calls, deadline.remaining_s())
            shown = [self.row(key, reply, heads) for key, reply in zip(keys, replies, strict=True)]
            found += [row for row in shown if row is not None]
        return found

    def row(self, thread: ThreadKey, reply: list[Any], heads: bool) -> ThreadRow | None:
        """Return what a listing shows of a thread; None when it is not listed."""
        stored = rows.stored_of(thread, reply[0])
        if stored is None or not stored.is_listed:
            return None
        head: CheckpointRecord | None = None
        if heads:
            if reply[5] != stored.checkpoints:
                if reply[6] >= 0:  # it is just ending
                    return None
                raise Corrupt(
                    f"it has {reply[5]} checkpoints instead of {stored.checkpoints}", thread=thread.id
                )
            if reply[3] is not None:
                head = rows.record_of(thread, b"\0" + reply[3], reply[4] or b"")
        return rows.summary(thread, stored, reply, head)

    # Entries

    async def entries(
        self,
        tenant: str,
        kind: str,
        asked: Sequence[Any],
        prefix: str,
        after: EntryCursor | None,
        limit: int,
        deadline: Deadline,
    ) -> list[tuple[ThreadKey, Entry]]:
        start = text(tenant) + b"\0" + text(kind) + b"\0"
        behind = None if after is None else text(after[0]) + b"\0" + after[1].hex().encode() + b"\x7f"
        low, high = _range(start, text(prefix), behind)

        async def ask(places: Sequence[tuple[int, bytes]], count: int) -> list[Call]:
            return [
                Call.of(
                    self._backend.slot(bucket),
                    script("index"),
                    [rows.entries_key(self._prefix, bucket)],
                    pack((count, *asked, len(start) + 1)),
                    place,
                    high,
                )
                for bucket, place in places
            ]

        merge = await self._merge(ask, low, limit, deadline)
        found: list[tuple[ThreadKey, Entry]] = []
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            found += await self._values(
                tenant, text(kind), [member for member, _ in lines], len(start), deadline
            )
        return found

    async def _values(
        self, tenant: str, kind: bytes, members: Sequence[bytes], start: int, deadline: Deadline
    ) -> list[tuple[ThreadKey, Entry]]:
        """Read the entries that an index names. What went meanwhile is left out."""
        by_thread: dict[bytes, list[tuple[bytes, bytes]]] = {}
        places = []
        for member in members:
            key, _, tail = member[start:].partition(b"\0")
            digest = bytes.fromhex(tail[:32].decode())
            places.append((digest, kind + b"\0" + key))
            by_thread.setdefault(digest, []).append((kind + b"\0" + key, member))
        calls = [
            self._backend.call(Keys.of(self._prefix, digest), "found", pack(list(zip(*named, strict=True))))
            for digest, named in by_thread.items()
        ]
        values: dict[tuple[bytes, bytes], tuple[ThreadKey, Entry]] = {}
        replies = await self._backend.ask_all(calls, deadline.remaining_s())
        for (digest, named), reply in zip(by_thread.items(), replies, strict=True):
            if reply[0] is None:
                continue
            thread = ThreadKey.of(tenant, rows.plain(reply[0]))
            if thread.digest != digest:
                raise Corrupt("the name of a thread is damaged", thread=thread.id)
            for (field, _), value in zip(named, reply[1], strict=True):
                if value is not None:
                    values[digest, field] = (thread, rows.entry_of(thread, field, value))
        return [values[place] for place in places if place in values]

    # All buckets

    async def _merge(
        self,
        make: Callable[[Sequence[tuple[int, bytes]], int], Awaitable[list[Call]]],
        low: bytes,
        limit: int,
        deadline: Deadline,
    ) -> Merge:
        await self._complete(deadline)

        async def ask(places: Sequence[tuple[int, bytes]], count: int) -> list[list[bytes]]:
            return await self._backend.ask_all(await make(places, count), deadline.remaining_s())

        few = min(limit, max(_FEW, 3 * limit // max(1, len(self._buckets)) + 1))
        return Merge(ask, self._buckets, low, few)

    async def _complete(self, deadline: Deadline) -> None:
        """Learn of buckets that others began to use."""
        calls = [Call(self._slot, ("HKEYS", self._key))]
        if self._backend.is_sharded and not self._is_complete:
            # The list is on one node and a thread on another: a failover of the one may have lost what the other has.
            calls += [
                Call(
                    self._backend.slot(bucket),
                    (
                        "EXISTS",
                        rows.threads_key(self._prefix, bucket),
                        rows.entries_key(self._prefix, bucket),
                    ),
                )
                for bucket in range(BUCKETS)
            ]
        fields, *exist = await self._backend.ask_all(calls, deadline.remaining_s())
        self._note(fields)
        found = {bucket for bucket, is_there in enumerate(exist) if is_there}
        for bucket in found - self._buckets:
            await self.register(bucket, deadline)
        self._is_complete = True

    async def audit(self) -> list[Corrupt]:
        """Check the identity, and every line of every index."""
        held = await self._load()
        found: list[Corrupt] = []
        if b"key" in held:
            try:
                _naming_key(held[b"key"])
            except Corrupt as error:
                found.append(error)
        elif held:
            found.append(Corrupt("the naming key of this store is gone"))
        await self._complete(self._backend.deadline(None))
        for bucket in sorted(self._buckets):
            found += await self._audit_bucket(bucket)
        return found

    async def _audit_bucket(self, bucket: int) -> list[Corrupt]:
        """Compare the index of a bucket with its threads. A thread that a TTL has taken is no damage."""
        slot, key = self._backend.slot(bucket), rows.threads_key(self._prefix, bucket)
        (members,) = await self._backend.ask_all([Call(slot, ("ZRANGE", key, 0, -1))])
        found: list[Corrupt] = []
        keys = []
        for member in members:
            tenant, _, id = member.partition(b"\0")
            try:
                keys.append(ThreadKey.of(rows.plain(tenant), rows.plain(id)))
            except Corrupt:
                found.append(Corrupt("a line of the index of threads is damaged"))
        found += [
            Corrupt("a line of the index of threads is in the wrong bucket", thread=thread.id)
            for thread in keys
            if self._backend.keys(thread).bucket != bucket
        ]
        calls = [self._backend.call(self._backend.keys(key), "summary", pack((False, False))) for key in keys]
        for thread, reply in zip(keys, await self._backend.ask_all(calls), strict=True):
            try:
                stored = rows.stored_of(thread, reply[0])
            except Corrupt:
                continue  # its own audit tells that
            if stored is not None and not stored.is_listed:
                again = await self._backend.ask(thread, "summary", (False, False))
                if again[0] == reply[0]:
                    found.append(Corrupt("it is listed and has nothing to be listed for", thread=thread.id))
        return found


class Merge:
    """Lines of many buckets in one order. A bucket that runs out is asked again before anybody goes on."""

    def __init__(
        self,
        ask: Callable[[Sequence[tuple[int, bytes]], int], Awaitable[list[list[bytes]]]],
        buckets: set[int],
        low: bytes,
        count: int,
    ) -> None:
        self._ask = ask
        self._count = count
        self._places = dict.fromkeys(sorted(buckets), low)  # of buckets that may have more
        self._queues: dict[int, deque[bytes]] = {}
        self._heads: list[Line] = []
        self._hungry = list(self._places)

    async def take(self, count: int) -> list[Line]:
        """Return the next lines; fewer at the end."""
        taken: list[Line] = []
        while len(taken) < count:
            if self._hungry:
                await self._fill()
            if not self._heads:
                break
            line = heapq.heappop(self._heads)
            taken.append(line)
            self._advance(line[1])
        return taken

    async def _fill(self) -> None:
        hungry, self._hungry = self._hungry, []
        pages = await self._ask([(bucket, self._places[bucket]) for bucket in hungry], self._count)
        for bucket, page in zip(hungry, pages, strict=True):
            if len(page) < self._count:
                del self._places[bucket]
            else:
                self._places[bucket] = b"(" + page[-1]
            self._queues[bucket] = deque(page)
            self._advance(bucket)

    def _advance(self, bucket: int) -> None:
        queue = self._queues[bucket]
        if queue:
            heapq.heappush(self._heads, (queue.popleft(), bucket))
        elif bucket in self._places:
            self._hungry.append(bucket)


def _range(start: bytes, prefix: bytes, behind: bytes | None) -> tuple[bytes, bytes]:
    """Return the bounds of lines with a prefix, behind a place. No UTF-8 has the byte 0xff."""
    low = b"[" + start + prefix
    if behind is not None and behind >= prefix:
        low = b"(" + start + behind
    return low, b"(" + start + prefix + b"\xff"


def _naming_key(value: bytes) -> bytes:
    try:
        format, buckets, key, check = ormsgpack.unpackb(value)
    except ValueError as error:
        raise Corrupt("the naming key of this store is damaged") from error
    if isinstance(format, int) and format > FORMAT:
        raise NewerFormat("this store", format, FORMAT)
    if check != checksum("naming key", buckets, key) or buckets != BUCKETS:
        raise Corrupt("the naming key of this store is damaged")
    return bytes(key)
