"""Backends that live in this process (memory, file, SQLite), in both colours.

Such a backend is written once, as plain functions under one lock. `Inline` calls them as they are, for
`outlive.open`; `Threaded` calls them in one worker thread, a single hop per call, for
`outlive.open_async`. Both gather commits that wait at the same moment into one group, so that they share
one fsync; each still succeeds or fails on its own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from ..backend import Commit, Receipt
from ..errors import OutcomeUnknown, StoreBusy, StoreClosed, StoreUnavailable

T = TypeVar("T")
_READS = frozenset(
    ("history", "writes", "entries", "threads", "inventory", "fetch", "share", "audit", "read", "identity")
)


class Local(Protocol):
    """What a backend of this process brings: the waist as plain functions, and commits by the group."""

    name: str
    lock: Any

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | Exception]: ...
    def before_fork(self) -> None: ...
    def close(self) -> None: ...


class _Waiting:
    """A commit in the queue of a group."""

    __slots__ = ("commit", "result")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.result: Receipt | Exception | None = None


class Inline:
    """The sync colour: coroutines that never suspend."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.name = local.name
        self._queue: list[_Waiting] = []
        self._closed = False
        _locals.add(local)

    async def commit(self, commit: Commit) -> Receipt:
        """Join the queue; whoever gets the lock first commits for all who wait."""
        waiting = _Waiting(commit)
        self._queue.append(waiting)
        with _Held(self.local.lock, commit.timeout_s, functools.partial(self._leave, waiting)):
            if waiting.result is None:
                self._commit_queue()
        return _outcome(waiting.result)

    def _leave(self, waiting: _Waiting) -> None:
        if waiting in self._queue:
            self._queue.remove(waiting)

    def _commit_queue(self) -> None:
        group, self._queue[:] = list(self._queue), []
        if self._closed:
            raise StoreClosed
        results: Sequence[Receipt | Exception] = [StoreUnavailable("the commit was interrupted")] * len(group)
        try:
            results = self.local.commit_all([waiting.commit for waiting in group])
        finally:  # whoever waits gets an answer, also when this thread is interrupted
            for waiting, result in zip(group, results, strict=True):
                waiting.result = result

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(name)
        method = getattr(self.local, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            with _Held(self.local.lock, kwargs.get("timeout_s")):
                if self._closed:
                    raise StoreClosed
                return method(*args, **kwargs)

        self.__dict__[name] = call
        return call

    async def close(self) -> None:
        with self.local.lock:
            self._closed = True
            self.local.close()


class _Held:
    """Hold a lock, waiting no longer than the call may take."""

    def __init__(self, lock: Any, timeout_s: float | None, give_up: Callable[[], None] | None = None) -> None:
        self._lock = lock
        self._timeout_s = timeout_s
        self._give_up = give_up

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=-1 if self._timeout_s is None else self._timeout_s):
            if self._give_up:
                self._give_up()
            raise StoreBusy(
                f"the store was busy in this process for {self._timeout_s} s; give timeout_s more room"
            )

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def _outcome(result: Receipt | Exception | None) -> Receipt:
    if isinstance(result, Receipt):
        return result
    raise result if result is not None else StoreClosed()


class Threaded:
    """The async colour: one worker thread, one hop per call."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.name = local.name
        self._closed = False
        self._reset()
        _locals.add(local)
        _threaded.add(self)

    def _reset(self) -> None:
        """A new worker and an empty queue: at the start, and in a forked child, which has no threads."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"outlive-{self.local.name}")
        self._queue: list[tuple[Commit, asyncio.Future[Receipt]]] = []
        self._busy = False

    async def commit(self, commit: Commit) -> Receipt:
        """Join the group that goes to the worker next.

        A caller that is cancelled leaves its commit where it is: taken out when it was not sent, else
        finished before the worker takes the next one.
        """
        if self._closed:
            raise StoreClosed
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        item = (commit, future)
        self._queue.append(item)
        if not self._busy:
            self._busy = True
            loop.call_soon(
                self._send, loop
            )  # whoever else is ready to save in this turn of the loop comes along
        try:
            return await _within(future, commit.timeout_s)
        except TimeoutError:
            ids = [draft.id for draft in commit.checkpoints]
            raise OutcomeUnknown(commit.thread.id, ids[0] if ids else "", commit.timeout_s) from None
        except asyncio.CancelledError:
            if item in self._queue:
                self._queue.remove(item)
            raise

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        group, self._queue = self._queue, []
        group = [item for item in group if not item[1].cancelled()]
        if not group:
            self._busy = False
            return
        work = loop.run_in_executor(self._pool, self._commit_all, [commit for commit, _ in group])
        work.add_done_callback(lambda done: self._answer(loop, group, done))

    def _commit_all(self, commits: list[Commit]) -> list[Receipt | Exception]:
        with self.local.lock:
            return self.local.commit_all(commits)

    def _answer(self, loop: asyncio.AbstractEventLoop, group: list[Any], done: asyncio.Future[Any]) -> None:
        failure = done.exception()
        results = [failure] * len(group) if failure is not None else done.result()
        for (_, future), result in zip(group, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            else:
                future.set_exception(result)
        self._send(loop)

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._closed:
                raise StoreClosed
            work = functools.partial(self._read, name, args, kwargs)
            future = asyncio.get_running_loop().run_in_executor(self._pool, work)
            try:
                return await _within(future, kwargs.get("timeout_s"))
            except TimeoutError:
                raise StoreBusy(
                    f"no answer within {kwargs.get('timeout_s')} s; give timeout_s more room"
                ) from None

        self.__dict__[name] = call
        return call

    def _read(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.local.lock:
            return getattr(self.local, name)(*args, **kwargs)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.get_running_loop().run_in_executor(self._pool, self._close)
            self._pool.shutdown(wait=False)

    def _close(self) -> None:
        with self.local.lock:
            self.local.close()


async def in_thread(work: Callable[[], T]) -> T:
    """Run something slow, like opening a file, away from the event loop."""
    return await asyncio.to_thread(work)


async def _within(future: asyncio.Future[T], timeout_s: float | None) -> T:
    if timeout_s is None:
        return await future
    return await asyncio.wait_for(asyncio.shield(future), timeout_s)


# Forking -----------------------------------------------------------------------------------------------
#
# A fork happens while no backend is in the middle of anything: the forking thread takes every lock first, and
# lets each backend put away what a child must not inherit. Worker threads stay with the parent.

_locals: weakref.WeakSet[Any] = weakref.WeakSet()
_threaded: weakref.WeakSet[Threaded] = weakref.WeakSet()
_graveyard: list[ThreadPoolExecutor] = []  # pools of the parent: joining them in a child would hang
_stopped: list[Local] = []


def _before_fork() -> None:
    for local in list(_locals):
        local.lock.acquire()
        _stopped.append(local)
        local.before_fork()


def _after_fork() -> None:
    while _stopped:
        _stopped.pop().lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    for backend in list(_threaded):
        _graveyard.append(backend._pool)
        backend._reset()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
