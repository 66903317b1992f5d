"""Listing threads, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from outlive.backend import ThreadCursor, ThreadKey, ThreadQuery, ThreadRecord, escape
from outlive.errors import BadArgument, Corrupt
from outlive.runtime.wrong_mode import AsyncItems
from outlive.threads.engine import Engine
from outlive.threads.metadata import describe_thread
from outlive.values import ThreadInfo, matches

_PAGE = 200


class Threads(AsyncItems[ThreadInfo]):
    """Threads, page by page.

    With `damaged`, errors of damaged rows go there, and the listing continues.
    """

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        *,
        prefix: str = "",
        filter: dict[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
        newest: bool = False,
        before: ThreadCursor | None = None,
        heads: bool = True,
        damaged: list[Corrupt] | None = None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._prefix = prefix
        self._filter = filter or {}
        self._left = limit
        self._after = after
        self._newest = newest
        self._before = before  # the place of the last thread, if the newest come first
        self._heads = heads
        self._damaged = damaged
        self._is_near = False  # a damaged row is near: read one by one up to it
        self._page: list[ThreadRecord] = []
        self._ended = False

    def __aiter__(self) -> AsyncIterator[ThreadInfo]:
        return self

    async def __anext__(self) -> ThreadInfo:
        while self._left is None or self._left > 0:
            row = await self.next_row()
            if row is None:
                break
            info = describe_thread(self._engine, ThreadKey.of(self._tenant, row.id), row)
            if matches(info.metadata, self._filter):
                self._left = None if self._left is None else self._left - 1
                return info
        raise StopAsyncIteration

    async def next_row(self) -> ThreadRecord | None:
        while not self._page and not self._ended:
            limit = _PAGE if self._left is None or self._filter else min(_PAGE, self._left)
            await self._turn(1 if self._is_near else limit)
        if not self._page:
            return None
        row = self._page.pop(0)
        if self._newest:
            self._before = (row.updated_at, row.id)
        else:
            self._after = row.id
        return row

    async def _turn(self, limit: int) -> None:
        """Read the next page, or find the damaged row that prevents it."""
        try:
            self._page = await self._engine.backend.threads(
                ThreadQuery(
                    self._tenant,
                    prefix=self._prefix,
                    after=self._after,
                    limit=limit,
                    heads=self._heads,
                    newest=self._newest,
                    before=self._before,
                )
            )
            self._ended = len(self._page) < limit
        except Corrupt as error:
            if self._damaged is None or error.thread is None:
                raise
            if limit == 1 and self._newest:
                self._page, self._ended = await self._sorted(self._damaged), True
                return
            if limit == 1:
                if self._after is not None and escape(error.thread) <= escape(self._after):
                    raise  # the listing would not move: it would never end
                self._damaged.append(error)
                self._after = error.thread
            self._is_near = limit > 1

    async def _sorted(self, damaged: list[Corrupt]) -> list[ThreadRecord]:
        """Return the rest of the newest threads, read by id: nobody knows the time of a damaged row, to continue after it."""
        by_id = Threads(self._engine, self._tenant, prefix=self._prefix, heads=self._heads, damaged=damaged)
        rows = []
        while (row := await by_id.next_row()) is not None:
            if self._before is None or _place(row.updated_at, row.id) > _place(*self._before):
                rows.append(row)
        return sorted(rows, key=lambda row: _place(row.updated_at, row.id))


def _place(updated_at: int, id: str) -> tuple[int, str]:
    """Return what puts the newest threads first, those of one moment by id."""
    return -updated_at, escape(id)


async def choose_threads(
    engine: Engine, tenant: str, wanted: set[str] | None, since: int | None, damaged: list[Corrupt]
) -> list[str]:
    """Return the ids of threads, of all or of those that are wanted, which changed since a moment.

    Threads that cannot be read are left out; `damaged` gets the errors of those that are wanted.
    """
    broken: list[Corrupt] = []
    pages = Threads(engine, tenant, heads=False, damaged=broken)
    ids, missing = [], set(wanted or ())
    while (row := await pages.next_row()) is not None:
        missing.discard(row.id)
        if (wanted is None or row.id in wanted) and (since is None or row.updated_at >= since):
            ids.append(row.id)
    damaged += [error for error in broken if wanted is None or error.thread in wanted]
    if missing := missing - {error.thread for error in broken}:
        raise BadArgument(f"there is no thread {min(missing)!r}; see store.threads() for all threads")
    return ids
