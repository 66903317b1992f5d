"""`OutliveSession`: a conversation of the Agents SDK as a list in a thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from agents import SessionSettings, TResponseInputItem
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.thread_list import Guard, ThreadList
from outlive.adapters.common.travel import Past, Travelling
from outlive.arguments import check_flag, optional_id
from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.sync.store import Store


class OutliveSession(Travelling):
    """A session on any store: `OutliveSession("trip-42", "sqlite:///agent.db")`, or on a store that is open.

    Every change is a checkpoint: `history()`, `fork()` and `diff()` look back, and `at=` reads the
    conversation as it was. `pop_item` and `clear_session` also erase the items from the history,
    unless `keep_history=True`. Two processes that add at the same time lose nothing; with
    `guard="head"` the one that has not seen the other's items gets HeadMoved. All other options are
    those of `outlive.open`. Use it from any event loop, thread or forked child.
    """

    def __init__(
        self,
        session_id: str,
        store: str | Store | AsyncStore,
        *,
        at: str | None = None,
        guard: Guard = None,
        keep_history: bool = False,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._items = ThreadList(
            session_id, guard=guard, keep_history=check_flag("keep_history", keep_history)
        )
        self._at = optional_id("at", at)
        self._past = Past(session_id)
        self._home = StoreHome.of(store, options, "OutliveSession")

    def __repr__(self) -> str:
        at = f" at {self._at}" if self._at else ""
        return f"<OutliveSession {self.session_id!r}{at} {self._home.url}>"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the last `limit` items, oldest first; by default as many as the settings say, or all."""
        most = resolve_session_limit(limit, self.session_settings)
        return await self._do(lambda store: self._items.read(store, most, self._at))

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end: when this returns, they survive a crash. All of them are stored, or none."""
        self._check_writable()
        await self._do(lambda store: self._items.append(store, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None when there is none."""
        self._check_writable()
        item: TResponseInputItem | None = await self._do(self._items.pop)
        return item

    async def clear_session(self) -> None:
        """Remove all items."""
        self._check_writable()
        await self._do(self._items.erase)

    async def fork(self, session_id: str, at: str | None = None) -> OutliveSession:
        """Return a new session that starts with this conversation, as it is or as it was at a checkpoint."""
        await self._do(lambda store: self._past.fork(store, session_id, at or self._at))
        forked = OutliveSession.__new__(OutliveSession)
        forked.session_id, forked.session_settings = session_id, self.session_settings
        forked._items = ThreadList(session_id, guard=self._items.guard, keep_history=self._items.keep_history)
        forked._at, forked._past, forked._home = None, Past(session_id), self._home.share()
        return forked

    def _check_writable(self) -> None:
        if self._at is not None:
            raise BadArgument(
                f"this session shows checkpoint {self._at!r} of the past; fork it: await session.fork(new_id)"
            )

    # Closing

    def close(self) -> None:
        """Close the store if this session opened it, and no other session of this process uses it."""
        self._home.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
