"""The sync API of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.runs.worker import AsyncWorker


class Worker:
    """Made by `store.worker(handlers)`. `run()` returns after `stop()` or `drain()`, which another thread calls."""

    def __init__(self, worker: AsyncWorker) -> None:
        self._worker = worker

    def __repr__(self) -> str:
        return repr(self._worker).replace("<AsyncWorker", "<Worker", 1)

    @property
    def id(self) -> str:
        """The id of this worker, as `store.workers()` shows it."""
        return self._worker.id

    @property
    def busy(self) -> int:
        """The number of runs that it works on."""
        return self._worker.busy

    def run(self) -> None:
        """Work until `stop()` or `drain()` is called. While the store cannot be reached, the pauses grow.

        In the main thread, SIGTERM drains it, unless the program has a signal handler of its own.
        """
        run_now(self._worker.run())

    def stop(self) -> None:
        """Make `run()` return after the runs that it is working on. From any thread."""
        self._worker.stop()

    def drain(self, grace_s: float | None = None) -> None:
        """Claim no more runs, and make `run()` return: after `grace_s` the runs that have not ended are given back.

        Without `grace_s`, that of the worker. From any thread, and from a signal handler.
        """
        self._worker.drain(grace_s)
