"""One order per thread: who comes first writes first.

LangGraph hands the writes of a step and the checkpoint after them to a pool, one after the other, and does not wait in
between. Each call takes its turn when it begins, and stores nothing before the ones before it are stored or stand before it in
the store's own queue: a checkpoint is never stored before the writes that led to it. What can be prepared is prepared while
it waits, and writes that stand in a queue together share one transaction. Threads and tasks of any event loop stand in
the same line.

Writes are nearly always followed by their checkpoint within a millisecond, and an fsync for both costs as much as one. So
when a writer saw the next one come before it was stored, those after it linger in the store's queue for a moment,
and the next one stores both. When two in a row lingered in vain, nobody does any more: a program that calls the saver step
by step does not wait.

One case has no order: a sync call that stops an event loop, while tasks of that very loop are before it. They go on only when
the loop does, so it does not wait for them. Such a call may have been made on the loop itself, or by a thread that the loop waits for
(a graph that is invoked there): a loop that does not answer for a while stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

_LINGER_S = 0.002
_HOPE = 2  # of so many in a row, one is followed
_STILL_S = 1.0  # after which a loop that does not answer stands still


class Turn:
    """A place in the order of one thread."""

    def __init__(
        self, turns: Turns, thread: str, is_first: bool, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.thread = thread
        self.is_over = False
        self.is_followed = False  # another turn was taken before this one was stored
        self.has_come: Future[None] | None = None if is_first else Future()  # None: it is there
        self.loop = loop  # on which it runs as a task
        self._turns = turns

    async def wait(self) -> None:
        """Wait until those before are over, in this thread or as a task."""
        if self.has_come is None or self.has_come.done():
            return
        if self.loop is not None:
            await asyncio.shield(asyncio.wrap_future(self.has_come))
        else:
            self._wait_here(self.has_come)

    def _wait_here(self, has_come: Future[None]) -> None:
        here = _running_loop()
        while (needed := self._turns.loop_before(self, here)) is not None:
            if needed is here:
                return
            call = self._turns.call(needed)
            try:
                has_come.result(call.left_s())
                return
            except TimeoutError:
                if not call.is_answered:
                    return
        has_come.result()

    @contextlib.contextmanager
    def storing(self) -> Iterator[float]:
        """Say how long what is stored now may wait for what comes next, and notice whether anything came."""
        group_wait_s = self._turns.begin_storing(self)
        try:
            yield group_wait_s
        finally:
            self._turns.end_storing(self)

    def end(self) -> None:
        """Let the next one go on, when those before are over."""
        if not self.is_over:
            self._turns.end(self)


class Turns:
    """The orders of all threads that something is being written to."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self.starting = threading.Lock()  # held by who takes a turn and begins its work in one go
        self._lines: dict[str, deque[Turn]] = {}
        self._storing: set[Turn] = set()
        self._hope = 0  # how many more may linger, when nobody comes
        self._calls: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Call] = weakref.WeakKeyDictionary()

    def take(self, thread: str, loop: asyncio.AbstractEventLoop | None = None) -> Turn:
        """Join the order of a thread, as a task of a loop or not; whoever takes a turn must end it."""
        with self._lock:
            for other in self._storing:
                other.is_followed |= other.thread == thread
            line = self._lines.get(thread)
            if line is None:
                line = self._lines[thread] = deque()
            turn = Turn(self, thread, not line, loop)
            line.append(turn)
            return turn

    def end(self, turn: Turn) -> None:
        """Let the next one go on."""
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

    def begin_storing(self, turn: Turn) -> float:
        """Note that a turn is being stored; return how long it may wait for the next one."""
        with self._lock:
            self._storing.add(turn)
            turn.is_followed = self._lines[turn.thread][-1] is not turn
            return _LINGER_S if self._hope or turn.is_followed else 0.0

    def end_storing(self, turn: Turn) -> None:
        """Learn whether anybody came meanwhile."""
        with self._lock:
            self._storing.discard(turn)
            self._hope = _HOPE if turn.is_followed else max(0, self._hope - 1)

    def loop_before(
        self, turn: Turn, first: asyncio.AbstractEventLoop | None
    ) -> asyncio.AbstractEventLoop | None:
        """Return a loop that must go on before a turn comes, `first` if it is one of them; None when there is none."""
        found = None
        with self._lock:
            for before in self._lines.get(turn.thread, ()):
                if before is turn:
                    break
                if before.loop is not None and not before.is_over:
                    found = before.loop
                    if found is first:
                        break
        return found

    def call(self, loop: asyncio.AbstractEventLoop) -> _Call:
        """Ask a loop to answer; one question at a time."""
        with self._lock:
            call = self._calls.get(loop)
            if call is None or call.is_answered:
                call = self._calls[loop] = _Call()
                try:
                    loop.call_soon_threadsafe(call.answer)
                except RuntimeError:  # it was closed, and goes on no more
                    call.until = 0.0
        return call


class _Call:
    """A question to a loop whether it goes on."""

    def __init__(self) -> None:
        self.is_answered = False
        self.until = time.monotonic() + _STILL_S

    def answer(self) -> None:
        self.is_answered = True

    def left_s(self) -> float:
        return max(0.0, self.until - time.monotonic())


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_all: weakref.WeakSet[Turns] = weakref.WeakSet()


def _after_fork() -> None:
    for turns in list(_all):
        turns._reset()  # who was writing writes in the parent


os.register_at_fork(after_in_child=_after_fork)
