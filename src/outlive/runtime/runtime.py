"""What differs between sync and async stores: how coroutines run, time, locks, background work.

The core is written once, as `async def`. On the sync side every awaited method of a backend returns
without suspending, so `run_now` finishes a coroutine with a single `send(None)`: no event loop, no
thread, and a traceback that reads like a call. What the async side has instead is in `loop.py`.
"""

from __future__ import annotations

import contextvars
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outlive.runtime.fork import reset_in_child
from outlive.runtime.hands import hands
from outlive.runtime.platform import system

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, object]]
Undo = Callable[[T], Coroutine[Any, Any, None]]


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Finish a coroutine that never suspends and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a sync backend suspended")


class Deadline:
    """The moment until which a call must return."""

    __slots__ = ("_end", "timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Return the time that is left, 0 if it is over."""
        return float("inf") if self._end is None else max(0.0, self._end - time.monotonic())

    def extend(self, seconds: float) -> None:
        """Start counting again."""
        self._end = time.monotonic() + seconds

    def note_progress(self) -> None:
        """Note progress; a deadline for idle time starts again."""

    def as_timeout_s(self) -> float | None:
        """Return the timeout for the rest of the call; None means no limit."""
        return None if self._end is None else max(0.001, round(self._end - time.monotonic(), 3))


class Task(Protocol):
    """Background work that can be waited for."""

    async def wait(self, timeout_s: float | None = None) -> None: ...
    def has_ended(self) -> bool:
        """Tell whether this work has stopped, finished or not."""
        ...


class Hand(Task, Protocol):
    """Work of a caller that does not keep the process alive."""

    def cancel(self) -> bool:
        """End the work if it is a task; False: it is a thread, which nothing can end."""
        ...


class Signal(Protocol):
    """Something that can be waited for."""

    def set(self) -> None:
        """Wake those who wait; from any thread, and from a signal handler."""
        ...

    def is_set(self) -> bool: ...
    async def wait(self, timeout_s: float) -> None: ...


class Ticker(Protocol):
    """Work that is repeated at an interval."""

    def stop(self) -> None: ...


class Runtime(Protocol):
    """Time, locks and background work; a simulation has its own."""

    def now(self) -> int:
        """Return the wall clock in microseconds."""
        ...

    def check_loop(self) -> None:
        """Raise WrongLoop if the store is in use in another event loop."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; return at once if the time is over already."""
        ...

    def spawn(self, name: str, work: Work) -> Task:
        """Start `work` in the background. Threads and tasks get the name."""
        ...

    def hand(self, name: str, work: Work) -> Hand:
        """Start `work` in a thread or a task, for a caller that keeps track of it."""
        ...

    async def call(self, function: Callable[[], T]) -> T:
        """Call a function that may block: in a thread where there is an event loop."""
        ...

    def tick(self, name: str, interval_s: float, work: Work) -> Ticker:
        """Repeat `work` in the background until it is stopped.

        It does not keep the process alive. What it raises is shown as a warning, and it is repeated
        all the same.
        """
        ...

    def thread_ident(self) -> int | None:
        """Return the calling thread, if work belongs to threads."""
        ...

    def bell(self) -> Signal:
        """Return a signal that one task or thread waits for and another sets."""
        ...

    async def shielded(self, work: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        """Finish `work` even if the caller is cancelled; then `undo` what it returned, and raise the cancellation."""
        ...

    async def each(self, name: str, works: Sequence[Work], limit: int) -> None:
        """Do all works, at most `limit` at a time, in threads or in tasks.

        With a limit of 1 the caller does them itself. After an error no further work starts, and
        the error is raised after the running ones have ended. If the caller is cancelled or
        interrupted, tasks are cancelled too, and threads are not waited for.
        """
        ...

    async def call_within(self, timeout_s: float, function: Callable[[], Any]) -> tuple[bool, Any]:
        """Call a function; return (True, what it returned), or (False, None) when the time is up.

        A coroutine is cancelled then. Other functions run in a thread that nothing can stop: it
        continues alone, and what it returns or raises later is dropped.
        """
        ...

    def lock(self) -> AbstractContextManager[Any]:
        """Return a lock for a few lines that never wait."""
        ...

    def mutex(self) -> AbstractAsyncContextManager[Any]:
        """Return a lock that may be held while waiting."""
        ...


def warn_of_failure(name: str, error: Exception) -> None:
    """Report an error of background work, which no caller waits for."""
    import traceback  # slow to import

    text = "".join(traceback.format_exception(error)).rstrip()
    try:
        warnings.warn(f"{name} failed, and will be tried again: {text}", RuntimeWarning, stacklevel=2)
    except RuntimeWarning:  # warnings are errors in this process: the work must not end by that
        sys.stderr.write(f"{name} failed, and will be tried again: {text}\n")


class _ThreadTask:
    def __init__(self, name: str, work: Work) -> None:
        self._thread = threading.Thread(target=lambda: run_now(work()), name=name)
        self._thread.start()

    async def wait(self, timeout_s: float | None = None) -> None:
        self._thread.join(timeout_s)

    def has_ended(self) -> bool:
        return not self._thread.is_alive()


class _ThreadTicker:
    def __init__(self, name: str, interval_s: float, work: Work) -> None:
        self._stop = threading.Event()
        threading.Thread(target=self._run, args=(name, interval_s, work), name=name, daemon=True).start()

    def _run(self, name: str, interval_s: float, work: Work) -> None:
        while not self._stop.wait(interval_s):
            try:
                run_now(work())
            except Exception as error:  # noqa: BLE001  # nobody waits for it, and the next time may succeed
                warn_of_failure(name, error)

    def stop(self) -> None:
        self._stop.set()


class _ThreadBell:
    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float) -> None:
        system.wait_for_event(self._event, timeout_s)


def call_in_thread(function: Callable[[], Any]) -> Future[Any]:
    """Call a function in a thread of its own, which does not keep the process alive."""
    from concurrent.futures import Future  # slow to import, and few steps have a timeout

    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # a caller that stops waiting cannot cancel it
    context = contextvars.copy_context()

    def work() -> None:
        try:
            future.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits, if it still does
            future.set_exception(error)

    threading.Thread(target=work, name="outlive-step", daemon=True).start()
    return future


class _ThreadMutex:
    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *error: object) -> None:
        self._lock.release()


