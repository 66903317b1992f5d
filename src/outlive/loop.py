"""The runtime of the async colour: tasks and locks of the event loop. Apart, because who needs no loop should not import one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from .runtime import Bell, SyncRuntime, Task, Ticker, Work

T = TypeVar("T")


class _LoopTask:
    def __init__(self, work: Work) -> None:
        self._task = asyncio.get_running_loop().create_task(work())

    async def wait(self, timeout_s: float | None = None) -> None:
        await asyncio.wait([self._task], timeout=timeout_s)


class _LoopTicker:
    def __init__(self, interval_s: float, work: Work) -> None:
        self._task = asyncio.get_running_loop().create_task(self._go_on(interval_s, work))

    async def _go_on(self, interval_s: float, work: Work) -> None:
        while True:
            await asyncio.sleep(interval_s)
            await work()

    def stop(self) -> None:
        self._task.cancel()


class _LoopBell:
    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()

    def has_rung(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)


class AsyncRuntime(SyncRuntime):
    """The runtime of `outlive.open_async`."""

    def spawn(self, work: Work) -> Task:
        return _LoopTask(work)

    def tick(self, interval_s: float, work: Work) -> Ticker:
        return _LoopTicker(interval_s, work)

    def thread_ident(self) -> int | None:
        return None

    def bell(self) -> Bell:
        return _LoopBell()

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        while True:
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.done():
                    raise

    def mutex(self) -> AbstractAsyncContextManager[Any]:
        return asyncio.Lock()
