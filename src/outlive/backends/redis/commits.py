"""Commits to Redis. A script decides an ordinary save; all others are gathered and decided here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from outlive.backend import (
    ABSENT,
    NEXT,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    Receipt,
    outcome_unknown,
    shortest_timeout,
)
from outlive.backend.clock import Clock
from outlive.backend.entries import KINDS, check_kinds
from outlive.backends.redis import messages, rows
from outlive.backends.redis.client import Call
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.keys import Keys, checkpoint_field, entry_field, to_bytes, to_text, write_field
from outlive.backends.redis.repair import IndexRepair
from outlive.backends.redis.session import Session
from outlive.backends.rules.decide import decide, new_generation
from outlive.backends.rules.snapshot import (
    Snapshot,
    Wanted,
    done_before,
    is_deletion,
    is_plain,
    removes_only,
    unbrought,
)
from outlive.backends.rules.view import Counters
from outlive.backends.server.attempts import AbandonedCommits, Deadline
from outlive.errors import Corrupt, NotReplicated, OutliveError, StaleBase, StoreBusy, StoreError


class Gathering:
    """The arguments of the script for one commit, and its reply as a snapshot."""

    def __init__(self, commit: Commit) -> None:
        self.is_done = False  # the thread knows the commit's token
        self._commit = commit
        self._thread = commit.thread
        self._wanted = wanted = Wanted.of(commit)
        # The generation tells of deletions, not of commits that a server has lost: see commit.lua.
        self._needed = unbrought(commit) if commit.generation is not None else set()
        self._chunks = [*{*wanted.chunks, *self._needed}]
        self._records = [checkpoint_field(*key) for key in wanted.checkpoints]
        self._writes = [write_field(key) for key in wanted.writes]
        self._entries = [entry_field(*key) for key in wanted.entries]

    @property
    def args(self) -> tuple[Any, ...]:
        namespaces = [to_bytes(namespace) for namespace in self._wanted.namespaces]
        keys = [checkpoint_field(*key) for key in self._wanted.pairs]
        return self._records, namespaces, self._writes, keys, self._entries

    @property
    def names(self) -> bytes:
        return rows.pack_names(self._chunks)

    def snapshot(self, reply: list[Any]) -> tuple[Snapshot, bytes, int]:
        """Return what `decide` may ask, the raw row at that moment, and the server's time."""
        if reply[0] == b"damaged":
            raise rows.damage_error(self._thread, reply[1])
        _, now, raw_row, metadata, records, heads, writes, exists, entries, sizes, stamps = reply
        stored = rows.parse_row(self._thread, raw_row)
        if stored is None:
            return Snapshot(None), b"", now
        snapshot = Snapshot(stored.row, stored.is_listed, stored.checkpoints)
        self.is_done = self._commit.token.hex().encode() in stored.tokens
        snapshot.metadata = rows.parse_metadata(self._thread, stored, *metadata)
        self._add_records(snapshot, records, heads)
        self._add_writes_and_entries(snapshot, writes, exists, entries)
        for name, size, stamp in zip(self._chunks, sizes, stamps, strict=True):
            if stamp is not None:
                snapshot.chunks[name] = (size, rows.parse_stamp(self._thread, name, stamp)[0])
        is_same_generation = self._commit.generation == stored.row.generation
        if not self.is_done and is_same_generation and not self._needed <= snapshot.chunks.keys():
            raise StaleBase(self._thread.id)
        return snapshot, raw_row, now

    def _add_records(self, snapshot: Snapshot, records: list[Any], heads: list[Any]) -> None:
        for key, field, value in zip(self._wanted.checkpoints, self._records, records, strict=True):
            if value is not None:
                snapshot.records[key] = self._record(key, field, value)
        for namespace, id, value in zip(self._wanted.namespaces, heads[::2], heads[1::2], strict=True):
            if id is not None:
                key = (namespace, to_text(id))
                if value is None:
                    raise Corrupt("the newest checkpoint is gone", thread=self._thread.id, checkpoint=key[1])
                snapshot.heads[namespace] = self._record(key, checkpoint_field(*key), value)

    def _record(self, key: CheckpointKey, field: bytes, value: bytes) -> CheckpointRecord:
        """Return a record. A damaged one can still be removed: then only its presence counts."""
        try:
            return rows.parse_record(self._thread, field, value)
        except Corrupt:
            removal = self._commit.removal
            if removal is None or key not in removal.checkpoints:
                raise
            return CheckpointRecord(*key, None, None, None, "", 0, 0, (), b"")

    def _add_writes_and_entries(
        self, snapshot: Snapshot, writes: list[Any], exists: list[int], entries: list[Any]
    ) -> None:
        for write, field, value in zip(self._wanted.writes, self._writes, writes, strict=True):
            if value is not None:
                snapshot.written[write] = rows.parse_write(self._thread, field, value)
        snapshot.pairs.update(key for key, flag in zip(self._wanted.pairs, exists, strict=True) if flag)
        for entry, field, value in zip(self._wanted.entries, self._entries, entries, strict=True):
            if value is not None:
                snapshot.entries[entry] = rows.parse_entry(self._thread, field, value)


