"""One order per thread: calls write to it in the order in which they were made.

LangGraph hands the writes of a step and the checkpoint after them to a pool, one after the other, and does
not wait in between. Each call takes its turn when it begins. It stores nothing before the calls ahead of it
are stored, or are ahead of it in the store's own queue: a checkpoint is never stored before the writes that
led to it. Writes that are in the queue together share one transaction. Threads, and tasks of any event loop, share the same order.

One case has no order: a sync call that blocks an event loop while tasks of that very loop are ahead of it.
They continue only when the loop does, so the call does not wait for them. It may have been made on the loop
itself, or by a thread that the loop waits for (a graph that is invoked there). A loop that does not answer
for a while is taken to be blocked.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future

from outlive.runtime.fork import reset_in_child

_BLOCKED_S = 1.0  # a loop that does not answer for so long is blocked


class Turn:
    """A place in the order of a thread."""

    def __init__(
        self, order: WriteOrder, thread: str, is_first: bool, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.thread = thread
        self.is_over = False
        self.has_come: Future[None] | None = None if is_first else Future()  # None: it came at once
        self.loop = loop  # the loop on which the call runs as a task
        self._order = order

    async def wait(self) -> None:
        """Wait until the calls ahead are over: block this thread, or await."""
        if self.has_come is None or self.has_come.done():
            return
        if self.loop is not None:
            await asyncio.shield(asyncio.wrap_future(self.has_come))
        else:
            self._wait_here(self.has_come)

    def _wait_here(self, has_come: Future[None]) -> None:
        here = _running_loop()
        while (needed := self._order.loop_ahead(self, here)) is not None:
            if needed is here:
                return
            ping = self._order.ping(needed)
            try:
                has_come.result(ping.left_s())
                return
            except TimeoutError:
                if not ping.is_answered:
                    return
        has_come.result()

    def end(self) -> None:
        """Let the next call continue, when those ahead are over."""
        if not self.is_over:
            self._order.end(self)


class WriteOrder:
    """The turns of all threads that are being written to."""

    def __init__(self) -> None:
        self.after_fork_in_child()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Start without turns: the threads that were writing exist only in the parent."""
        self._lock = threading.Lock()
        self.starting = threading.Lock()  # held while a turn is taken and its work is submitted
        self._lines: dict[str, deque[Turn]] = {}
        self._pings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ping] = weakref.WeakKeyDictionary()

    def take(self, thread: str, loop: asyncio.AbstractEventLoop | None = None) -> Turn:
        """Join the order of a thread, as a task of a loop or not. The caller must end the turn."""
        with self._lock:
            line = self._lines.get(thread)
            if line is None:
                line = self._lines[thread] = deque()
            turn = Turn(self, thread, not line, loop)
            line.append(turn)
            return turn

    def end(self, turn: Turn) -> None:
        """Let the next call continue."""
        with self._lock:
            turn.is_over = True
            line = self._lines.get(turn.thread)
            if line is None or not line[0].is_over:
                return
            while line and line[0].is_over:
                line.popleft()
            following = line[0].has_come if line else None
            if not line:
                del self._lines[turn.thread]
        if following is not None:
            following.set_result(None)

    def loop_ahead(
        self, turn: Turn, preferred: asyncio.AbstractEventLoop | None
    ) -> asyncio.AbstractEventLoop | None:
        """Return a loop with a task ahead of a turn, `preferred` if it is one of them; None when there is none."""
        loop = None
        with self._lock:
            for ahead in self._lines.get(turn.thread, ()):
                if ahead is turn:
                    break
                if ahead.loop is not None and not ahead.is_over:
                    loop = ahead.loop
                    if loop is preferred:
                        break
        return loop

    def ping(self, loop: asyncio.AbstractEventLoop) -> _Ping:
        """Ask a loop to answer, unless it was asked already."""
        with self._lock:
            ping = self._pings.get(loop)
            if ping is None or ping.is_answered:
                ping = self._pings[loop] = _Ping()
                try:
                    loop.call_soon_threadsafe(ping.answer)
                except RuntimeError:  # it was closed
                    ping.until = 0.0
        return ping


class _Ping:
    """A call that a loop answers as soon as it runs."""

    def __init__(self) -> None:
        self.is_answered = False
        self.until = time.monotonic() + _BLOCKED_S

    def answer(self) -> None:
        self.is_answered = True

    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
