"""The async mode of in-process backends: one worker thread runs their functions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outlive.backend import Commit, Receipt, outcome_unknown, shortest_timeout
from outlive.backends.local.fork import keep_for_fork
from outlive.backends.local.protocol import Local, LocalCalls, P, T, busy
from outlive.backends.local.watch import bell_of
from outlive.errors import OutliveError, StoreBusy, StoreClosed
from outlive.runtime.fork import reset_in_child


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
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"outlive-{self.local.name}")
        self._begin(None)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._queue: list[tuple[Commit, asyncio.Future[Receipt]]] = []
        self._is_busy = False
        self._idle = asyncio.Event()

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the group that goes to the worker next."""
        if len(commits) == 1:
            return [await self._commit(commits[0])]
        return list(await asyncio.gather(*[self._commit(commit) for commit in commits]))

    async def _commit(self, commit: Commit) -> Receipt | OutliveError:
        """Wait for one commit.

        If the caller is cancelled, a commit that was not sent is withdrawn. One that was sent is
        finished before the worker takes the next one.
        """
        if self._closed:
            return StoreClosed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the former loop has ended, and nobody waits there
            self._begin(loop)
        future: asyncio.Future[Receipt] = loop.create_future()
        item = (commit, future)
        self._queue.append(item)
        if commit.on_queued is not None:  # later commits are ordered after this one
            commit.on_queued()
        if not self._is_busy:
            self._is_busy = True
            self._idle.clear()
            # Not at once: tasks that save in the same turn of the loop share the group.
            loop.call_soon(self._send, loop)
        # Not asyncio.wait_for: it costs as much as the rest of this call.
        timer = None if commit.timeout_s is None else loop.call_later(commit.timeout_s, _expire, future)
        try:
            return await future
        except OutliveError as error:
            return error
        except TimeoutError:
            return busy(commit.timeout_s) if self._withdraw(item) else outcome_unknown(commit)
        except asyncio.CancelledError:
            self._withdraw(item)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _withdraw(self, item: tuple[Commit, asyncio.Future[Receipt]]) -> bool:
        """Take a commit back; False when it was sent already."""
        if item not in self._queue:
            return False
        self._queue.remove(item)
        return True

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not loop:
            return
        group, self._queue = self._queue, []
        if not group:
            self._is_busy = False
            self._idle.set()
            return
        work = loop.run_in_executor(self._pool, self._commit_group, [commit for commit, _ in group])
        work.add_done_callback(lambda done: self._answer(loop, group, done))

    def _commit_group(self, commits: list[Commit]) -> list[Receipt | OutliveError]:
        with self.local.lock:
            results = self.local.commit_all(commits)
        self._bell.ring(commits)
        return results

    def _answer(self, loop: asyncio.AbstractEventLoop, group: list[Any], done: asyncio.Future[Any]) -> None:
        failure = done.exception()
        results = [failure] * len(group) if failure is not None else done.result()
        least = shortest_timeout([commit for commit, _ in group])
        for (commit, future), result in zip(group, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            elif isinstance(result, StoreBusy) and commit.timeout_s != least:
                # It has more time than the least patient of its group.
                self._queue.append((commit, future))
            else:
                future.set_exception(result)
        # Tasks that were just answered may save again at once, and share the next group. Sending
        # what waits now would make two half groups, and the worker would compete with the loop for
        # the interpreter.
        loop.call_soon(self._send, loop)

    async def _call(
        self, wait_s: float | None, method: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreClosed
        work = functools.partial(self._locked, method, *args, **options)
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        try:
            return await _within(future, wait_s)
        except TimeoutError:
            raise busy(wait_s) from None

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
        await asyncio.get_running_loop().run_in_executor(self._pool, self._close)
        self._pool.shutdown(wait=False)

    def after_fork_in_child(self) -> None:
        _parent_pools.append(self._pool)
        self._reset()

    def _close(self) -> None:
        with self.local.lock:
            self.local.close()


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


def _expire(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


async def _within(future: asyncio.Future[T], timeout_s: float | None) -> T:
    # Not asyncio.wait_for: before Python 3.12 it loses a cancellation that meets the answer.
    async with asyncio.timeout(timeout_s):
        return await asyncio.shield(future)


_parent_pools: list[ThreadPoolExecutor] = []  # kept alive: joining them in a child would hang
