"""Which server to ask: the only one, the primary of Sentinels, or the Cluster node of a slot.

Every question on the way (which is the primary, which node has which slot) obeys the deadline of
the call that needs it. An answer is forgotten when a node turns out to have another role than it
named.
"""

from __future__ import annotations

import binascii
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import TypeVar

from outlive.backends.redis.connection import (
    Address,
    Command,
    Connection,
    ConnectionSettings,
    ErrorReply,
    Reply,
)
from outlive.backends.redis.exchanges import Exchanges, Member
from outlive.backends.redis.io_modes import IOMode, Limiter
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.dataclass import dataclass
from outlive.errors import StoreUnavailable

T = TypeVar("T")
_ASK_S = 5.0  # for one Sentinel or node to say what it knows


class _Begun:
    """A group of calls whose first bytes are sent over a connection of the pool."""

    __slots__ = ("_connection", "_limiter", "sent")

    def __init__(self, connection: Connection, limiter: Limiter, sent: int) -> None:
        self._connection: Connection | None = connection
        self._limiter = limiter
        self.sent = sent

    def take(self) -> Connection:
        """Return the connection: the caller has its turn from now on."""
        connection, self._connection = self._connection, None
        assert connection is not None
        return connection

    def abandon(self) -> None:
        """Close the connection, unless somebody took it."""
        if self._connection is not None:
            self.take().close()
            self._limiter.leave()


@dataclass(slots=True)
class _Idle:
    """The idle connections of one process and event loop."""

    limiter: Limiter
    exchanges: Exchanges[_Begun]
    connections: list[Connection] = field(default_factory=list)

    def pop(self) -> Connection | None:
        try:
            return self.connections.pop()
        except IndexError:  # not asked before: another thread may have been faster
            return None

    def close_all(self) -> None:
        while (connection := self.pop()) is not None:
            connection.close()


class Pool:
    """Connections to one server. A child process and another event loop get their own."""

    def __init__(self, io_mode: IOMode, settings: ConnectionSettings) -> None:
        self.host = settings.host
        self._io_mode = io_mode
        self._settings = settings
        self._idle: dict[object, _Idle] = {}  # by owner

    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        """Send commands over one connection and return their replies, errors among them."""
        return await self._use(lambda connection: connection.call(commands, deadline), deadline)

    async def call_together(self, command: Command, deadline: Deadline) -> Reply:
        """Send a command, with others of this turn of the event loop if there are any."""
        exchanges = self._own().exchanges
        if exchanges.is_idle():
            with exchanges.alone():
                return (await self.call([command], deadline))[0]
        return await exchanges.call(command, deadline)

    def _begin_group(self, group: Sequence[Member]) -> _Begun | None:
        """Send what can be sent at once, if a connection is free: the server need not wait for the loop."""
        idle = self._own()
        if not idle.connections or not idle.limiter.try_enter():
            return None
        connection = idle.connections.pop()
        return _Begun(connection, idle.limiter, connection.send_now(_joined(group)))

    async def _send_group(self, group: Sequence[Member], deadline: Deadline, begun: _Begun | None) -> None:
        answers, sent = [member.answer for member in group], begun.sent if begun is not None else 0
        await self._use(
            lambda connection: connection.exchange(_joined(group), answers, deadline, sent=sent),
            deadline,
            begun,
        )

    async def _use(
        self, work: Callable[[Connection], Awaitable[T]], deadline: Deadline, begun: _Begun | None = None
    ) -> T:
        """Do something with a connection of the pool, as soon as one is free."""
        idle = self._own()
        taken = begun.take() if begun is not None else None
        if taken is None and not await idle.limiter.enter(deadline):
            reason = f"all {self._settings.pool_size} connections were in use; raise pool_size"
            raise AttemptFailed(reason, sent=False, busy=True)
        try:
            connection = taken or idle.pop() or await Connection.open(self._settings, self._io_mode, deadline)
            try:
                result = await work(connection)
            except AttemptFailed:
                idle.close_all()  # the others most likely broke at the same moment
                raise
            idle.connections.append(connection)
            return result
        finally:
            idle.limiter.leave()

    async def connect(self, deadline: Deadline) -> Connection:
        """Return a connection that is not of the pool; the caller closes it."""
        return await Connection.open(self._settings, self._io_mode, deadline)

    async def warm(self, count: int, deadline: Deadline) -> None:
        """Open connections in advance."""
        idle = self._own()
        while len(idle.connections) < min(count, self._settings.pool_size):
            idle.connections.append(await Connection.open(self._settings, self._io_mode, deadline))

    def _own(self) -> _Idle:
        owner = self._io_mode.owner()
        idle = self._idle.get(owner)
        if idle is None:
            self._close(lambda other: other != owner and self._io_mode.is_gone(other))
            size = self._settings.pool_size
            fresh = _Idle(self._io_mode.limiter(size), Exchanges(self._begin_group, self._send_group, size))
            idle = self._idle.setdefault(owner, fresh)
        return idle

    def close(self) -> None:
        self._close(lambda _: True)

    def _close(self, is_over: Callable[[object], bool]) -> None:
        """Close idle connections. A child process closes only its copies of its parent's."""
        for owner in list(self._idle):
            if is_over(owner) and (idle := self._idle.pop(owner, None)) is not None:
                idle.close_all()


