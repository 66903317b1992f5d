"""The runtime of async stores: tasks and locks of the event loop.

Sync stores do not import asyncio.

A store works in one event loop at a time, its home. It moves to another loop when the former has
ended: its timers move too, and its locks start again. While the former loop runs, or has calls of
the store in progress, a call from another loop is refused at once (`WrongLoop`): connections and
queues wait for answers in their own loop, and nothing there would wake the caller.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from outlive.errors import WrongLoop
from outlive.runtime.fork import reset_in_child
from outlive.runtime.runtime import (
    Hand,
    Signal,
    SyncRuntime,
    Task,
    Ticker,
    Undo,
    Work,
    call_in_thread,
    warn_of_failure,
)

T = TypeVar("T")
_UNSET = object()


class Stay:
    """The time that a store spends in one loop, and how many calls it has in progress there."""

    __slots__ = ("calls", "is_inherited", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.is_inherited = False  # in a forked child: the loop seems to run, but only the parent runs it
        self.calls = 0

    def is_over(self) -> bool:
        loop = self.loop
        if loop is None or loop.is_closed() or self.is_inherited:
            return True
        return not (loop.is_running() or self.calls)


class Home:
    """The event loop in which a store works."""

    def __init__(self) -> None:
        self._stay = Stay(None)
        self._lock = threading.Lock()  # if two loops call at once, one gets the store
        self._tickers: weakref.WeakSet[_LoopTicker] = weakref.WeakSet()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Leave the loop of the parent: the next call moves to the loop that it comes from."""
        self._lock = threading.Lock()
        self._stay.is_inherited = True

    def enter(self) -> Stay:
        """Return the stay in the running loop. Raises WrongLoop if the store is in another one."""
        stay = self._stay
        return stay if stay.loop is asyncio.get_running_loop() else self._move()

    def _move(self) -> Stay:
        with self._lock:
            if not self._stay.is_over():
                raise WrongLoop
            self._stay = Stay(asyncio.get_running_loop())
        for ticker in list(self._tickers):
            ticker.start()
        return self._stay

    def keep(self, ticker: _LoopTicker) -> None:
        """Move a timer too when the store moves."""
        self.enter()
        self._tickers.add(ticker)

    def discard(self, ticker: _LoopTicker) -> None:
        self._tickers.discard(ticker)


class Homed:
    """A backend whose calls come from one event loop at a time."""

    def __init__(self, inner: Any, home: Home) -> None:
        self.name = inner.name
        self._inner = inner
        self._home = home

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            stay = self._home.enter()
            stay.calls += 1
            try:
                return await method(*args, **kwargs)
            finally:
                stay.calls -= 1

        self.__dict__[name] = call
        return call


class _LoopTask:
    def __init__(self, home: Home, name: str, work: Work) -> None:
        self._home = home
        home.enter()
        self._task = asyncio.get_running_loop().create_task(work(), name=name)

    async def wait(self, timeout_s: float | None = None) -> None:
        self._home.enter()
        if self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._task], timeout=timeout_s)
        # otherwise it ended with its loop

    def cancel(self) -> bool:
        self._task.cancel()
        return True

    def has_ended(self) -> bool:
        return self._task.done() or self._task.get_loop() is not asyncio.get_running_loop()


class _LoopTicker:
    def __init__(self, home: Home, name: str, interval_s: float, work: Work) -> None:
        self._name = name
        self._interval_s = interval_s
        self._work = work
        self._home = home
        home.keep(self)
        self.start()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._work()
            except Exception as error:  # noqa: BLE001  # nobody waits for it, and the next time may succeed
                warn_of_failure(self._name, error)

    def stop(self) -> None:
        self._home.discard(self)
        with contextlib.suppress(RuntimeError):  # its loop is closed, which has ended it
            self._task.cancel()


