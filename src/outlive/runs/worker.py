"""A loop that recovers dead runs until it is stopped."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from outlive.errors import StoreError
from outlive.runs.recovery import Recovered
from outlive.runtime.runtime import Runtime

_LONGEST_S = 60.0


class AsyncWorker:
    """Made by `store.worker(handlers)`. `run()` returns after `stop()`, or when its task is cancelled."""

    def __init__(
        self,
        runtime: Runtime,
        recover: Callable[[], Awaitable[Recovered]],
        interval_s: float,
        on_report: Callable[[Recovered], None] | None,
    ) -> None:
        self._recover = recover
        self._interval_s = interval_s
        self._on_report = on_report
        self._bell = runtime.bell()

    def __repr__(self) -> str:
        state = "stopped" if self._bell.is_set() else f"every {self._interval_s:g} s"
        return f"<{type(self).__name__} {state}>"

    async def run(self) -> None:
        """Recover dead runs, wait, and repeat, until `stop()` is called. While the store cannot be reached, the pauses grow."""
        failures = 0
        while not self._bell.is_set():
            try:
                report = await self._recover()
            except StoreError:
                failures += 1
            else:
                failures = 0
                if self._on_report is not None:
                    self._on_report(report)
            pause_s = min(_LONGEST_S, self._interval_s * 2**failures)
            await self._bell.wait(pause_s * random.uniform(0.8, 1.2))

    def stop(self) -> None:
        """Make `run()` return after the runs that it is resuming."""
        self._bell.set()
