"""The indexes of a bucket, built again from its threads.

An index and a roster are derived from the rows. One that is gone, or has not the lines that it should have, is repaired: all
threads of the bucket are looked for by SCAN, and each says what it has. What cannot be found again stays noted: a thread of which
only a line or a place in the roster is left is damaged, and when nothing at all is left of a bucket in use, no thread of
it can begin unless it is deleted first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.backend import ThreadKey
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call, Client
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.rows import pack
from outlive.backends.redis.scripts import script
from outlive.errors import Corrupt

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend
    from outlive.backends.redis.commits import Choices

_BATCH = 16  # buckets that are built again together: all 1,024 of them when the identity of a store was lost


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a bucket is repaired."""

    bucket: int
    is_unknown: bool  # its roster has no count
    calls: list[Call]


class Rebuild:
    """How the indexes of a store are repaired."""

    def __init__(self, backend: RedisBackend, link: Client, choices: Choices, identity: Identity) -> None:
        self._identity = identity
        self._backend = backend
        self._link = link
        self._prefix = choices.prefix
        self._has_ttl = choices.ttl_ms > 0

    async def buckets(self, wanted: set[int]) -> None:
        """Build the indexes of some buckets again."""
        if not self._backend.is_sharded:
            await self._identity.restore()
            wanted = wanted & self._identity.buckets  # none of a store that was emptied
        found = await self._threads()
        buckets = sorted(wanted)
        for start in range(0, len(buckets), _BATCH):
            await self._together(buckets[start : start + _BATCH], found)

    async def _threads(self) -> dict[int, set[bytes]]:
        """Return the digests of all threads that have a row, by bucket."""
        escaped = re.sub(r"([*?\[\]\\^])", r"\\\1", self._prefix)
        keys = await self._backend.attempt(
            lambda deadline: self._link.scan(f"{escaped}{{*}}:*:m", deadline), None
        )
        shape = re.compile(re.escape(self._prefix.encode()) + rb"\{(\d+)\}:([0-9a-f]{32}):m")
        found: dict[int, set[bytes]] = {}
        for key in keys:
            if match := shape.fullmatch(key):
                found.setdefault(int(match[1]), set()).add(bytes.fromhex(match[2].decode()))
        return found

    async def _together(self, buckets: list[int], found: Mapping[int, set[bytes]]) -> None:
        """Build the indexes of a few buckets again, by three exchanges with each node."""
        replies = await self._backend.ask_all([call for bucket in buckets for call in self._looks(bucket)])
        plans = [
            _Plan(
                bucket, count is None, self._repairs(bucket, found.get(bucket, set()), members, count is None)
            )
            for bucket, members, count in zip(buckets, replies[::2], replies[1::2], strict=True)
        ]
        answers = iter(await self._backend.ask_all([call for plan in plans for call in plan.calls]))
        await self._backend.ask_all(
            [self._recount(plan, [next(answers) for _ in plan.calls]) for plan in plans]
        )

    def _keys(self, bucket: int) -> list[str]:
        return [key_of(self._prefix, bucket) for key_of in rows.BUCKET_KEYS]

    def _looks(self, bucket: int) -> list[Call]:
        """Return the calls that tell which threads a bucket lists, and how many its roster counts."""
        slot, (threads, _, roster) = self._backend.slot(bucket), self._keys(bucket)
        return [Call(slot, ("ZRANGE", threads, 0, -1)), Call(slot, ("HGET", roster, "threads"))]

    def _repairs(
        self, bucket: int, digests: set[bytes], members: list[bytes], is_unknown: bool
    ) -> list[Call]:
        """Return the calls that make a bucket say what its threads say."""
        slot, threads = self._backend.slot(bucket), self._keys(bucket)[0]
        named = [(self._digest(member, bucket), member) for member in members]
        lines = {digest: member for digest, member in named if digest}
        calls = [Call(slot, ("ZREM", threads, member)) for digest, member in named if not digest]
        for digest in sorted({*digests, *lines}):
            said = pack((lines.get(digest, False), is_unknown and not self._has_ttl))
            calls.append(self._backend.call(self._backend.keys_of(digest), "rebuild", said))
        return calls

    def _recount(self, plan: _Plan, replies: list[Any]) -> Call:
        """Return the call that counts the lines of a bucket, after its repairs were answered."""
        # Otherwise it is the roster alone that is gone.
        is_odd = not replies or any(reply != [0] for reply in replies)
        is_lost = plan.is_unknown and is_odd and not (self._has_ttl or self._backend.is_sharded)
        slot, keys = self._backend.slot(plan.bucket), self._keys(plan.bucket)
        return Call.of(slot, script("recount"), keys, "1" if is_lost else "0")

    def _digest(self, line: bytes, bucket: int) -> bytes:
        """Return the digest of the thread that a line names; none of one that is damaged."""
        tenant, _, id = line.partition(b"\0")
        try:
            digest = ThreadKey.of(rows.plain(tenant), rows.plain(id)).digest
        except Corrupt:
            return b""
        return digest if self._backend.keys_of(digest).bucket == bucket else b""
