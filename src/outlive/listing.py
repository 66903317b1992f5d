"""Listing threads, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .backend import ThreadKey, ThreadRow
from .checkpoint import ThreadInfo
from .engine import Engine
from .info import describe_thread

_PAGE = 200


class Threads:
    """Pages of threads, one at a time. Nothing is held between pages."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        *,
        prefix: str = "",
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
        heads: bool = True,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._prefix = prefix
        self._filter = filter or {}
        self._left = limit
        self._after = after
        self._heads = heads
        self._page: list[ThreadRow] = []
        self._ended = False

    def __aiter__(self) -> AsyncIterator[ThreadInfo]:
        return self

    async def __anext__(self) -> ThreadInfo:
        while self._left is None or self._left > 0:
            row = await self.next_row()
            if row is None:
                break
            info = describe_thread(self._engine, ThreadKey.of(self._tenant, row.id), row)
            if all(info.metadata.get(key) == value for key, value in self._filter.items()):
                self._left = None if self._left is None else self._left - 1
                return info
        raise StopAsyncIteration

    async def next_row(self) -> ThreadRow | None:
        if not self._page and not self._ended:
            limit = _PAGE if self._left is None or self._filter else min(_PAGE, self._left)
            self._page = await self._engine.backend.threads(
                self._tenant, prefix=self._prefix, after=self._after, limit=limit, heads=self._heads
            )
            self._ended = len(self._page) < limit
        if not self._page:
            return None
        row = self._page.pop(0)
        self._after = row.id
        return row
