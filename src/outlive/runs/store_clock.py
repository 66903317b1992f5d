"""The wall clock of the store, as this process estimates it.

A timer is due by the clock of the store: of the server on PostgreSQL and Redis, of this machine for
a local store. A process measures how far its own clock is off, now and then. An estimate decides
where in the index a timer is, and which timers are worth a try. Whether one is due is decided by
the store, in the commit that fires it.
"""

from __future__ import annotations

import time
import weakref

from outlive.threads.engine import Engine

_MEASURE_S = 300.0
_offsets: weakref.WeakKeyDictionary[Engine, tuple[int, float]] = weakref.WeakKeyDictionary()


async def store_now(engine: Engine) -> int:
    """Return the time of the store, in microseconds since 1970."""
    known = _offsets.get(engine)
    if known is None or time.monotonic() - known[1] > _MEASURE_S:
        known = _offsets[engine] = (await _measure(engine), time.monotonic())
    return engine.runtime.now() + known[0]


async def _measure(engine: Engine) -> int:
    before = engine.runtime.now()
    facts = await engine.backend.facts()
    after = engine.runtime.now()
    there = facts.get("lease_clock_us")
    # A local store counts leases since the boot; its wall clock is the one of this machine.
    if not isinstance(there, int) or there < 1_000_000_000_000_000:
        return 0
    return there - (before + after) // 2
