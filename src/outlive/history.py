"""The history of a thread, page by page. Nothing is held between pages, and no state is read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from .backend import CheckpointRecord, Cursor, ThreadKey
from .checkpoint import Checkpoint
from .engine import Engine
from .errors import CheckpointMissing

_PAGE = 100


class History:
    """Checkpoints, newest first, one at a time."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        namespace: str,
        *,
        settle: Callable[[ThreadKey], Awaitable[None]],
        limit: int | None,
        before: str | None,
        filter: dict[str, Any],
        run: str | None,
        all_namespaces: bool,
    ) -> None:
        self._engine = engine
        self._key = key
        self._namespace = namespace
        self._settle = settle
        self._left = limit
        self._before = before
        self._filter = filter
        self._run = run
        self._all = all_namespaces
        self._cursor: Cursor | None = None
        self._page: list[CheckpointRecord] = []
        self._started = self._ended = False

    def __aiter__(self) -> AsyncIterator[Checkpoint]:
        return self

    async def __anext__(self) -> Checkpoint:
        while self._left is None or self._left > 0:
            if not self._page and not await self._turn():
                break
            checkpoint = self._engine.checkpoint(self._key, self._page.pop(0))
            if all(checkpoint.metadata.get(key) == value for key, value in self._filter.items()):
                self._left = None if self._left is None else self._left - 1
                return checkpoint
        raise StopAsyncIteration

    async def _turn(self) -> bool:
        """Read the next page."""
        if self._ended:
            return False
        if not self._started:
            await self._start()
        limit = _PAGE if self._left is None or self._filter else min(_PAGE, self._left)
        namespace = None if self._all else self._namespace
        _, self._page = await self._engine.backend.history(
            self._key, namespace, before=self._cursor, limit=limit, run=self._run
        )
        self._ended = len(self._page) < limit
        self._cursor = self._page[-1].order if self._page else None
        return bool(self._page)

    async def _start(self) -> None:
        self._started = True
        await self._settle(self._key)
        if self._before is not None:
            reading = await self._engine.backend.read(self._key, self._namespace, self._before, chunks=False)
            if reading.record is None:
                raise CheckpointMissing(self._key.id, self._before)
            self._cursor = reading.record.order
