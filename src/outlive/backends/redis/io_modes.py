"""How the Redis backend waits, limits and runs calls together, sync and async."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from outlive.backends.server.sockets import wait_blocking, wait_suspended
from outlive.runtime.runtime import Deadline, run_now

T = TypeVar("T")


class Sync:
    """The sync mode: everything blocks, nothing suspends."""

    gathers = False  # calls of the same moment are sent together
    wait = staticmethod(wait_blocking)

    def owner(self) -> object:
        """Return the process, and in async mode the event loop, to which new connections belong."""
        return os.getpid()

    def is_gone(self, owner: object) -> bool:
        """Tell whether an owner is the process before a fork, or a closed event loop."""
        return owner != os.getpid()

    def limiter(self, size: int) -> _ThreadLimiter:
        """Return what lets so many calls in at a time."""
        return _ThreadLimiter(size)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Do one after the other. When one fails, the rest is not started."""
        try:
            return [await work for work in works]
        finally:
            for work in works:
                work.close()

    async def credentials(self, provider: Any) -> Sequence[str]:
        """Ask a credential provider of redis-py for (user, password) or (password,)."""
        return provider.get_credentials()  # type: ignore[no-any-return]


class _ThreadLimiter:
    def __init__(self, size: int) -> None:
        self._semaphore = threading.Semaphore(size)

    async def enter(self, deadline: Deadline) -> bool:
        """Wait for a turn. Returns False when the deadline comes first."""
        if self.try_enter():
            return True
        left_s = deadline.remaining_s()
        return self._semaphore.acquire(timeout=None if left_s == float("inf") else left_s)

    def try_enter(self) -> bool:
        """Take a turn if one is free."""
        return self._semaphore.acquire(blocking=False)

    def leave(self) -> None:
        self._semaphore.release()


class Async:
    """The async mode: everything awaits in the running event loop."""

    gathers = True
    wait = staticmethod(wait_suspended)

    def owner(self) -> object:
        return (os.getpid(), asyncio.get_running_loop())

    def is_gone(self, owner: Any) -> bool:
        pid, loop = owner
        return bool(pid != os.getpid() or loop.is_closed())

    def limiter(self, size: int) -> _TaskLimiter:
        return _TaskLimiter(size)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def together(self, works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        if len(works) == 1:
            return [await works[0]]
        return list(await asyncio.gather(*works))

    async def credentials(self, provider: Any) -> Sequence[str]:
        return await provider.get_credentials_async()  # type: ignore[no-any-return]


class _TaskLimiter:
    def __init__(self, size: int) -> None:
        self._semaphore = asyncio.Semaphore(size)

    def try_enter(self) -> bool:
        """Take a turn if one is free."""
        return not self._semaphore.locked() and run_now(self._semaphore.acquire())

    async def enter(self, deadline: Deadline) -> bool:
        if self.try_enter():
            return True
        left_s = deadline.remaining_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                return await self._semaphore.acquire()
        except TimeoutError:
            return False

    def leave(self) -> None:
        self._semaphore.release()


IOMode = Sync | Async
Limiter = _ThreadLimiter | _TaskLimiter