_MAX_WAIT_S = 30.0  # for replicas, when the call itself has no limit


class Commits:
    """Does commits, each in one script: all of it or nothing."""

    def __init__(self, session: Session, identity: Identity, repair: IndexRepair) -> None:
        self._session = session
        self._options = session.options
        self._identity = identity
        self._repair = repair
        self._abandoned = AbandonedCommits()

    async def commit(self, commit: Commit) -> Receipt:
        """Do a commit, or raise why it was refused."""
        messages.check_numbers(commit)
        check_kinds(commit.entries)
        return await self._abandoned.watch(commit, lambda void: self._dispatch(commit, commit.token + void))

    async def renew_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Renew many leases, by one exchange with each node."""
        calls = [
            self._session.script_call(
                self._session.keys(commit.thread),
                "commit",
                *messages.commit_args(commit, commit.token, self._options.ttl_ms, touch=False),
            )
            for commit in commits
        ]
        try:
            replies = await self._session.ask_all(calls, shortest_timeout(commits))
        except StoreError as error:  # some nodes may have done it
            return [outcome_unknown(commit, str(error)) for commit in commits]
        results: list[Receipt | OutliveError] = []
        for commit, reply in zip(commits, replies, strict=True):
            try:
                results.append(messages.parse_receipt(commit, reply))
            except OutliveError as error:
                results.append(error)
        return results

    async def _dispatch(self, commit: Commit, tokens: bytes) -> Receipt:
        """Choose how to do a commit. `tokens`: its own and those of commits that it makes void."""
        keys = self._session.keys(commit.thread)
        deadline = self._session.deadline(commit.timeout_s)
        if self._session.is_sharded and not removes_only(commit):
            # Before the thread begins: a crash after this leaves a bucket noted that is not in use.
            await self._identity.register(keys.bucket, deadline)
        if is_deletion(commit):
            return await self._delete(commit, tokens, keys, deadline)
        if not is_plain(commit) or any(write.index < 0 and write.rank != ABSENT for write in commit.writes):
            return await self._commit_by_rules(commit, tokens, keys, deadline)
        return await self._commit_by_script(commit, tokens, keys, deadline)

    async def _commit_by_script(
        self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline
    ) -> Receipt:
        """Let the server decide."""
        args = messages.commit_args(
            commit,
            tokens,
            self._options.ttl_ms,
            touch=self._options.wait_replicas > 0,
            # A commit that names a generation begins no thread.
            naming_key=self._naming_key if commit.generation is None else b"",
        )
        reply = await self._send(self._session.script_call(keys, "commit", *args), commit, deadline)
        receipt = messages.parse_receipt(commit, reply)
        if reply[0] == b"ok" and reply[-1] == 1:
            await self._check_begun(deadline)
        return receipt

    async def _commit_by_rules(
        self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline
    ) -> Receipt:
        """Gather, decide, apply; again when another commit came between."""
        gathering = Gathering(commit)
        while True:
            # 1. Read everything that the decision depends on, at one moment.
            reply = await self._repair.ask(
                commit.thread, "gather", gathering.args, deadline.as_timeout_s(), gathering.names
            )
            snapshot, raw_row, now = gathering.snapshot(reply)
            if not raw_row and self._options.ttl_ms:
                snapshot.counters = Counters(
                    new_generation(), now, 0, 0, now
                )  # see `first_row` in bucket.lua
            if gathering.is_done:
                return await self._confirm(commit, done_before(commit, snapshot), keys, deadline)
            # 2. Decide here. Nothing is stored yet: a crash leaves the thread as it was.
            effect, receipt = decide(commit, snapshot, Clock(now, now, rows.CLOCK))
            if effect is None:
                return await self._confirm(commit, receipt, keys, deadline)
            # 3. Apply, if the thread is still what was gathered.
            base = messages.expected_base(commit, snapshot.counters) if raw_row else None
            args = messages.effect_args(effect, tokens, raw_row, base, self._options.ttl_ms, self._naming_key)
            reply = await self._send(self._session.script_call(keys, "apply", *args), commit, deadline)
            messages.check_reply(commit.thread, reply)
            if reply[0] == b"ok":
                if not raw_row:
                    await self._check_begun(deadline)
                return messages.applied_receipt(commit.thread, receipt, reply)
            if reply[0] == b"repeated":
                return receipt  # an attempt before did it, and its lost answer was the same
            if deadline.remaining_s() <= 0:
                raise StoreBusy(f"thread {commit.thread.id!r} kept changing during this call; try again")
            await self._session.client.io_mode.pause(random.uniform(0, 0.005))

    async def _delete(self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline) -> Receipt:
        """Delete a thread, whatever is there and however damaged."""
        args = messages.deletion_args(commit, tokens, self._options.ttl_ms, self._naming_key)
        reply = await self._send(self._session.script_call(keys, "apply", *args), commit, deadline)
        return messages.deletion_receipt(commit.thread, reply)

    # The store itself

    @property
    def _naming_key(self) -> bytes:
        """The naming key that a script compares and keeps; in a Cluster the client does that."""
        return b"" if self._session.is_sharded else self._identity.packed_naming_key

    async def _check_begun(self, deadline: Deadline) -> None:
        """In a Cluster, make sure that a thread which began did so in the store that was opened."""
        if self._session.is_sharded:
            await self._identity.check_same(deadline, is_first=True)

    # Sending

    async def _send(self, call: Call, commit: Commit, deadline: Deadline) -> Any:
        """Send the script of a commit, and wait for replicas if the store asks for that."""
        wanted, client = self._options.wait_replicas, self._session.client

        async def work(attempt: Deadline) -> Any:
            await self._identity.check_same(attempt)
            if not wanted:
                return await client.send_together(call, attempt)
            wait_ms = max(1, int(min(attempt.remaining_s(), _MAX_WAIT_S) * 700))
            with_wait = Call(call.slot, call.command, call.script, ("WAIT", wanted, wait_ms))
            return self._check_replicas(commit, *await client.send(with_wait, attempt))

        return await self._repair.repeat(
            commit.thread, lambda: self._session.attempt(work, deadline.as_timeout_s(), commit)
        )

    async def _confirm(self, commit: Commit, receipt: Receipt, keys: Keys, deadline: Deadline) -> Receipt:
        """Return the receipt of what was stored before, once enough replicas have that too."""
        if self._options.wait_replicas:
            await self._send(self._session.script_call(keys, "touch"), commit, deadline)
        return receipt

    def _check_replicas(self, commit: Commit, reply: list[Any], confirmed: object) -> list[Any]:
        """Return the reply of a commit if enough replicas have it."""
        wanted = self._options.wait_replicas
        is_stored = reply[0] in (b"ok", b"existing", b"repeated")
        if is_stored and (not isinstance(confirmed, int) or confirmed < wanted):
            raise NotReplicated(commit.thread.id, commit.first_id, confirmed, wanted)
        return reply


def renews_only(commit: Commit) -> bool:
    """Tell whether a commit only renews leases: it begins no thread and needs no replica."""
    return (
        commit.fence is not None
        and not commit.checkpoints
        and not commit.writes
        and not commit.chunks
        and is_plain(commit)
        and all(
            entry.body is None and entry.fence != NEXT and entry.kind in KINDS for entry in commit.entries
        )
    )
