"""Listings over all threads of a store in Redis.

A thread's bucket is one of 1,024 by its digest, each with an index of threads and one of entries in the slot of its
threads. A listing asks the buckets in use for a few lines each, by one exchange with each node, merges them, and reads what
the lines name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..backend import CheckpointRecord, Entry, EntryCursor, ThreadKey, ThreadRow
from ..errors import Corrupt
from . import redis_rows as rows
from .redis_identity import Identity
from .redis_links import Call
from .redis_merge import Merge, Range
from .redis_rows import Keys, pack, text
from .redis_scripts import script
from .server import Deadline

if TYPE_CHECKING:
    from .redis import RedisBackend

Place = tuple[bytes, bytes]  # (digest of the thread, field)
_FEW = 4  # lines of an index that are asked for at first


class Listing:
    """The indexes of a store."""

    def __init__(self, backend: RedisBackend, prefix: str, identity: Identity) -> None:
        self._backend = backend
        self._prefix = prefix
        self._identity = identity

    # Threads

    async def threads(
        self, tenant: str, prefix: str, after: str | None, limit: int, heads: bool, deadline: Deadline
    ) -> list[ThreadRow]:
        await self._identity.complete(deadline)
        start, behind = text(tenant) + b"\0", None if after is None else text(after)
        ranges = [Range.of(bucket, start, text(prefix), behind) for bucket in sorted(self._identity.buckets)]
        merge = self._merge(rows.threads_key, ranges, limit, (False, "any"), deadline)
        found: list[ThreadRow] = []
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            keys = [ThreadKey.of(tenant, rows.plain(id)) for _, id in lines]
            calls = [
                self._backend.call(self._backend.keys(key), "summary", pack((heads, line)))
                for key, (line, _) in zip(keys, lines, strict=True)
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
        """Return entries by key and thread. `asked` is the statuses, or False, and whether their leases have lapsed."""
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
        found: dict[Place, tuple[ThreadKey, Entry]] = {}  # what has two lines for a moment is shown once
        while len(found) < limit and (lines := await merge.take(limit - len(found))):
            found.update(await self._values(tenant, text(kind), lines, asked, deadline))
        return list(found.values())

    async def _values(
        self,
        tenant: str,
        kind: bytes,
        lines: Sequence[tuple[bytes, bytes]],
        asked: Sequence[Any],
        deadline: Deadline,
    ) -> dict[Place, tuple[ThreadKey, Entry]]:
        """Read the entries that an index names. What went meanwhile is left out."""
        by_thread: dict[bytes, list[tuple[bytes, bytes]]] = {}
        places = []
        for line, named in lines:
            key, _, tail = named.partition(b"\0")
            digest, field = bytes.fromhex(tail[:32].decode()), kind + b"\0" + key
            places.append((digest, field))
            by_thread.setdefault(digest, []).append((field, line))
        calls = [
            self._backend.call(
                Keys.of(self._prefix, digest), "found", pack((text(tenant), *zip(*met, strict=True), *asked))
            )
            for digest, met in by_thread.items()
        ]
        values: dict[Place, tuple[ThreadKey, Entry]] = {}
        replies = await self._backend.ask_all(calls, deadline.remaining_s())
        for (digest, met), reply in zip(by_thread.items(), replies, strict=True):
            if reply[0] is None:
                continue
            thread = ThreadKey.of(tenant, rows.plain(reply[0]))
            if thread.digest != digest:
                raise Corrupt("the name of a thread is damaged", thread=thread.id)
            for (field, _), value in zip(met, reply[1], strict=True):
                if value is not None:
                    values[digest, field] = (thread, rows.entry_of(thread, field, value))
        return {place: values[place] for place in places if place in values}

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
            calls = [
                Call.of(
                    self._backend.slot(group[0].bucket),
                    script("index"),
                    [key_of(self._prefix, one.bucket) for one in group],
                    pack((count, *asked)),
                    *(part for one in group for part in (one.low, one.high, len(one.start) + 1)),
                )
                for group in groups
                if group
            ]
            replies = await self._backend.ask_all(calls, deadline.remaining_s())
            return [page for reply in replies for page in reply]

        few = min(limit, max(_FEW, 3 * limit // max(1, len(ranges)) + 1))
        return Merge(ask, ranges, few)

    # Damage

    async def audit(self) -> list[Corrupt]:
        """Check every line of the indexes of threads."""
        await self._identity.complete(self._backend.deadline(None))
        found: list[Corrupt] = []
        for bucket in sorted(self._identity.buckets):
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
