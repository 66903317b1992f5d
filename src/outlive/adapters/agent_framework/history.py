"""`OutliveHistoryProvider`: the messages of a session as a list in a thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_framework import HistoryProvider, Message
from agent_framework._sessions import filter_new_messages

from outlive.adapters.common.current import Work
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.ledger import kept
from outlive.adapters.common.thread_list import Guard, ThreadList
from outlive.adapters.common.travel import Past
from outlive.arguments import check_flag
from outlive.errors import BadArgument
from outlive.runtime.fork import reset_in_child
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo

_SOURCE = "outlive"
_KNOWN = 64  # sessions whose messages are remembered


@dataclass(slots=True)
class _Conversation:
    """The messages of a session, and those that the agent has seen last."""

    items: ThreadList
    seen: list[Any] | None = None


class OutliveHistoryProvider(HistoryProvider):
    """Histories of agents in threads: `Agent(client, context_providers=[OutliveHistoryProvider("sqlite:///agent.db")])`.

    The id of a session is the id of its thread. Every change is a checkpoint: `history`, `diff` and
    `fork` look back, and `get_messages(id, at=...)` reads the messages as they were. `clear` also
    erases them from the history, unless `keep_history=True`. Two processes that save at the same
    time lose nothing; with `guard="head"` the one that has not seen the other's messages gets
    HeadMoved. The flags are those of every history provider, all other options those of
    `outlive.open`. Use it from any event loop, thread or forked child.
    """

    def __init__(
        self,
        store: str | Store | AsyncStore,
        *,
        source_id: str = _SOURCE,
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        guard: Guard = None,
        keep_history: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self._guard = guard
        self._keep_history = check_flag("keep_history", keep_history)
        self._new_list("")  # checks the guard
        self._known: OrderedDict[str, _Conversation] = OrderedDict()
        reset_in_child(self)
        self._home = StoreHome.of(store, options, "OutliveHistoryProvider")

    def __repr__(self) -> str:
        return f"<OutliveHistoryProvider {self.source_id!r} {self._home.url}>"

    def after_fork_in_child(self) -> None:
        self._known = OrderedDict()

    def _new_list(self, session_id: str) -> ThreadList:
        return ThreadList(session_id, guard=self._guard, keep_history=self._keep_history)

    def _conversation(self, session_id: str | None) -> _Conversation:
        if not session_id:
            raise BadArgument(
                'messages need a session: agent.run(..., session=agent.create_session(session_id="trip-42"))'
            )
        known = self._known.pop(session_id, None) or _Conversation(self._new_list(session_id))
        self._known[session_id] = known
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)
        return known

    # The interface of the framework

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,
        at: str | None = None,
        **kwargs: Any,
    ) -> list[Message]:
        """Return the messages of a session, as they are or as they were `at` a checkpoint."""
        known = self._conversation(session_id)
        items = await self._home.acall(lambda store: known.items.read(store, at=at))
        if at is None:
            known.seen = items
        return loaded(items)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add messages: when this returns, they survive a crash. Those that repeat what the agent has seen are left out."""
        known, given = self._conversation(session_id), list(messages)

        async def add(store: AsyncStore) -> None:
            seen = await known.items.read(store) if known.seen is None else known.seen
            new = dumped(filter_new_messages(loaded(seen), given))
            await known.items.append(store, new)
            known.seen = [*seen, *new]

        if given:
            await self._home.acall(add)

    # More

    async def clear(self, session_id: str) -> None:
        """Remove all messages of a session."""
        known = self._conversation(session_id)
        await self._home.acall(known.items.erase)
        known.seen = []

    async def delete(self, session_id: str) -> bool:
        """Delete the whole thread of a session, with its runs; no byte stays in the store. False when it did not exist."""
        self._known.pop(session_id, None)
        return await self._home.acall(lambda store: store.thread(session_id).delete(erase=True))

    async def history(self, session_id: str, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints of a session, newest first; the id of one is what `at=` takes."""
        return await self._home.acall(lambda store: Past(session_id).history(store, limit))

    async def diff(self, session_id: str, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints (default: up to the newest), path by path."""
        return await self._home.acall(lambda store: Past(session_id).diff(store, old, new))

    async def fork(self, session_id: str, new_session_id: str, at: str | None = None) -> None:
        """Make a new session that starts with these messages, as they are or as they were at a checkpoint."""
        await self._home.acall(lambda store: Past(session_id).fork(store, new_session_id, at))

    async def prune(self, session_id: str, keep_last: int) -> int:
        """Keep the newest checkpoints of a session, erase the others, and return how many those were. No message is lost."""
        return await self._home.acall(lambda store: Past(session_id).prune(store, keep_last))

    def close(self) -> None:
        """Close the store if this provider opened it, and nothing else of this process uses it."""
        self._home.close()


class RunHistory(HistoryProvider):
    """The messages as a run sees them: as they were when the run began, and what this attempt has added.

    Each addition is saved under a number of its own, so a later attempt does not repeat it.
    """

    def __init__(self, current: Work, store: AsyncStore, flags: HistoryProvider | None) -> None:
        super().__init__(
            flags.source_id if flags else _SOURCE,
            store_inputs=flags is None or flags.store_inputs,
            store_context_messages=flags is not None and flags.store_context_messages,
            store_context_from=flags.store_context_from if flags else None,
            store_outputs=flags is None or flags.store_outputs,
        )
        self._current = current
        self._store = store
        self._items = ThreadList(current.run.info.thread)
        self._seen: list[Message] | None = None  # in this attempt
        self._number = 0

    async def _load(self) -> list[Message]:
        if self._seen is None:
            items = await self._items.read(self._store)
            count = await kept("conversation", lambda: len(items))
            self._seen = loaded(items[:count])
        return self._seen

    async def get_messages(
        self, session_id: str | None, *, state: dict[str, Any] | None = None, **kwargs: Any
    ) -> list[Message]:
        """Return the messages that this attempt sees."""
        return loaded(dumped(await self._load()))

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add messages, unless an earlier attempt of the run has added them."""
        seen = await self._load()
        new = dumped(filter_new_messages(seen, list(messages)))
        if not new:
            return
        self._number += 1
        await self._items.append(self._store, new, id=f"{self._current.run.id}:{self._number}")
        seen.extend(loaded(new))


def dumped(messages: Sequence[Message]) -> list[Any]:
    """Return messages as plain values."""
    return [message.to_dict() for message in messages]


def loaded(items: list[Any]) -> list[Message]:
    """Return the messages of plain values."""
    return [Message.from_dict(item) for item in items]
