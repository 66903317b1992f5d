"""Connections to a Redis server for sync and async, each call with a deadline of its own.

redis-py makes the connection (TLS, credentials, handshake) and speaks the protocol. Its clients are not used: they
know one timeout per client, not one per call, they retry on their own, and discovery of a Cluster or a Sentinel
has no deadline at all. A wire whose call failed or was cancelled is dropped, so that nobody reads its late reply.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import redis.asyncio.connection
import redis.connection
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from outlive.backends.redis.connection_classes import (
    addresses_awaited,
    bounded,
    each_address,
    one_address,
    own_options,
)
from outlive.backends.server.attempts import AttemptFailed, Deadline
from outlive.errors import StoreUnavailable

T = TypeVar("T")
Command = Sequence[Any]
Reply = Any  # bytes, int, list, None, or a ResponseError
_PIECE_BYTES = 1 << 18


class Connection(Protocol):
    """One connection."""

    async def open(self, deadline: Deadline) -> None: ...
    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]: ...
    async def drop(self) -> None: ...
    def forget(self) -> None: ...


class Limiter(Protocol):
    """Lets so many in at a time."""

    async def enter(self, deadline: Deadline) -> bool: ...
    def leave(self) -> None: ...


class IOMode(Protocol):
    """What differs between blocking and awaiting."""

    def place(self) -> object:
        """Return where this runs: connections and locks belong to one process and one event loop."""
        ...

    def is_own(self, place: object) -> bool:
        """Tell whether a place is of this process."""
        ...

    def has_ended(self, place: object) -> bool:
        """Tell whether a place is an event loop of this process that was closed."""
        ...

    def gate(self, size: int) -> Limiter: ...
    def wire(self, family: type, options: dict[str, Any], limits: Limits) -> Connection: ...
    async def pause(self, seconds: float) -> None: ...
    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]: ...


class Limits:
    """How long the parts of a call may take, at most."""

    def __init__(
        self, dial_s: float | None = None, read_s: float | None = None, write_s: float | None = None
    ) -> None:
        self.dial_s = _or_endless(dial_s)
        self.read_s = _or_endless(read_s)
        self.write_s = _or_endless(write_s)


def _or_endless(seconds: float | None) -> float:
    return float("inf") if seconds is None else seconds


@contextmanager
def lost(*, sent: bool) -> Iterator[None]:
    """Make one kind of error of all that can happen to a connection; a refused password is final."""
    try:
        yield
    except (AuthenticationError, NoPermissionError) as error:
        raise StoreUnavailable(f"the server refused the credentials: {error}") from error
    except (RedisTimeoutError, TimeoutError) as error:
        raise AttemptFailed("no answer in time", sent=sent) from error
    except BusyLoadingError as error:
        raise AttemptFailed("it is loading its data", sent=False) from error
    except (RedisConnectionError, OSError) as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise StoreUnavailable(
                f"the server's certificate is not trusted: {error}; name its authority by ssl_ca_certs=/path/ca.pem"
            ) from error
        raise AttemptFailed(str(error) or type(error).__name__, sent=sent) from error
    except RedisError as error:
        raise AttemptFailed(f"{type(error).__name__}: {error}", sent=sent) from error


# Blocking -------------------------------------------------------------------------------------------------


class DeadlineSocket:
    """A socket whose every operation ends with the deadline of the call that uses it."""

    def __init__(self, sock: Any, deadline: Deadline, limits: Limits) -> None:
        self._sock = sock
        self._limits = limits
        self.deadline = deadline

    def settimeout(self, value: float | None) -> None:
        """Nobody but the deadline decides."""

    def recv_into(self, *args: Any) -> int:
        return self._received(self._sock.recv_into, *args)  # type: ignore[no-any-return]

    def recv(self, *args: Any) -> bytes:
        return self._received(self._sock.recv, *args)  # type: ignore[no-any-return]

    def _received(self, receive: Callable[..., T], *args: Any) -> T:
        self._sock.settimeout(bounded(self.deadline, self._limits.read_s))
        found = receive(*args)
        self.deadline.moved()
        return found

    def sendall(self, data: Any) -> None:
        """Send piece by piece: what is slow but moves has time."""
        rest = memoryview(data)
        while rest:
            self._sock.settimeout(bounded(self.deadline, self._limits.write_s))
            rest = rest[self._sock.send(rest[:_PIECE_BYTES]) :]
            self.deadline.moved()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@functools.cache
def _punctual(family: type) -> type:
    """Return a family of connections with punctual sockets."""
    family = each_address(family)

    def connect(self: Any) -> DeadlineSocket:
        return DeadlineSocket(family._connect(self), self.deadline, self.limits)  # type: ignore[attr-defined]

    return type(f"Punctual{family.__name__}", (family,), {"_connect": connect})


class BlockingWire:
    """A connection for calls that block. Nothing here suspends."""

    def __init__(self, family: type, options: dict[str, Any], limits: Limits) -> None:
        self._limits = limits
        self._connection: Any = _punctual(family)(**own_options(family, options))
        self._connection.limits = limits

    async def open(self, deadline: Deadline) -> None:
        connection = self._connection
        connection.deadline = deadline
        dial_s = bounded(deadline, self._limits.dial_s)
        connection.socket_connect_timeout = dial_s
        connection.socket_timeout = dial_s  # of a TLS handshake
        with lost(sent=False):
            connection.connect()

    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        connection = self._connection
        packed = [part for command in commands for part in connection.pack_command(*command)]
        with lost(sent=True):
            connection._sock.deadline = deadline
            connection.send_packed_command(packed if len(packed) == 1 else [b"".join(packed)])
            return [self._read() for _ in commands]

    def _read(self) -> Reply:
        try:
            return self._connection.read_response(disconnect_on_error=True)
        except ResponseError as error:
            return error

    async def drop(self) -> None:
        self._connection.disconnect()

    def forget(self) -> None:
        """Threads do not end as loops do."""


class _ThreadGate:
    def __init__(self, size: int) -> None:
        self._semaphore = threading.Semaphore(size)

    async def enter(self, deadline: Deadline) -> bool:
        if self._semaphore.acquire(blocking=False):
            return True
        left_s = deadline.left_s()
        return self._semaphore.acquire(timeout=None if left_s == float("inf") else left_s)

    def leave(self) -> None:
        self._semaphore.release()


class Blocking:
    """The sync mode."""

    families = redis.connection

    def place(self) -> object:
        return os.getpid()

    def is_own(self, place: object) -> bool:
        return place == os.getpid()

    def has_ended(self, place: object) -> bool:
        return False

    def gate(self, size: int) -> Limiter:
        return _ThreadGate(size)

    def wire(self, family: type, options: dict[str, Any], limits: Limits) -> Connection:
        return BlockingWire(family, options, limits)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Do one after the other; when one fails, the rest is not begun."""
        try:
            return [await work for work in works]
        finally:
            for work in works:
                work.close()


