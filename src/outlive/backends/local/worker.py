"""The thread that runs the functions of a local backend for an event loop.

A queue leads to it, and one call of the loop leads back: half of what an executor and its futures
cost. The thread starts with the first job. It ends when its owner is closed or collected; when the
interpreter exits, it first finishes the jobs that it has.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

Work = Callable[[], Any]
Deliver = Callable[[Any, BaseException | None], object]  # the result, or what the work has raised
_Jobs = queue.SimpleQueue[tuple[asyncio.AbstractEventLoop, Work, Deliver] | None]


class Worker:
    """One thread, which does one job after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: _Jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # The thread holds the queue, not the worker: an owner that is forgotten is collected.
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def do(self, loop: asyncio.AbstractEventLoop, work: Work, deliver: Deliver) -> None:
        """Call `work` in the thread, then `deliver` in the loop; called from one loop at a time."""
        if self._thread is None:
            # A daemon: `_finish_all` waits for it, after the program's own threads have ended.
            self._thread = threading.Thread(target=_run, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
            _workers.add(self)
        self._jobs.put((loop, work, deliver))

    def stop(self) -> None:
        """End the thread after the jobs that it has."""
        self._jobs.put(None)

    def finish(self) -> None:
        """Wait for the jobs, and end the thread."""
        thread, self._thread = self._thread, None  # a later job would start another one
        if thread is not None:
            self.stop()
            thread.join()


def _run(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        loop, work, deliver = job
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  # raised in the task that waits; the thread goes to the next job
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits there
            loop.call_soon_threadsafe(deliver, result, failure)
        del job, loop, work, deliver, result, failure  # nothing is kept alive while the thread waits


def _finish_all() -> None:
    for worker in list(_workers):
        worker.finish()


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()
atexit.register(_finish_all)