def _in_threads(name: str, works: Sequence[Work], limit: int) -> None:
    todo, errors, lock = list(reversed(works)), list[BaseException](), threading.Lock()

    def take() -> Work | None:
        with lock:
            return todo.pop() if todo and not errors else None

    def work_off() -> None:
        while (work := take()) is not None:
            try:
                run_now(work())
            except BaseException as error:  # noqa: BLE001  # raised in the thread that waits
                errors.append(error)

    # Daemons: Ctrl-C in the thread that waits must end the process, whatever the other threads do.
    threads = [threading.Thread(target=work_off, name=name, daemon=True) for _ in range(limit)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    finally:
        with lock:
            todo.clear()
    if errors:
        raise errors[0]


class SyncRuntime:
    """The runtime of `outlive.open`."""

    def now(self) -> int:
        return time.time_ns() // 1000

    def check_loop(self) -> None:
        """Do nothing: a sync store is used from any thread."""

    async def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))  # noqa: ASYNC251  # the sync side blocks

    def spawn(self, name: str, work: Work) -> Task:
        return _ThreadTask(name, work)

    def hand(self, name: str, work: Work) -> Hand:
        return hands.start(name, lambda: run_now(work()))

    async def call(self, function: Callable[[], T]) -> T:
        return function()

    def tick(self, name: str, interval_s: float, work: Work) -> Ticker:
        return _ThreadTicker(name, interval_s, work)

    def thread_ident(self) -> int | None:
        return threading.get_ident()

    def bell(self) -> Signal:
        return _ThreadBell()

    async def shielded(self, work: Coroutine[Any, Any, T], undo: Undo[T] | None = None) -> T:
        return await work

    async def each(self, name: str, works: Sequence[Work], limit: int) -> None:
        if limit == 1:
            for work in works:
                await work()
        else:
            _in_threads(name, works, limit)

    async def call_within(self, timeout_s: float, function: Callable[[], Any]) -> tuple[bool, Any]:
        future = call_in_thread(function)
        try:
            return True, future.result(timeout_s)
        except TimeoutError:
            if future.done():  # its own
                return True, future.result()
            return False, None

    def lock(self) -> AbstractContextManager[Any]:
        return threading.Lock()

    def mutex(self) -> AbstractAsyncContextManager[Any]:
        return _ThreadMutex()


class _Ids:
    """Time-ordered ids (UUID version 7), strictly increasing within a process."""

    def __init__(self) -> None:
        self._last = 0
        self.after_fork_in_child()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Start with new randomness: a forked child must not repeat the ids of its parent."""
        self._lock = threading.Lock()
        self._random = random.Random(os.urandom(32))

    def mint(self) -> str:
        with self._lock:
            # 48 bits of milliseconds and 12 of their fraction, always increasing: ids sort by
            # creation.
            stamp = (time.time_ns() << 12) // 1_000_000
            self._last = stamp = max(stamp, self._last + 1)
            tail = self._random.getrandbits(62)
        value = (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62
        text = f"{value | tail:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_ids = _Ids()
new_id = _ids.mint
