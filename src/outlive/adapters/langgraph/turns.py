"""One order per thread: who comes first writes first.

LangGraph hands the writes of a step and the checkpoint after them to a pool, one after the other, and does not wait in
between. Each call takes its turn when it begins, and stores nothing before the ones before it are stored or stand before it in
the store's own queue: a checkpoint is never stored before the writes that led to it. What can be prepared is prepared while it waits,
and writes that stand in a queue together share one transaction. A turn is a link in a chain of futures: threads and tasks of any event loop wait in the same chain.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from concurrent.futures import Future


class Turn:
    """A place in the order of one thread."""

    def __init__(self, turns: Turns, thread: str, before: Future[None] | None) -> None:
        self.done: Future[None] = Future()
        self._turns = turns
        self._thread = thread
        self._before = before
        self._is_over = False
        self.is_on_loop = False

    async def wait(self) -> None:
        """Wait until those before are done, in this thread or as a task."""
        if self._before is None or self._before.done():
            return
        if self.is_on_loop:
            await asyncio.shield(asyncio.wrap_future(self._before))
        else:
            self._before.result()

    def end(self) -> None:
        """Let the next one go on, when those before are done."""
        if self._is_over:
            return
        self._is_over = True
        if self._before is None:
            self._turns.end(self._thread, self)
        else:
            self._before.add_done_callback(lambda _: self._turns.end(self._thread, self))


class Turns:
    """The orders of all threads that something is being written to."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, Turn] = {}

    def take(self, thread: str) -> Turn:
        """Join the order of a thread; whoever takes a turn must end it."""
        with self._lock:
            before = self._last.get(thread)
            turn = self._last[thread] = Turn(self, thread, None if before is None else before.done)
            return turn

    def end(self, thread: str, turn: Turn) -> None:
        """Let the next one go on."""
        with self._lock:
            if self._last.get(thread) is turn:
                del self._last[thread]
        turn.done.set_result(None)


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _after_fork() -> None:
    for turns in list(_all):
        turns._reset()  # who was writing writes in the parent


os.register_at_fork(after_in_child=_after_fork)
