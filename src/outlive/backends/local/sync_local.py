"""Backends that live in this process (memory, file, SQLite), and their sync mode.

Such a backend is written once, as plain functions under one lock. `SyncLocal` calls them as they
are, for `outlive.open`; `AsyncLocal` (`async_local.py`) calls them in one worker thread, a single
hop per call, for `outlive.open_async`. Both gather commits that wait at the same moment into one
group, so that they share one fsync; each still succeeds or fails on its own. In sync mode a commit
may linger (`Commit.linger_s`): it waits in the queue until another thread commits, and commits
alone only if none does.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from outlive.backend import Commit, Receipt, outcome_unknown, shortest_timeout
from outlive.backends.local.fork import keep_for_fork
from outlive.backends.local.protocol import Local, LocalCalls, P, T, busy, reentered
from outlive.backends.local.watch import ThreadAlarm, bell_of
from outlive.dataclass import dataclass
from outlive.errors import OutliveError, StoreBusy, StoreClosed
from outlive.runtime.fork import reset_in_child

_YIELD_S = 0.0001


@dataclass(slots=True, eq=False)
class _Waiting:
    """A commit in the queue of a group."""

    commit: Commit
    until: float  # by time.monotonic
    result: Receipt | OutliveError | None = None
    done: threading.Lock | None = None  # held until there is a result, if the commit lingers


class SyncLocal(LocalCalls):
    """The sync mode: coroutines that never suspend."""

    def __init__(self, local: Local) -> None:
        super().__init__(local)
        self._queue: collections.deque[_Waiting] = collections.deque()
        self._blocked_threads: collections.deque[object] = collections.deque()  # that wait for the lock
        self._closed = False
        self._bell = bell_of(local)
        keep_for_fork(local)
        reset_in_child(self)

    def is_closed(self) -> bool:
        """Tell those that share the backend whether it is closed."""
        return self._closed

    def after_fork_in_child(self) -> None:
        """Empty the queues: the threads that wait in them are the parent's."""
        self._queue.clear()
        self._blocked_threads.clear()

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Commit at once if the lock is free; otherwise wait for it in the queue, with other commits."""
        if self.local.lock._is_owned():
            return [reentered() for _ in commits]
        if len(commits) == 1 and not self._queue and not commits[0].linger_s:
            try:
                if self.local.lock.acquire(blocking=False):
                    if self._closed:
                        return [StoreClosed()]
                    (commit,) = commits
                    if commit.on_queued is not None:  # later commits are ordered after this one
                        commit.on_queued()
                    results = self.local.commit_all(commits)
                    if commit.entries:
                        self._bell.ring(commits)
                    return results
            except BaseException:
                self._roll_back()
                raise
            finally:
                # Here and below not in a method: an interrupt at its entry would keep the lock. The
                # lock itself knows its owner: an interrupt may come before an attribute is set.
                try:
                    self.local.lock.release()
                except RuntimeError:
                    pass  # it was not acquired
        return self._join_queue(commits)

    def _join_queue(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Join the queue; the thread that gets the lock first commits for all that wait."""
        now = time.monotonic()
        own = [
            _Waiting(commit, float("inf") if commit.timeout_s is None else now + commit.timeout_s)
            for commit in commits
        ]
        timeout_s = shortest_timeout(commits)
        lingers = own[0] if len(own) == 1 and commits[0].linger_s else None
        if lingers is not None:
            lingers.done = threading.Lock()
            lingers.done.acquire()
        try:
            self._queue.extend(own)
            for commit in commits:
                if commit.on_queued is not None:  # later commits are ordered after these
                    commit.on_queued()
            if lingers is not None and self._is_taken_along(lingers, timeout_s):
                pass  # another thread has committed it
            elif self._acquire(timeout_s):
                while self._queue and any(waiting.result is None for waiting in own):
                    self._commit_queue()
            else:
                self._give_up(own, timeout_s)
        except BaseException:
            # Interrupted: the caller continues without it, so no other thread may commit it later.
            self._roll_back()
            self._give_up(own, timeout_s)
            raise
        finally:
            try:
                self.local.lock.release()
            except RuntimeError:
                pass  # it was not acquired in time
        return [waiting.result or outcome_unknown(waiting.commit) for waiting in own]

    def _is_taken_along(self, waiting: _Waiting, timeout_s: float | None) -> bool:
        """Wait in the queue for a thread that commits, and tell whether it took this commit along."""
        linger_s = waiting.commit.linger_s
        if timeout_s is not None:
            linger_s = min(linger_s, timeout_s / 2)
        assert waiting.done is not None
        return waiting.done.acquire(timeout=linger_s) and waiting.result is not None

    def _acquire(self, timeout_s: float | None) -> bool:
        me = object()
        try:
            self._blocked_threads.append(me)
            return bool(self.local.lock.acquire(timeout=-1 if timeout_s is None else timeout_s))
        finally:
            with contextlib.suppress(ValueError):  # interrupted before it was there
                self._blocked_threads.remove(me)

    def _roll_back(self) -> None:
        """Undo what an interrupted call of this thread has left half done, before the lock is released."""
        if self.local.lock._is_owned():
            self.local.roll_back()

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
                if waiting.done is not None:
                    waiting.done.release()
            return
        commits = [waiting.commit for waiting in group]
        results = self.local.commit_all(commits)
        if any(commit.entries for commit in commits):
            self._bell.ring(commits)
        for waiting, result in zip(group, results, strict=True):
            if isinstance(result, StoreBusy) and time.monotonic() + _YIELD_S * 50 < waiting.until:
                self._queue.append(waiting)  # it has more time than the least patient of its group
            else:
                waiting.result = result
                if waiting.done is not None:
                    waiting.done.release()

    async def _call(
        self, wait_s: float | None, method: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        if self.local.lock._is_owned():
            raise reentered()
        try:
            if not self._acquire(wait_s):
                raise busy(wait_s)
            if self._closed:
                raise StoreClosed
            return method(*args, **options)
        except BaseException:
            self._roll_back()
            raise
        finally:
            try:
                self.local.lock.release()
            except RuntimeError:
                pass  # it was not acquired in time
            # A thread that reads in a loop would take the lock again before the others wake up.
            if self._blocked_threads:
                time.sleep(_YIELD_S)

    def _alarm(self) -> ThreadAlarm:
        return ThreadAlarm()

    async def close(self) -> None:
        with self.local.lock:
            if self._queue:  # commits that linger
                self._commit_queue()
            self._closed = True
            self.local.close()


class SharedSyncLocal(SyncLocal):
    """The sync mode of a backend that somebody else opened, and closes."""

    async def close(self) -> None:
        self._closed = True
