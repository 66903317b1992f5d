"""The clock that times leases: how long a lease still lasts, and how far a server's clock is off."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from outlive.dataclass import dataclass
from outlive.values import moment

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.view.opened_store import OpenedStore


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """The time by the clock that times leases."""

    now: dt.datetime
    skew_s: float | None = None  # how far a server's clock is ahead of ours

    @classmethod
    def of(cls, store: OpenedStore) -> LeaseClock:
        before = dt.datetime.now(dt.UTC)
        facts = store.facts()
        after = dt.datetime.now(dt.UTC)
        if "lease_clock" in facts:  # a clock of this machine
            return cls(after)
        now = moment(facts["lease_clock_us"])
        return cls(now, (now - before - (after - before) / 2).total_seconds())

    def left_s(self, run: RunInfo) -> float:
        """Return how long the lease of a run still lasts; 0 or less when it has expired."""
        expires_at = run.lease_expires_at  # None: there is no lease, or one from before this machine booted
        return 0.0 if expires_at is None else (expires_at - self.now).total_seconds()

    def standing(self, run: RunInfo) -> str:
        """Return the status of a run; a running one is live or dead."""
        if run.status != "running":
            return run.status
        is_gone = run.owner is not None and run.owner.is_gone()
        return "dead" if is_gone or self.left_s(run) <= 0 else "live"
