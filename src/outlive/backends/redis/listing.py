"""Listings over all threads of a store in Redis.

A thread's bucket is one of 1,024, by its digest. Each bucket has an index of threads and one of
entries, in the slot of its threads. A listing asks the buckets in use for a few lines each, by one
exchange with each node, merges them, and reads what the lines name. The indexes are derived: one
that does not have the lines that it should have is rebuilt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from outlive.backend import (
    CheckpointRecord,
    EntryQuery,
    EntryRecord,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
)
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.keys import entries_key, recent_key, roster_key, threads_key, to_bytes, to_text
from outlive.backends.redis.merge import Line, Merge, Range
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.backends.server.attempts import Deadline
from outlive.errors import Corrupt, DamagedEntry

T = TypeVar("T")
EntryId = tuple[bytes, bytes]  # digest of the thread, field of the entry
_END = 1 << 53  # as in recent.lua
_TOTALED = 32  # buckets of which one script adds up the threads
_FIRST_LINES = 4  # of an index, at least, in the first exchange


class _TornIndex(Exception):
    """Indexes of some buckets do not have the lines that they should have."""

    def __init__(self, buckets: set[int]) -> None:
        super().__init__(buckets)
        self.buckets = buckets


@dataclass(frozen=True, slots=True)
class _Question:
    """The arguments of a script on a thread that a line names."""

    digest: bytes
    bucket: int  # of the line
    args: bytes
    thread: ThreadKey | None = None


class Listing:
    """Lists threads and entries by the indexes of a store."""

    def __init__(self, session: Session, identity: Identity, repair: IndexRepair) -> None:
        self._session = session
        self._identity = identity
        self._repair = repair

    async def _repeat(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work; after a repair all of it again: lines read before may be incomplete."""
        try:
            return await work()
        except _TornIndex as torn:
            await self._repair.rebuild(torn.buckets)
        try:
            return await work()
        except _TornIndex:
            raise Corrupt("an index of this store does not have the lines that it should have") from None

    # Threads

    async def threads(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRecord]:
        """Return threads by id."""

        async def work() -> list[ThreadRecord]:
            await self._identity.complete(deadline)
            if query.newest:
                return await self._newest(query, deadline)
            start, prefix = to_bytes(query.tenant) + b"\0", to_bytes(query.prefix)
            after = None if query.after is None else to_bytes(query.after)
            buckets = sorted(self._identity.buckets)
            ranges = [Range.of(bucket, start, prefix, after) for bucket in buckets]
            merge = self._merge(threads_key, ranges, query.limit, (False, "any"), deadline)
            page: list[ThreadRecord] = []
            while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
                page += await self._rows(query.tenant, lines, query.heads, deadline)
            return page

        return await self._repeat(work)

    async def _newest(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRecord]:
        """Return the threads that changed last."""
        session, start, low = self._session, to_bytes(query.tenant) + b"\0", b""
        if query.before is not None:
            low = b"(%016x" % (_END - query.before[0]) + to_bytes(query.before[1])

        async def ask(asked: Sequence[Range], page_size: int) -> list[list[bytes]]:
            groups = [[part] for part in asked] if session.is_sharded else [asked]
            calls = [
                Call.of(
                    session.slot(group[0].bucket),
                    script("recent"),
                    [of(session.prefix, part.bucket) for of in (recent_key, roster_key) for part in group],
                    pack_args((page_size, not session.is_sharded)),
                    start,
                    *(part.low for part in group),
                )
                for group in groups
                if group
            ]
            pages = [
                page for reply in await session.ask_all(calls, deadline.as_timeout_s()) for page in reply
            ]
            if torn := {part.bucket for part, page in zip(asked, pages, strict=True) if page is None}:
                raise _TornIndex(torn)
            return [
                sorted(line for line in page if line > part.low[1:])
                for part, page in zip(asked, pages, strict=True)
            ]

        ranges = [Range(bucket, b"", low, b"") for bucket in sorted(self._identity.buckets)]
        page_size = min(query.limit, max(_FIRST_LINES, 3 * query.limit // max(1, len(ranges)) + 1))
        merge, page = Merge(ask, ranges, page_size), list[ThreadRecord]()
        while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
            named = [Line(start + line.rest[16:], line.rest[16:], line.bucket) for line in lines]
            page += await self._rows(query.tenant, named, query.heads, deadline)
        return page

    async def totals(self, tenant: str, deadline: Deadline) -> Totals:
        """Add up the rows of all threads, some buckets at a time."""
        await self._identity.complete(deadline)
        session, buckets = self._session, sorted(self._identity.buckets)
        size = 1 if session.is_sharded else _TOTALED
        groups = [buckets[at : at + size] for at in range(0, len(buckets), size)]
        calls = [
            Call.of(
                session.slot(group[0]),
                script("totals"),
                [roster_key(session.prefix, bucket) for bucket in group],
                to_bytes(tenant),
            )
            for group in groups
        ]
        replies = await session.ask_all(calls, deadline.as_timeout_s())
        return Totals(*(sum(reply[at] for reply in replies) for at in range(3)))

    async def _rows(
        self, tenant: str, lines: Sequence[Line], heads: bool, deadline: Deadline
    ) -> list[ThreadRecord]:
        threads = [ThreadKey.of(tenant, _id(line.rest, line.bucket)) for line in lines]
        questions = [
            _Question(thread.digest, line.bucket, pack_args((heads, line.text)), thread)
            for thread, line in zip(threads, lines, strict=True)
        ]
        replies = await self._ask_each("summary", questions, deadline)
        listed = [self.row(thread, reply, heads) for thread, reply in zip(threads, replies, strict=True)]
        return [row for row in listed if row is not None]

    def row(self, thread: ThreadKey, reply: list[Any], heads: bool) -> ThreadRecord | None:
        """Return what a listing shows of a thread; None when it is not listed."""
        stored = rows.parse_row(thread, reply[0])
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
                head = rows.parse_record(thread, b"\0" + reply[3], reply[4] or b"")
        return rows.thread_record(thread, stored, reply, head)

    # Entries

    async def entries(self, query: EntryQuery, deadline: Deadline) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return entries by key and thread."""

        async def work() -> list[tuple[ThreadKey, EntryRecord]]:
            await self._identity.complete(deadline)
            ranges, args = self._entry_ranges(query)
            merge = self._merge(entries_key, ranges, query.limit, args, deadline)
            # By id: an entry that has two lines for a moment is listed once.
            page: dict[EntryId, tuple[ThreadKey, EntryRecord]] = {}
            while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
                page.update(await self._values(query, lines, deadline))
            return list(page.values())

        return await self._repeat(work)

    def _entry_ranges(self, query: EntryQuery) -> tuple[list[Range], tuple[Any, Any]]:
        """Return the parts of the indexes to read, and by what the script filters them."""
        statuses, lapsed = filter_args(query)
        common = to_bytes(query.tenant) + b"\0" + to_bytes(query.kind) + b"\0"
        starts = [b"k" + common]
        if statuses is not False and b"" not in statuses:  # each status has lines of its own
            starts, statuses = [b"s" + common + status + b"\0" for status in dict.fromkeys(statuses)], False
        after = None
        if query.after is not None:
            key, digest = query.after
            after = to_bytes(key) + b"\0" + digest.hex().encode() + b"\x7f"
        prefix, buckets = to_bytes(query.prefix), sorted(self._identity.buckets)
        ranges = [Range.of(bucket, start, prefix, after) for bucket in buckets for start in starts]
        return ranges, (statuses, lapsed)

    async def _values(
        self, query: EntryQuery, lines: Sequence[Line], deadline: Deadline
    ) -> dict[EntryId, tuple[ThreadKey, EntryRecord]]:
        """Read the entries that lines name. Those that are gone meanwhile are left out."""
        tenant, kind = query.tenant, to_bytes(query.kind)
        by_thread: dict[bytes, list[tuple[bytes, bytes]]] = {}  # fields and lines by digest
        order: list[EntryId] = []
        buckets: dict[bytes, int] = {}
        for line in lines:
            key, _, tail = line.rest.partition(b"\0")
            digest, field = _digest(tail[:32], line.bucket), kind + b"\0" + key
            order.append((digest, field))
            by_thread.setdefault(digest, []).append((field, line.text))
            buckets[digest] = line.bucket
        questions = [
            _Question(
                digest,
                buckets[digest],
                pack_args((to_bytes(tenant), *zip(*named, strict=True), *filter_args(query))),
            )
            for digest, named in by_thread.items()
        ]
        entries: dict[EntryId, tuple[ThreadKey, EntryRecord]] = {}
        replies = await self._ask_each("named_entries", questions, deadline)
        for (digest, named), reply in zip(by_thread.items(), replies, strict=True):
            if reply[0] is None:
                continue
            if reply[0].startswith(b"!"):
                raise await self._damage(tenant, digest, named[0][0], reply[0][1:])
            _, id, values = reply
            if all(value is None for value in values):
                continue
            thread = ThreadKey.of(tenant, to_text(id or b""))
            if thread.digest != digest:
                raise Corrupt("the name of a thread is damaged", thread=thread.id)
            for (field, line_text), value in zip(named, values, strict=True):
                if value is not None:
                    entries[digest, field] = (thread, _entry(thread, field, value, line_text))
        return {id: entries[id] for id in order if id in entries}

    async def _damage(self, tenant: str, digest: bytes, field: bytes, what: bytes) -> Corrupt:
        """Return the error for an entry whose thread is damaged.

        The id of the thread is gone with its row; the index of threads may still have it.
        """
        keys = self._session.keys_of(digest)
        call = Call(self._session.slot(keys.bucket), ("ZRANGE", keys.threads_index, 0, -1))
        start = to_bytes(tenant) + b"\0"
        for member in await self._session.ask(call):
            id = member[len(start) :]
            if member.startswith(start) and ThreadKey.of(tenant, to_text(id)).digest == digest:
                kind, _, key = field.partition(b"\0")
                return DamagedEntry(to_text(id), to_text(kind), to_text(key), "")
        return Corrupt(f"{what.decode(errors='replace')} (the digest of the thread is {digest.hex()})")

    # Asking

    async def _ask_each(self, name: str, questions: Sequence[_Question], deadline: Deadline) -> list[Any]:
        """Run a script on each of some threads. When one fails, find out which."""
        keys = [self._session.keys_of(question.digest) for question in questions]
        asked = list(zip(questions, keys, strict=True))
        if torn := {question.bucket for question, key in asked if question.bucket != key.bucket}:
            raise _TornIndex(torn)  # a line is in the wrong bucket
        calls = [self._session.script_call(key, name, question.args) for question, key in asked]
        try:
            replies = await self._session.ask_all(calls, deadline.as_timeout_s())
        except Corrupt:
            replies = [
                await self._ask_one(call, question, deadline)
                for call, question in zip(calls, questions, strict=True)
            ]
        answered = zip(questions, replies, strict=True)
        if torn := {question.bucket for question, reply in answered if rows.is_torn_reply(reply)}:
            raise _TornIndex(torn)
        return replies

    async def _ask_one(self, call: Call, question: _Question, deadline: Deadline) -> Any:
        try:
            return await self._session.ask(call, deadline.as_timeout_s())
        except Corrupt as error:
            thread_id = None if question.thread is None else question.thread.id
            raise Corrupt(error.what, thread=thread_id) from error

    def _merge(
        self,
        key_of: Callable[[str, int], str],
        ranges: Sequence[Range],
        limit: int,
        args: tuple[Any, Any],
        deadline: Deadline,
    ) -> Merge:
        """Return the merge of some ranges of the indexes of threads or of entries."""
        session, count_field = self._session, "threads" if key_of is threads_key else "entries"

        async def ask(asked: Sequence[Range], page_size: int) -> list[list[bytes]]:
            # A single server is asked for all at once. In a Cluster each index has its own slot.
            groups = [[part] for part in asked] if session.is_sharded else [asked]
            calls = [
                Call.of(
                    session.slot(group[0].bucket),
                    script("index"),
                    [of(session.prefix, part.bucket) for of in (key_of, roster_key) for part in group],
                    pack_args((page_size, *args, count_field, not session.is_sharded)),
                    *(arg for part in group for arg in (part.low, part.high, len(part.start) + 1)),
                )
                for group in groups
                if group
            ]
            replies = await session.ask_all(calls, deadline.as_timeout_s())
            pages = [page for reply in replies for page in reply]
            if torn := {part.bucket for part, page in zip(asked, pages, strict=True) if page is None}:
                raise _TornIndex(torn)
            return pages

        page_size = min(limit, max(_FIRST_LINES, 3 * limit // max(1, len(ranges)) + 1))
        return Merge(ask, ranges, page_size)


def filter_args(query: EntryQuery) -> tuple[Any, Any]:
    """Return statuses and lapsed leases as the scripts expect them."""
    statuses = False if query.statuses is None else [to_bytes(status) for status in query.statuses]
    return statuses, "any" if query.lapsed is None else query.lapsed


def _entry(thread: ThreadKey, field: bytes, value: bytes, line: bytes) -> EntryRecord:
    """Return an entry. When it is damaged, its line still tells the status."""
    try:
        return rows.parse_entry(thread, field, value)
    except DamagedEntry as error:
        before, _, tail = line.rpartition(b"\0")
        status = tail[49:] if line.startswith(b"k") else before.split(b"\0")[2]
        raise DamagedEntry(thread.id, error.kind, error.key, to_text(status)) from error


def _digest(hex: bytes, bucket: int) -> bytes:
    try:
        digest = bytes.fromhex(hex.decode())
    except ValueError:
        raise _TornIndex({bucket}) from None
    if len(digest) != 16:
        raise _TornIndex({bucket})
    return digest


def _id(encoded: bytes, bucket: int) -> str:
    try:
        return to_text(encoded)
    except Corrupt:
        raise _TornIndex({bucket}) from None
