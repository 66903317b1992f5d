"""The moment of a commit, by the clocks of this machine, and the number of a new generation."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from outlive.backend import WALL, EntryRecord
from outlive.runtime.lease_clock import boot_id, lease_clock_us


@dataclass(slots=True)
class Clock:
    """The moment of a commit: `now` stamps records; `lease` never jumps while `id` is the same."""

    now: int
    lease: int
    id: str

    def end_of(self, lease_s: float, clock: str) -> tuple[int, str]:
        """Return when a lease ends that begins now, and by which clock."""
        if clock == WALL:
            return self.now + int(lease_s * 1e6), WALL
        return self.lease + int(lease_s * 1e6), self.id


def new_generation() -> int:
    """Return a new random generation: a thread created again never looks like the one before."""
    return int.from_bytes(os.urandom(8)) >> 1


def clock() -> Clock:
    """Return wall time, and a clock for leases that runs during suspension and nobody can set."""
    return Clock(time.time_ns() // 1000, lease_clock_us(), boot_id())


def lease_facts() -> dict[str, object]:
    """Return what `Backend.facts` says about the clock for leases."""
    now = clock()
    return {"lease_clock": now.id, "lease_clock_us": now.lease}


def has_lapsed(entry: EntryRecord, now: Clock) -> bool:
    """Tell whether the lease of an entry has run out; one by another clock has."""
    if entry.clock == WALL:
        return entry.until <= now.now
    return entry.clock != now.id or entry.until <= now.lease
