"""Listings of threads, by id or by the time of their last change, and their totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive.backend import CheckpointRecord, ThreadKey, ThreadQuery, ThreadRecord, Totals
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.index import (
    THREADS,
    TIMES_OF_BUCKET,
    TIMES_OF_STORE,
    IndexReader,
    Question,
    TornIndex,
    to_id,
)
from outlive.backends.redis.keys import roster_key, threads_key, to_bytes
from outlive.backends.redis.merge import Line, Merge, Range
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.backends.server.attempts import Deadline
from outlive.dataclass import dataclass
from outlive.errors import Corrupt

_END = 1 << 53  # of time, as in bucket.lua
_TOTALED = 128  # buckets of which one script adds up the totals
_SUMMARIZED = 50  # threads that one script reads


@dataclass(frozen=True, slots=True)
class _Named:
    """A thread that a line of an index names."""

    thread: ThreadKey
    bucket: int  # of the line
    line: bytes  # in the index of threads
    time: bytes | bool = False  # its line in the index by time, if that names it


class ThreadListing:
    """Lists threads by the indexes of a store."""

    def __init__(self, session: Session, identity: Identity, reader: IndexReader) -> None:
        self._session = session
        self._identity = identity
        self._reader = reader

    async def page(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRecord]:
        """Return threads by id, or by the time of their last change."""

        async def work() -> list[ThreadRecord]:
            if query.newest:
                return await self._newest(query, deadline)
            await self._identity.complete(deadline)
            start, prefix = to_bytes(query.tenant) + b"\0", to_bytes(query.prefix)
            after = None if query.after is None else to_bytes(query.after)
            buckets = sorted(self._identity.buckets)
            ranges = [Range.of(bucket, start, prefix, after) for bucket in buckets]
            merge = Merge(self._reader.asking(THREADS, (False, "any"), deadline), ranges)
            page: list[ThreadRecord] = []
            while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
                named = [
                    _Named(ThreadKey.of(query.tenant, to_id(line.rest, line.bucket)), line.bucket, line.text)
                    for line in lines
                ]
                page += await self._rows(named, query.heads, deadline)
            return page

        return await self._reader.repeat(work)

    async def _newest(self, query: ThreadQuery, deadline: Deadline) -> list[ThreadRecord]:
        """Return the threads that changed last. One that changes meanwhile is left out."""
        start, after, buckets = to_bytes(query.tenant) + b"\0", None, [0]
        if query.before is not None:
            after = _time(query.before[0]) + to_bytes(query.before[1])
        index, must_exist = TIMES_OF_STORE, bool(self._identity.packed_naming_key)
        if self._session.is_sharded:
            await self._identity.complete(deadline)
            index, must_exist, buckets = TIMES_OF_BUCKET, False, sorted(self._identity.buckets)
        ranges = [Range.of(bucket, start, b"", after) for bucket in buckets]
        ask = self._reader.asking(index, (False, "any"), deadline, must_exist=must_exist)
        merge = Merge(ask, ranges)
        page: list[ThreadRecord] = []
        while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
            try:
                named = [self._found_by_time(query.tenant, line) for line in lines]
                page += await self._rows(named, query.heads, deadline)
            except TornIndex as torn:
                raise torn if self._session.is_sharded else TornIndex(None) from None
        return page

    def _found_by_time(self, tenant: str, line: Line) -> _Named:
        id = line.rest[16:]
        thread = ThreadKey.of(tenant, to_id(id, line.bucket))
        bucket = line.bucket if self._session.is_sharded else self._session.keys(thread).bucket
        return _Named(thread, bucket, to_bytes(tenant) + b"\0" + id, line.text)

    async def totals(self, tenant: str, deadline: Deadline) -> Totals:
        """Add up the totals of all buckets, some at a time. A lost roster is rebuilt first."""
        return await self._reader.repeat(lambda: self._totals(tenant, deadline))

    async def _totals(self, tenant: str, deadline: Deadline) -> Totals:
        await self._identity.complete(deadline)
        session, buckets = self._session, sorted(self._identity.buckets)
        size, must_exist = (1, b"0") if session.is_sharded else (_TOTALED, b"1")
        groups = [buckets[at : at + size] for at in range(0, len(buckets), size)]
        calls = [
            Call.of(
                session.slot(group[0]),
                script("totals"),
                [key_of(session.prefix, bucket) for key_of in (roster_key, threads_key) for bucket in group],
                to_bytes(tenant),
                must_exist,
            )
            for group in groups
        ]
        replies = await session.ask_all(calls, deadline.as_timeout_s())
        torn = {group[place - 1] for group, reply in zip(groups, replies, strict=True) for place in reply[3]}
        if torn:
            raise TornIndex(torn)
        return Totals(*(sum(reply[at] for reply in replies) for at in range(3)))

    async def _rows(self, named: Sequence[_Named], heads: bool, deadline: Deadline) -> list[ThreadRecord]:
        replies = await self._ask_together(named, heads, deadline)
        if replies is None:
            questions = [
                Question(
                    line.thread.digest, line.bucket, pack_args((heads, line.line, line.time)), line.thread
                )
                for line in named
            ]
            replies = await self._reader.ask_each("summary", questions, deadline)
        listed = [self.row(line.thread, reply, heads) for line, reply in zip(named, replies, strict=True)]
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

    async def _ask_together(
        self, named: Sequence[_Named], heads: bool, deadline: Deadline
    ) -> list[Any] | None:
        """Return the summaries of some threads, by few scripts of a single server; None if one is damaged."""
        session = self._session
        keys = [session.keys(line.thread) for line in named]
        if session.is_sharded or any(
            key.bucket != line.bucket for key, line in zip(keys, named, strict=True)
        ):
            return None
        calls = []
        for at in range(0, len(named), _SUMMARIZED):
            part = named[at : at + _SUMMARIZED]
            args = pack_args((heads, [line.line for line in part], [line.time for line in part]))
            names = [name for key in keys[at : at + _SUMMARIZED] for name in key.all]
            calls.append(Call.of(session.slot(0), script("summaries"), names, args))
        try:
            replies = await session.ask_all(calls, deadline.as_timeout_s())
        except Corrupt:
            return None
        summaries = [summary for reply in replies for summary in reply]
        return None if any(map(rows.is_torn_reply, summaries)) else summaries


def _time(updated_at: int) -> bytes:
    """Return a moment as the index by time orders it, the newest first."""
    return b"%016x" % (_END - updated_at)
