"""The clock of this machine for leases: it counts since the boot, and nobody can set it."""

from __future__ import annotations

import functools
import time

from outlive.runtime.fork import call_in_child

_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the former is Linux's


def lease_clock_us() -> int:
    """Return microseconds that also count while the machine is suspended."""
    return (time.clock_gettime_ns(_LEASE_CLOCK) - _offset_ns()) // 1000


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
