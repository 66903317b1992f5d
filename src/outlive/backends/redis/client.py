"""Calls to Redis, on whichever node a key is: forgotten scripts, moved keys, busy servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive.backends.redis.connection import Address, Command, ErrorReply, Reply, refusal
from outlive.backends.redis.io_modes import IOMode
from outlive.backends.redis.scripts import Script
from outlive.backends.redis.topology import Nodes, Pool
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.backends.server.urls import hide_secrets
from outlive.dataclass import dataclass
from outlive.errors import OutliveError

_MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class Call:
    """One command or script, and a command that follows it on the same connection."""

    slot: int
    command: Command
    script: Script | None = None
    tail: Command | None = None

    @classmethod
    def of(cls, slot: int, script: Script, keys: Sequence[str], *args: Any) -> Call:
        return cls(slot, ("EVALSHA", script.sha, len(keys), *keys, *args), script)

    def with_script_text(self) -> Call:
        """Return the same call with the text of its script: the server has forgotten it."""
        assert self.script is not None
        return Call(self.slot, ("EVAL", self.script.text, *self.command[2:]), None, self.tail)


class _HidingSecrets:
    """Keeps passwords out of error messages."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self._secrets = secrets

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AttemptFailed):
            error.reason = hide_secrets(error.reason, self._secrets)
            error.args = (error.reason,)
        elif isinstance(error, OutliveError):
            error.args = tuple(
                hide_secrets(arg, self._secrets) if isinstance(arg, str) else arg for arg in error.args
            )


class Client:
    """Sends calls to the nodes that have their keys.

    One attempt each: raises `AttemptFailed` when another may succeed.
    """

    def __init__(self, io_mode: IOMode, nodes: Nodes, secrets: tuple[str, ...] = ()) -> None:
        self.io_mode = io_mode
        self.nodes = nodes
        # How often a server was lost: it may have come back without its last commits.
        self.losses = 0
        self._hiding_secrets = _HidingSecrets(secrets)

    async def send(self, call: Call, deadline: Deadline) -> Reply:
        """Return the reply of a call; with a tail, the replies of both."""
        with self._hiding_secrets:
            pool = await self.nodes.pool(call.slot, deadline)
            (reply,) = await self._exchange(pool, [call], deadline)
            return await self._settle(call, reply, pool, deadline)

    async def send_together(self, call: Call, deadline: Deadline) -> Reply:
        """Return the reply of a call, which may share its exchange with others of the same moment."""
        if call.tail is not None or not self.io_mode.gathers:
            return await self.send(call, deadline)
        with self._hiding_secrets:
            pool = await self.nodes.pool(call.slot, deadline)
            try:
                reply = await pool.call_together(call.command, deadline)
            except AttemptFailed as failed:
                self._note_loss(failed, pool)
                raise
            return await self._settle(call, reply, pool, deadline)

    async def send_all(self, calls: Sequence[Call], deadline: Deadline) -> list[Reply]:
        """Return the replies of many calls, by one exchange with each node."""
        replies: list[Reply] = [None] * len(calls)
        groups: dict[Pool, list[int]] = {}

        async def send_group(pool: Pool, numbers: list[int]) -> None:
            group = await self._exchange(pool, [calls[number] for number in numbers], deadline)
            for number, reply in zip(numbers, group, strict=True):
                replies[number] = await self._settle(calls[number], reply, pool, deadline)

        with self._hiding_secrets:
            for number, call in enumerate(calls):
                pool = await self.nodes.pool(call.slot, deadline)
                groups.setdefault(pool, []).append(number)
            await self.io_mode.together([send_group(pool, numbers) for pool, numbers in groups.items()])
            return replies

    async def send_to_each_node(self, command: Command, deadline: Deadline) -> list[Reply]:
        """Return the reply of every node to a command; an error is a reply."""
        with self._hiding_secrets:
            pools = await self.nodes.pools(deadline)
            return [(await pool.call([command], deadline))[0] for pool in pools]

    async def scan(self, pattern: str, deadline: Deadline) -> list[bytes]:
        """Return all keys of all nodes that match a pattern."""
        keys: list[bytes] = []
        with self._hiding_secrets:
            for pool in await self.nodes.pools(deadline):
                cursor = b"0"
                while True:
                    (reply,) = await pool.call([("SCAN", cursor, "MATCH", pattern, "COUNT", 1000)], deadline)
                    if isinstance(reply, ErrorReply):
                        raise self._refusal(reply, pool)
                    cursor, page = reply
                    keys += page
                    if cursor == b"0":
                        break
        return keys

    async def warm(self, count: int, deadline: Deadline) -> None:
        """Open connections to every node in advance."""
        with self._hiding_secrets:
            for pool in await self.nodes.pools(deadline):
                await pool.warm(count, deadline)

    async def _exchange(self, pool: Pool, calls: Sequence[Call], deadline: Deadline) -> list[Reply]:
        commands = [command for call in calls for command in (call.command, call.tail) if command is not None]
        try:
            replies = iter(await pool.call(commands, deadline))
        except AttemptFailed as failed:
            self._note_loss(failed, pool)
            raise
        return [next(replies) if call.tail is None else (next(replies), next(replies)) for call in calls]

    async def _settle(self, call: Call, reply: Reply, pool: Pool, deadline: Deadline) -> Reply:
        """Follow redirections and send missing scripts until there is an answer."""
        for _ in range(_MAX_HOPS):
            error = reply[0] if call.tail is not None else reply
            if not isinstance(error, ErrorReply):
                return reply
            if error.code == "NOSCRIPT" and call.script is not None:
                call = call.with_script_text()
            elif error.code == "MOVED":
                # The slot has another owner for good: the map of slots is out of date.
                self.nodes.moved(error.redirection[0], _address(error, pool))
                pool = await self.nodes.pool(call.slot, deadline)
            elif error.code == "ASK":
                # The slot is on its way: only this call goes to the new owner.
                reply = await self._ask(self.nodes.at(_address(error, pool)), call, deadline)
                continue
            else:
                raise self._refusal(error, pool)
            (reply,) = await self._exchange(pool, [call], deadline)
        raise AttemptFailed("the Cluster sent this call from node to node", sent=False)

    async def _ask(self, pool: Pool, call: Call, deadline: Deadline) -> Reply:
        commands = [("ASKING",), call.command, *([] if call.tail is None else [call.tail])]
        _, *replies = await pool.call(commands, deadline)
        return replies[0] if call.tail is None else tuple(replies)

    def _refusal(self, error: ErrorReply, pool: Pool) -> Exception:
        failure = refusal(error)
        if isinstance(failure, AttemptFailed):
            self.nodes.distrust(pool)
        return failure

    def _note_loss(self, failed: AttemptFailed, pool: Pool) -> None:
        if not failed.busy:
            self.losses += 1
            self.nodes.distrust(pool)

    def close(self) -> None:
        self.nodes.close()


def _address(error: ErrorReply, pool: Pool) -> Address:
    """Return where an error redirects to; without a host, to another port of the same one."""
    _, host, port = error.redirection
    return (host or pool.host, port)
