"""Rebuilding the indexes of a bucket from its threads, and calls that need them.

An index and a roster are derived from the rows of threads. When one is gone or incomplete, all
threads of the bucket are looked for by SCAN, and each says what belongs into the index. What cannot
be recovered stays noted: a thread of which only an index line or a roster field is left is damaged.
When nothing at all is left of a bucket that was in use, no thread can begin in it unless it is
deleted first.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outlive.backend import ThreadKey
from outlive.backends.redis import rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.keys import recent_key, to_text
from outlive.backends.redis.rows import pack_args
from outlive.backends.redis.scripts import script
from outlive.backends.redis.session import Session
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

    async def rebuild(self, wanted: set[int]) -> None:
        """Rebuild the indexes of some buckets. May be repeated after a crash at any point."""
        if not self._session.is_sharded:
            await self._identity.restore()
            wanted = wanted & self._identity.buckets  # none of a store that was emptied
        digests = await self._find_threads()
        buckets = sorted(wanted)
        for start in range(0, len(buckets), _BATCH):
            await self._rebuild_batch(buckets[start : start + _BATCH], digests)

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

    async def _rebuild_batch(self, buckets: list[int], digests: Mapping[int, set[bytes]]) -> None:
        """Rebuild a few buckets, by three exchanges with each node."""
        session = self._session
        # 1. Which threads does each bucket list, and how many does its roster count?
        replies = await session.ask_all([call for bucket in buckets for call in self._looks(bucket)])
        plans = [
            self._plan(bucket, digests.get(bucket, set()), members, has_no_count=count is None)
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

    def _plan(self, bucket: int, digests: set[bytes], members: list[bytes], *, has_no_count: bool) -> _Plan:
        """Return the calls that make a bucket say what its threads say."""
        session = self._session
        slot, threads = session.slot(bucket), session.bucket_keys(bucket)[0]
        named = [(self._digest(member, bucket), member) for member in members]
        lines = {digest: member for digest, member in named if digest}
        calls = [Call(slot, ("DEL", recent_key(session.prefix, bucket)))]
        calls += [Call(slot, ("ZREM", threads, member)) for digest, member in named if not digest]
        for digest in sorted({*digests, *lines}):
            args = pack_args((lines.get(digest, False), has_no_count and not self._has_ttl))
            calls.append(session.script_call(session.keys_of(digest), "rebuild", args))
        return _Plan(bucket, has_no_count, calls)

    def _recount(self, plan: _Plan, replies: list[Any]) -> Call:
        """Return the call that counts the lines of a bucket, after its repairs were answered."""
        # When all threads were as they should be, only the roster was gone. Otherwise whole threads
        # may be gone too.
        was_repaired = len(replies) == 1 or any(reply != [0] for reply in replies[1:])
        is_lost = plan.has_no_count and was_repaired and not (self._has_ttl or self._session.is_sharded)
        keys = self._session.bucket_keys(plan.bucket)
        return Call.of(self._session.slot(plan.bucket), script("recount"), keys, "1" if is_lost else "0")

    def _digest(self, line: bytes, bucket: int) -> bytes:
        """Return the digest of the thread that a line names; empty for a damaged line."""
        tenant, _, id = line.partition(b"\0")
        try:
            digest = ThreadKey.of(to_text(tenant), to_text(id)).digest
        except Corrupt:
            return b""
        return digest if self._session.keys_of(digest).bucket == bucket else b""
