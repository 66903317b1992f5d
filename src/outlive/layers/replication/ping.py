"""Ping: whether a store answers, and how fast."""

from __future__ import annotations

import time
from collections.abc import Mapping

from outlive.backend import Backend
from outlive.errors import StoreError, StoreUnavailable
from outlive.layers.replication.pair import read_pair_record
from outlive.runtime.runtime import Deadline


async def ping(stores: Mapping[str, Backend], tenant: str, timeout_s: float | None) -> dict[str, float]:
    """Ask each store for one small record, one after the other; return the seconds that each took.

    Together they have so much time. Each is asked, also when another one does not answer; then StoreUnavailable names those that do not.
    """
    deadline, took_s, failures = Deadline(timeout_s), {}, []
    for at, (name, backend) in enumerate(stores.items()):
        left_s = deadline.remaining_s()
        start = time.perf_counter()
        try:
            await read_pair_record(backend, tenant, None if left_s is None else left_s / (len(stores) - at))
        except StoreError as error:
            if len(stores) == 1:
                raise
            failures.append((name, error))
        took_s[name] = time.perf_counter() - start
    if failures:
        said = "; ".join(f"the {name} does not answer: {error}" for name, error in failures)
        raise StoreUnavailable(said) from failures[0][1]
    return took_s
