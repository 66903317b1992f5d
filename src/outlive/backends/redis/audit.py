"""Checking what is stored in Redis: every value of a thread, and what belongs to no single thread.

Of a thread: checksums, counts, and whether its keys agree. Of the store: the identity, the indexes
and the rosters. A wrong index is reported and then rebuilt from the threads: a `verify` reads all
of them next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outlive.backend import ThreadKey
from outlive.backend.entries import LISTING
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.keys import recent_key, to_bytes, to_text
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.rows import StoredThread, pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.errors import Corrupt

_BATCH = 64  # chunks fetched together
_LISTING = {kind.encode() for kind in LISTING}


class ThreadAudit:
    """Finds what is wrong with one thread."""

    def __init__(self, session: Session, repair: IndexRepair, thread: ThreadKey) -> None:
        self._session = session
        self._repair = repair
        self._thread = thread
        self._problems: list[Corrupt] = []

    async def run(self) -> list[Corrupt]:
        reply = await self._repair.ask(self._thread, "audit", ())
        try:
            stored = rows.parse_row(self._thread, reply[0])
        except Corrupt as error:
            return [error]
        if stored is None:
            return []
        _, records, order, writes, entries, chunks, meta, unlisted_entries, is_misplaced, is_unlisted = reply
        self._check(rows.parse_metadata, self._thread, stored, *meta[2:])
        name = [to_bytes(self._thread.tenant), to_bytes(self._thread.id)]
        if (stored.is_listed or stored.entries) and meta[:2] != name:
            self._add("its name is damaged")
        if set(order) - {rows.LAST} != self._check_values(records, writes, entries):
            self._add("its order and its records do not agree")
        if unlisted_entries or is_misplaced:
            self._add("an index does not show it as it is")
        if is_unlisted:
            self._add("the roster of its bucket does not show it as it is")
        self._check_counts(stored, len(records) // 2, len(writes) // 2, entries[::2])
        names = sorted({field[1:] for field in chunks})
        for start in range(0, len(names), _BATCH):
            await self._check_chunks(names[start : start + _BATCH])
        return self._problems

    def _add(self, problem: str) -> None:
        self._problems.append(Corrupt(problem, thread=self._thread.id))

    def _check(self, parse: Callable[..., object], *args: Any) -> None:
        try:
            parse(*args)
        except Corrupt as error:
            self._problems.append(error)

    def _check_values(self, records: list[bytes], writes: list[bytes], entries: list[bytes]) -> set[bytes]:
        """Check every value; return the order that they should have."""
        thread, order = self._thread, set()
        for field, value in rows.to_pairs(records):
            self._check(rows.parse_record, thread, field, value)
            namespace, _, id = field.partition(b"\0")
            check = b"\0" + value[28:36]
            order.add(b"n" + namespace + b"\0" + value[:16] + id + check)
            order.add(b"a" + value[:16] + id + b"\0" + namespace + check)
        for field, value in rows.to_pairs(writes):
            self._check(rows.parse_write, thread, field, value)
            order.add(b"w" + field + b"\0" + value[48:56])
        for field, value in rows.to_pairs(entries):
            self._check(rows.parse_entry, thread, field, value)
            order.add(b"e" + field + b"\0" + value[64:72])
        return order

    def _check_counts(
        self, stored: StoredThread, checkpoints: int, writes: int, entries: Sequence[bytes]
    ) -> None:
        listing = sum(field.partition(b"\0")[0] in _LISTING for field in entries)
        for kind, count, expected in (
            ("checkpoints", checkpoints, stored.checkpoints),
            ("writes", writes, stored.writes),
            ("entries", len(entries), stored.entries),
            ("entries that list it", listing, stored.listing),
        ):
            if count != expected:
                self._add(f"it has {count} {kind} instead of {expected}")

    async def _check_chunks(self, names: list[bytes]) -> None:
        keys = self._session.keys(self._thread)
        fields = [letter + name for name in names for letter in (b"d", b"s")]
        call = Call(self._session.slot(keys.bucket), ("HMGET", keys.chunks, *fields))
        values = await self._session.ask(call)
        for name, data, stamp in zip(names, values[::2], values[1::2], strict=True):
            if data is not None or stamp is not None:  # else it was deleted meanwhile
                self._check(self._check_chunk, name, data, stamp)

    def _check_chunk(self, name: bytes, data: bytes | None, stamp: bytes | None) -> None:
        _, check = rows.parse_stamp(self._thread, name, stamp)
        if data is None or check != rows.chunk_checksum(name, data):
            self._add(f"chunk {name.hex()} is damaged")


class BucketAudit:
    """Finds what is wrong outside the threads."""

    def __init__(self, session: Session, identity: Identity, repair: IndexRepair) -> None:
        self._session = session
        self._identity = identity
        self._repair = repair
        self._torn: set[int] = set()  # buckets to rebuild
        self._problems: list[Corrupt] = []

    async def run(self) -> list[Corrupt]:
        self._problems += await self._identity.audit()
        for bucket in sorted(self._identity.buckets):
            await self._check_bucket(bucket)
        if not self._session.is_sharded and self._identity.buckets and not await self._has_all_times():
            self._add("the index by time does not have all threads")
            await self._repair.rebuild(None)
        elif self._torn:
            await self._repair.rebuild(self._torn)
        return self._problems

    async def _has_all_times(self) -> bool:
        """Tell whether the index by time of a single server has the lines that were counted."""
        keys = [recent_key(self._session.prefix, None), self._identity.key]
        args = pack_args((1, False, "any", "listed", "listed", True))
        call = Call.of(self._session.slot(0), script("index"), keys, args, b"-", b"+", 1)
        (page,) = await self._session.ask(call)
        return page is not None

    def _add(self, problem: str, thread: ThreadKey | None = None) -> None:
        self._problems.append(Corrupt(problem, thread=None if thread is None else thread.id))

    def _add_torn(self, bucket: int, problem: str, thread: ThreadKey | None = None) -> None:
        self._torn.add(bucket)
        self._add(problem, thread)

    async def _check_bucket(self, bucket: int) -> None:
        """Compare what a bucket says of its threads. A thread whose TTL has ended is no damage."""
        keys = self._session.bucket_keys(bucket)
        times = [recent_key(self._session.prefix, bucket)] if self._session.is_sharded else []
        call = Call.of(self._session.slot(bucket), script("lines"), [*keys, *times])
        members, lines, flat_roster, recent, totals = await self._session.ask(call)
        roster = {field: value for field, value in rows.to_pairs(flat_roster) if b"\0" not in field}
        roster.pop(b"totals", None)
        listed = roster.pop(b"listed", b"0")
        counts = roster.pop(b"threads", None), roster.pop(b"entries", b"0")
        if counts[0] is None and (members or lines or not self._session.is_sharded):
            self._add_torn(bucket, f"the roster of bucket {bucket} is gone")
        elif counts[0] is not None and counts != (b"%d" % len(members), b"%d" % len(lines)):
            self._add_torn(bucket, f"an index of bucket {bucket} does not have the lines that it should have")
        elif times and listed != b"%d" % recent:
            self._add_torn(bucket, f"the index by time of bucket {bucket} does not have all threads")
        elif totals == b"wrong":
            self._add_torn(bucket, f"the totals of bucket {bucket} are not those of its threads")
        elif totals == b"lost":
            # A damaged thread was deleted. That is no damage: rows are added up instead.
            self._torn.add(bucket)
        if roster.pop(b"lost", None) is not None:
            self._add(
                f"bucket {bucket} may have lost whole threads, and nothing tells their ids; "
                f"HDEL {keys[2]} lost accepts that"
            )
        if any(line.rpartition(b"\0")[2][:32] not in roster for line in lines):
            self._add_torn(bucket, "a line of the index of entries belongs to no thread")
        threads = self._listed_threads(bucket, members)
        if any(thread.digest.hex().encode() not in roster for thread in threads):
            self._add_torn(bucket, f"the roster of bucket {bucket} does not name all of its threads")
        await self._check_roster(bucket, roster, {thread.digest for thread in threads})
        await self._check_listed(threads)

    def _listed_threads(self, bucket: int, members: list[bytes]) -> list[ThreadKey]:
        threads = []
        for member in members:
            tenant, _, id = member.partition(b"\0")
            try:
                thread = ThreadKey.of(to_text(tenant), to_text(id))
            except Corrupt:
                self._add_torn(bucket, "a line of the index of threads is damaged")
                continue
            if self._session.keys(thread).bucket == bucket:
                threads.append(thread)
            else:
                self._add_torn(bucket, "a line of the index of threads is in the wrong bucket", thread)
        return threads

    async def _check_roster(self, bucket: int, roster: dict[bytes, bytes], listed: set[bytes]) -> None:
        """Look for threads of which only the roster is left, and not a line with their name."""
        without_end = [digest for digest, end in roster.items() if end.rstrip(b"le") == b"0"]
        digests = []
        for text in without_end:
            try:
                digests.append(bytes.fromhex(text.decode()))
            except ValueError:
                self._add_torn(bucket, f"the roster of bucket {bucket} is damaged")
        digests = [digest for digest in digests if digest not in listed]
        calls = [
            Call(self._session.slot(bucket), ("EXISTS", self._session.keys_of(digest).row))
            for digest in digests
        ]
        for digest, exists in zip(digests, await self._session.ask_all(calls), strict=True):
            if not exists:
                self._add(
                    f"the row of a thread is gone, and its id with it (digest {digest.hex()}); "
                    'see "Keys that are lost" in `outlive docs backends` for how to accept that'
                )

    async def _check_listed(self, threads: list[ThreadKey]) -> None:
        """Look for threads that are listed and have nothing to be listed for."""
        for thread in threads:
            # Twice: it may have been deleted between the two reads.
            if await self._is_empty(thread) and await self._is_empty(thread):
                self._add("it is listed and has nothing to be listed for", thread)

    async def _is_empty(self, thread: ThreadKey) -> bool:
        try:
            reply = await self._repair.ask(thread, "summary", (False, False, False))
            stored = rows.parse_row(thread, reply[0])
        except Corrupt:
            return False  # its own audit reports that
        return stored is not None and not stored.is_listed
