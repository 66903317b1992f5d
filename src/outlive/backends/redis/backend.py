"""Records in Redis or Valkey: one server, Sentinel or Cluster. Plain commands and Lua, no modules.

A thread has at most six keys, all in one slot with the indexes and the roster of its bucket, and every commit is one script:
all of it or nothing, whatever happens to client or server. An ordinary save is decided by the script
(`commit.lua`); all other commits are gathered, decided here by `rules.decide`, and applied by a second script
if the thread is still what was gathered. What a crash of the server loses is decided by its persistence
settings, not here (docs/backends.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from outlive.backend import (
    CachedHead,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    WriteRecord,
)
from outlive.backends.local.memory import write_order
from outlive.backends.redis import rows as rows
from outlive.backends.redis.audit import Audit
from outlive.backends.redis.bucket_audit import BucketAudit
from outlive.backends.redis.client import Call, Client
from outlive.backends.redis.commits import Choices, Commits, renews_only
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.listing import Listing
from outlive.backends.redis.rebuild import Rebuild
from outlive.backends.redis.rows import Keys, Stored, pack, pair_field, text
from outlive.backends.redis.scripts import script
from outlive.backends.redis.topology import slot_of
from outlive.backends.server.attempts import Attempts, Deadline
from outlive.errors import Corrupt, OutliveError, StoreClosed

T = TypeVar("T")
_PATIENCE_S = 30.0  # with replicas, when the call itself may take for ever
_BATCH = 64


class RedisBackend:
    """One store behind a link of either mode."""

    name = "redis"

    def __init__(self, link: Client, choices: Choices, shown: str) -> None:
        self._link = link
        self._choices = choices
        self._shown = shown
        self._is_closed = False
        self._slots: dict[int, int] = {}
        self._identity = Identity(self, choices.prefix)
        self._rebuild = Rebuild(self, link, choices, self._identity)
        self._listing = Listing(self, choices.prefix, self._identity, self._rebuild)
        self._commits = Commits(self, link, choices, self._identity)

    def __repr__(self) -> str:
        return f"<RedisBackend {self._shown}>"

    async def close(self) -> None:
        self._is_closed = True
        await self._link.close()

    # Calling

    async def attempt(
        self,
        work: Callable[[Deadline], Awaitable[T]],
        timeout_s: float | None = None,
        commit: Commit | None = None,
    ) -> T:
        """Try until it works or the time is over."""
        if self._is_closed:
            raise StoreClosed
        deadline = self.deadline(timeout_s)
        attempts = Attempts(self._shown, deadline, self._choices.max_retries, self._link.io_mode.pause)
        return await attempts.run(work, commit)

    def deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._choices.timeout_s if timeout_s is None else timeout_s)

    def call(self, keys: Keys, name: str, *args: Any) -> Call:
        return Call.of(self.slot(keys.bucket), script(name), keys.all, *args)

    def slot(self, bucket: int) -> int:
        if bucket not in self._slots:
            self._slots[bucket] = slot_of(rows.threads_key(self._choices.prefix, bucket))
        return self._slots[bucket]

    def keys(self, thread: ThreadKey) -> Keys:
        return self.keys_of(thread.digest)

    def keys_of(self, digest: bytes) -> Keys:
        return Keys.of(self._choices.prefix, digest, is_single=not self.is_sharded)

    async def ask(
        self, thread: ThreadKey, name: str, said: Any, timeout_s: float | None = None, *args: bytes
    ) -> Any:
        """Run a script on one thread."""
        keys = self.keys(thread)
        call = self.call(keys, name, pack(said), *args)
        return await self.repaired(
            thread,
            keys.bucket,
            lambda: self.attempt(lambda deadline: self._link.one(call, deadline), timeout_s),
        )

    async def repaired(self, thread: ThreadKey, bucket: int, send: Callable[[], Awaitable[Any]]) -> Any:
        """Send a script, and once more when the roster of its bucket had to be built anew."""
        try:
            reply = await send()
            if rows.is_torn(reply):
                await self._rebuild.buckets({bucket})
                reply = await send()
            return reply
        except Corrupt as error:
            if error.thread is not None:
                raise
            raise Corrupt(error.what, thread=thread.id) from error

    async def ask_all(self, calls: Sequence[Call], timeout_s: float | None = None) -> list[Any]:
        """Run many calls, by one exchange with each node."""
        if not calls:
            return []
        return await self.attempt(lambda deadline: self._link.all(calls, deadline), timeout_s)

    # Opening

    async def identity(self, offered: bytes) -> bytes:
        """Return the store's naming key, which stands beside the list of buckets in use."""
        key = await self._identity.adopt(offered)
        if self._choices.idle:
            await self.attempt(lambda deadline: self._link.warm(self._choices.idle, deadline))
        await self._identity.check_eviction(
            allowed=self._choices.allow_eviction, has_ttl=self._choices.ttl_ms > 0
        )
        return key

    async def policies(self) -> set[str]:
        """Return what the servers do when their memory is full, as far as they tell."""
        command = ("CONFIG", "GET", "maxmemory-policy")
        replies = await self.attempt(lambda deadline: self._link.everywhere(command, deadline))
        return {reply[1].decode() for reply in replies if isinstance(reply, list) and len(reply) == 2}

    @property
    def is_sharded(self) -> bool:
        return self._link.nodes.is_sharded

    # Committing

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do each commit on its own; a refusal of one does not touch the others."""
        if len(commits) > 1 and all(map(renews_only, commits)):
            return await self._commits.renew_all(commits)
        results: list[Receipt | OutliveError] = []
        for commit in commits:
            try:
                results.append(await self._commits.commit(commit))
            except OutliveError as error:
                results.append(error)
        return results

    # Reading

    async def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        said = (
            text(namespace),
            False if id is None else text(id),
            False if at is None else at,
            False if known is None else text(known.id),
            chunks,
            self._choices.ttl_ms if self._choices.refreshes else 0,
        )
        names = b"" if known is None else rows.pack_names(known.chunks)
        reply = await self.ask(thread, "read", said, timeout_s, names)
        stored = rows.stored_of(thread, reply[0])
        if stored is None:
            return ReadResult(0)
        if reply[2] is None:
            return self._absent(thread, stored, id, reply)
        found = rows.plain(reply[1])
        record = rows.record_of(thread, pair_field(namespace, found), reply[2])
        data, fields, values, extra, extra_data = reply[3:]
        held = dict(zip(record.chunks, data, strict=True)) if data else {}
        held.update(zip(extra, extra_data, strict=True))
        writes = [rows.write_of(thread, field, value) for field, value in zip(fields, values, strict=True)]
        present = {name: bytes_ for name, bytes_ in held.items() if bytes_ is not None}
        return ReadResult(stored.row.generation, record, present, tuple(sorted(writes, key=write_order)))

    def _absent(self, thread: ThreadKey, stored: Stored, id: str | None, reply: list[Any]) -> ReadResult:
        """Nothing was found: was there never anything, or is half of the thread gone?"""
        count, ttl_ms = reply[3:]
        if count != stored.checkpoints:
            if rows.is_ending(ttl_ms):
                return ReadResult(0)
            raise Corrupt(f"it has {count} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        if reply[1] is not None and id is None:
            raise Corrupt("the newest checkpoint is gone", thread=thread.id, checkpoint=rows.plain(reply[1]))
        return ReadResult(stored.row.generation)

    async def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        generation, page, _ = await self._page(query, (), timeout_s)
        return generation, page

    async def _page(
        self, query: HistoryQuery, room: tuple[Any, ...], timeout_s: float | None
    ) -> tuple[int, list[CheckpointRecord], list[Any]]:
        """Return the generation, a page of records and, if they were asked for, what the script says of their chunks."""
        thread = query.thread
        asked = (
            False if query.namespace is None else text(query.namespace),
            False if query.before is None else query.before,
            query.limit,
            False if query.run is None else text(query.run),
        )
        reply = await self.ask(thread, "history", (*asked, *room), timeout_s)
        stored = rows.stored_of(thread, reply[0])
        if stored is None:
            return 0, [], []
        if reply[1] != stored.checkpoints:
            raise Corrupt(f"it has {reply[1]} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        page = [rows.record_of(thread, field, value or b"") for field, value in rows.pairs(reply[2])]
        return stored.row.generation, page, reply[3:]

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        room = (max_bytes, self._choices.ttl_ms if self._choices.refreshes else 0)
        generation, page, found = await self._page(query, room, timeout_s)
        if not found:
            return Page(generation)
        names, data, is_cut = found
        chunks = {name: bytes_ for name, bytes_ in zip(names, data, strict=True) if bytes_ is not None}
        return Page(generation, page, chunks, bool(is_cut))

    async def writes(
        self, thread: ThreadKey, checkpoints: Sequence[tuple[str, str]] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        said = False if checkpoints is None else [pair_field(*pair) for pair in checkpoints]
        reply = await self.ask(thread, "writes", said, timeout_s)
        stored = rows.stored_of(thread, reply[0])
        if stored is None:
            return []
        found = [rows.write_of(thread, field, value) for field, value in rows.pairs(reply[1])]
        if checkpoints is None and len(found) != stored.writes:
            raise Corrupt(f"it has {len(found)} writes instead of {stored.writes}", thread=thread.id)
        return sorted(found, key=write_order)

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        asked = [
            False if query.statuses is None else [text(status) for status in query.statuses],
            "any" if query.lapsed is None else query.lapsed,
        ]
        if query.thread is None:
            return await self._listing.entries(query, asked, self.deadline(timeout_s))
        thread, prefix, after = query.thread, query.prefix, query.after
        if thread.tenant != query.tenant:
            return []
        start = b"e" + text(query.kind) + b"\0"
        low = b"[" + start + text(prefix)
        if after is not None and start + text(after[0]) >= low[1:]:
            is_over = (
                after[1] >= thread.digest
            )  # then it goes on behind the key, and the checksum that follows it
            low = b"(" + start + text(after[0]) + b"\0\xff" if is_over else b"[" + start + text(after[0])
        high = b"(" + start + text(prefix) + b"\xff"
        reply = await self.ask(thread, "entries", (query.limit, *asked), timeout_s, low, high)
        rows.stored_of(thread, reply[0])  # raises when it is damaged
        return [(thread, rows.entry_of(thread, field, value)) for field, value in rows.pairs(reply[1:])]

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRow]:
        if query.only is not None:
            thread = ThreadKey.of(query.tenant, query.only)
            reply = await self.ask(thread, "summary", (query.heads, False), timeout_s)
            row = self._listing.row(thread, reply, query.heads)
            return [] if row is None else [row]
        return await self._listing.threads(query, self.deadline(timeout_s))

    async def inventory(self, thread: ThreadKey, timeout_s: float | None = None) -> Inventory:
        reply = await self.ask(thread, "inventory", (), timeout_s)
        stored = rows.stored_of(thread, reply[0])
        if stored is None:
            return Inventory(0, 0, {})
        chunks = {
            name: (size, rows.stamp_of(thread, name, stamp)[0])
            for name, size, stamp in zip(*reply[1:], strict=True)
        }
        return Inventory(stored.row.generation, stored.row.revision, chunks)

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        if not names:
            return {}
        keys = self.keys(thread)
        call = Call(self.slot(keys.bucket), ("HMGET", keys.all[3], *(b"d" + name for name in names)))
        values = await self.attempt(lambda deadline: self._link.one(call, deadline), timeout_s)
        return {name: data for name, data in zip(names, values, strict=True) if data is not None}

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks by way of this process: the threads may be on different nodes."""
        wanted = list(names)
        while True:
            found = await self.fetch(source, wanted[:_BATCH])
            receipt = await self._commits.commit(Commit(target, chunks=tuple(found.items())))
            wanted = wanted[_BATCH:]
            if not wanted:
                return receipt.generation

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        if thread is None:
            return await BucketAudit(self, self._choices.prefix, self._identity, self._rebuild).run()
        return await Audit(self, thread).run()
