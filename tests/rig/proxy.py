"""A network that fails on demand: a TCP proxy in front of a server, whose behaviour a test switches at run time.

It runs in a thread of its own, so that sync and async tests use it alike, and continues while a test waits for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Self, TypeVar, get_args

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST, free_port

T = TypeVar("T")
Mode = Literal["pass", "stall", "blackhole", "lose_replies", "reset", "refuse", "slow"]
Way = Literal["request", "reply"]

_SWALLOWED: dict[Mode, tuple[Way, ...]] = {"blackhole": ("request", "reply"), "lose_replies": ("reply",)}
_CHUNK_BYTES = 65_536
_QUIET_S = 0.03  # a reply may come in pieces: when nothing follows for so long, it was whole
_RESET = struct.pack("ii", 1, 0)  # no time to linger: closing sends RST instead of FIN


class _Cut(Exception):
    """A connection that was to end here, in the middle."""


@dataclass(eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    last: Way = "reply"  # who spoke last; the client begins
    has_lost: bool = False  # some of its bytes were swallowed: any that came now would be out of place
    is_doomed: bool = False  # its next reply is swallowed
    is_orderly: bool = False  # it ended as its ends wanted
    task: asyncio.Task[None] | None = None

    def close(self) -> None:
        for end in (self.client, self.server):
            if not self.is_orderly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.close()


class FaultProxy:
    """Listens on `port` and forwards to a server.

    `mode` can be set at any time, and holds for the connections there are and those to come:

    - "pass": forward everything.
    - "stall": forward nothing, lose nothing; what was sent arrives when the mode changes, however late.
    - "blackhole": accept connections, swallow what is sent in both directions, say nothing, not even that an end is gone.
    - "lose_replies": requests arrive and are carried out; their replies do not come.
    - "reset": end all connections, and new ones at once, by RST.
    - "refuse": do not listen. Connections that are open continue: see `drop_connections`.
    - "slow": forward with a delay, as set by `slow`.

    A connection that has lost bytes is reset when the mode changes: no protocol could continue with it.

    Counted since the start: `connections` accepted, `request_bytes` and `reply_bytes` seen, `replies_lost` by
    `lose_reply`, `cuts` made by `cut`, and `round_trips`: how often a client has begun to speak, that is, sent
    something on a new connection or after data from the server.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        self.target = (target_host, target_port)
        self.host = HOST
        self.port = free_port()
        self.connections = self.request_bytes = self.reply_bytes = 0
        self.round_trips = self.replies_lost = self.cuts = 0
        self._mode: Mode = "pass"
        self._delay_s = 0.0
        self._bytes_per_s: int | None = None
        self._skip: int | None = None  # requests until a reply is lost
        self._left: dict[Way, int] = {}  # bytes until a cut
        self._open: set[_Connection] = set()
        self._listener: socket.socket | None = None
        self._owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="outlive-proxy", daemon=True)

    # What a test does -------------------------------------------------------------------------------------------

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        self._run(self._switch(mode))

    def slow(self, delay_s: float = 0.05, bytes_per_s: int | None = None) -> None:
        """Wait before each chunk, in each direction, and let no more than so many bytes pass in a second."""
        self._delay_s, self._bytes_per_s = delay_s, bytes_per_s
        self.mode = "slow"

    def cut(self, after_bytes: int, *, of: Way = "request") -> None:
        """Let so many bytes more pass in one direction, then end the connection that is at it; the next ones live."""
        self._left[of] = after_bytes

    def lose_reply(self, *, skip: int = 0) -> None:
        """Let the next request pass, or one after it, swallow its reply, and reset the connection then."""
        self._skip = skip

    def drop_connections(self) -> None:
        """Reset all connections that are open."""
        self._run(self._drop(list(self._open)))

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Let nobody through for a while: open connections are reset, new ones refused."""
        self.mode = "refuse"
        self.drop_connections()
        yield
        self.mode = "pass"

    def through(self, url: str) -> str:
        """Return the URL of the server with the proxy's address in place of its own."""
        direct = "{}:{}".format(*self.target)
        if direct not in url:
            raise ValueError(f"{direct} does not occur in the URL")
        return url.replace(direct, f"{self.host}:{self.port}")

    @property
    def open_connections(self) -> int:
        return len(self._open)

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        self._thread.start()
        try:
            self._run(self._listen())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Reset what is open and end; done twice, or in a fork, it does nothing."""
        if self._loop.is_closed() or os.getpid() != self._owner:
            return
        if self._thread.is_alive():
            self._run(self._shut())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy :{self.port} → {self.target[0]}:{self.target[1]} {self._mode}>"

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError(f"{self!r} does not run")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # Inside its loop --------------------------------------------------------------------------------------------

    async def _switch(self, mode: Mode) -> None:
        self._mode = mode
        self._changed.set()  # wakes those who wait for a change; later ones wait for the next
        self._changed = asyncio.Event()
        if mode == "refuse":
            await self._deafen()
        elif self._listener is None:
            await self._listen()
        await self._drop([one for one in self._open if mode == "reset" or one.has_lost])

    async def _listen(self) -> None:
        self._listener = socket.create_server((self.host, self.port), backlog=1_024)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _deafen(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _drop(self, connections: list[_Connection]) -> None:
        await _end(*(one.task for one in connections if one.task is not None))

    async def _shut(self) -> None:
        await self._deafen()
        await self._drop(list(self._open))

    def _accept(self, listener: socket.socket) -> None:
        """Take a connection and be answerable for it in one step: nothing can end between the two, and leave it open."""
        try:
            client, _ = listener.accept()
        except OSError:  # it is gone already
            return
        self.connections += 1
        connection = _Connection(client, socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        for end in (client, connection.server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._open.add(connection)
        connection.task = self._loop.create_task(self._serve(connection))
        connection.task.add_done_callback(lambda _: self._forget(connection))  # also if it never began

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        connection.close()

    async def _serve(self, connection: _Connection) -> None:
        try:
            await self._reach(connection)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(connection, "request"))
                group.create_task(self._pump(connection, "reply"))
            connection.is_orderly = True
        except* _Cut:
            connection.is_orderly = True
        except* OSError:
            pass  # one end is gone: the other learns of it by the reset

    async def _reach(self, connection: _Connection) -> None:
        """Connect to the server, unless the network is not one over which it could be reached."""
        await self._until_it_moves()
        if self._mode == "reset":
            raise ConnectionResetError
        if self._mode == "blackhole":
            connection.has_lost = True
            while True:
                self._count(connection, "request", await self._receive(connection.client))
        await self._loop.sock_connect(connection.server, self.target)

    async def _pump(self, connection: _Connection, way: Way) -> None:
        ends = (connection.client, connection.server)
        source, sink = ends if way == "request" else reversed(ends)
        while data := await self._loop.sock_recv(source, _CHUNK_BYTES):
            self._count(connection, way, data)
            await self._until_it_moves()
            if way == "reply" and connection.is_doomed:
                await self._lose_rest(source)
            if self._swallows(connection, way):
                connection.has_lost = True
            else:
                await self._forward(sink, way, data)
        await self._until_it_moves()
        if self._swallows(connection, way):
            connection.has_lost = True
            await _for_ever()  # a network that is down does not tell that an end is gone
        sink.shutdown(socket.SHUT_WR)

    async def _receive(self, source: socket.socket) -> bytes:
        """Receive something; an end that is gone is never heard of again."""
        return await self._loop.sock_recv(source, _CHUNK_BYTES) or await _for_ever()

    def _count(self, connection: _Connection, way: Way, data: bytes) -> None:
        if way == "reply":
            self.reply_bytes += len(data)
        else:
            self.request_bytes += len(data)
            if connection.last == "reply":
                self.round_trips += 1
                self._choose_victim(connection)
        connection.last = way

    def _choose_victim(self, connection: _Connection) -> None:
        if self._skip == 0:
            connection.is_doomed, self._skip = True, None
        elif self._skip is not None:
            self._skip -= 1

    def _swallows(self, connection: _Connection, way: Way) -> bool:
        return connection.has_lost or way in _SWALLOWED.get(self._mode, ())

    async def _lose_rest(self, source: socket.socket) -> NoReturn:
        """Swallow the rest of a reply: the server shall have done all that it was asked for."""
        try:
            while await asyncio.wait_for(self._loop.sock_recv(source, _CHUNK_BYTES), _QUIET_S):
                pass
        except TimeoutError:
            pass
        self.replies_lost += 1
        raise ConnectionResetError

    async def _forward(self, sink: socket.socket, way: Way, data: bytes) -> None:
        left = self._left.get(way)
        if left is not None:
            self._left[way] = left - len(data)
            if left <= len(data):
                await self._loop.sock_sendall(sink, data[:left])
                del self._left[way]
                self.cuts += 1
                raise _Cut
        if self._mode == "slow":
            await self._trickle(sink, data)
        else:
            await self._loop.sock_sendall(sink, data)

    async def _trickle(self, sink: socket.socket, data: bytes) -> None:
        await asyncio.sleep(self._delay_s)
        rate = self._bytes_per_s
        size = len(data) if rate is None else max(1, rate // 20)
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            await asyncio.sleep(0 if rate is None else len(piece) / rate)
            await self._loop.sock_sendall(sink, piece)

    async def _until_it_moves(self) -> None:
        while self._mode == "stall":
            await self._changed.wait()


async def _end(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _for_ever() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError
