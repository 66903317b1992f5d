"""Calls to Redis, wherever the key is: scripts that a server forgot, keys that moved, servers that cannot serve now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from outlive.backends.redis.connection import Address, Command, Reply
from outlive.backends.redis.io_modes import IOMode
from outlive.backends.redis.replies import ErrorReply, refusal
from outlive.backends.redis.scripts import Script
from outlive.backends.redis.topology import Nodes, Pool
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.backends.server.urls import hide_secrets
from outlive.errors import OutliveError

_HOPS = 8


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
        with self._hiding_secrets():
            pool = await self.nodes.pool(call.slot, deadline)
            (reply,) = await self._exchange(pool, [call], deadline)
            return await self._settled(call, reply, pool, deadline)

    async def all(self, calls: Sequence[Call], deadline: Deadline) -> list[Reply]:
        """Return the replies of many calls: one exchange with each node."""
        groups: dict[Pool, list[int]] = {}
        with self._hiding_secrets():
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
        with self._hiding_secrets():
            pools = await self.nodes.pools(deadline)
            return [(await pool.call([command], deadline))[0] for pool in pools]

    async def scan(self, pattern: str, deadline: Deadline) -> list[bytes]:
        """Return all keys of all nodes that match a pattern."""
        found: list[bytes] = []
        with self._hiding_secrets():
            for pool in await self.nodes.pools(deadline):
                cursor: bytes = b"0"
                while True:
                    (reply,) = await pool.call([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)], deadline)
                    if isinstance(reply, ErrorReply):
                        raise self._refusal(reply, pool)
                    cursor = reply[0]
                    found += reply[1]
                    if cursor == b"0":
                        break
        return found

    async def warm(self, count: int, deadline: Deadline) -> None:
        """Open connections to every node beforehand."""
        with self._hiding_secrets():
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
        except AttemptFailed as failed:
            if not failed.busy:
                self.losses += 1
                self.nodes.distrust(pool)
            raise
        return [next(replies) if call.tail is None else (next(replies), next(replies)) for call in calls]

    async def _settled(self, call: Call, reply: Reply, pool: Pool, deadline: Deadline) -> Reply:
        """Follow redirections and send missing scripts until there is an answer."""
        for _ in range(_HOPS):
            error = reply[0] if call.tail is not None else reply
            if not isinstance(error, ErrorReply):
                return reply
            if error.code == "NOSCRIPT" and call.script is not None:
                call = call.in_full()
            elif error.code == "MOVED":
                self.nodes.moved(error.redirection[0], _address(error, pool))
                pool = await self.nodes.pool(call.slot, deadline)
            elif error.code == "ASK":
                reply = await self._ask(self.nodes.at(_address(error, pool)), call, deadline)
                continue
            else:
                raise self._refusal(error, pool)
            (reply,) = await self._exchange(pool, [call], deadline)
        raise AttemptFailed("the Cluster sent this call from node to node", sent=False)

    async def _ask(self, pool: Pool, call: Call, deadline: Deadline) -> Reply:
        """Ask the node to which a slot is moving now."""
        commands = [("ASKING",), call.args, *([] if call.tail is None else [call.tail])]
        _, *replies = await pool.call(commands, deadline)
        return replies[0] if call.tail is None else tuple(replies)

    def _refusal(self, error: ErrorReply, pool: Pool) -> Exception:
        failure = refusal(error)
        if isinstance(failure, AttemptFailed):
            self.nodes.distrust(pool)
        return failure

    @contextlib.contextmanager
    def _hiding_secrets(self) -> Iterator[None]:
        """Keep passwords out of error messages."""
        try:
            yield
        except AttemptFailed as failed:
            failed.reason = hide_secrets(failed.reason, self._secrets)
            failed.args = (failed.reason,)
            raise
        except OutliveError as error:
            error.args = tuple(
                hide_secrets(arg, self._secrets) if isinstance(arg, str) else arg for arg in error.args
            )
            raise

    def close(self) -> None:
        self.nodes.close()


def _address(error: ErrorReply, pool: Pool) -> Address:
    """Return where an error redirects to; without a host, to another port of the same one."""
    _, host, port = error.redirection
    return (host or pool.host, port)
