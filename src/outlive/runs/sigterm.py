"""SIGTERM while runs are live: how deployments end processes.

While this process has live runs, SIGTERM ends it like `sys.exit`. The `with` blocks of the main
thread, and under asyncio of all tasks, are left: their runs store the saves that they hold back and
are released. Another thread releases the runs of the other threads. Only the main thread can set a
signal handler. It sets one only if the program has none, and removes it after the last run.

While a worker runs, the first SIGTERM drains it instead: its `run()` returns when its runs have
ended or are given back, and the program continues after it. A second SIGTERM ends the process.

Windows sends no SIGTERM: there Ctrl-Break (SIGBREAK) does the same.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Callable
from types import FrameType

from outlive.runtime.platform import system


class Terminator:
    """The signal handler of this process, set while there are live runs."""

    def __init__(self) -> None:
        self._users: dict[int, Callable[[], None]] = {}
        self._drains: dict[int, Callable[[], None]] = {}
        self._is_set = False

    def add(self, key: int, on_term: Callable[[], None]) -> None:
        """Call `on_term` when the process is told to end."""
        self._users[key] = on_term
        self._set()

    def add_drain(self, key: int, drain: Callable[[], None]) -> None:
        """Call `drain` at the first SIGTERM, and let the process continue.

        A worker in another thread does not decide about the process: its runs are released.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        self._users[key] = lambda: None
        self._drains[key] = drain
        self._set()

    def _set(self) -> None:
        if self._is_set or threading.current_thread() is not threading.main_thread():
            return
        for number in system.stop_signals:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end)
                self._is_set = True

    def discard(self, key: int) -> None:
        self._users.pop(key, None)
        self._drains.pop(key, None)
        if self._users or not self._is_set or threading.current_thread() is not threading.main_thread():
            return
        for number in system.stop_signals:
            if signal.getsignal(number) == self._end:
                signal.signal(number, signal.SIG_DFL)
        self._is_set = False

    def _end(self, number: int, frame: FrameType | None) -> None:
        if self._drains:
            drains, self._drains = self._drains, {}
            for drain in drains.values():
                # In another thread: this one may be interrupted while it holds the lock of the very
                # event that a drain sets. `threading.Thread` has such a lock itself.
                _thread.start_new_thread(drain, ())
            return
        for on_term in list(self._users.values()):
            on_term()
        raise SystemExit(128 + number)


terminator = Terminator()
