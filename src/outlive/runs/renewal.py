"""One timer for all live runs of a store: it renews their leases by one call to the backend."""

from __future__ import annotations

import threading
from typing import Protocol

from outlive.backend import Commit
from outlive.errors import EntryHeld, LeaseLost, OutliveError, raise_all
from outlive.runs.sigterm import terminator
from outlive.runtime.fork import reset_in_child
from outlive.runtime.runtime import Ticker
from outlive.threads.engine import Engine

_BEATS = 3  # during the shortest lease: one may fail, or come late


class LeaseHolder(Protocol):
    """What holds a lease: a run, or a lock."""

    @property
    def _lease_s(self) -> float: ...
    @property
    def _thread_ident(self) -> int | None:
        """The thread that works under the lease, if it is only one."""
        ...

    def _is_stalled(self) -> bool:
        """Tell whether nothing works under the lease any more: it is left to expire."""
        ...

    def _renewal(self) -> Commit: ...
    def _renewed(self, is_stored: bool) -> None:
        """Note whether the commit of the last `_renewal` was stored."""
        ...

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
        self._lock = threading.Lock()
        self.is_closed = False  # with its store
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()

    def add(self, run: LeaseHolder) -> None:
        """Renew a lease from now on. Nothing is stored: a crash lets all of them expire."""
        with self._lock:  # a run that ends in another thread must not stop the timer of this one
            self._runs[id(run)] = run
            interval_s = run._lease_s / _BEATS
            if self._ticker is None or interval_s < self._interval_s:
                self._stop()
                self._interval_s = interval_s
                self._ticker = self._engine.runtime.tick("outlive-renewal", interval_s, self.beat)
        terminator.add(id(self), self._terminate)

    def discard(self, run: LeaseHolder) -> None:
        """Stop renewing a lease."""
        with self._lock:
            self._runs.pop(id(run), None)
            if self._runs:
                return
            self._stop()
        terminator.discard(id(self))

    def find(self, run_id: str) -> LeaseHolder | None:
        """Return the live run with this id."""
        runs = list(self._runs.values())
        return next((run for run in runs if getattr(run, "id", None) == run_id), None)

    def _stop(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        self._ticker, self._interval_s = None, float("inf")

    async def beat(self) -> None:
        """Renew all leases. The next beat, or the next write of a run, retries what failed."""
        runs = [run for run in list(self._runs.values()) if not run._is_stalled()]
        commits = [run._renewal() for run in runs]
        if not commits:
            return
        try:
            results = await self._engine.backend.commit_all(commits)
        except OutliveError as error:
            results = [error] * len(runs)
        for run, result in zip(runs, results, strict=True):
            run._renewed(not isinstance(result, OutliveError))
            if isinstance(result, LeaseLost | EntryHeld) and not run._is_overtaken(result):
                run._lose(result)

    def _terminate(self) -> None:
        """Release runs of other threads on SIGTERM.

        (Under asyncio, cancelled tasks release theirs.)
        """
        for run in list(self._runs.values()):
            if run._thread_ident not in (None, threading.get_ident()):
                self._engine.runtime.spawn("outlive-release", run._give_up)

    async def close(self) -> None:
        """Release all live runs, because the store closes.

        An error of one does not keep the others.
        """
        self._stop()
        self.is_closed = True
        errors: list[Exception] = []
        for run in list(self._runs.values()):
            try:
                await run._give_up()
            except LeaseLost:
                pass  # another process has it: there is nothing to release
            except Exception as error:  # noqa: BLE001  # raised after all others are released
                errors.append(error)
        raise_all(errors)
