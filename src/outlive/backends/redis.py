"""Records in Redis or Valkey: one server, Sentinel or Cluster. Plain commands and Lua, no modules.

A thread has at most six keys, all in one slot with the two indexes of its bucket, and every commit is one script:
all of it or nothing, whatever happens to client or server. An ordinary save is decided by the script
(`redis_commit.lua`); all other commits are gathered, decided here by `rules.decide`, and applied by a second script
if the thread is still what was gathered. What a crash of the server loses is decided by its persistence
settings, not here (docs/backends.md).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ..backend import (
    ABSENT,
    NEXT,
    CheckpointRecord,
    Commit,
    Cursor,
    Entry,
    EntryCursor,
    Inventory,
    Known,
    Reading,
    Receipt,
    ThreadKey,
    ThreadRow,
    WriteRecord,
    stamped,
)
from ..errors import (
    Corrupt,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    NotReplicated,
    OutliveError,
    StaleBase,
    StoreBusy,
    StoreClosed,
)
from . import redis_rows as rows
from .memory import new_token, write_order
from .redis_links import Call, Link, rest
from .redis_listing import Listing
from .redis_nodes import slot_of
from .redis_rows import Keys, Stored, pack, pair_field, text
from .redis_scripts import script
from .rules import Clock, Effect, Pair, decide
from .server import Attempts, Deadline
from .snapshot import Snapshot, Wanted, is_plain, unbrought

T = TypeVar("T")
_PATIENCE_S = 30.0  # of calls that have no deadline of their own
_BATCH = 64


@dataclass(frozen=True, slots=True)
class Choices:
    """What the options of a store say about its records."""

    prefix: str = "outlive:"
    ttl_ms: int = 0
    refreshes: bool = False  # also by reading
    wait_replicas: int = 0
    max_retries: int | None = None
    idle: int = 0
    allow_eviction: bool = False


class RedisBackend:
    """One store behind a link of either colour."""

    name = "redis"

    def __init__(self, link: Link, choices: Choices, shown: str) -> None:
        self._link = link
        self._choices = choices
        self._shown = shown
        self._is_closed = False
        self._slots: dict[int, int] = {}
        self._listing = Listing(self, choices.prefix)

    def __repr__(self) -> str:
        return f"<RedisBackend {self._shown}>"

    async def close(self) -> None:
        self._is_closed = True
        await self._link.close()

    # Calling

    async def attempt(
        self,
        work: Callable[[Deadline], Awaitable[T]],
        timeout_s: float | None = _PATIENCE_S,
        commit: Commit | None = None,
    ) -> T:
        """Try until it works or the time is over."""
        if self._is_closed:
            raise StoreClosed
        deadline = _deadline(timeout_s)
        attempts = Attempts(self._shown, deadline, self._choices.max_retries, self._link.colour.pause)
        return await attempts.run(work, commit)

    def call(self, keys: Keys, name: str, *args: Any) -> Call:
        return Call.of(self.slot(keys.bucket), script(name), keys.all, *args)

    def slot(self, bucket: int) -> int:
        if bucket not in self._slots:
            self._slots[bucket] = slot_of(rows.threads_key(self._choices.prefix, bucket))
        return self._slots[bucket]

    def keys(self, thread: ThreadKey) -> Keys:
        return Keys.of(self._choices.prefix, thread.digest)

    async def ask(
        self, thread: ThreadKey, name: str, said: Any, timeout_s: float | None = _PATIENCE_S, *args: bytes
    ) -> Any:
        """Run a script on one thread."""
        call = self.call(self.keys(thread), name, pack(said), *args)
        try:
            return await self.attempt(lambda deadline: self._link.one(call, deadline), timeout_s)
        except Corrupt as error:
            raise Corrupt(error.what, thread=thread.id) from error

    async def ask_all(self, calls: Sequence[Call], timeout_s: float | None = _PATIENCE_S) -> list[Any]:
        """Run many calls, by one exchange with each node."""
        if not calls:
            return []
        return await self.attempt(lambda deadline: self._link.all(calls, deadline), timeout_s)

    # Opening

    async def identity(self, offered: bytes) -> bytes:
        """Return the store's naming key, which stands beside the list of buckets in use."""
        key = await self._listing.identity(offered)
        if self._choices.idle:
            await self.attempt(lambda deadline: self._link.warm(self._choices.idle, deadline))
        await self._listing.check_eviction(
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
        results: list[Receipt | OutliveError] = []
        for commit in commits:
            try:
                results.append(await self._commit(commit))
            except OutliveError as error:
                results.append(error)
        return results

    async def _commit(self, commit: Commit) -> Receipt:
        keys = self.keys(commit.thread)
        deadline = _deadline(commit.timeout_s)
        await self._listing.register(keys.bucket, deadline)
        if is_plain(commit) and not any(write.index < 0 and write.rank != ABSENT for write in commit.writes):
            return await self._commit_plainly(commit, keys, deadline)
        return await self._commit_by_rules(commit, keys, deadline)

    async def _send(self, call: Call, commit: Commit, deadline: Deadline) -> Any:
        """Send a commit, and wait for replicas when that is asked for."""
        wanted = self._choices.wait_replicas

        async def work(attempt: Deadline) -> Any:
            await self._listing.reassure(self._link, attempt)
            if not wanted:
                return await self._link.one(call, attempt)
            wait_ms = max(1, int(min(attempt.left_s(), _PATIENCE_S) * 700))
            tailed = Call(call.slot, call.args, call.script, ("WAIT", wanted, wait_ms))
            reply, reached = await self._link.one(tailed, attempt)
            if reply[0] in (b"ok", b"existing") and (not isinstance(reached, int) or reached < wanted):
                ids = [draft.id for draft in commit.checkpoints]
                raise NotReplicated(commit.thread.id, ids[0] if ids else "", reached, wanted)
            return reply

        return await self.attempt(work, rest(deadline), commit)

    async def _commit_plainly(self, commit: Commit, keys: Keys, deadline: Deadline) -> Receipt:
        """One script decides and does it."""
        thread = commit.thread
        draft = commit.checkpoints[0] if commit.checkpoints else None
        blob = (
            b"" if draft is None else rows.record_blob(thread, pair_field(draft.namespace, draft.id), draft)
        )
        extras = Extras(len(commit.chunks))
        header = (
            str(new_token()),
            None if commit.generation is None else str(commit.generation),
            commit.epoch,
            None if commit.fence is None else _fence(commit.fence),
            None if commit.expect_head is None else _expected(commit.expect_head),
            None if draft is None else _draft(draft),
            [_offered(thread, entry, extras) for entry in commit.entries],
            [_written(thread, write, extras) for write in commit.writes],
            self._choices.ttl_ms,
            text(thread.tenant),
            text(thread.id),
            self._choices.wait_replicas > 0,
            len(commit.chunks),
        )
        call = self.call(keys, "commit", pack(_without_none(header)), blob, *_chunks(commit), *extras.values)
        reply = await self._send(call, commit, deadline)
        return _receipt(commit, draft, reply)

    async def _commit_by_rules(self, commit: Commit, keys: Keys, deadline: Deadline) -> Receipt:
        """Gather, decide, apply; again when somebody else was faster."""
        while True:
            snapshot, raw, now = await self._gather(commit, keys, deadline)
            effect, receipt = decide(commit, snapshot, Clock(now, now, rows.CLOCK), new_token())
            if effect is None:
                return receipt
            extras = Extras(len(effect.chunks))
            said = self._said(effect, raw, extras)
            doomed = rows.pack_names(effect.removed_chunks)
            call = self.call(keys, "apply", said, doomed, *_chunks(effect), *extras.values)
            reply = await self._send(call, commit, deadline)
            _check_row(commit.thread, reply)
            if reply[0] == b"ok":
                return receipt
            if deadline.left_s() <= 0:
                raise StoreBusy(f"thread {commit.thread.id!r} kept changing under this call; try again")
            await self._link.colour.pause(random.uniform(0, 0.005))

    def _said(self, effect: Effect, raw: bytes, extras: Extras) -> bytes:
        thread, row = effect.thread, effect.row
        return pack(
            (
                raw,
                (str(row.generation), row.revision, row.epoch, row.seq, str(row.created_at), str(effect.at), row.info_version),
                effect.everything,
                [pair_field(*pair) for pair in effect.removed],
                [_placed(thread, record, extras) for record in (*effect.checkpoints, *effect.rewrites)],
                [_stored_write(thread, write, extras) for write in effect.writes],
                [_stored_entry(thread, entry, extras) for entry in effect.entries],
                False if effect.info is None else extras.add(rows.info_value(thread, effect.info, effect.info_projection)),
                False if effect.info_projection is None else effect.info_projection,
                self._choices.ttl_ms,
                text(thread.tenant),
                text(thread.id),
                len(effect.chunks),
            )
        )  # fmt: skip

    async def _gather(self, commit: Commit, keys: Keys, deadline: Deadline) -> tuple[Snapshot, bytes, int]:
        """Return what `decide` may ask, the raw row that stands for its moment, and the server's time."""
        thread, wanted = commit.thread, Wanted.of(commit)
        needed = unbrought(commit) if commit.generation is not None else set()
        wanted.chunks = [*{*wanted.chunks, *needed}]
        record_fields = [pair_field(*pair) for pair in wanted.checkpoints]
        write_fields = [rows.write_field(key) for key in wanted.writes]
        entry_fields = [rows.entry_field(*entry) for entry in wanted.entries]
        said = (
            record_fields,
            [text(namespace) for namespace in wanted.namespaces],
            write_fields,
            [pair_field(*pair) for pair in wanted.pairs],
            entry_fields,
        )
        reply = await self.ask(thread, "gather", said, rest(deadline), rows.pack_names(wanted.chunks))
        _check_row(thread, reply)
        _, now, raw, info, records, heads, writes, has, entries, sizes, stamps = reply
        stored = rows.stored_of(thread, raw)
        snapshot = Snapshot(stored.row if stored else None)
        if stored is None:
            return snapshot, b"", now
        snapshot.is_listed, snapshot.checkpoints = stored.is_listed, stored.checkpoints
        snapshot.metadata = rows.info_of(thread, stored, *info)
        for pair, field, value in zip(wanted.checkpoints, record_fields, records, strict=True):
            if value is not None:
                snapshot.records[pair] = self._readable(thread, commit, pair, field, value)
        for namespace, id, value in zip(wanted.namespaces, heads[::2], heads[1::2], strict=True):
            if id is not None:
                pair = (namespace, rows.plain(id))
                if value is None:
                    raise Corrupt("the newest checkpoint is gone", thread=thread.id, checkpoint=pair[1])
                snapshot.heads[namespace] = self._readable(thread, commit, pair, pair_field(*pair), value)
        for key, field, value in zip(wanted.writes, write_fields, writes, strict=True):
            if value is not None:
                snapshot.written[key] = rows.write_of(thread, field, value)
        snapshot.pairs.update(pair for pair, found in zip(wanted.pairs, has, strict=True) if found)
        for note, field, value in zip(wanted.entries, entry_fields, entries, strict=True):
            if value is not None:
                snapshot.notes[note] = rows.entry_of(thread, field, value)
        for name, size, stamp in zip(wanted.chunks, sizes, stamps, strict=True):
            if stamp is not None:
                snapshot.chunks[name] = (size, rows.stamp_of(thread, name, stamp)[0])
        if commit.generation == stored.row.generation and not needed <= snapshot.chunks.keys():
            raise StaleBase(thread.id)  # the server has lost commits since; see redis_commit.lua
        return snapshot, raw, now

    def _readable(
        self, thread: ThreadKey, commit: Commit, pair: Pair, field: bytes, value: bytes
    ) -> CheckpointRecord:
        """Return a record. A damaged one can still be removed: then only that it is there counts."""
        try:
            return rows.record_of(thread, field, value)
        except Corrupt:
            if commit.removal is None or pair not in commit.removal.checkpoints:
                raise
            return CheckpointRecord(*pair, None, None, None, "", 0, 0, (), b"")

    # Reading

    async def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: Known | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> Reading:
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
            return Reading(0)
        if reply[2] is None:
            return self._absent(thread, stored, id, reply)
        found = rows.plain(reply[1])
        record = rows.record_of(thread, pair_field(namespace, found), reply[2])
        data, fields, values, extra, extra_data = reply[3:]
        held = dict(zip(record.chunks, data, strict=True)) if data else {}
        held.update(zip(extra, extra_data, strict=True))
        writes = [rows.write_of(thread, field, value) for field, value in zip(fields, values, strict=True)]
        present = {name: bytes_ for name, bytes_ in held.items() if bytes_ is not None}
        return Reading(stored.row.generation, record, present, tuple(sorted(writes, key=write_order)))

    def _absent(self, thread: ThreadKey, stored: Stored, id: str | None, reply: list[Any]) -> Reading:
        """Nothing was found: was there never anything, or is half of the thread gone?"""
        count, ttl_ms = reply[3:]
        if count != stored.checkpoints:
            if ttl_ms >= 0:
                return Reading(0)
            raise Corrupt(f"it has {count} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        if reply[1] is not None and id is None:
            raise Corrupt("the newest checkpoint is gone", thread=thread.id, checkpoint=rows.plain(reply[1]))
        return Reading(stored.row.generation)

    async def history(
        self,
        thread: ThreadKey,
        namespace: str | None,
        *,
        before: Cursor | None = None,
        limit: int = 100,
        run: str | None = None,
        timeout_s: float | None = None,
    ) -> tuple[int, list[CheckpointRecord]]:
        said = (
            False if namespace is None else text(namespace),
            False if before is None else before,
            limit,
            False if run is None else text(run),
        )
        reply = await self.ask(thread, "history", said, timeout_s)
        stored = rows.stored_of(thread, reply[0])
        if stored is None:
            return 0, []
        if reply[1] != stored.checkpoints:
            raise Corrupt(f"it has {reply[1]} checkpoints instead of {stored.checkpoints}", thread=thread.id)
        page = [rows.record_of(thread, field, value or b"") for field, value in rows.pairs(reply[2:])]
        return stored.row.generation, page

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
        self,
        tenant: str,
        kind: str,
        *,
        thread: ThreadKey | None = None,
        statuses: Sequence[str] | None = None,
        lapsed: bool | None = None,
        prefix: str = "",
        after: EntryCursor | None = None,
        limit: int = 100,
        timeout_s: float | None = None,
    ) -> list[tuple[ThreadKey, Entry]]:
        asked = [
            False if statuses is None else [text(status) for status in statuses],
            "any" if lapsed is None else lapsed,
        ]
        if thread is None:
            return await self._listing.entries(
                tenant, kind, asked, prefix, after, limit, _deadline(timeout_s)
            )
        if thread.tenant != tenant:
            return []
        start = b"e" + text(kind) + b"\0"
        low = b"[" + start + text(prefix)
        if after is not None and start + text(after[0]) >= low[1:]:
            low = (b"(" if after[1] >= thread.digest else b"[") + start + text(after[0])
        high = b"(" + start + text(prefix) + b"\xff"
        reply = await self.ask(thread, "entries", (limit, *asked), timeout_s, low, high)
        rows.stored_of(thread, reply[0])
        return [(thread, rows.entry_of(thread, field, value)) for field, value in rows.pairs(reply[1:])]

    async def threads(
        self,
        tenant: str,
        *,
        only: str | None = None,
        prefix: str = "",
        after: str | None = None,
        limit: int = 100,
        heads: bool = True,
        timeout_s: float | None = None,
    ) -> list[ThreadRow]:
        if only is not None:
            thread = ThreadKey.of(tenant, only)
            row = self._listing.row(
                thread, await self.ask(thread, "summary", (heads, False), timeout_s), heads
            )
            return [] if row is None else [row]
        return await self._listing.threads(tenant, prefix, after, limit, heads, _deadline(timeout_s))

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
            receipt = await self._commit(Commit(target, chunks=tuple(found.items()), timeout_s=_PATIENCE_S))
            wanted = wanted[_BATCH:]
            if not wanted:
                return receipt.generation

    async def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        if thread is None:
            return await self._listing.audit()
        return await audit_thread(self, thread)


async def audit_thread(backend: RedisBackend, thread: ThreadKey) -> list[Corrupt]:
    """Look at every value of a thread."""
    reply = await backend.ask(thread, "audit", ())
    raw, records, order, writes, entries, chunks, meta, _ = reply
    found: list[Corrupt] = []

    def look(work: Callable[[], object]) -> None:
        try:
            work()
        except Corrupt as error:
            found.append(error)

    def wrong(what: str) -> None:
        found.append(Corrupt(what, thread=thread.id))

    try:
        stored = rows.stored_of(thread, raw)
    except Corrupt as error:
        return [error]
    if stored is None:
        if records or order or writes or entries or chunks:
            wrong("its row is gone")
        return found
    look(lambda: rows.info_of(thread, stored, *meta[2:]))
    if (stored.is_listed or stored.entries) and meta[:2] != [text(thread.tenant), text(thread.id)]:
        wrong("its name is damaged")
    expected: set[bytes] = set()
    for field, value in rows.pairs(records):
        look(lambda field=field, value=value: rows.record_of(thread, field, value))  # type: ignore[misc]
        namespace, _, id = field.partition(b"\0")
        expected |= {b"n" + namespace + b"\0" + value[:16] + id, b"a" + value[:16] + id + b"\0" + namespace}
    for field, value in rows.pairs(writes):
        look(lambda field=field, value=value: rows.write_of(thread, field, value))  # type: ignore[misc]
        expected.add(b"w" + field)
    for field, value in rows.pairs(entries):
        look(lambda field=field, value=value: rows.entry_of(thread, field, value))  # type: ignore[misc]
        expected.add(b"e" + field)
    if set(order) != expected:
        wrong("its order and its records do not agree")
    for what, count, said in (
        ("checkpoints", len(records) // 2, stored.checkpoints),
        ("writes", len(writes) // 2, stored.writes),
        ("entries", len(entries) // 2, stored.entries),
    ):
        if count != said:
            wrong(f"it has {count} {what} instead of {said}")
    names = sorted({field[1:] for field in chunks})
    for at in range(0, len(names), _BATCH):
        await _audit_chunks(backend, thread, names[at : at + _BATCH], wrong)
    return found


async def _audit_chunks(
    backend: RedisBackend, thread: ThreadKey, names: list[bytes], wrong: Callable[[str], None]
) -> None:
    keys = backend.keys(thread)
    fields = [letter + name for name in names for letter in (b"d", b"s")]
    call = Call(backend.slot(keys.bucket), ("HMGET", keys.all[3], *fields))
    (values,) = await backend.ask_all([call])
    for name, data, stamp in zip(names, values[::2], values[1::2], strict=True):
        if data is None and stamp is None:
            continue  # swept meanwhile
        try:
            _, crc = rows.stamp_of(thread, name, stamp)
        except Corrupt as error:
            wrong(error.what)
            continue
        if data is None or crc != rows.chunk_crc(name, data):
            wrong(f"chunk {name.hex()} is damaged")


# What goes into a script and what comes out ---------------------------------------------------------------


def _deadline(timeout_s: float | None) -> Deadline:
    """Nothing waits for ever."""
    return Deadline(_PATIENCE_S if timeout_s is None else timeout_s)


class Extras:
    """Values that stand behind the chunks in the arguments of a script, each named by its place."""

    def __init__(self, chunks: int) -> None:
        self.values: list[bytes] = []
        self._first = 3 + 3 * chunks

    def add(self, value: bytes) -> int:
        self.values.append(value)
        return self._first + len(self.values) - 1


def _without_none(header: Sequence[Any]) -> list[Any]:
    return [False if value is None else value for value in header]


def _fence(fence: tuple[str, str, int, int]) -> tuple[bytes, bytes]:
    kind, key, epoch, number = fence
    return rows.entry_field(kind, key), b"%016x%016x" % (epoch, number)


def _expected(expect: tuple[str, str | None]) -> tuple[bytes, bytes | bool]:
    return text(expect[0]), False if expect[1] is None else text(expect[1])


def _draft(draft: CheckpointRecord) -> tuple[Any, ...]:
    parent = False if draft.follows or draft.parent is None else text(draft.parent)
    return text(draft.namespace), text(draft.id), draft.follows, parent, draft.created_at, len(draft.body)


def _offered(thread: ThreadKey, entry: Entry, extras: Extras) -> tuple[Any, ...]:
    field = rows.entry_field(entry.kind, entry.key)
    return (
        field,
        extras.add(rows.entry_payload(thread, field, entry.body or b"")),
        entry.body is None,
        text(entry.status),
        rows.entry_rank(entry),
        entry.fence == NEXT,
        entry.gone,
        rows.until_hex(entry.until),
        text(entry.clock),
        False if entry.lease_s is None else int(entry.lease_s * 1e6),
        False if entry.expect is None else rows.rank_hex(entry.expect),
        entry.expect_lapsed,
    )


def _written(thread: ThreadKey, write: WriteRecord, extras: Extras) -> tuple[Any, ...]:
    field = rows.write_field(write.key)
    return (
        field,
        write.index < 0,
        rows.rank_hex(write.rank),
        extras.add(rows.write_blob(thread, field, write)),
    )


def _chunks(commit: Commit | Effect) -> list[bytes]:
    return [part for name, data in commit.chunks for part in (name, rows.chunk_crc(name, data), data)]


def _placed(thread: ThreadKey, record: CheckpointRecord, extras: Extras) -> tuple[bytes, bytes, int]:
    namespace, id = text(record.namespace), text(record.id)
    return namespace, id, extras.add(rows.record_value(thread, namespace + b"\0" + id, record))


def _stored_write(thread: ThreadKey, write: WriteRecord, extras: Extras) -> tuple[bytes, int]:
    field = rows.write_field(write.key)
    return field, extras.add(rows.write_value(thread, field, write))


def _stored_entry(thread: ThreadKey, entry: Entry, extras: Extras) -> tuple[bytes, int]:
    field = rows.entry_field(entry.kind, entry.key)
    return field, False if entry.gone else extras.add(rows.entry_value(thread, field, entry))


def _check_row(thread: ThreadKey, reply: list[Any]) -> None:
    if reply[0] == b"damaged":
        raise Corrupt("its row is damaged", thread=thread.id)


def _receipt(commit: Commit, draft: CheckpointRecord | None, reply: list[Any]) -> Receipt:
    """Say what the script did, or raise why it refused."""
    thread, kind = commit.thread, reply[0]
    if kind == b"ok":
        return _done(commit, draft, reply)
    _check_row(thread, reply)
    if kind == b"existing":
        assert draft is not None
        stored = rows.stored_of(thread, reply[1])
        assert stored is not None
        existing = rows.record_of(thread, pair_field(draft.namespace, draft.id), reply[2])
        return Receipt(stored.row.generation, stored.row.revision, existing=existing)
    raise _refusal(commit, kind, reply)


def _refusal(commit: Commit, kind: bytes, reply: list[Any]) -> OutliveError:
    thread = commit.thread
    if kind == b"lease" and commit.fence is not None:
        name, key, _, fence = commit.fence
        held = None if reply[1] is None else rows.entry_of(thread, rows.entry_field(name, key), reply[1])
        return LeaseLost(thread.id, name, key, fence, held.fence if held else None)
    if kind == b"epoch" and commit.epoch is not None:
        return EpochPassed(thread.id, commit.epoch, reply[1])
    if kind == b"head" and commit.expect_head is not None:
        head = None if reply[1] is None else rows.plain(reply[1])
        return HeadMoved(thread.id, *commit.expect_head, head)
    if kind == b"held":
        entry = commit.entries[reply[1] - 1]
        field = rows.entry_field(entry.kind, entry.key)
        stored = None if reply[2] is None else rows.entry_of(thread, field, reply[2])
        return EntryHeld(thread.id, entry.kind, entry.key, stored)
    return StaleBase(thread.id)


def _done(commit: Commit, draft: CheckpointRecord | None, reply: list[Any]) -> Receipt:
    _, generation, revision, seq, epoch, now, parent, accepted, kept = reply
    placed: tuple[CheckpointRecord, ...] = ()
    if draft is not None:
        record = stamped(
            draft,
            epoch=epoch,
            seq=seq,
            created_at=draft.created_at or now,
            parent=None if parent is None else rows.plain(parent),
            version=draft.version,
        )
        placed = (record,)
    entries = tuple(
        _settled(commit.thread, entry, stored, revision, now)
        for entry, stored in zip(commit.entries, kept, strict=True)
    )
    writes: dict[tuple[str, str, str, int], WriteRecord] = {}
    for write, flag in zip(commit.writes, accepted, strict=True):
        if flag == ord("1"):
            writes[write.key] = replace(write, rank=(epoch, 0, revision)) if write.index < 0 else write
    return Receipt(int(generation), revision, placed, None, entries, tuple(writes.values()))


def _settled(thread: ThreadKey, entry: Entry, stored: bytes | None, revision: int, now: int) -> Entry:
    """Return an entry as the script stored it."""
    body, status, until, clock = entry.body, entry.status, entry.until, entry.clock
    if body is None:
        kept = (
            None if stored is None else rows.entry_of(thread, rows.entry_field(entry.kind, entry.key), stored)
        )
        body = b"" if kept is None else kept.body
        status = status or ("" if kept is None else kept.status)
    if entry.lease_s is not None:
        until, clock = now + int(entry.lease_s * 1e6), rows.CLOCK
    fence = revision if entry.fence == NEXT else entry.fence
    return replace(
        entry, body=body, status=status, fence=fence, until=until, clock=clock, lease_s=None, expect=None, expect_lapsed=False
    )  # fmt: skip
