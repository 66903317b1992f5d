"""How long stores take to answer."""

from __future__ import annotations

import time
from collections.abc import Mapping

from outlive.backend.entries import PAIR
from outlive.backend.protocol import Backend, EntryQuery
from outlive.backend.records import ThreadKey
from outlive.errors import StoreError, StoreUnavailable
from outlive.runtime.runtime import Deadline


async def ping(stores: Mapping[str, Backend], tenant: str, timeout_s: float | None) -> dict[str, float]:
    """Ask each store for one small record, one after the other; return the seconds that each took.

    Together they have so much time. Each is asked, also when another one does not answer; then
    StoreUnavailable names those that do not.
    """
    deadline, took_s, failures = Deadline(timeout_s), {}, []
    query = EntryQuery(
        tenant, PAIR, thread=ThreadKey.of(tenant, ""), limit=1
    )  # which most stores do not have
    for at, (name, backend) in enumerate(stores.items()):
        left_s = deadline.as_timeout_s()
        start = time.perf_counter()
        try:
            await backend.entries(query, timeout_s=None if left_s is None else left_s / (len(stores) - at))
        except StoreError as error:
            if len(stores) == 1:
                raise
            failures.append((name, error))
        took_s[name] = time.perf_counter() - start
    if failures:
        text = "; ".join(f"the {name} does not answer: {error}" for name, error in failures)
        raise StoreUnavailable(text) from failures[0][1]
    return took_s
