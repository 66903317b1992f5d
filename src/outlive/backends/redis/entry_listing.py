"""Listings of entries over all threads of a store in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive.backend import EntryQuery, EntryRecord, ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.index import ENTRIES, IndexReader, Question, to_digest
from outlive.backends.redis.keys import to_bytes, to_text
from outlive.backends.redis.merge import Line, Merge, Range
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.session import Session
from outlive.backends.server.attempts import Deadline
from outlive.errors import Corrupt, DamagedEntry

EntryId = tuple[bytes, bytes]  # digest of the thread, field of the entry


class EntryListing:
    """Lists entries by the indexes of a store."""

    def __init__(self, session: Session, identity: Identity, reader: IndexReader) -> None:
        self._session = session
        self._identity = identity
        self._reader = reader

    async def page(self, query: EntryQuery, deadline: Deadline) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return entries by key and thread."""

        async def work() -> list[tuple[ThreadKey, EntryRecord]]:
            await self._identity.complete(deadline)
            ranges, args = self._entry_ranges(query)
            merge = Merge(self._reader.asking(ENTRIES, args, deadline), ranges)
            # By id: an entry that has two lines for a moment is listed once.
            page: dict[EntryId, tuple[ThreadKey, EntryRecord]] = {}
            while len(page) < query.limit and (lines := await merge.take(query.limit - len(page))):
                page.update(await self._values(query, lines, deadline))
            return list(page.values())

        return await self._reader.repeat(work)

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
            digest, field = to_digest(tail[:32], line.bucket), kind + b"\0" + key
            order.append((digest, field))
            by_thread.setdefault(digest, []).append((field, line.text))
            buckets[digest] = line.bucket
        questions = [
            Question(
                digest,
                buckets[digest],
                pack_args((to_bytes(tenant), *zip(*named, strict=True), *filter_args(query))),
            )
            for digest, named in by_thread.items()
        ]
        entries: dict[EntryId, tuple[ThreadKey, EntryRecord]] = {}
        replies = await self._reader.ask_each("named_entries", questions, deadline)
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
