"""Backends that live in this process (memory, file, SQLite), and their sync mode.

Such a backend is written once, as plain functions under one lock. `SyncLocal` calls them as they
are, for `outlive.open`; `AsyncLocal` (`threaded.py`) calls them in one worker thread, a single hop
per call, for `outlive.open_async`. Both gather commits that wait at the same moment into one group,
so that they share one fsync; each still succeeds or fails on its own.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from outlive.backend import Commit, Receipt, outcome_unknown, shortest_timeout
from outlive.backends.local.protocol import Local, LocalCalls, P, T
from outlive.backends.local.watch import ThreadAlarm, bell_of
from outlive.errors import OutliveError, StoreBusy, StoreClosed
from outlive.runtime.fork import hold_while_forking

_YIELD_S = 0.0001


class _Waiting:
    """A commit in the queue of a group."""

    __slots__ = ("commit", "result", "until")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.result: Receipt | OutliveError | None = None
        self.until = float("inf") if commit.timeout_s is None else time.monotonic() + commit.timeout_s


class SyncLocal(LocalCalls):
    """The sync mode: coroutines that never suspend."""

    def __init__(self, local: Local) -> None:
        super().__init__(local)
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._waiting: collections.deque[object] = collections.deque()  # threads, for the lock
        self._closed = False
        self._bell = bell_of(local)
        keep_for_fork(local)
        _inline.add(self)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the queue; the thread that gets the lock first commits for all that wait."""
        own = [_Waiting(commit) for commit in commits]
        timeout_s = commits[0].timeout_s if len(commits) == 1 else shortest_timeout(commits)
        try:
            self._queue.extend(own)
            for commit in commits:
                if commit.on_queued is not None:  # later commits are ordered after these
                    commit.on_queued()
            if self._acquire(timeout_s):
                while self._queue and any(waiting.result is None for waiting in own):
                    self._commit_queue()
            else:
                self._give_up(own, timeout_s)
        except BaseException:
            # Interrupted: the caller continues without it, so no other thread may commit it later.
            self._give_up(own, timeout_s)
            raise
        finally:
            self._release()
        return [waiting.result or outcome_unknown(waiting.commit) for waiting in own]

    def _acquire(self, timeout_s: float | None) -> bool:
        me = object()
        try:
            self._waiting.append(me)
            return bool(self.local.lock.acquire(timeout=-1 if timeout_s is None else timeout_s))
        finally:
            with contextlib.suppress(ValueError):  # interrupted before it was there
                self._waiting.remove(me)

    def _release(self) -> None:
        """Release the lock if this thread owns it.

        Ask the lock itself: an interrupt may come before an attribute is set.
        """
        try:
            self.local.lock.release()
        except RuntimeError:
            pass  # it was not acquired in time

    def _give_up(self, own: Sequence[_Waiting], timeout_s: float | None) -> None:
        """Leave the queue. The outcome of a commit that another thread is writing stays unknown."""
        for waiting in own:
            with contextlib.suppress(ValueError):
                self._queue.remove(waiting)
                waiting.result = busy(timeout_s)

    def _commit_queue(self) -> None:
        group = []
        while self._queue:  # one by one: other threads append at the same time
            group.append(self._queue.popleft())
        if self._closed:
            for waiting in group:
                waiting.result = StoreClosed()
            return
        commits = [waiting.commit for waiting in group]
        results = self.local.commit_all(commits)
        self._bell.ring(commits)
        for waiting, result in zip(group, results, strict=True):
            if isinstance(result, StoreBusy) and time.monotonic() + _YIELD_S * 50 < waiting.until:
                self._queue.append(waiting)  # it has more time than the least patient of its group
            else:
                waiting.result = result

    async def _call(
        self, wait_s: float | None, method: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        try:
            if not self._acquire(wait_s):
                raise busy(wait_s)
            if self._closed:
                raise StoreClosed
            return method(*args, **options)
        finally:
            self._release()
            # A thread that reads in a loop would take the lock again before the others wake up.
            if self._waiting:
                time.sleep(_YIELD_S)

    def _alarm(self) -> ThreadAlarm:
        return ThreadAlarm()

    async def close(self) -> None:
        with self.local.lock:
            self._closed = True
            self.local.close()


class SharedSyncLocal(SyncLocal):
    """The sync mode of a backend that somebody else opened, and closes."""

    async def close(self) -> None:
        self._closed = True


def busy(timeout_s: float | None) -> StoreBusy:
    return StoreBusy(f"the store was busy in this process for {timeout_s} s; raise timeout_s")


# Forking -----------------------------------------------------------------------------------------
#
# A fork waits until no backend is in the middle of a call: the forking thread takes every lock
# first, and each backend closes what a child must not inherit. Worker threads stay in the parent.

_locals: weakref.WeakSet[Any] = weakref.WeakSet()
_inline: weakref.WeakSet[SyncLocal] = weakref.WeakSet()
_stopped: list[Local] = []
_forking = threading.Lock()  # one fork at a time takes the locks


def keep_for_fork(local: Local) -> None:
    """Let forks wait for this backend."""
    _locals.add(local)


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
        inline._queue.clear()  # the threads that wait in it are the parent's
        inline._waiting.clear()


hold_while_forking(_before_fork, _after_fork, _after_fork_in_child)
