"""Records in Redis or Valkey: one server, Sentinel or Cluster. Plain commands and Lua, no modules.

A thread has at most six keys, in one slot with the indexes and the roster of its bucket. Every
commit is one script: all of it or nothing, whatever happens to client or server. The script decides
an ordinary save (`commit.lua`). All other commits are gathered, decided here by `rules.decide`, and
applied by a second script if the thread is still what was gathered. What a crash of the server
loses depends on its persistence settings (docs/backends.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Reservation,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    Unreserved,
    WriteRecord,
)
from outlive.backends.redis import rows
from outlive.backends.redis.audit import BucketAudit, ThreadAudit
from outlive.backends.redis.client import Call
from outlive.backends.redis.commits import Commits, renews_only
from outlive.backends.redis.entry_listing import EntryListing, filter_args
from outlive.backends.redis.identity import FORMAT, Identity
from outlive.backends.redis.index import IndexReader
from outlive.backends.redis.keys import checkpoint_field, to_bytes, to_text
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.rows import StoredThread
from outlive.backends.redis.session import Session
from outlive.backends.redis.thread_listing import ThreadListing
from outlive.backends.redis.watch import RedisWatch
from outlive.backends.rules.view import write_order
from outlive.errors import Corrupt, OutliveError

_BATCH = 64  # chunks copied together


class RedisBackend:
    """A store in Redis, sync or async."""

    name = "redis"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.store_identity = Identity(session)
        self._repair = IndexRepair(session, self.store_identity)
        reader = IndexReader(session, self._repair)
        self._threads = ThreadListing(session, self.store_identity, reader)
        self._entries = EntryListing(session, self.store_identity, reader)
        self._commits = Commits(session, self.store_identity, self._repair)

    def __repr__(self) -> str:
        return f"<RedisBackend {self.session.shown}>"

    async def close(self) -> None:
        self.session.close()

    async def identity(self, offered: bytes) -> bytes:
        """Return the store's naming key, and check what the store needs from its servers."""
        key = await self.store_identity.adopt(offered)
        if count := self.session.options.idle_connections:
            await self.session.attempt(lambda deadline: self.session.client.warm(count, deadline))
        await self.store_identity.check_eviction()
        return key

    async def watch(self, tenant: str) -> RedisWatch:
        """Subscribe on a connection of its own, beside those of the pool."""
        watch = RedisWatch(self.session, tenant)
        await watch.listen(0.0)
        return watch

    async def reserve(self) -> Reservation:
        return Unreserved(self)

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
        args = (
            to_bytes(namespace),
            False if id is None else to_bytes(id),
            False if at is None else at,
            False if known is None else to_bytes(known.id),
            chunks,
            self._refresh_ttl_ms,
        )
        names = b"" if known is None else rows.pack_names(known.chunks)
        reply = await self._repair.ask(thread, "read", args, timeout_s, names)
        stored = rows.parse_row(thread, reply[0])
        if stored is None:
            return ReadResult(0)
        if reply[2] is None:
            return self._absent(thread, stored, id, reply)
        stored_id = to_text(reply[1])
        record = rows.parse_record(thread, checkpoint_field(namespace, stored_id), reply[2])
        data, fields, values, write_chunks, write_data = reply[3:]
        fetched = dict(zip(record.chunks, data, strict=True)) if data else {}
        fetched.update(zip(write_chunks, write_data, strict=True))
        writes = [rows.parse_write(thread, field, value) for field, value in zip(fields, values, strict=True)]
        present = {name: chunk for name, chunk in fetched.items() if chunk is not None}
        return ReadResult(stored.row.generation, record, present, tuple(sorted(writes, key=write_order)))

    @property
    def _refresh_ttl_ms(self) -> int:
        """The TTL that a read gives a thread; 0: it leaves the one that the thread has."""
        return self.session.options.ttl_ms if self.session.options.refreshes_on_read else 0

    def _absent(
        self, thread: ThreadKey, stored: StoredThread, id: str | None, reply: list[Any]
    ) -> ReadResult:
        """Return an empty result, unless a part of the thread is gone."""
        count, ttl_ms = reply[3:]
        if count != stored.checkpoints:
            if rows.is_ending(ttl_ms):
                return ReadResult(0)
            raise Corrupt(f"it has {count} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        if reply[1] is not None and id is None:
            raise Corrupt("the newest checkpoint is gone", thread=thread.id, checkpoint=to_text(reply[1]))
        return ReadResult(stored.row.generation)

    async def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        generation, page, _ = await self._page(query, (), timeout_s)
        return generation, page

    async def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        generation, page, rest = await self._page(query, (max_bytes, self._refresh_ttl_ms), timeout_s)
        if not rest:
            return Page(generation)
        names, data, is_cut = rest
        chunks = {name: chunk for name, chunk in zip(names, data, strict=True) if chunk is not None}
        return Page(generation, page, chunks, bool(is_cut))

    async def _page(
        self, query: HistoryQuery, chunk_args: tuple[int, ...], timeout_s: float | None
    ) -> tuple[int, list[CheckpointRecord], list[Any]]:
        """Return the generation, a page of records and, if asked for, their chunks."""
        thread = query.thread
        args = (
            False if query.namespace is None else to_bytes(query.namespace),
            False if query.before is None else query.before,
            query.limit,
            False if query.run is None else to_bytes(query.run),
        )
        reply = await self._repair.ask(thread, "history", (*args, *chunk_args), timeout_s)
        stored = rows.parse_row(thread, reply[0])
        if stored is None:
            return 0, [], []
        if reply[1] != stored.checkpoints:
            raise Corrupt(f"it has {reply[1]} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        page = [rows.parse_record(thread, field, value or b"") for field, value in rows.to_pairs(reply[2])]
        return stored.row.generation, page, reply[3:]

    async def writes(
        self, thread: ThreadKey, checkpoints: Sequence[tuple[str, str]] | None, timeout_s: float | None = None
    ) -> list[WriteRecord]:
        args = False if checkpoints is None else [checkpoint_field(*key) for key in checkpoints]
        reply = await self._repair.ask(thread, "writes", args, timeout_s)
        stored = rows.parse_row(thread, reply[0])
        if stored is None:
            return []
        writes = [rows.parse_write(thread, field, value) for field, value in rows.to_pairs(reply[1])]
        if checkpoints is None and len(writes) != stored.writes:
            raise Corrupt(f"it has {len(writes)} writes instead of {stored.writes}", thread=thread.id)
        return sorted(writes, key=write_order)

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        thread = query.thread
        if thread is None:
            return await self._entries.page(query, self.session.deadline(timeout_s))
        if thread.tenant != query.tenant:
            return []
        start = b"e" + to_bytes(query.kind) + b"\0"
        low = b"[" + start + to_bytes(query.prefix)
        if query.after is not None and start + to_bytes(query.after[0]) >= low[1:]:
            key, digest = query.after
            low = b"[" + start + to_bytes(key)
            if digest >= thread.digest:
                # Continue after the key and the checksum that follows it.
                low = b"(" + start + to_bytes(key) + b"\0\xff"
        high = b"(" + start + to_bytes(query.prefix) + b"\xff"
        args = (query.limit, *filter_args(query))
        reply = await self._repair.ask(thread, "entries", args, timeout_s, low, high)
        rows.parse_row(thread, reply[0])  # raises when it is damaged
        pairs = rows.to_pairs(reply[1:])
        return [(thread, rows.parse_entry(thread, field, value)) for field, value in pairs]

    async def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        if query.only is None:
            return await self._threads.page(query, self.session.deadline(timeout_s))
        thread = ThreadKey.of(query.tenant, query.only)
        reply = await self._repair.ask(thread, "summary", (query.heads, False, False), timeout_s)
        row = self._threads.row(thread, reply, query.heads)
        return [] if row is None else [row]

    async def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        return await self._threads.totals(tenant, self.session.deadline(timeout_s))

    async def inventory(self, thread: ThreadKey, timeout_s: float | None = None) -> Inventory:
        reply = await self._repair.ask(thread, "inventory", (), timeout_s)
        stored = rows.parse_row(thread, reply[0])
        if stored is None:
            return Inventory(0, 0, {})
        chunks = {
            name: (size, rows.parse_stamp(thread, name, stamp)[0])
            for name, size, stamp in zip(*reply[1:], strict=True)
        }
        return Inventory(stored.row.generation, stored.row.revision, chunks)

    async def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        if not names:
            return {}
        keys = self.session.keys(thread)
        fields = [b"d" + name for name in names]
        call = Call(self.session.slot(keys.bucket), ("HMGET", keys.chunks, *fields))
        chunks = await self.session.ask(call, timeout_s)
        return {name: chunk for name, chunk in zip(names, chunks, strict=True) if chunk is not None}

    async def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        """Copy chunks through this process: the threads may be on different nodes."""
        rest = list(names)
        while True:
            chunks = await self.fetch(source, rest[:_BATCH])
            receipt = await self._commits.commit(Commit(target, chunks=tuple(chunks.items())))
            rest = rest[_BATCH:]
            if not rest:
                return receipt.generation

    async def facts(self) -> dict[str, object]:
        info = (await self._ask_node("INFO", "server") or b"").decode()
        server = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
        kind = "Valkey" if "valkey_version" in server else "Redis"
        version = server.get("valkey_version") or server.get("redis_version") or "of an unknown version"
        settings = {}
        for name in ("appendonly", "appendfsync", "maxmemory-policy"):
            reply = await self._ask_node("CONFIG", "GET", name)
            if isinstance(reply, list) and len(reply) == 2:
                settings[name] = reply[1].decode()
        format = await self.store_identity.format()
        seconds, micros = await self._ask_node("TIME")
        return {
            "backend": self.name,
            "engine": f"{kind} {version}",
            "location": f"prefix {self.session.prefix!r}",
            "format": format,
            "format_written": FORMAT,
            "settings": settings,
            "lease_clock_us": int(seconds) * 1_000_000 + int(micros),
        }

    async def _ask_node(self, *command: str) -> Any:
        """Return the reply of one server; None if the command is not permitted."""
        reply = (await self.session.ask_each_node(command))[0]
        return None if isinstance(reply, Exception) else reply

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        if thread is None:
            return await BucketAudit(self.session, self.store_identity, self._repair).run()
        return await ThreadAudit(self.session, self._repair, thread).run()
