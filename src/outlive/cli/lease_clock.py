"""The clock that times leases: how long a lease still lasts, and how far a server's clock is off."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.cli.lookup import backend_of
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.sync.store import Store


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """The time by the clock that times leases."""

    now: int  # microseconds
    id: str | None  # of a clock of this machine
    skew_s: float | None = None  # how far a server's clock is ahead of ours
    trip_s: float | None = None  # the round trip to the server

    @classmethod
    def of(cls, store: Store) -> LeaseClock:
        backend = backend_of(store)
        if backend.name in ("postgresql", "redis"):
            return cls._of_server(backend)
        from outlive.backends.rules.clock import clock

        here = clock()
        return cls(here.lease, here.id)

    @classmethod
    def _of_server(cls, backend: Any) -> LeaseClock:
        ask = _ask_postgres if backend.name == "postgresql" else _ask_redis
        run_now(ask(backend))  # the first call opens a connection
        before = time.time_ns() // 1000
        now = run_now(ask(backend))
        trip = time.time_ns() // 1000 - before
        return cls(now, None, (now - before - trip / 2) / 1e6, trip / 1e6)

    def left_s(self, run: RunInfo) -> float | None:
        """Return how long the lease of a run still lasts; 0 or less when it has expired."""
        entry = run._entry
        if entry is None or not entry.until:
            return None
        if self.id is not None and entry.clock != self.id:
            return 0.0  # the machine has booted since
        return (entry.until - self.now) / 1e6

    def standing(self, run: RunInfo) -> str:
        """Return the status of a run; a running one is live or dead."""
        if run.status != "running":
            return run.status
        left_s = self.left_s(run)
        is_gone = run.owner is not None and run.owner.is_gone()
        return "dead" if is_gone or left_s is None or left_s <= 0 else "live"


async def _ask_postgres(backend: Any) -> int:
    ((micros,),) = await backend._ask("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
    from outlive.backends.postgres.rows import to_number

    return to_number(micros)


async def _ask_redis(backend: Any) -> int:
    replies = await backend.session.ask_each_node(("TIME",))
    seconds, micros = replies[0]
    return int(seconds) * 1_000_000 + int(micros)
