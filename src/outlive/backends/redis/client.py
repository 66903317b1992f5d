"""Calls to Redis, wherever the key is: scripts that a server forgot, keys that moved, servers that cannot serve now."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.exceptions import (
    AskError,
    AuthenticationError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ResponseError,
)

from outlive.backends.redis.connection import Command, IOMode, Reply
from outlive.backends.redis.scripts import Script
from outlive.backends.redis.topology import Address, Nodes, Pool
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.backends.server.urls import hide_secrets
from outlive.errors import Corrupt, OutliveError, StoreFull, StoreUnavailable

_HOPS = 8
_TRANSIENT = ("LOADING", "READONLY", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS", "MISCONF", "BUSY")
_codes = re.compile(rf"\b({'|'.join((*_TRANSIENT, 'OOM'))})\b")


@dataclass(frozen=True, slots=True)
class Call:
    """One command or script, and what is to follow it on the same connection."""

    slot: int
    args: Command
    script: Script | None = None
    tail: Command | None = None

    @classmethod
    def of(
        cls, slot: int, script: Script, keys: Sequence[str], *args: Any, tail: Command | None = None
    ) -> Call:
        return cls(slot, ("EVALSHA", script.sha, len(keys), *keys, *args), script, tail)

    def in_full(self) -> Call:
        """Send the text of the script too: the server forgot it."""
        assert self.script is not None
        return Call(self.slot, ("EVAL", self.script.text, *self.args[2:]), None, self.tail)


class Client:
    """Sends calls to where their keys are. One attempt each: `AttemptFailed` when it could be tried again."""

    def __init__(self, io_mode: IOMode, nodes: Nodes, secrets: tuple[str, ...] = ()) -> None:
        self.io_mode = io_mode
        self.nodes = nodes
        self.losses = 0  # how often a server was lost: it may have come back without its last commits
        self._secrets = secrets

    async def one(self, call: Call, deadline: Deadline) -> Reply:
        """Return the reply of a call; with a tail, a pair."""
        with self._hidden():
            pool = await self.nodes.pool(call.slot, deadline)
            (reply,) = await self._exchange(pool, [call], deadline)
            return await self._settled(call, reply, pool, deadline)

    async def all(self, calls: Sequence[Call], deadline: Deadline) -> list[Reply]:
        """Return the replies of many calls: one exchange with each node."""
        groups: dict[Pool, list[int]] = {}
        with self._hidden():
            for number, call in enumerate(calls):
                pool = await self.nodes.pool(call.slot, deadline)
                groups.setdefault(pool, []).append(number)
            replies: list[Reply] = [None] * len(calls)

            async def ask(pool: Pool, numbers: list[int]) -> None:
                found = await self._exchange(pool, [calls[number] for number in numbers], deadline)
                for number, reply in zip(numbers, found, strict=True):
                    replies[number] = await self._settled(calls[number], reply, pool, deadline)

            await self.io_mode.together([ask(pool, numbers) for pool, numbers in groups.items()])
            return replies

    async def everywhere(self, command: Command, deadline: Deadline) -> list[Reply]:
        """Return every node's reply to a command; an error is a reply."""
        with self._hidden():
            pools = await self.nodes.pools(deadline)
            return [(await pool.call([command], deadline))[0] for pool in pools]

    async def scan(self, pattern: str, deadline: Deadline) -> list[bytes]:
        """Return all keys of all nodes that match a pattern."""
        found: list[bytes] = []
        with self._hidden():
            for pool in await self.nodes.pools(deadline):
                cursor: bytes = b"0"
                while True:
                    (reply,) = await pool.call([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)], deadline)
                    if isinstance(reply, ResponseError):
                        raise self._failure(reply, pool)
                    cursor = reply[0]
                    found += reply[1]
                    if cursor == b"0":
                        break
        return found

    async def warm(self, count: int, deadline: Deadline) -> None:
        """Open connections to every node beforehand."""
        with self._hidden():
            for pool in await self.nodes.pools(deadline):
                await pool.warm(count, deadline)

    async def _exchange(self, pool: Pool, calls: Sequence[Call], deadline: Deadline) -> list[Reply]:
        commands: list[Command] = []
        for call in calls:
            commands.append(call.args)
            if call.tail is not None:
                commands.append(call.tail)
        try:
            replies = iter(await pool.call(commands, deadline))
        except AttemptFailed as lost:
            if not lost.busy:
                self.losses += 1
                self.nodes.distrust(pool)
            raise
        return [next(replies) if call.tail is None else (next(replies), next(replies)) for call in calls]

    async def _settled(self, call: Call, reply: Reply, pool: Pool, deadline: Deadline) -> Reply:
        """Follow redirections and load scripts until there is an answer."""
        for _ in range(_HOPS):
            error = reply[0] if call.tail is not None else reply
            if not isinstance(error, ResponseError):
                return reply
            if isinstance(error, NoScriptError) and call.script is not None:
                call = call.in_full()
            elif isinstance(error, MovedError):
                self.nodes.moved(error.slot_id, _address(error, pool))
                pool = await self.nodes.pool(call.slot, deadline)
            elif isinstance(error, AskError):
                reply = await self._ask(self.nodes.at(_address(error, pool)), call, deadline)
                continue
            else:
                raise self._failure(error, pool)
            (reply,) = await self._exchange(pool, [call], deadline)
        raise AttemptFailed("the Cluster sent this call from node to node", sent=False)

    async def _ask(self, pool: Pool, call: Call, deadline: Deadline) -> Reply:
        """Ask the node to which a slot is moving just now."""
        commands = [("ASKING",), call.args, *([] if call.tail is None else [call.tail])]
        _, *replies = await pool.call(commands, deadline)
        return replies[0] if call.tail is None else tuple(replies)

    def _failure(self, error: ResponseError, pool: Pool) -> Exception:
        """Say what an error reply means."""
        said = str(error)
        code = getattr(error, "status_code", None) or ""
        found = _codes.search(f"{code} {said}" if code else said)
        name = type(error).__name__
        if isinstance(error, AuthenticationError | NoPermissionError):
            return StoreUnavailable(f"the server refused the credentials: {said}")
        kind = _KINDS.get(name) or (found.group(1) if found else "")
        if kind == "OOM":
            return StoreFull(
                "Redis has reached its maxmemory and stores nothing more; raise it (CONFIG SET maxmemory ...) or "
                "delete threads: deletions still work"
            )
        if kind:
            self.nodes.distrust(pool)
            return AttemptFailed(f"{kind} {said}" if kind not in said else said, sent=False)
        if "WRONGTYPE" in f"{code} {said}":
            return Corrupt("a key holds a value of another type")
        if "user_script" in said:
            return Corrupt(f"a script stumbled over a stored value: {said}")
        return StoreUnavailable(f"Redis refused the command: {said}")

    @contextlib.contextmanager
    def _hidden(self) -> Any:
        """Let no secret out in a message."""
        try:
            yield
        except AttemptFailed as lost:
            lost.reason = hide_secrets(lost.reason, self._secrets)
            lost.args = (lost.reason,)
            raise
        except OutliveError as error:
            error.args = tuple(
                hide_secrets(arg, self._secrets) if isinstance(arg, str) else arg for arg in error.args
            )
            raise

    async def close(self) -> None:
        await self.nodes.close()


_KINDS = {
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "TryAgainError": "TRYAGAIN",
}


def _address(error: Any, pool: Pool) -> Address:
    """Return where an error redirects to; without a host it is the same one."""
    return (error.host or pool.host, error.port)
