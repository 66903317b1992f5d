"""One timer for all live runs of a store: between their writes it renews their leases, by one call to the backend."""

from __future__ import annotations

import os
import threading
from typing import Protocol

from outlive.backend import Commit
from outlive.errors import EntryHeld, LeaseLost, OutliveError, raise_all
from outlive.runs.sigterm import terminator
from outlive.runtime.runtime import Ticker
from outlive.threads.engine import Engine

_SHARE = 3  # beats in the time of the shortest lease


class LeaseHolder(Protocol):
    """What holds a lease: a run, or a lock."""

    @property
    def _lease_s(self) -> float: ...
    @property
    def _thread_ident(self) -> int | None:
        """The thread that works under the lease, when that is one thread."""
        ...

    def _renewal(self) -> Commit: ...
    def _lose(self, error: LeaseLost | EntryHeld) -> LeaseLost: ...
    def _is_overtaken(self, error: LeaseLost | EntryHeld) -> bool: ...
    async def _give_up(self) -> None: ...


class LeaseRenewer:
    """The leases that one store holds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._runs: dict[int, LeaseHolder] = {}
        self._ticker: Ticker | None = None
        self._interval_s = float("inf")
        self._lock, self._pid = threading.Lock(), os.getpid()

    def _guard(self) -> threading.Lock:
        """Return the lock of this process: another thread of the parent may have held it at the fork."""
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        return self._lock

    def add(self, run: LeaseHolder) -> None:
        with self._guard():  # or a run that ends in another thread would stop the timer that this one needs
            self._runs[id(run)] = run
            interval_s = run._lease_s / _SHARE
            if self._ticker is None or interval_s < self._interval_s:
                self._stop()
                self._interval_s = interval_s
                self._ticker = self._engine.runtime.tick(interval_s, self.beat)
        terminator.add(id(self), self._terminate)

    def discard(self, run: LeaseHolder) -> None:
        with self._guard():
            self._runs.pop(id(run), None)
            if self._runs:
                return
            self._stop()
        terminator.discard(id(self))

    def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self._ticker, self._interval_s = None, float("inf")

    async def beat(self) -> None:
        """Renew all leases. What cannot be renewed now is tried again at the next beat, or by the run's own next write."""
        runs = list(self._runs.values())
        commits = [run._renewal() for run in runs]
        if not commits:
            return
        try:
            results = await self._engine.backend.commit_all(commits)
        except OutliveError:
            return
        for run, result in zip(runs, results, strict=True):
            if isinstance(result, LeaseLost | EntryHeld) and not run._is_overtaken(result):
                run._lose(result)

    def _terminate(self) -> None:
        """The process is told to end. Under asyncio every task is cancelled, which is enough."""
        for run in list(self._runs.values()):
            if run._thread_ident not in (None, threading.get_ident()):
                self._engine.runtime.spawn(run._give_up)

    async def close(self) -> None:
        """Give up all live runs: their owner is closing the store under them. One that was lost is no reason to keep the others."""
        self._stop()
        errors: list[Exception] = []
        for run in list(self._runs.values()):
            try:
                await run._give_up()
            except LeaseLost:
                pass  # another process has it: nothing is left to give up
            except Exception as error:  # noqa: BLE001  # raised when all others are given up
                errors.append(error)
        raise_all(errors)
