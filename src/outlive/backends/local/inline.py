"""Backends that live in this process (memory, file, SQLite), and their sync mode.

Such a backend is written once, as plain functions under one lock. `SyncLocal` calls them as they are, for
`outlive.open`; `AsyncLocal` (`threaded.py`) calls them in one worker thread, a single hop per call, for
`outlive.open_async`. Both gather commits that wait at the same moment into one group, so that they share
one fsync; each still succeeds or fails on its own.
"""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from outlive.backend import Commit, Receipt, outcome_unknown
from outlive.errors import OutliveError, StoreBusy, StoreClosed

READS = frozenset(
    (
        "history",
        "states",
        "writes",
        "entries",
        "threads",
        "inventory",
        "fetch",
        "share",
        "audit",
        "read",
        "identity",
    )
)


_YIELD_S = 0.0001


class Local(Protocol):
    """What a backend of this process brings: the waist as plain functions, under a lock that the callers hold."""

    name: str
    lock: Any

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]: ...
    def before_fork(self) -> None: ...
    def close(self) -> None: ...


class _Waiting:
    """A commit in the queue of a group."""

    __slots__ = ("commit", "done", "result", "until")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.result: Receipt | OutliveError | None = None
        self.until = float("inf") if commit.timeout_s is None else time.monotonic() + commit.timeout_s
        self.done = threading.Event() if commit.group_wait_s else None

    def answer(self, result: Receipt | OutliveError) -> None:
        self.result = result
        if self.done is not None:
            self.done.set()

    def linger(self) -> None:
        """Let somebody else commit it, if anybody comes soon."""
        if self.done is not None:
            self.done.wait(min(self.commit.group_wait_s, self.commit.timeout_s or self.commit.group_wait_s))


class SyncLocal:
    """The sync io_mode: coroutines that never suspend."""

    def __init__(self, local: Local) -> None:
        self.local = local
        self.name = local.name
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._waiting: collections.deque[object] = collections.deque()  # those who wait for the lock
        self._closed = False
        keep_for_fork(local)
        _inline.add(self)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the queue; whoever gets the lock first commits for all who wait."""
        mine = [_Waiting(commit) for commit in commits]
        timeout_s = shortest(commits)
        try:
            self._queue.extend(mine)
            tell(commits)
            for waiting in mine[-1:]:
                waiting.linger()
            if self._acquire(timeout_s):
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
        return [waiting.result or outcome_unknown(waiting.commit) for waiting in mine]

    def _acquire(self, timeout_s: float | None) -> bool:
        me = object()
        try:
            self._waiting.append(me)
            return bool(self.local.lock.acquire(timeout=-1 if timeout_s is None else timeout_s))
        finally:
            with contextlib.suppress(ValueError):  # interrupted before it was there
                self._waiting.remove(me)

    def _give_up(self, mine: Sequence[_Waiting], timeout_s: float | None) -> None:
        """Leave the queue. What somebody is committing already has an outcome that nobody waits for."""
        for waiting in mine:
            with contextlib.suppress(ValueError):
                self._queue.remove(waiting)
                waiting.result = busy(timeout_s)

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
            if isinstance(result, StoreBusy) and time.monotonic() + _YIELD_S * 50 < waiting.until:
                self._queue.append(waiting)  # it has more time than the least patient of its group
            else:
                waiting.answer(result)

    def __getattr__(self, name: str) -> Any:
        if name not in READS:
            raise AttributeError(name)
        method = getattr(self.local, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            timeout_s = kwargs.get("timeout_s")
            try:
                if not self._acquire(timeout_s):
                    raise busy(timeout_s)
                if self._closed:
                    raise StoreClosed
                return method(*args, **kwargs)
            finally:
                if self.local.lock._is_owned():
                    self.local.lock.release()
                if self._waiting:  # who reads on and on would have the lock again before they wake up
                    time.sleep(_YIELD_S)

        self.__dict__[name] = call
        return call

    async def close(self) -> None:
        with self.local.lock:
            self._closed = True
            self.local.close()


class SharedSyncLocal(SyncLocal):
    """The sync mode of a backend that somebody else opened, and closes."""

    async def close(self) -> None:
        self._closed = True


def tell(commits: Sequence[Commit]) -> None:
    """Whoever comes now comes after these."""
    for commit in commits:
        if commit.on_queued is not None:
            commit.on_queued()


def shortest(commits: Sequence[Commit]) -> float | None:
    """How long a group may take: as long as its least patient member."""
    return min((commit.timeout_s for commit in commits if commit.timeout_s is not None), default=None)


def busy(timeout_s: float | None) -> StoreBusy:
    return StoreBusy(f"the store was busy in this process for {timeout_s} s; give timeout_s more room")


# Forking -----------------------------------------------------------------------------------------------
#
# A fork happens while no backend is in the middle of anything: the forking thread takes every lock first, and
# lets each backend put away what a child must not inherit. Worker threads stay with the parent.

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
        inline._queue.clear()  # those who wait in it are threads of the parent
        inline._waiting.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