# Awaiting ---------------------------------------------------------------------------------------------------


class AwaitingWire:
    """A connection of an event loop."""

    def __init__(self, family: type, options: dict[str, Any], limits: Limits) -> None:
        self._limits = limits
        self._connection: Any = one_address(family)(**own_options(family, options))
        self._received = 0  # how often something came

    async def open(self, deadline: Deadline) -> None:
        ends = Deadline(min(deadline.left_s(), self._limits.dial_s))
        try:
            with lost(sent=False):
                await self._dial(ends)
        except BaseException:
            await self.drop()
            raise
        reader, feed = self._connection._reader, self._connection._reader.feed_data

        def feed_data(data: bytes) -> None:
            self._received += 1
            feed(data)

        reader.feed_data = feed_data

    async def _dial(self, ends: Deadline) -> None:
        """Connect to the first address that will have us; each has its share of the time."""
        connection = self._connection
        addresses = await addresses_awaited(getattr(connection, "host", ""), ends)
        for left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            connection.address = address
            try:
                async with asyncio.timeout(bounded(ends, ends.left_s() / left)):
                    await connection.connect()
                    return
            except (AuthenticationError, BusyLoadingError):
                raise
            except (RedisConnectionError, RedisTimeoutError, OSError):
                await self.drop()
                if left == 1:
                    raise
        raise OSError(f"host {connection.host!r} cannot be found")

    @contextmanager
    def _watching(self, limit: asyncio.Timeout, deadline: Deadline, limit_s: float) -> Iterator[None]:
        """Let the time of a call start anew when bytes came or went."""
        loop, transport = asyncio.get_running_loop(), self._connection._writer.transport
        seen = (0, self._received)
        timer: asyncio.TimerHandle

        def look() -> None:
            nonlocal seen, timer
            if limit.expired():  # both came late, and in this order
                return
            now = (transport.get_write_buffer_size(), self._received)
            if now != seen:
                deadline.moved()
                if (left_s := bounded(deadline, limit_s)) is not None:
                    limit.reschedule(loop.time() + left_s)
            seen = now
            timer = loop.call_later(pause_s, look)

        pause_s = min(deadline.left_s() / 8, 1.0)
        timer = loop.call_later(pause_s, look)
        try:
            yield
        finally:
            timer.cancel()

    async def call(self, commands: Sequence[Command], deadline: Deadline) -> list[Reply]:
        connection = self._connection
        packed = [part for command in commands for part in connection.pack_command(*command)]
        try:
            with lost(sent=True):
                limit_s = self._limits.write_s + self._limits.read_s
                async with asyncio.timeout(bounded(deadline, limit_s)) as limit:
                    with self._watching(limit, deadline, limit_s):
                        self._check_open()
                        await connection.send_packed_command(packed)
                        return [await self._read() for _ in commands]
        except BaseException:  # also when it was cancelled: the reply may come later, and nobody must read it
            await self.drop()
            raise

    def _check_open(self) -> None:
        """Some versions of asyncio fail in ways of their own on a transport that the other side has closed."""
        if self._connection._writer.transport.is_closing():
            raise RedisConnectionError("the server closed the connection")

    async def _read(self) -> Reply:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def drop(self) -> None:
        """Close at once: what is still to be sent, or a farewell by TLS, could wait for ever."""
        if (writer := getattr(self._connection, "_writer", None)) is not None:
            writer.transport.abort()
        await self._connection.disconnect(nowait=True)

    def forget(self) -> None:
        """Close the socket of a loop that has ended: its transports can do nothing more."""
        connection = self._connection
        writer, connection._writer, connection._reader = connection._writer, None, None
        if writer is None:
            return
        held = writer.get_extra_info("socket")
        with suppress(RuntimeError):  # it notes that it is closing, then the loop refuses the rest
            writer.transport.abort()
        if (finish := getattr(writer.transport, "_call_connection_lost", None)) is not None:
            finish(None)
        getattr(held, "_sock", held).close()


class _TaskGate:
    def __init__(self, size: int) -> None:
        self._semaphore = asyncio.Semaphore(size)

    async def enter(self, deadline: Deadline) -> bool:
        if not self._semaphore.locked():
            return await self._semaphore.acquire()
        try:
            async with asyncio.timeout(bounded(deadline, float("inf"))):
                return await self._semaphore.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        self._semaphore.release()


class Awaiting:
    """The async mode."""

    families = redis.asyncio.connection

    def place(self) -> object:
        return (os.getpid(), asyncio.get_running_loop())

    def is_own(self, place: Any) -> bool:
        return place[0] == os.getpid()  # type: ignore[no-any-return]

    def has_ended(self, place: Any) -> bool:
        return self.is_own(place) and place[1].is_closed()

    def gate(self, size: int) -> Limiter:
        return _TaskGate(size)

    def wire(self, family: type, options: dict[str, Any], limits: Limits) -> Connection:
        return AwaitingWire(family, options, limits)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        if len(works) == 1:
            return [await works[0]]
        return list(await asyncio.gather(*works))
