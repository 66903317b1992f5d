"""Threads that call functions one after another: to start a thread costs more than an empty run.

A function gets a thread that is idle, or a new one. A thread that is idle for a while ends. Threads
do not keep the process alive.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable

from outlive.runtime.fork import reset_in_child
from outlive.runtime.platform import system

_IDLE_S = 0.5  # that a thread waits for the next function


class ThreadHand:
    """A function that a thread calls."""

    def __init__(self, name: str, function: Callable[[], object]) -> None:
        self._name = name
        self._function: Callable[[], object] | None = function
        self._ended = threading.Event()

    def call(self) -> None:
        """Call the function as a new thread would: with no context variables."""
        function, self._function = self._function, None  # an idle thread keeps nothing alive
        assert function is not None
        threading.current_thread().name = self._name
        try:
            contextvars.Context().run(function)
        finally:
            self._ended.set()

    def cancel(self) -> bool:
        return False

    async def wait(self, timeout_s: float | None = None) -> None:
        system.wait_for_event(self._ended, timeout_s)

    def has_ended(self) -> bool:
        return self._ended.is_set()


class Hands:
    """The threads of a process."""

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[ThreadHand]] = []  # the letter boxes of threads that wait

    def after_fork_in_child(self) -> None:
        """Forget the threads: they are not in the child."""
        self._begin()

    def start(self, name: str, function: Callable[[], object]) -> ThreadHand:
        """Call a function in a thread."""
        hand = ThreadHand(name, function)
        with self._lock:
            box = self._idle.pop() if self._idle else None
        if box is not None:
            box.put(hand)
        else:
            threading.Thread(target=self._work, args=(hand,), name=name, daemon=True).start()
        return hand

    def _work(self, first: ThreadHand) -> None:
        box: queue.SimpleQueue[ThreadHand] = queue.SimpleQueue()
        hand: ThreadHand | None = first
        del first
        while hand is not None:
            hand.call()  # if it raises, the thread ends and Python reports it
            with self._lock:
                self._idle.append(box)
            hand = self._next(box)

    def _next(self, box: queue.SimpleQueue[ThreadHand]) -> ThreadHand | None:
        try:
            return box.get(timeout=_IDLE_S)
        except queue.Empty:
            pass
        with self._lock:
            if box in self._idle:
                self._idle.remove(box)
                return None
        return box.get()  # it was taken at this moment


hands = Hands()
