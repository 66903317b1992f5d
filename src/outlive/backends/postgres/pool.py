"""The pool of connections to PostgreSQL: at most `size`, each used by one call, warmest first.

Why not psycopg_pool: it tells a waiting call that no connection came in time, not why connecting
failed (a wrong password, a server that is starting), and it does not know the deadline of a call.
No lock is held while a call runs. When one connection breaks, the idle ones are closed too: most
likely the server has gone.
"""

from __future__ import annotations

import asyncio
import collections
import threading
from collections.abc import Awaitable, Callable

from outlive.backends.postgres.connection import Connection
from outlive.backends.server.attempts import AttemptFailed
from outlive.errors import StoreClosed
from outlive.runtime.fork import reset_in_child
from outlive.runtime.runtime import Deadline

Connect = Callable[[Deadline], Awaitable[Connection]]


class Pool:
    """Where a call gets its connection."""

    def __init__(self, connect: Connect, size: int) -> None:
        self._connect = connect
        self._size = size
        self._closed = False
        self.begin()
        reset_in_child(self)

    def begin(self) -> None:
        """Start without any connection."""
        self._idle: list[Connection] = []
        self._reservation = threading.Lock()

    def after_fork_in_child(self) -> None:
        """Forget the connections of the parent without sending anything on them, not even a goodbye."""
        self.begin()

    async def pause(self, seconds: float) -> None:
        raise NotImplementedError

    async def _acquire(self, deadline: Deadline) -> None:
        """Wait for a free connection slot."""
        raise NotImplementedError

    def _release(self) -> None:
        raise NotImplementedError

    async def take(self, deadline: Deadline) -> Connection:
        """Return a connection for one call, which gives it back."""
        if self._closed:
            raise StoreClosed
        await self._acquire(deadline)
        try:
            return _pop(self._idle) or await self._connect(deadline)
        except BaseException:
            self._release()
            raise

    async def connect(self, deadline: Deadline) -> Connection:
        """Return a connection that is not of the pool; the caller closes it."""
        if self._closed:
            raise StoreClosed
        return await self._connect(deadline)

    def begin_reservation(self) -> bool:
        """Tell whether a caller may keep a connection while it makes other calls: one at a time, and not the only one."""
        return self._size > 1 and self._reservation.acquire(blocking=False)

    def end_reservation(self) -> None:
        self._reservation.release()

    def give_back(self, connection: Connection) -> None:
        if connection.is_usable and not self._closed:
            self._idle.append(connection)
        else:
            if connection.is_broken:
                _close_all(self._idle)
            connection.close()
        self._release()

    async def close(self) -> None:
        self._closed = True
        _close_all(self._idle)


class BlockingPool(Pool):
    """The sync mode: for any number of threads."""

    def begin(self) -> None:
        super().begin()
        self._free = threading.BoundedSemaphore(self._size)

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def _acquire(self, deadline: Deadline) -> None:
        left_s = deadline.remaining_s()
        if not self._free.acquire(timeout=None if left_s == float("inf") else left_s):
            raise _all_taken(self._size)

    def _release(self) -> None:
        self._free.release()


class SuspendingPool(Pool):
    """The async mode: for the tasks of one event loop."""

    def begin(self) -> None:
        super().begin()
        self._free = self._size
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _acquire(self, deadline: Deadline) -> None:
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait_for_one(deadline)

    async def _wait_for_one(self, deadline: Deadline) -> None:
        """Wait in the queue. A call that gives a connection back passes its place on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        left_s = deadline.remaining_s()
        timer = None if left_s == float("inf") else loop.call_later(left_s, self._expire, future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._release()  # it was ours already, and nobody wants it
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, future: asyncio.Future[None]) -> None:
        if not future.done():
            future.set_exception(_all_taken(self._size))

    def _release(self) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1


def _pop(connections: list[Connection]) -> Connection | None:
    """Return a connection that still works; those that ended meanwhile are closed."""
    while True:
        try:
            connection = connections.pop()
        except IndexError:  # none was left, or another thread took it
            return None
        if not connection.has_ended():
            return connection
        connection.close()


def _close_all(connections: list[Connection]) -> None:
    while (connection := _pop(connections)) is not None:
        connection.close()


def _all_taken(size: int) -> AttemptFailed:
    return AttemptFailed(f"all {size} connections were in use; raise pool_size", sent=False, busy=True)
