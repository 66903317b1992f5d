"""Listings over all threads of a store in Redis.

A thread's bucket is one of 1,024 by its digest, each with an index of threads and one of entries in the slot of its
threads. A listing asks the buckets in use for a few lines each, by one exchange with each node, merges them, and reads what
the lines name. The indexes are derived: one that has not the lines that it should have is built again from the threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from outlive.backend import CheckpointRecord, EntryQuery, EntryRecord, ThreadKey, ThreadQuery, ThreadRow
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.merge import Merge, Range, Taken
from outlive.backends.redis.rebuild import Rebuild
from outlive.backends.redis.rows import pack, text
from outlive.backends.redis.scripts import script
from outlive.backends.server.attempts import Deadline
from outlive.errors import Corrupt, DamagedEntry

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend

T = TypeVar("T")
Place = tuple[bytes, bytes]  # (digest of the thread, field)
_FEW = 4  # lines of an index that are asked for at first


class _Torn(Exception):
    """Indexes of some buckets are not what they should be."""

    def __init__(self, buckets: set[int]) -> None:
        super().__init__(buckets)
        self.buckets = buckets


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked of a thread that a line names."""

    digest: bytes
    bucket: int  # of the line
    said: bytes
    thread: ThreadKey | None = None


class Listing:
    """The indexes of a store."""

    def __init__(self, backend: RedisBackend, prefix: str, identity: Identity, rebuild: Rebuild) -> None:
        self._rebuild = rebuild
        self._backend = backend
        self._prefix = prefix
        self._identity = identity

    async def _repaired(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and once more when indexes had to be built again: lines that were read before may have been missing some."""
        try:
            return await work()
        except _Torn as torn:
            await self._rebuild.buckets(torn.buckets)
        try:
            return await work()
        except _Torn:
            raise Corrupt("an index of this store has not the lines that it should have") from None

    # Threads

    async def threads(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRow]:
        return await self._repaired(lambda: self._threads(query, deadline))

    async def _threads(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRow]:
        tenant, prefix, after, limit, heads = (
            query.tenant,
            query.prefix,
            query.after,
            query.limit,
            query.heads,
        )
        await self._identity.complete(deadline)
        start, behind = text(tenant) + b"\0", None if after is None else text(after)
        ranges = [Range.of(bucket, start, text(prefix), behind) for bucket in sorted(self._identity.buckets)]
        merge = self._merge(rows.threads_key, ranges, limit, (False, "any"), deadline)
        found: list[ThreadRow] = []
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            keys = [ThreadKey.of(tenant, _id(id, bucket)) for _, id, bucket in lines]
            asked = [
                _Asked(key.digest, bucket, pack((heads, line)), key)
                for key, (line, _, bucket) in zip(keys, lines, strict=True)
            ]
            replies = await self._ask_each("summary", asked, deadline)
            shown = [self.row(key, reply, heads) for key, reply in zip(keys, replies, strict=True)]
            found += [row for row in shown if row is not None]
        return found

    async def _ask_each(self, name: str, asked: Sequence[_Asked], deadline: Deadline) -> list[Any]:
        """Run a script on each of some threads. When one stumbles, find out which."""
        places = [self._backend.keys_of(one.digest) for one in asked]
        if torn := {one.bucket for one, keys in zip(asked, places, strict=True) if one.bucket != keys.bucket}:
            raise _Torn(torn)  # a line that is in the wrong bucket
        calls = [self._backend.call(keys, name, one.said) for keys, one in zip(places, asked, strict=True)]
        try:
            replies = await self._backend.ask_all(calls, deadline.remaining_s())
        except Corrupt:
            replies = [
                await self._ask_one(call, one, deadline) for call, one in zip(calls, asked, strict=True)
            ]
        if torn := {one.bucket for one, reply in zip(asked, replies, strict=True) if rows.is_torn(reply)}:
            raise _Torn(torn)
        return replies

    async def _ask_one(self, call: Call, asked: _Asked, deadline: Deadline) -> Any:
        try:
            return (await self._backend.ask_all([call], deadline.remaining_s()))[0]
        except Corrupt as error:
            raise Corrupt(error.what, thread=None if asked.thread is None else asked.thread.id) from error

    def row(self, thread: ThreadKey, reply: list[Any], heads: bool) -> ThreadRow | None:
        """Return what a listing shows of a thread; None when it is not listed."""
        stored = rows.stored_of(thread, reply[0])
        if stored is None or not stored.is_listed:
            return None
        head: CheckpointRecord | None = None
        if heads:
            if reply[5] != stored.checkpoints:
                if rows.is_ending(reply[6]):
                    return None
                raise Corrupt(
                    f"it has {reply[5]} checkpoints instead of {stored.checkpoints}", thread=thread.id
                )
            if reply[3] is not None:
                head = rows.record_of(thread, b"\0" + reply[3], reply[4] or b"")
        return rows.summary(thread, stored, reply, head)

    # Entries

    async def entries(
        self, query: EntryQuery, asked: Sequence[Any], deadline: Deadline
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return entries by key and thread. `asked` is the statuses, or False, and whether their leases have lapsed."""
        return await self._repaired(lambda: self._entries(query, asked, deadline))

    async def _entries(
        self, query: EntryQuery, asked: Sequence[Any], deadline: Deadline
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        tenant, kind, prefix, after, limit = query.tenant, query.kind, query.prefix, query.after, query.limit
        await self._identity.complete(deadline)
        statuses, lapsed = asked
        start = text(tenant) + b"\0" + text(kind) + b"\0"
        starts = [b"k" + start]
        if statuses is not False and b"" not in statuses:  # each status has lines of its own
            starts, statuses = [b"s" + start + status + b"\0" for status in dict.fromkeys(statuses)], False
        behind = None if after is None else text(after[0]) + b"\0" + after[1].hex().encode() + b"\x7f"
        buckets = sorted(self._identity.buckets)
        ranges = [Range.of(bucket, one, text(prefix), behind) for bucket in buckets for one in starts]
        merge = self._merge(rows.entries_key, ranges, limit, (statuses, lapsed), deadline)
        found: dict[
            Place, tuple[ThreadKey, EntryRecord]
        ] = {}  # what has two lines for a moment is shown once
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            found.update(await self._values(tenant, text(kind), lines, asked, deadline))
        return list(found.values())

    async def _values(
        self,
        tenant: str,
        kind: bytes,
        lines: Sequence[Taken],
        asked: Sequence[Any],
        deadline: Deadline,
    ) -> dict[Place, tuple[ThreadKey, EntryRecord]]:
        """Read the entries that an index names. What went meanwhile is left out."""
        by_thread: dict[bytes, list[tuple[bytes, bytes]]] = {}
        places, buckets = [], {}
        for line, named, bucket in lines:
            key, _, tail = named.partition(b"\0")
            digest, field = _digest(tail[:32], bucket), kind + b"\0" + key
            places.append((digest, field))
            by_thread.setdefault(digest, []).append((field, line))
            buckets[digest] = bucket
        questions = [
            _Asked(digest, buckets[digest], pack((text(tenant), *zip(*met, strict=True), *asked)))
            for digest, met in by_thread.items()
        ]
        values: dict[Place, tuple[ThreadKey, EntryRecord]] = {}
        replies = await self._ask_each("found", questions, deadline)
        for (digest, met), reply in zip(by_thread.items(), replies, strict=True):
            if reply[0] is None:
                continue
            if reply[0].startswith(b"!"):
                raise await self._damage(tenant, digest, met[0][0], reply[0][1:])
            if all(value is None for value in reply[2]):
                continue
            thread = ThreadKey.of(tenant, rows.plain(reply[1] or b""))
            if thread.digest != digest:
                raise Corrupt("the name of a thread is damaged", thread=thread.id)
            for (field, line), value in zip(met, reply[2], strict=True):
                if value is not None:
                    values[digest, field] = (thread, _entry(thread, field, value, line))
        return {place: values[place] for place in places if place in values}

    async def _damage(self, tenant: str, digest: bytes, field: bytes, found: bytes) -> Corrupt:
        """Return the error for an entry whose thread is damaged. Its id is gone with the row; the index of threads may have it."""
        keys = self._backend.keys_of(digest)
        call = Call(self._backend.slot(keys.bucket), ("ZRANGE", keys.all[6], 0, -1))
        (members,) = await self._backend.ask_all([call])
        start = text(tenant) + b"\0"
        for member in members:
            id = member[len(start) :]
            if member.startswith(start) and ThreadKey.of(tenant, rows.plain(id)).digest == digest:
                kind, _, key = field.partition(b"\0")
                return DamagedEntry(rows.plain(id), rows.plain(kind), rows.plain(key), "")
        return Corrupt(f"{found.decode(errors='replace')} (the digest of the thread is {digest.hex()})")

    # All buckets

    def _merge(
        self,
        key_of: Callable[[str, int], str],
        ranges: Sequence[Range],
        limit: int,
        asked: tuple[Any, Any],
        deadline: Deadline,
    ) -> Merge:
        async def ask(some: Sequence[Range], count: int) -> list[list[bytes]]:
            """Ask for lines: all at once of a single server, each index by itself in a Cluster."""
            groups = [[one] for one in some] if self._backend.is_sharded else [some]
            what = "threads" if key_of is rows.threads_key else "entries"
            calls = [
                Call.of(
                    self._backend.slot(group[0].bucket),
                    script("index"),
                    [of(self._prefix, one.bucket) for of in (key_of, rows.roster_key) for one in group],
                    pack((count, *asked, what, not self._backend.is_sharded)),
                    *(part for one in group for part in (one.low, one.high, len(one.start) + 1)),
                )
                for group in groups
                if group
            ]
            replies = await self._backend.ask_all(calls, deadline.remaining_s())
            pages = [page for reply in replies for page in reply]
            if torn := {one.bucket for one, page in zip(some, pages, strict=True) if page is None}:
                raise _Torn(torn)
            return pages

        few = min(limit, max(_FEW, 3 * limit // max(1, len(ranges)) + 1))
        return Merge(ask, ranges, few)


def _entry(thread: ThreadKey, field: bytes, value: bytes, line: bytes) -> EntryRecord:
    """Return an entry. Of a damaged one, its line still tells the status."""
    try:
        return rows.entry_of(thread, field, value)
    except DamagedEntry as error:
        before, _, tail = line.rpartition(b"\0")
        status = tail[49:] if line.startswith(b"k") else before.split(b"\0")[2]
        raise DamagedEntry(thread.id, error.kind, error.key, rows.plain(status)) from error


def _digest(hex: bytes, bucket: int) -> bytes:
    try:
        digest = bytes.fromhex(hex.decode())
    except ValueError:
        raise _Torn({bucket}) from None
    if len(digest) != 16:
        raise _Torn({bucket})
    return digest


def _id(text: bytes, bucket: int) -> str:
    try:
        return rows.plain(text)
    except Corrupt:
        raise _Torn({bucket}) from None
