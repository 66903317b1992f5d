"""Commits to Redis: an ordinary save is one script, all others are gathered, decided here and applied."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.backend import ABSENT, NEXT, Commit, Receipt, outcome_unknown
from outlive.backend.entries import KINDS, check_kinds
from outlive.backends.local.memory import new_token
from outlive.backends.redis import messages as messages
from outlive.backends.redis import rows as rows
from outlive.backends.redis.client import Call, Client
from outlive.backends.redis.gather import Gathering
from outlive.backends.redis.identity import Identity
from outlive.backends.redis.rows import Keys
from outlive.backends.rules.decide import decide
from outlive.backends.rules.snapshot import done_before, is_deletion, is_plain, removes_only
from outlive.backends.rules.view import Clock, Row
from outlive.backends.server.attempts import AbandonedCommits, Deadline
from outlive.errors import NotReplicated, OutliveError, StoreBusy, StoreError

if TYPE_CHECKING:
    from outlive.backends.redis.backend import RedisBackend

_PATIENCE_S = 30.0  # with replicas, when the call itself may take for ever


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
    timeout_s: float | None = 30.0  # of a call that does not say


class Commits:
    """How commits are done, one after the other."""

    def __init__(self, backend: RedisBackend, link: Client, choices: Choices, identity: Identity) -> None:
        self._backend = backend
        self._link = link
        self._choices = choices
        self._identity = identity
        self._given_up = AbandonedCommits()

    async def commit(self, commit: Commit) -> Receipt:
        """Do a commit or raise why not."""
        messages.check_numbers(commit)
        check_kinds(commit.entries)
        return await self._given_up.watch(commit, lambda void: self._decide(commit, commit.token + void))

    async def renew_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Renew many leases by one exchange with each node."""
        calls = [
            self._backend.call(
                self._backend.keys(commit.thread),
                "commit",
                *messages.plain_commit(commit, commit.token, self._choices.ttl_ms, touch=False),
            )
            for commit in commits
        ]
        times = [commit.timeout_s for commit in commits if commit.timeout_s is not None]
        try:
            replies = await self._backend.ask_all(calls, min(times, default=None))
        except StoreError as error:  # some nodes may have done it
            return [outcome_unknown(commit, str(error)) for commit in commits]
        results: list[Receipt | OutliveError] = []
        for commit, reply in zip(commits, replies, strict=True):
            try:
                results.append(messages.receipt(commit, reply))
            except OutliveError as error:
                results.append(error)
        return results

    async def _decide(self, commit: Commit, tokens: bytes) -> Receipt:
        keys = self._backend.keys(commit.thread)
        deadline = self._backend.deadline(commit.timeout_s)
        if self._backend.is_sharded and not removes_only(commit):
            await self._identity.register(keys.bucket, deadline)
        if is_deletion(commit):
            return await self._delete(commit, tokens, keys, deadline)
        if not is_plain(commit) or any(write.index < 0 and write.rank != ABSENT for write in commit.writes):
            return await self._by_rules(commit, tokens, keys, deadline)
        return await self._by_script(commit, tokens, keys, deadline)

    async def _by_script(self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline) -> Receipt:
        """Let the server decide."""
        args = messages.plain_commit(
            commit,
            tokens,
            self._choices.ttl_ms,
            touch=self._choices.wait_replicas > 0,
            own=self._own if commit.generation is None else b"",  # with one, it begins no thread
        )
        reply = await self._send(self._backend.call(keys, "commit", *args), commit, deadline)
        receipt = messages.receipt(commit, reply)
        if reply[0] == b"ok" and reply[-1] == 1:
            await self._has_begun(deadline)
        return receipt

    async def _by_rules(self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline) -> Receipt:
        """Gather, decide, apply; again when somebody else was faster."""
        gathering = Gathering(commit)
        while True:
            reply = await self._backend.ask(
                commit.thread, "gather", gathering.said, deadline.remaining_s(), gathering.names
            )
            snapshot, raw, now = gathering.snapshot(reply)
            if not raw and self._choices.ttl_ms:
                snapshot.row = Row(new_token(), now, 0, 0, now)  # see `first_row` in bucket.lua
            if gathering.is_done:
                return await self._settle(commit, done_before(commit, snapshot), keys, deadline)
            effect, receipt = decide(commit, snapshot, Clock(now, now, rows.CLOCK), new_token())
            if effect is None:
                return await self._settle(commit, receipt, keys, deadline)
            base = messages.base(commit, snapshot.row) if raw else None
            args = messages.effect(effect, tokens, raw, base, self._choices.ttl_ms, self._own)
            reply = await self._send(self._backend.call(keys, "apply", *args), commit, deadline)
            messages.check(commit.thread, reply)
            if reply[0] == b"ok":
                if not raw:
                    await self._has_begun(deadline)
                return messages.applied(commit.thread, receipt, reply)
            if reply[0] == b"repeated":
                return receipt  # the answer that was lost was the same
            if deadline.left_s() <= 0:
                raise StoreBusy(f"thread {commit.thread.id!r} kept changing under this call; try again")
            await self._link.io_mode.pause(random.uniform(0, 0.005))

    async def _delete(self, commit: Commit, tokens: bytes, keys: Keys, deadline: Deadline) -> Receipt:
        """Delete a thread, whatever is there and however damaged."""
        args = messages.deletion(commit, tokens, self._choices.ttl_ms, self._own)
        reply = await self._send(self._backend.call(keys, "apply", *args), commit, deadline)
        return messages.deleted(commit.thread, reply)

    # The store itself

    @property
    def _own(self) -> bytes:
        """The naming key that a script compares and keeps; in a Cluster the client does that."""
        return b"" if self._backend.is_sharded else self._identity.own

    async def _has_begun(self, deadline: Deadline) -> None:
        """Make sure, in a Cluster, that a thread which began did so in the store that was opened."""
        if self._backend.is_sharded:
            await self._identity.reassure(self._link, deadline, is_first=True)

    # Sending

    async def _send(self, call: Call, commit: Commit, deadline: Deadline) -> Any:
        """Send a commit, and wait for replicas when that is asked for."""
        wanted = self._choices.wait_replicas

        async def work(attempt: Deadline) -> Any:
            await self._identity.reassure(self._link, attempt)
            if not wanted:
                return await self._link.one(call, attempt)
            wait_ms = max(1, int(min(attempt.left_s(), _PATIENCE_S) * 700))
            waiting = Call(call.slot, call.args, call.script, ("WAIT", wanted, wait_ms))
            return self._confirmed(commit, *await self._link.one(waiting, attempt))

        bucket = self._backend.keys(commit.thread).bucket
        return await self._backend.repaired(
            commit.thread,
            bucket,
            lambda: self._backend.attempt(work, deadline.remaining_s(), commit),
        )

    async def _settle(self, commit: Commit, receipt: Receipt, keys: Keys, deadline: Deadline) -> Receipt:
        """Return the receipt of what was there before, when enough replicas have that too."""
        if self._choices.wait_replicas:
            await self._send(self._backend.call(keys, "touch"), commit, deadline)
        return receipt

    def _confirmed(self, commit: Commit, reply: list[Any], reached: object) -> list[Any]:
        """Return the reply of a commit that enough replicas have."""
        wanted = self._choices.wait_replicas
        is_there = reply[0] in (b"ok", b"existing", b"repeated")
        if is_there and (not isinstance(reached, int) or reached < wanted):
            ids = [draft.id for draft in commit.checkpoints]
            raise NotReplicated(commit.thread.id, ids[0] if ids else "", reached, wanted)
        return reply


def renews_only(commit: Commit) -> bool:
    """Tell whether a commit only renews leases that somebody holds: it begins no thread and needs no replica."""
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
