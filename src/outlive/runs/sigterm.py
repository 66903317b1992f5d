"""SIGTERM while runs are live: how deployments end processes.

While this process has live runs, SIGTERM ends it like `sys.exit`: the `with` blocks of the main thread (and, under asyncio, of all
tasks) are left, their runs store what they held back and are marked interrupted. Runs of other threads are interrupted from a
thread of its own. Only the main thread can set a handler, only where nobody else has set one, and it is taken back with the last run.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

_Undo = Callable[[], None]


class Terminator:
    """The handler of one process, as long as somebody needs it."""

    def __init__(self) -> None:
        self._users: dict[int, Callable[[], None]] = {}
        self._is_set = False

    def add(self, key: int, on_term: Callable[[], None]) -> None:
        """Call `on_term` when the process is told to end."""
        self._users[key] = on_term
        if self._is_set or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._end)
            self._is_set = True

    def discard(self, key: int) -> None:
        self._users.pop(key, None)
        if self._users or not self._is_set or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == self._end:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_set = False

    def _end(self, number: int, frame: FrameType | None) -> None:
        for on_term in list(self._users.values()):
            on_term()
        raise SystemExit(128 + number)


terminator = Terminator()