class _LoopBell:
    def __init__(self) -> None:
        self._has_rung = False
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()  # one for each that waits

    def set(self) -> None:
        self._has_rung = True
        for loop, event in list(self._waiters):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits there
                loop.call_soon_threadsafe(event.set)

    def is_set(self) -> bool:
        return self._has_rung

    async def wait(self, timeout_s: float) -> None:
        if self._has_rung:
            return
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        self._waiters.add(waiter)
        if self._has_rung:  # another thread rang before it could see who waits
            waiter[1].set()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[1].wait()
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)


class _LoopMutex:
    """An asyncio.Lock, a new one in each loop: nothing in a loop that has ended holds or awaits it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> None:
        self._home.enter()  # a call from a second loop must not replace the lock that the first one holds
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._lock = loop, asyncio.Lock()
        await self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        if self._loop is asyncio.get_running_loop():
            self._lock.release()


def _ended(task: asyncio.Task[Any]) -> asyncio.Future[None]:
    """Return what ends with a task, and can be cancelled alone. (`asyncio.wait` costs more than a short task.)"""
    ended: asyncio.Future[None] = task.get_loop().create_future()
    task.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
    return ended


def _take_over(context: contextvars.Context) -> None:
    """Set the context variables that work in another task has set."""
    for variable, value in context.items():
        if variable.get(_UNSET) is not value:
            variable.set(value)


async def _result_of(future: Future[Any]) -> Any:
    """Wait for a thread. A coroutine that it returns when nobody waits any more is closed."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        future.add_done_callback(_close_coroutine)
        raise


def _close_coroutine(future: Future[Any]) -> None:
    if future.exception() is None and inspect.iscoroutine(future.result()):
        future.result().close()


class AsyncRuntime(SyncRuntime):
    """The runtime of `outlive.open_async`."""

    def __init__(self) -> None:
        self.home = Home()

    def check_loop(self) -> None:
        self.home.enter()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def spawn(self, name: str, work: Work) -> Task:
        return _LoopTask(self.home, name, work)

    def hand(self, name: str, work: Work) -> Hand:
        return _LoopTask(self.home, name, work)

    async def call(self, function: Callable[[], T]) -> T:
        return await asyncio.wrap_future(call_in_thread(function))

    def tick(self, name: str, interval_s: float, work: Work) -> Ticker:
        return _LoopTicker(self.home, name, interval_s, work)

    def thread_ident(self) -> int | None:
        return None

    def bell(self) -> Signal:
        return _LoopBell()

    async def shielded(self, work: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        context, cancellation = contextvars.copy_context(), None
        task = asyncio.get_running_loop().create_task(work, context=context)
        while not task.done():
            try:
                await _ended(task)
            except asyncio.CancelledError as error:
                cancellation = error
        _take_over(context)
        if cancellation is None:
            return task.result()
        if undo is not None and not task.cancelled() and task.exception() is None:
            await self.shielded(undo(task.result()))
        raise cancellation from (None if task.cancelled() else task.exception())

    async def each(self, name: str, works: Sequence[Work], limit: int) -> None:
        todo, errors = list(reversed(works)), list[Exception]()

        async def work_off() -> None:
            while todo and not errors:
                try:
                    await todo.pop()()
                except Exception as error:  # noqa: BLE001  # raised after the others have ended
                    errors.append(error)

        tasks = [asyncio.create_task(work_off(), name=name) for _ in range(limit)]
        try:
            await asyncio.gather(*tasks)
        finally:  # if the caller is cancelled, all of them end first
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if errors:
            raise errors[0]

    async def call_within(self, timeout_s: float, function: Callable[[], Any]) -> tuple[bool, Any]:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                if inspect.iscoroutinefunction(function):
                    return True, await function()
                value = await _result_of(call_in_thread(function))
                return True, (await value) if inspect.isawaitable(value) else value
        except TimeoutError:
            if limit.expired():
                return False, None
            raise

    def mutex(self) -> AbstractAsyncContextManager[Any]:
        return _LoopMutex(self.home)
