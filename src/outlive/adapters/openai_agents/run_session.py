"""The conversation of a run that may be started again."""

from __future__ import annotations

from typing import Any, cast

from agents import SessionSettings, TResponseInputItem

from outlive.adapters.common.current import Work
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.thread_list import ThreadList
from outlive.store import AsyncStore


class RunSession:
    """The conversation as a run sees it: as it was when the run began, and what this attempt has added.

    Each addition is saved under a number of its own, so a later attempt does not repeat it. What is
    popped stays in the history: an addition that was deleted there would be made again.
    """

    def __init__(self, current: Work) -> None:
        self.session_settings: SessionSettings | None = None
        self.session_id = current.run.info.thread
        self._current = current
        self._items = ThreadList(self.session_id, keep_history=True)
        self._seen: list[Any] | None = None  # in this attempt
        self._number = 0

    @property
    def _store(self) -> AsyncStore:
        return cast(AsyncStore, self._current.run.thread._store)

    async def _load(self) -> list[Any]:
        """Return the items that this attempt sees: as many as there were when the run began, and its own."""
        if self._seen is None:
            items = await self._items.read(self._store)
            count = await kept("conversation", lambda: len(items))
            self._seen = items[:count]
        return self._seen

    def _next_id(self) -> str:
        self._number += 1
        return f"{self._current.run.id}:{self._number}"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the last `limit` items."""
        items = await self._load()
        few = items if limit is None or limit < 0 else items[max(0, len(items) - limit) :]
        codec = self._store._engine.codec
        copied: list[TResponseInputItem] = codec.unpack(codec.pack(few))
        return copied

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, unless an earlier attempt of the run has added them."""
        if not items:
            return
        seen = await self._load()
        await self._items.append(self._store, items, id=self._next_id())
        seen.extend(items)

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item of this attempt and return it, unless an earlier attempt of the run has removed it."""
        seen = await self._load()
        if not seen:
            return None
        await self._items.pop(self._store, id=self._next_id())
        item: TResponseInputItem = seen.pop()
        return item

    async def clear_session(self) -> None:
        """Remove all items."""
        await self._load()
        await self._items.erase(self._store, id=self._next_id())
        self._seen = []
