"""`import_langgraph` for programs that run on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Literal

from langgraph.checkpoint.serde.base import SerializerProtocol

from outlive.adapters.langgraph.importer.importer import Moved, Progress, import_langgraph
from outlive.adapters.langgraph.values.user_types import Name
from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.sync.facades import Store


class _Stopped(Exception):
    """Whoever waited for it was cancelled."""


async def aimport_langgraph(
    source_url: str,
    target: AsyncStore | Store | str,
    *,
    types: Iterable[type | Name] = (),
    serde: SerializerProtocol | None = None,
    threads: Iterable[str] | None = None,
    progress: Progress | None = None,
    on_problem: Literal["stop", "skip"] = "stop",
    verify: bool = True,
    dry_run: bool = False,
) -> Moved:
    """Move a database as `import_langgraph` does, in a worker thread; `progress` is called there.

    When it is cancelled it stops at the next checkpoint, and only then raises. What was moved stays; it can be repeated.
    """
    stop = threading.Event()

    def tell(done: int, total: int | None) -> None:
        if stop.is_set():
            raise _Stopped
        if progress is not None:
            progress(done, total)

    def work() -> Moved:
        given = _sync_sibling(target) if isinstance(target, AsyncStore) else target
        try:
            return import_langgraph(
                source_url, given, types=types, serde=serde, threads=threads,
                progress=tell, on_problem=on_problem, verify=verify, dry_run=dry_run,
            )  # fmt: skip
        finally:
            if given is not target and isinstance(given, Store):
                given.close()

    moving = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(moving)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([moving])
        if not moving.cancelled():
            moving.exception()  # it was seen
        raise


def _sync_sibling(store: AsyncStore) -> Store:
    """Open the same store for a thread."""
    if store._sync_sibling is None:
        raise BadArgument("the target was not opened by outlive.open_async; give its URL")
    return Store(store._sync_sibling())
