"""The async mode of in-process backends: one worker thread runs their functions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

from outlive.backend import Commit, Receipt, outcome_unknown
from outlive.backends.local.fork import keep_for_fork
from outlive.backends.local.protocol import Local, LocalCalls, P, T, busy
from outlive.backends.local.watch import bell_of
from outlive.backends.local.worker import Worker
from outlive.errors import OutliveError, StoreBusy, StoreClosed
from outlive.runtime.fork import reset_in_child

_NEVER = float("inf")
_LEAST_S = 0.005  # a commit that has less time left is not tried again


class _Waiting:
    """A commit of a group, and the task that waits for it."""

    __slots__ = ("commit", "future", "until")

    def __init__(self, commit: Commit, loop: asyncio.AbstractEventLoop) -> None:
        self.commit = commit
        self.until = _NEVER if commit.timeout_s is None else loop.time() + commit.timeout_s
        # Gets errors too, as results: what a caller does not fetch is no unhandled exception.
        self.future: asyncio.Future[Receipt | BaseException] = loop.create_future()

    def answer(self, result: Receipt | BaseException) -> None:
        if not self.future.done():
            self.future.set_result(result)


class AsyncLocal(LocalCalls):
    """The async mode: one worker thread, one hop per call. It belongs to one event loop."""

    def __init__(self, local: Local) -> None:
        super().__init__(local)
        self._closed = False
        self._bell = bell_of(local)
        self._reset()
        keep_for_fork(local)
        reset_in_child(self)

    def _reset(self) -> None:
        """Start with a new worker and an empty queue, as a forked child must: it has no threads."""
        self._worker = Worker(f"outlive-{self.local.name}")
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._queue: list[_Waiting] = []
        self._sent: list[_Waiting] = []
        self._is_busy = False
        self._idle = asyncio.Event()
        self._expires_at = _NEVER  # when `_expire` is called next

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the group that goes to the worker next.

        If the caller is cancelled, a commit that was not sent is withdrawn. One that was sent is
        finished before the worker takes the next one.
        """
        if self._closed:
            return [StoreClosed() for _ in commits]
        own = [self._enqueue(commit, asyncio.get_running_loop()) for commit in commits]
        try:
            results = [await waiting.future for waiting in own]
        except asyncio.CancelledError:
            for waiting in own:
                self._withdraw(waiting)
            raise
        return [_expected(result) for result in results]

    def _enqueue(self, commit: Commit, loop: asyncio.AbstractEventLoop) -> _Waiting:
        if self._loop is not loop:  # the former loop has ended, and nobody waits there
            self._begin(loop)
        waiting = _Waiting(commit, loop)
        self._queue.append(waiting)
        if commit.on_queued is not None:  # later commits are ordered after this one
            commit.on_queued()
        if not self._is_busy:
            self._is_busy = True
            self._idle.clear()
            # Not at once: tasks that save in the same turn of the loop share the group.
            loop.call_soon(self._send, loop)
        if waiting.until < self._expires_at:
            self._watch_until(waiting.until, loop)
        return waiting

    def _withdraw(self, waiting: _Waiting) -> bool:
        """Take a commit back; False when it was sent already."""
        if waiting not in self._queue:
            return False
        self._queue.remove(waiting)
        return True

    # Deadlines. One timer for all: a timer for each would cost more than its place in the group.

    def _watch_until(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        self._expires_at = until
        loop.call_at(until, self._expire, loop, until)

    def _expire(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Answer those whose time is over."""
        if self._loop is not loop or until != self._expires_at:  # an earlier moment has replaced it
            return
        now = max(loop.time(), until)  # a loop calls a little early, by its resolution
        for waiting in [*self._queue, *self._sent]:
            if waiting.until <= now and not waiting.future.done():
                commit = waiting.commit
                waiting.answer(busy(commit.timeout_s) if self._withdraw(waiting) else outcome_unknown(commit))
        rest = (waiting.until for waiting in (*self._queue, *self._sent) if not waiting.future.done())
        self._expires_at = _NEVER
        if (following := min(rest, default=_NEVER)) < _NEVER:
            self._watch_until(following, loop)

    # Groups

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        self._sent, self._queue = self._queue, []
        if not self._sent:
            self._is_busy = False
            self._idle.set()
            return
        commits = [waiting.commit for waiting in self._sent]
        self._worker.do(
            loop, functools.partial(self._commit_group, commits), functools.partial(self._answer, loop)
        )

    def _commit_group(self, commits: list[Commit]) -> list[Receipt | OutliveError]:
        """Commit a group, in the worker."""
        with self.local.lock:
            try:
                results = self.local.commit_all(commits)
            except BaseException:
                self.local.roll_back()
                raise
        self._bell.ring(commits)
        return results

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        results: list[Receipt | OutliveError] | None,
        failure: BaseException | None,
    ) -> None:
        if self._loop is not loop:
            return
        group, self._sent = self._sent, []
        latest = loop.time() + _LEAST_S
        answers = results if failure is None else _failures(group, failure)
        for waiting, result in zip(group, answers or (), strict=True):
            if isinstance(result, StoreBusy) and latest < waiting.until and not waiting.future.done():
                self._queue.append(waiting)  # it has more time than the least patient of its group
            else:
                waiting.answer(result)
        # Tasks that were just answered may save again at once, and share the next group. Sending
        # what waits now would make two half groups, and the worker would compete with the loop for
        # the interpreter.
        loop.call_soon(self._send, loop)

    # Other calls

    async def _call(
        self, wait_s: float | None, method: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreClosed
        work = functools.partial(self._locked, method, *args, **options)
        try:
            # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that meets the
            # answer.
            async with asyncio.timeout(wait_s):
                return await self._work(work)
        except TimeoutError:
            raise busy(wait_s) from None

    def _work(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future of some work. It is done even if the caller stops waiting."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._worker.do(loop, work, functools.partial(_settle, future))
        return future

    def _locked(self, method: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        with self.local.lock:
            return method(*args, **options)

    def _alarm(self) -> TaskAlarm:
        return TaskAlarm()

    async def close(self) -> None:
        """Finish what was handed over, then release the backend."""
        if self._closed:
            return
        self._closed = True
        if self._is_busy and self._loop is asyncio.get_running_loop():
            await self._idle.wait()
        await self._work(self._close)
        self._worker.stop()

    def after_fork_in_child(self) -> None:
        self._reset()

    def _close(self) -> None:
        with self.local.lock:
            self.local.close()


class SharedAsyncLocal(AsyncLocal):
    """The async mode of a backend that a sync store opened, and closes."""

    def __init__(self, local: Local, is_closed: Callable[[], bool]) -> None:
        """`is_closed` tells whether its owner has closed the backend."""
        super().__init__(local)
        self._is_closed = is_closed

    def _commit_group(self, commits: list[Commit]) -> list[Receipt | OutliveError]:
        with self.local.lock:
            if self._is_closed():
                return [StoreClosed() for _ in commits]
            return super()._commit_group(commits)

    def _locked(self, method: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
        with self.local.lock:
            if self._is_closed():
                raise StoreClosed
            return method(*args, **options)

    def _close(self) -> None:
        """Leave the backend open."""


class TaskAlarm:
    """The async mode: wakes a task of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits there
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


async def in_thread(work: Callable[[], T]) -> T:
    """Run something slow, like opening a file, away from the event loop."""
    return await asyncio.to_thread(work)


def _failures(group: Sequence[_Waiting], failure: BaseException) -> list[BaseException]:
    """Return what each of a group is told after an error that no backend should raise.

    One of them has caused it. Nobody knows which, nor what is stored of the others.
    """
    if len(group) == 1:
        return [failure]
    errors: list[BaseException] = []
    for waiting in group:
        errors.append(outcome_unknown(waiting.commit, f"{type(failure).__name__}: {failure}"))
        errors[-1].__cause__ = failure
    return errors


def _expected(result: Receipt | BaseException) -> Receipt | OutliveError:
    """Return the result of a commit; raise what no backend should have raised."""
    if isinstance(result, Receipt | OutliveError):
        return result
    raise result


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
