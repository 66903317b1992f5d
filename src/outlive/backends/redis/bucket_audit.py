"""Checking what belongs to no single thread in Redis: the identity, the indexes and the rosters.

A wrong index is reported and then rebuilt from the threads: a `verify` reads all of them next.
"""

from __future__ import annotations

from outlive.backend import ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.errors import Corrupt


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
        if self._torn:
            await self._repair.rebuild(self._torn)
        return self._problems

    def _add(self, problem: str, thread: ThreadKey | None = None) -> None:
        self._problems.append(Corrupt(problem, thread=None if thread is None else thread.id))

    def _add_torn(self, bucket: int, problem: str, thread: ThreadKey | None = None) -> None:
        self._torn.add(bucket)
        self._add(problem, thread)

    async def _check_bucket(self, bucket: int) -> None:
        """Compare what a bucket says of its threads. A thread whose TTL has ended is no damage."""
        keys = self._session.bucket_keys(bucket)
        recent_key = rows.recent_key(self._session.prefix, bucket)
        call = Call.of(self._session.slot(bucket), script("lines"), [*keys, recent_key])
        members, lines, flat_roster, recent = await self._session.ask(call)
        roster = dict(rows.to_pairs(flat_roster))
        counts = roster.pop(b"threads", None), roster.pop(b"entries", b"0")
        if counts[0] is None and (members or lines or not self._session.is_sharded):
            self._add_torn(bucket, f"the roster of bucket {bucket} is gone")
        elif counts[0] is not None and counts != (b"%d" % len(members), b"%d" % len(lines)):
            self._add_torn(bucket, f"an index of bucket {bucket} does not have the lines that it should have")
        elif recent != len(members):
            self._add_torn(bucket, f"the index by time of bucket {bucket} does not have all threads")
        if roster.pop(b"lost", None) is not None:
            self._add(
                f"bucket {bucket} may have lost whole threads, and nothing tells their ids; "
                f"HDEL {keys[2]} lost accepts that"
            )
        if any(line.rpartition(b"\0")[2][:32] not in roster for line in lines):
            self._add_torn(bucket, "a line of the index of entries belongs to no thread")
        listed = self._listed_threads(bucket, members)
        if any(thread.digest.hex().encode() not in roster for thread in listed):
            self._add_torn(bucket, f"the roster of bucket {bucket} does not name all of its threads")
        await self._check_roster(bucket, roster, {thread.digest for thread in listed})
        await self._check_listed(listed)

    def _listed_threads(self, bucket: int, members: list[bytes]) -> list[ThreadKey]:
        threads = []
        for member in members:
            tenant, _, id = member.partition(b"\0")
            try:
                thread = ThreadKey.of(rows.to_text(tenant), rows.to_text(id))
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
                    'see "Keys that are lost" in docs/backends.md for how to accept that'
                )

    async def _check_listed(self, threads: list[ThreadKey]) -> None:
        """Look for threads that are listed and have nothing to be listed for."""
        for thread in threads:
            # Twice: it may have been deleted between the two reads.
            if await self._is_empty(thread) and await self._is_empty(thread):
                self._add("it is listed and has nothing to be listed for", thread)

    async def _is_empty(self, thread: ThreadKey) -> bool:
        try:
            reply = await self._repair.ask(thread, "summary", (False, False))
            stored = rows.parse_row(thread, reply[0])
        except Corrupt:
            return False  # its own audit reports that
        return stored is not None and not stored.is_listed
