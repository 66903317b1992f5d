"""The clock that times leases: how long a lease still lasts, and how far a server's clock is off."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outlive.cli.lookup import facts_of

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.sync.store import Store


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """The time by the clock that times leases."""

    now: int  # microseconds
    id: str | None  # of a clock of this machine
    skew_s: float | None = None  # how far a server's clock is ahead of ours

    @classmethod
    def of(cls, store: Store) -> LeaseClock:
        before_us = time.time_ns() // 1000
        facts = facts_of(store)
        now_us = facts["lease_clock_us"]
        if "lease_clock" in facts:
            return cls(now_us, facts["lease_clock"])
        middle_us = (before_us + time.time_ns() // 1000) / 2
        return cls(now_us, None, (now_us - middle_us) / 1e6)

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
