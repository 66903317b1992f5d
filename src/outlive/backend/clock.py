"""The clocks of this machine: wall time, and for leases one that counts since the boot and nobody can set."""

from __future__ import annotations

import time

from outlive.backend.records import WALL, EntryRecord
from outlive.dataclass import dataclass
from outlive.runtime.platform import system

_UNKNOWN = "unknown"  # as the name of a boot


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


def clock() -> Clock:
    """Return wall time, and a clock for leases that also counts while the machine is suspended.

    Where the system does not name its boots, wall time is that clock. One that starts again
    unnoticed would hold a lease of the last boot for as long as the machine was up before.
    """
    now, boot = time.time_ns() // 1000, boot_id()
    return Clock(now, now if boot == _UNKNOWN else system.lease_clock_ns() // 1000, boot)


def has_lapsed(entry: EntryRecord, now: Clock) -> bool:
    """Tell whether the lease of an entry has run out; one by another clock has."""
    if entry.clock == WALL:
        return entry.until <= now.now
    return entry.clock != now.id or entry.until <= now.lease


def lease_facts() -> dict[str, object]:
    """Return what `Backend.facts` says about the clock for leases."""
    now = clock()
    return {"lease_clock": now.id, "lease_clock_us": now.lease}


def boot_id() -> str:
    """Name the clock for leases: it starts again with the machine."""
    return system.boot_id() or _UNKNOWN
