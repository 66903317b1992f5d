"""The clocks of this machine: wall time, and for leases one that counts since the boot and nobody can set."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

from outlive.backend.records import WALL, EntryRecord
from outlive.runtime.fork import call_in_child

_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's


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
    """Return wall time, and a clock for leases that also counts while the machine is suspended."""
    lease_ns = time.clock_gettime_ns(_LEASE_CLOCK) - _offset_ns()
    return Clock(time.time_ns() // 1000, lease_ns // 1000, boot_id())


def has_lapsed(entry: EntryRecord, now: Clock) -> bool:
    """Tell whether the lease of an entry has run out; one by another clock has."""
    if entry.clock == WALL:
        return entry.until <= now.now
    return entry.clock != now.id or entry.until <= now.lease


def lease_facts() -> dict[str, object]:
    """Return what `Backend.facts` says about the clock for leases."""
    now = clock()
    return {"lease_clock": now.id, "lease_clock_us": now.lease}


@functools.cache
def _offset_ns() -> int:
    """Return how far the lease clock is shifted here.

    A container with its own time namespace shares leases with processes outside.
    """
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            lines = [line.split() for line in file]
    except OSError:
        return 0
    shifts = {name: int(seconds) * 1_000_000_000 + int(nanos) for name, seconds, nanos in lines}
    return shifts.get("boottime", 0)


call_in_child(_offset_ns.cache_clear)  # a child may be in another namespace


@functools.cache
def boot_id() -> str:
    """Name the clock for leases: it starts again with the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
