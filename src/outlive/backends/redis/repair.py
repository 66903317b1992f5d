"""Rebuilding the indexes of a bucket from its threads, and calls that need them.

An index and a roster are derived from the rows of threads. When one is gone or incomplete, all
threads of the bucket are looked for by SCAN, and each says what belongs into the index. What cannot
be recovered stays noted: a thread of which only an index line or a roster field is left is damaged.
When nothing at all is left of a bucket that was in use, no thread can begin in it unless it is
deleted first.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from outlive.backend import ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.keys import recent_key, to_text
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
from outlive.dataclass import dataclass
from outlive.errors import Corrupt

_BATCH = 16  # buckets rebuilt together: all 1,024 of them when the identity of a store was lost


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a bucket is repaired."""

    bucket: int
    has_no_count: bool  # in its roster
    calls: list[Call]


class IndexRepair:
    """Rebuilds indexes, and repeats calls that found them torn."""

    def __init__(self, session: Session, identity: Identity) -> None:
        self._session = session
        self._identity = identity
        self._has_ttl = session.options.ttl_ms > 0

    # Calls on one thread

    async def ask(
        self, thread: ThreadKey, name: str, args: Any, timeout_s: float | None = None, *more: bytes
    ) -> Any:
        """Run a script on one thread."""
        call = self._session.script_call(self._session.keys(thread), name, pack_args(args), *more)
        return await self.repeat(thread, lambda: self._session.ask(call, timeout_s))

    async def repeat(self, thread: ThreadKey, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a script, and once more when the roster of its bucket had to be rebuilt."""
        try:
            reply = await send()
            if rows.is_torn_reply(reply):
                await self.rebuild({self._session.keys(thread).bucket})
                reply = await send()
            return reply
        except Corrupt as error:
            if error.thread is not None:
                raise
            raise Corrupt(error.what, thread=thread.id) from error

    # Rebuilding

    async def rebuild(self, wanted: set[int] | None) -> None:
        """Rebuild the indexes of some buckets, or of all. May be repeated after a crash at any point."""
        session, identity = self._session, self._identity
        if not session.is_sharded:
            await identity.restore()
            # None of a store that was emptied.
            wanted = identity.buckets if wanted is None else wanted & identity.buckets
        buckets = sorted(identity.buckets if wanted is None else wanted)
        digests, times = await self._find_threads(), await self._find_times(buckets)
        for start in range(0, len(buckets), _BATCH):
            await self._rebuild_batch(buckets[start : start + _BATCH], digests, times)
        if not session.is_sharded and identity.buckets <= set(buckets):
            # Lines of no thread, or of one that began meanwhile: then they stay.
            strays = [digest for digest in times if session.keys_of(digest).bucket not in identity.buckets]
            await session.ask_all([self._rebuild_call(digest, False, False, times) for digest in strays])
            keys = [recent_key(session.prefix, None), identity.key]
            await session.ask(Call.of(session.slot(0), script("count_times"), keys))

    def _rebuild_call(
        self, digest: bytes, line: bytes | bool, is_all_left: bool, times: Mapping[bytes, list[bytes]]
    ) -> Call:
        """Return the call that lets a thread write its lines; its line may be all that is left of it."""
        args = pack_args((line, is_all_left, times.get(digest, ())))
        return self._session.script_call(self._session.keys_of(digest), "rebuild", args)

    async def _find_times(self, buckets: Sequence[int]) -> dict[bytes, list[bytes]]:
        """Return the lines of the index by time, by the digest of their thread; remove damaged ones."""
        session = self._session
        places: Sequence[int | None] = buckets if session.is_sharded else [None]
        looks = [
            Call(session.slot(place or 0), ("ZRANGE", recent_key(session.prefix, place), 0, -1))
            for place in places
        ]
        times: dict[bytes, list[bytes]] = {}
        removals: list[Call] = []
        for place, lines in zip(places, await session.ask_all(looks), strict=True):
            for line in lines:
                tenant, _, rest = line.partition(b"\0")
                digest = _digest(tenant, rest[16:])
                if digest and place in (None, session.keys_of(digest).bucket):
                    times.setdefault(digest, []).append(line)
                else:
                    key = recent_key(session.prefix, place)
                    removals.append(Call(session.slot(place or 0), ("ZREM", key, line)))
        await session.ask_all(removals)
        return times

    async def _find_threads(self) -> dict[int, set[bytes]]:
        """Return the digests of all threads that have a row, by bucket."""
        prefix = self._session.prefix
        escaped = re.sub(r"([*?\[\]\\^])", r"\\\1", prefix)
        row_key = re.compile(re.escape(prefix.encode()) + rb"\{(\d+)\}:([0-9a-f]{32}):m")
        digests: dict[int, set[bytes]] = {}
        for key in await self._session.scan(f"{escaped}{{*}}:*:m"):
            if match := row_key.fullmatch(key):
                digests.setdefault(int(match[1]), set()).add(bytes.fromhex(match[2].decode()))
        return digests

    async def _rebuild_batch(
        self, buckets: list[int], digests: Mapping[int, set[bytes]], times: Mapping[bytes, list[bytes]]
    ) -> None:
        """Rebuild a few buckets, by three exchanges with each node."""
        session = self._session
        # 1. Which threads does each bucket list, and how many does its roster count?
        replies = await session.ask_all([call for bucket in buckets for call in self._looks(bucket)])
        plans = [
            self._plan(bucket, digests.get(bucket, set()), members, times, has_no_count=count is None)
            for bucket, members, count in zip(buckets, replies[::2], replies[1::2], strict=True)
        ]
        # 2. Let each thread write its lines. A crash after this leaves counts that do not match:
        #    the next call that needs the bucket rebuilds it again.
        answers = iter(await session.ask_all([call for plan in plans for call in plan.calls]))
        # 3. Count the lines.
        await session.ask_all([self._recount(plan, [next(answers) for _ in plan.calls]) for plan in plans])

    def _looks(self, bucket: int) -> list[Call]:
        slot, (threads, _, roster) = self._session.slot(bucket), self._session.bucket_keys(bucket)
        return [Call(slot, ("ZRANGE", threads, 0, -1)), Call(slot, ("HGET", roster, "threads"))]

    def _plan(
        self,
        bucket: int,
        digests: set[bytes],
        members: list[bytes],
        times: Mapping[bytes, list[bytes]],
        *,
        has_no_count: bool,
    ) -> _Plan:
        """Return the calls that make a bucket say what its threads say."""
        session = self._session
        slot, threads = session.slot(bucket), session.bucket_keys(bucket)[0]
        named = [(self._digest(member, bucket), member) for member in members]
        lines = {digest: member for digest, member in named if digest}
        calls = [Call(slot, ("ZREM", threads, member)) for digest, member in named if not digest]
        timed = {digest for digest in times if session.keys_of(digest).bucket == bucket}
        is_all_left = has_no_count and not self._has_ttl
        calls += [
            self._rebuild_call(digest, lines.get(digest, False), is_all_left, times)
            for digest in sorted({*digests, *lines, *timed})
        ]
        return _Plan(bucket, has_no_count, calls)

    def _recount(self, plan: _Plan, replies: list[Any]) -> Call:
        """Return the call that counts the lines of a bucket, after its repairs were answered."""
        # When all threads were as they should be, only the roster was gone. Otherwise whole threads
        # may be gone too.
        was_repaired = not replies or any(reply != [0] for reply in replies)
        is_lost = plan.has_no_count and was_repaired and not (self._has_ttl or self._session.is_sharded)
        keys = self._session.bucket_keys(plan.bucket)
        if self._session.is_sharded:
            keys.append(recent_key(self._session.prefix, plan.bucket))
        return Call.of(self._session.slot(plan.bucket), script("recount"), keys, "1" if is_lost else "0")

    def _digest(self, line: bytes, bucket: int) -> bytes:
        """Return the digest of the thread that a line names; empty for a damaged line."""
        tenant, _, id = line.partition(b"\0")
        digest = _digest(tenant, id)
        return digest if digest and self._session.keys_of(digest).bucket == bucket else b""


def _digest(tenant: bytes, id: bytes) -> bytes:
    """Return the digest of a thread; empty for a damaged name."""
    try:
        return ThreadKey.of(to_text(tenant), to_text(id)).digest
    except Corrupt:
        return b""
