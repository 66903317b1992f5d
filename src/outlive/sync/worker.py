"""The sync API of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.runs.worker import AsyncWorker


class Worker:
    """Made by `store.worker(handlers)`. `run()` returns after `stop()`, which another thread calls."""

    def __init__(self, worker: AsyncWorker) -> None:
        self._worker = worker

    def __repr__(self) -> str:
        return repr(self._worker).replace("<AsyncWorker", "<Worker", 1)

    def run(self) -> None:
        """Recover dead runs, wait, and repeat, until `stop()` is called. While the store cannot be reached, the pauses grow."""
        run_now(self._worker.run())

    def stop(self) -> None:
        """Make `run()` return after the runs that it is resuming."""
        self._worker.stop()
