"""Looking at what belongs to no single thread in Redis: the identity, the indexes and the rosters.

An index that is wrong is told, and then built again from the threads: whoever verifies a store walks over all of them next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.backend import ThreadKey
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.rebuild import Rebuild
from outlive.backends.redis.scripts import script
from outlive.errors import Corrupt

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend


class BucketAudit:
    """What is wrong beside the threads."""

    def __init__(self, backend: RedisBackend, prefix: str, identity: Identity, rebuild: Rebuild) -> None:
        self._rebuild = rebuild
        self._torn: set[int] = set()
        self._backend = backend
        self._prefix = prefix
        self._identity = identity
        self.found: list[Corrupt] = []

    async def run(self) -> list[Corrupt]:
        self.found += await self._identity.audit()
        for bucket in sorted(self._identity.buckets):
            await self._bucket(bucket)
        if self._torn:
            await self._rebuild.buckets(self._torn)
        return self.found

    def _wrong(self, what: str, thread: ThreadKey | None = None) -> None:
        self.found.append(Corrupt(what, thread=None if thread is None else thread.id))

    def _index_wrong(self, bucket: int, what: str, thread: ThreadKey | None = None) -> None:
        self._torn.add(bucket)
        self._wrong(what, thread)

    async def _bucket(self, bucket: int) -> None:
        """Compare what a bucket says of its threads. A thread that a TTL has taken is no damage."""
        keys = [key_of(self._prefix, bucket) for key_of in rows.BUCKET_KEYS]
        call = Call.of(self._backend.slot(bucket), script("lines"), keys)
        ((members, lines, flat),) = await self._backend.ask_all([call])
        roster = dict(rows.pairs(flat))
        counts = roster.pop(b"threads", None), roster.pop(b"entries", b"0")
        if counts[0] is None and (members or lines or not self._backend.is_sharded):
            self._index_wrong(bucket, f"the roster of bucket {bucket} is gone")
        elif counts[0] is not None and counts != (b"%d" % len(members), b"%d" % len(lines)):
            self._index_wrong(bucket, f"an index of bucket {bucket} has not the lines that it should have")
        if roster.pop(b"lost", None) is not None:
            self._wrong(
                f"bucket {bucket} may have lost whole threads, and nothing tells their ids; "
                f"HDEL {keys[2]} lost accepts that"
            )
        if any(line.rpartition(b"\0")[2][:32] not in roster for line in lines):
            self._index_wrong(bucket, "a line of the index of entries belongs to no thread")
        listed = self._members(bucket, members)
        if any(thread.digest.hex().encode() not in roster for thread in listed):
            self._index_wrong(bucket, f"the roster of bucket {bucket} does not name all of its threads")
        await self._places(bucket, roster, {thread.digest for thread in listed})
        await self._rows(listed)

    def _members(self, bucket: int, members: list[bytes]) -> list[ThreadKey]:
        found = []
        for member in members:
            tenant, _, id = member.partition(b"\0")
            try:
                thread = ThreadKey.of(rows.plain(tenant), rows.plain(id))
            except Corrupt:
                self._index_wrong(bucket, "a line of the index of threads is damaged")
                continue
            if self._backend.keys(thread).bucket == bucket:
                found.append(thread)
            else:
                self._index_wrong(bucket, "a line of the index of threads is in the wrong bucket", thread)
        return found

    async def _places(self, bucket: int, roster: dict[bytes, bytes], listed: set[bytes]) -> None:
        """Look for threads of which only the roster is left. One with a line is found by its name."""
        lasting = [who for who, place in roster.items() if place.rstrip(b"le") == b"0"]
        digests = []
        for who in lasting:
            try:
                digests.append(bytes.fromhex(who.decode()))
            except ValueError:
                self._index_wrong(bucket, f"the roster of bucket {bucket} is damaged")
        digests = [digest for digest in digests if digest not in listed]
        calls = [
            Call(self._backend.slot(bucket), ("EXISTS", self._backend.keys_of(digest).all[0]))
            for digest in digests
        ]
        for digest, is_there in zip(digests, await self._backend.ask_all(calls), strict=True):
            if not is_there:
                self._wrong(
                    f"the row of a thread is gone, and its id with it (digest {digest.hex()}); "
                    'see "Keys that are lost" in docs/backends.md for how to accept that'
                )

    async def _rows(self, threads: list[ThreadKey]) -> None:
        """Look for threads that are listed and have nothing to be listed for."""
        for thread in threads:
            if await self._is_idle(thread) and await self._is_idle(thread):  # not deleted meanwhile
                self._wrong("it is listed and has nothing to be listed for", thread)

    async def _is_idle(self, thread: ThreadKey) -> bool:
        try:
            reply = await self._backend.ask(thread, "summary", (False, False))
            stored = rows.stored_of(thread, reply[0])
        except Corrupt:
            return False  # its own audit tells that
        return stored is not None and not stored.is_listed
