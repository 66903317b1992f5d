"""Which server to ask: one, the primary that Sentinels name, or the node of a Cluster that has the slot.

Every question on the way (who is primary, who has which slot) obeys the deadline of the call that needs it. What
was learnt is forgotten when a node turns out not to be what it was said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.crc import key_slot
from redis.exceptions import ResponseError

from outlive.backends.redis.connection import Command, Connection, IOMode, Limiter, Limits, Reply
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.errors import StoreUnavailable

Address = tuple[str, int]
_left_behind: list[
    object
] = []  # connections of a parent process or another loop: closing them could hurt those


@dataclass(slots=True)
class Dialling:
    """How connections are made: their class and options, how many, and how patiently."""

    family: type
    options: dict[str, Any] = field(repr=False)  # credentials among them
    size: int = 10
    limits: Limits = field(default_factory=Limits)

    def to(self, address: Address) -> Dialling:
        options = {**self.options, "host": address[0], "port": address[1]}
        return Dialling(self.family, options, self.size, self.limits)


@dataclass(slots=True)
class _Idle:
    """The connections of one process and event loop."""

    gate: Limiter
    wires: list[Connection] = field(default_factory=list)


class Pool:
    """Connections to one server. A child process and another event loop get their own."""

    def __init__(self, io_mode: IOMode, dialling: Dialling) -> None:
        self._io_mode = io_mode
        self._dialling = dialling
        self._idle: dict[object, _Idle] = {}  # by place
        self.host = str(dialling.options.get("host", ""))

    def _here(self) -> _Idle:
        place = self._io_mode.place()
        idle = self._idle.get(place)
        if idle is None:
            self._leave(place)
            idle = self._idle.setdefault(place, _Idle(self._io_mode.gate(self._dialling.size)))
        return idle

    def _leave(self, here: object) -> None:
        """Let go of connections that nobody can use any more."""
        for place in [one for one in list(self._idle) if one != here]:
            if self._io_mode.has_ended(place) and (idle := self._idle.pop(place, None)) is not None:
                for wire in idle.wires:
                    wire.forget()
            elif not self._io_mode.is_own(place) and (idle := self._idle.pop(place, None)) is not None:
                _left_behind.extend(idle.wires)

    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        """Send commands over one connection and return their replies, errors among them."""
        idle = self._here()
        if not await idle.gate.enter(deadline):
            reason = f"all {self._dialling.size} connections were in use; give pool_size more"
            raise AttemptFailed(reason, sent=False, busy=True)
        try:
            wire = self._spare(idle) or await self._open(deadline)
            try:
                replies = await wire.call(commands, deadline)
            except AttemptFailed:
                await self._drop_all(idle)  # the others are most likely of the same age
                raise
            idle.wires.append(wire)
            return replies
        finally:
            idle.gate.leave()

    def _spare(self, idle: _Idle) -> Connection | None:
        try:
            return idle.wires.pop()
        except IndexError:  # asked by trying: another thread may have been faster
            return None

    async def _open(self, deadline: Deadline) -> Connection:
        wire = self._io_mode.wire(self._dialling.family, self._dialling.options, self._dialling.limits)
        await wire.open(deadline)
        return wire

    async def warm(self, count: int, deadline: Deadline) -> None:
        """Open connections beforehand."""
        idle = self._here()
        while len(idle.wires) < min(count, self._dialling.size):
            idle.wires.append(await self._open(deadline))

    async def _drop_all(self, idle: _Idle) -> None:
        while (wire := self._spare(idle)) is not None:
            await wire.drop()

    async def close(self) -> None:
        here = self._io_mode.place()
        self._leave(here)
        if (idle := self._idle.pop(here, None)) is not None:
            await self._drop_all(idle)
        for other in list(self._idle):  # loops that still run
            _left_behind.extend(self._idle.pop(other).wires)


class Nodes(Protocol):
    """Finds the server that has a slot."""

    is_sharded: bool

    async def pool(self, slot: int, deadline: Deadline) -> Pool: ...
    def at(self, address: Address) -> Pool: ...
    def moved(self, slot: int, address: Address) -> None: ...
    def distrust(self, pool: Pool) -> None: ...
    async def pools(self, deadline: Deadline) -> list[Pool]: ...
    async def close(self) -> None: ...


class Single:
    """One server."""

    is_sharded = False

    def __init__(self, io_mode: IOMode, dialling: Dialling) -> None:
        self._pool = Pool(io_mode, dialling)

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        return self._pool

    async def pools(self, deadline: Deadline) -> list[Pool]:
        return [self._pool]

    def at(self, address: Address) -> Pool:
        raise _not_alone()

    def moved(self, slot: int, address: Address) -> None:
        raise _not_alone()

    def distrust(self, pool: Pool) -> None:
        """There is no other."""

    async def close(self) -> None:
        await self._pool.close()


def _not_alone() -> StoreUnavailable:
    return StoreUnavailable("this server is a node of a Cluster; open it by redis+cluster://host:port")


class _Several:
    """Pools by address."""

    is_sharded = False

    def __init__(self, io_mode: IOMode, dialling: Dialling) -> None:
        self._io_mode = io_mode
        self._dialling = dialling
        self._pools: dict[Address, Pool] = {}

    def at(self, address: Address) -> Pool:
        found = self._pools.get(address)
        if found is None:  # of two threads that make one, both take the first
            found = self._pools.setdefault(address, Pool(self._io_mode, self._dialling.to(address)))
        return found

    async def _ask(
        self,
        pools: Sequence[Pool],
        command: Command,
        deadline: Deadline,
        *,
        accepts: Callable[[Reply], bool] = lambda _: True,
    ) -> tuple[Pool, Reply]:
        """Ask one after the other until one answers as it should; each gets its share of the time."""
        reason = "nobody to ask"
        for left, pool in zip(range(len(pools), 0, -1), pools, strict=True):
            share = Deadline(min(deadline.left_s() / left, _ASK_S))
            try:
                (reply,) = await pool.call([command], share)
            except AttemptFailed as error:
                reason = str(error)
                continue
            if reply is None or isinstance(reply, ResponseError):
                reason = str(reply)
            elif accepts(reply):
                return pool, reply
            else:
                reason = "nobody knows"
        raise AttemptFailed(reason, sent=False)

    async def close(self) -> None:
        for pool in list(self._pools.values()):
            await pool.close()


_ASK_S = 5.0


class Sentinels(_Several):
    """The primary that Sentinels name; asked again whenever it is lost or turns out to be none."""

    def __init__(
        self,
        io_mode: IOMode,
        dialling: Dialling,
        sentinels: Sequence[Address],
        asking: Dialling,
        service: str,
    ) -> None:
        super().__init__(io_mode, dialling)
        self._sentinels = [Pool(io_mode, asking.to(address)) for address in sentinels]
        self._service = service
        self._primary: Pool | None = None

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        primary = self._primary
        if primary is None:
            self._primary = primary = await self._find(deadline)
        return primary  # another thread may have come to distrust it

    async def _find(self, deadline: Deadline) -> Pool:
        command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        try:
            sentinel, (host, port) = await self._ask(self._sentinels, command, deadline)
        except AttemptFailed as lost:
            raise AttemptFailed(
                f"no Sentinel names a primary for {self._service!r} ({lost.reason})", sent=False
            ) from lost
        others = [one for one in self._sentinels if one is not sentinel]
        self._sentinels = [sentinel, *others]  # the one that answered is asked first
        pool = self.at((host.decode(), int(port)))
        (role,) = await pool.call([("ROLE",)], deadline)
        if isinstance(role, ResponseError) or role[0] != b"master":
            raise AttemptFailed("the server that Sentinels name is not primary yet", sent=False)
        return pool

    def moved(self, slot: int, address: Address) -> None:
        raise _not_alone()

    def distrust(self, pool: Pool) -> None:
        if self._primary is pool:
            self._primary = None

    async def pools(self, deadline: Deadline) -> list[Pool]:
        return [await self.pool(0, deadline)]

    async def close(self) -> None:
        await super().close()
        for sentinel in self._sentinels:
            await sentinel.close()


class Cluster(_Several):
    """The nodes of a Cluster and the slots that they have."""

    is_sharded = True

    def __init__(self, io_mode: IOMode, dialling: Dialling, addresses: Sequence[Address]) -> None:
        super().__init__(io_mode, dialling)
        self._seeds = list(addresses)
        self._slots: dict[int, Address] = {}
        self._named: Address | None = None  # by a node that does not have a slot any more
        self._is_stale = True

    async def pool(self, slot: int, deadline: Deadline) -> Pool:
        if self._is_stale or slot not in self._slots:
            await self._learn(slot, deadline)
        return self.at(self._slots[slot])

    async def _learn(self, slot: int, deadline: Deadline) -> None:
        """Ask who has which slot: first the node to which one moved, then any. One that was left alone knows no slots."""
        named = () if self._named is None else (self._named,)
        known = dict.fromkeys((*named, *list(self._slots.values()), *self._seeds, *list(self._pools)))
        pools = [self.at(one) for one in known]

        def covers(ranges: Reply) -> bool:
            return any(start <= slot <= end for start, end, *_ in ranges)

        try:
            pool, ranges = await self._ask(pools, ("CLUSTER", "SLOTS"), deadline, accepts=covers)
        except AttemptFailed as lost:
            reason = f"no node of the Cluster serves slot {slot} now ({lost.reason})"
            raise AttemptFailed(reason, sent=False) from lost
        slots: dict[int, Address] = {}
        for start, end, primary, *_ in ranges:
            host = (primary[0] or b"").decode() or pool.host
            slots.update(dict.fromkeys(range(start, end + 1), (host, primary[1])))
        self._slots, self._is_stale, self._named = slots, False, None

    def moved(self, slot: int, address: Address) -> None:
        self._slots = {**self._slots, slot: address}
        self._named = address
        self._is_stale = True  # more may have moved

    def distrust(self, pool: Pool) -> None:
        self._is_stale = True

    async def pools(self, deadline: Deadline) -> list[Pool]:
        """Return the pools of all primaries."""
        await self.pool(0, deadline)
        return [self.at(address) for address in dict.fromkeys(list(self._slots.values()))]


def slot_of(key: str) -> int:
    """Return the slot of a key."""
    return key_slot(key.encode())
