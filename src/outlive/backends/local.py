"""Backends that live in this process (memory, file, SQLite), in both colours.

Such a backend is written once, as plain functions under one lock. `Inline` calls them as they are, for
`outlive.open`; `Threaded` calls them in one worker thread, a single hop per call, for
`outlive.open_async`. Both gather commits that wait at the same moment into one group, so that they share
one fsync; each still succeeds or fails on its own.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from ..backend import Commit, Receipt, unknown
from ..errors import OutliveError, StoreBusy, StoreClosed

T = TypeVar("T")
_READS = frozenset(
    ("history", "writes", "entries", "threads", "inventory", "fetch", "share", "audit", "read", "identity")
)


class Local(Protocol):
    """What a backend of this process brings: the waist as plain functions, under a lock that the callers hold."""

    name: str
    lock: Any

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]: ...
    def before_fork(self) -> None: ...
    def close(self) -> None: ...


class _Waiting:
    """A commit in the queue of a group."""

    __slots__ = ("commit", "done", "result")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.result: Receipt | OutliveError | None = None
        self.done = threading.Event() if commit.linger_s else None

    def answer(self, result: Receipt | OutliveError) -> None:
        self.result = result
        if self.done is not None:
            self.done.set()

    def linger(self) -> None:
        """Let somebody else commit it, if anybody comes soon."""
        if self.done is not None:
            self.done.wait(min(self.commit.linger_s, self.commit.timeout_s or self.commit.linger_s))


class Inline:
    """The sync colour: coroutines that never suspend."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.name = local.name
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._closed = False
        _locals.add(local)
        _inline.add(self)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the queue; whoever gets the lock first commits for all who wait."""
        mine = [_Waiting(commit) for commit in commits]
        timeout_s = _shortest(commits)
        try:
            self._queue.extend(mine)
            _tell(commits)
            for waiting in mine[-1:]:
                waiting.linger()
            if self.local.lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
                while self._queue and any(waiting.result is None for waiting in mine):
                    self._commit_queue()
            else:
                self._give_up(mine, timeout_s)
        except BaseException:  # interrupted: nobody may commit it later, when its caller has moved on
            self._give_up(mine, timeout_s)
            raise
        finally:
            if (
                self.local.lock._is_owned()
            ):  # asked, not remembered: an interrupt may come before it is noted down
                self.local.lock.release()
        return [waiting.result or unknown(waiting.commit) for waiting in mine]

    def _give_up(self, mine: Sequence[_Waiting], timeout_s: float | None) -> None:
        """Leave the queue. What somebody is committing already has an outcome that nobody waits for."""
        for waiting in mine:
            with contextlib.suppress(ValueError):
                self._queue.remove(waiting)
                waiting.result = _busy(timeout_s)

    def _commit_queue(self) -> None:
        group = []
        while self._queue:  # one by one: others append at the same time
            group.append(self._queue.popleft())
        if self._closed:
            for waiting in group:
                waiting.answer(StoreClosed())
            return
        commits = [waiting.commit for waiting in group]
        results = self.local.commit_all(commits)
        for waiting, result in zip(group, results, strict=True):
            if isinstance(result, StoreBusy) and waiting.commit.timeout_s != _shortest(commits):
                self._queue.append(waiting)  # it has more time than the least patient of its group
            else:
                waiting.answer(result)

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(name)
        method = getattr(self.local, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            timeout_s = kwargs.get("timeout_s")
            try:
                if not self.local.lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
                    raise _busy(timeout_s)
                if self._closed:
                    raise StoreClosed
                return method(*args, **kwargs)
            finally:
                if self.local.lock._is_owned():
                    self.local.lock.release()

        self.__dict__[name] = call
        return call

    async def close(self) -> None:
        with self.local.lock:
            self._closed = True
            self.local.close()


class Borrowed(Inline):
    """The sync colour of a backend that somebody else opened, and closes."""

    async def close(self) -> None:
        self._closed = True


def _tell(commits: Sequence[Commit]) -> None:
    """Whoever comes now comes after these."""
    for commit in commits:
        if commit.on_queued is not None:
            commit.on_queued()


def _shortest(commits: Sequence[Commit]) -> float | None:
    """How long a group may take: as long as its least patient member."""
    return min((commit.timeout_s for commit in commits if commit.timeout_s is not None), default=None)


def _busy(timeout_s: float | None) -> StoreBusy:
    return StoreBusy(f"the store was busy in this process for {timeout_s} s; give timeout_s more room")


class Threaded:
    """The async colour: one worker thread, one hop per call. Belongs to the event loop that uses it."""

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

        A caller that is cancelled leaves its commit where it is: taken out when it was not sent, else
        finished before the worker takes the next one.
        """
        if self._closed:
            return StoreClosed()
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # the loop before has ended, and whoever waited there is gone
            self._begin(loop)
        future: asyncio.Future[Receipt] = loop.create_future()
        item = (commit, future)
        self._queue.append(item)
        _tell((commit,))
        if not self._is_busy:
            self._is_busy = True
            self._idle.clear()
            loop.call_soon(
                self._send, loop
            )  # whoever else is ready to save in this turn of the loop comes along
        # Not asyncio.wait_for: it costs as much as the rest of this call.
        timer = None if commit.timeout_s is None else loop.call_later(commit.timeout_s, _expire, future)
        try:
            return await future
        except OutliveError as error:
            return error
        except TimeoutError:
            return _busy(commit.timeout_s) if self._withdraw(item) else unknown(commit)
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
            return self.local.commit_all(commits)

    def _answer(self, loop: asyncio.AbstractEventLoop, group: list[Any], done: asyncio.Future[Any]) -> None:
        failure = done.exception()
        results = [failure] * len(group) if failure is not None else done.result()
        least = _shortest([commit for commit, _ in group])
        for (commit, future), result in zip(group, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Receipt):
                future.set_result(result)
            elif isinstance(result, StoreBusy) and commit.timeout_s != least:
                self._queue.append((commit, future))  # it has more time than the least patient of its group
            else:
                future.set_exception(result)
        # Those who were just answered may save again at once: let them come along. Sending what waits now would make
        # two half groups, and the worker would fight with the loop for the interpreter.
        loop.call_soon(self._send, loop)

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
                raise _busy(kwargs.get("timeout_s")) from None

        self.__dict__[name] = call
        return call

    def _read(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self.local.lock:
            return getattr(self.local, name)(*args, **kwargs)

    async def close(self) -> None:
        """Finish what was handed over, then release the backend."""
        if self._closed:
            return
        self._closed = True
        if self._is_busy and self._loop is asyncio.get_running_loop():
            await self._idle.wait()
        await asyncio.get_running_loop().run_in_executor(self._pool, self._close)
        self._pool.shutdown(wait=False)

    def _close(self) -> None:
        with self.local.lock:
            self.local.close()


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


# Forking -----------------------------------------------------------------------------------------------
#
# A fork happens while no backend is in the middle of anything: the forking thread takes every lock first, and
# lets each backend put away what a child must not inherit. Worker threads stay with the parent.

_locals: weakref.WeakSet[Any] = weakref.WeakSet()
_inline: weakref.WeakSet[Inline] = weakref.WeakSet()
_threaded: weakref.WeakSet[Threaded] = weakref.WeakSet()
_graveyard: list[ThreadPoolExecutor] = []  # pools of the parent: joining them in a child would hang
_stopped: list[Local] = []
_forking = threading.Lock()  # one fork at a time takes the locks


def _before_fork() -> None:
    _forking.acquire()
    for local in list(_locals):
        local.lock.acquire()
        _stopped.append(local)
        local.before_fork()


def _after_fork() -> None:
    while _stopped:
        _stopped.pop().lock.release()
    _forking.release()


def _after_fork_in_child() -> None:
    _after_fork()
    for inline in list(_inline):
        inline._queue.clear()  # those who wait in it are threads of the parent
    for backend in list(_threaded):
        _graveyard.append(backend._pool)
        backend._reset()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