def _joined(group: Sequence[Member]) -> bytes:
    return b"".join([member.data for member in group])


class Single:
    """One server."""

    is_sharded = False

    def __init__(self, io_mode: IOMode, settings: ConnectionSettings) -> None:
        self._pool = Pool(io_mode, settings)

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        return self._pool

    async def pools(self, deadline: Deadline) -> list[Pool]:
        return [self._pool]

    def at(self, address: Address) -> Pool:
        raise _is_cluster_node()

    def moved(self, slot: int, address: Address) -> None:
        raise _is_cluster_node()

    def distrust(self, pool: Pool) -> None:
        """There is no other."""

    def close(self) -> None:
        self._pool.close()


def _is_cluster_node() -> StoreUnavailable:
    return StoreUnavailable("this server is a node of a Cluster; open it with redis+cluster://host:port")


class _PoolsByAddress:
    """The pools of several servers."""

    is_sharded = False

    def __init__(self, io_mode: IOMode, settings: ConnectionSettings) -> None:
        self._io_mode = io_mode
        self._settings = settings
        self._pools: dict[Address, Pool] = {}

    def at(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:  # when two threads make it at once, both take the first
            pool = self._pools.setdefault(address, Pool(self._io_mode, self._settings.at(address)))
        return pool

    async def _ask_any(
        self,
        pools: Sequence[Pool],
        command: Command,
        deadline: Deadline,
        *,
        accepts: Callable[[Reply], bool] = lambda _: True,
    ) -> tuple[Pool, Reply]:
        """Ask servers in turn until a reply is accepted; each has its share of the time."""
        reason = "there is no server to ask"
        for left, pool in zip(range(len(pools), 0, -1), pools, strict=True):
            share = Deadline(min(deadline.remaining_s() / left, _ASK_S))
            try:
                (reply,) = await pool.call([command], share)
            except AttemptFailed as failed:
                reason = str(failed)
                continue
            if reply is None or isinstance(reply, ErrorReply):
                reason = str(reply)
            elif accepts(reply):
                return pool, reply
            else:
                reason = "no server knows"
        raise AttemptFailed(reason, sent=False)

    def close(self) -> None:
        for pool in list(self._pools.values()):
            pool.close()


class Sentinels(_PoolsByAddress):
    """The primary that Sentinels name; asked for again when it is lost or turns out a replica."""

    def __init__(
        self,
        io_mode: IOMode,
        settings: ConnectionSettings,
        sentinels: Sequence[ConnectionSettings],
        service: str,
    ) -> None:
        super().__init__(io_mode, settings)
        self._sentinels = [Pool(io_mode, sentinel) for sentinel in sentinels]
        self._service = service
        self._primary: Pool | None = None

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        primary = self._primary
        if primary is None:
            self._primary = primary = await self._find_primary(deadline)
        # Not self._primary: another thread may have come to distrust it meanwhile.
        return primary

    async def _find_primary(self, deadline: Deadline) -> Pool:
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        try:
            sentinel, (host, port) = await self._ask_any(self._sentinels, command, deadline)
        except AttemptFailed as failed:
            reason = f"no Sentinel names a primary for {self._service!r} ({failed.reason})"
            raise AttemptFailed(reason, sent=False) from failed
        # The one that answered is asked first the next time.
        self._sentinels = [sentinel, *(other for other in self._sentinels if other is not sentinel)]
        pool = self.at((host.decode(), int(port)))
        # Sentinels may still name the old primary, or a replica that is not promoted yet.
        (role,) = await pool.call([("ROLE",)], deadline)
        if isinstance(role, ErrorReply) or role[0] != b"master":
            raise AttemptFailed("the server that Sentinels name is not primary yet", sent=False)
        return pool

    def moved(self, slot: int, address: Address) -> None:
        raise _is_cluster_node()

    def distrust(self, pool: Pool) -> None:
        if self._primary is pool:
            self._primary = None

    async def pools(self, deadline: Deadline) -> list[Pool]:
        return [await self.pool(0, deadline)]

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinels:
            sentinel.close()


class Cluster(_PoolsByAddress):
    """The nodes of a Cluster and the slots that they have."""

    is_sharded = True

    def __init__(self, io_mode: IOMode, settings: ConnectionSettings, addresses: Sequence[Address]) -> None:
        super().__init__(io_mode, settings)
        self._seeds = list(addresses)
        self._slots: dict[int, Address] = {}
        self._named: Address | None = None  # by a node that no longer has a slot
        self._is_stale = True

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        if self._is_stale or slot not in self._slots:
            await self._learn(slot, deadline)
        return self.at(self._slots[slot])

    async def _learn(self, slot: int, deadline: Deadline) -> None:
        """Ask which node has which slot: first the node of a redirection, then any other."""
        named = () if self._named is None else (self._named,)
        known = dict.fromkeys((*named, *list(self._slots.values()), *self._seeds, *list(self._pools)))

        def has_slot(ranges: Reply) -> bool:  # a node that left the Cluster knows none
            return any(start <= slot <= end for start, end, *_ in ranges)

        try:
            pool, ranges = await self._ask_any(
                [self.at(address) for address in known], ("CLUSTER", "SLOTS"), deadline, accepts=has_slot
            )
        except AttemptFailed as failed:
            reason = f"no node of the Cluster serves slot {slot} now ({failed.reason})"
            raise AttemptFailed(reason, sent=False) from failed
        slots: dict[int, Address] = {}
        for start, end, primary, *_ in ranges:
            host = (primary[0] or b"").decode() or pool.host
            slots.update(dict.fromkeys(range(start, end + 1), (host, primary[1])))
        self._slots, self._is_stale, self._named = slots, False, None

    def moved(self, slot: int, address: Address) -> None:
        self._slots = {**self._slots, slot: address}
        self._named = address
        self._is_stale = True  # other slots may have moved too

    def distrust(self, pool: Pool) -> None:
        self._is_stale = True

    async def pools(self, deadline: Deadline) -> list[Pool]:
        """Return the pools of all primaries."""
        await self.pool(0, deadline)
        return [self.at(address) for address in dict.fromkeys(list(self._slots.values()))]


Nodes = Single | Sentinels | Cluster


def slot_of(key: str) -> int:
    """Return the Cluster slot of a key: that of the text in its first braces, else of all of it."""
    start = key.find("{") + 1
    end = key.find("}", start) if start else -1
    return binascii.crc_hqx((key[start:end] if end > start else key).encode(), 0) % 16384
