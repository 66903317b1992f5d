"""State that sessions share: of an app, and of a user of it. Each is a thread of its own."""

from __future__ import annotations

import random
from typing import Any

from outlive.errors import HeadMoved
from outlive.store import AsyncStore
from outlive.values import NEW

_ATTEMPTS = 200  # that may lose against others; each time at least one of them succeeds
_PAUSE_S = 0.002


async def read_scope(store: AsyncStore, thread_id: str) -> dict[str, Any]:
    """Return the shared state of a scope."""
    state: dict[str, Any] | None = await store.thread(thread_id).load()
    return state or {}


async def merge_scope(store: AsyncStore, thread_id: str, delta: dict[str, Any]) -> None:
    """Change keys of a scope. Two processes at once lose nothing; the same change again is the same state."""
    thread = store.thread(thread_id)
    for attempt in range(_ATTEMPTS):
        stored = await thread._read(None, None, None)
        state = {} if stored is None else store._engine.unpack(thread._key, stored[0].record.id, stored[1])
        head = NEW if stored is None else stored[0].record.id
        try:
            await thread.save({**state, **delta}, expect=head, source="update")
            return
        except HeadMoved:
            if attempt == _ATTEMPTS - 1:
                raise
        await store._engine.runtime.sleep(random.uniform(0, _PAUSE_S * min(attempt, 20)))
