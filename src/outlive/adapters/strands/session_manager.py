"""`OutliveSessionManager`: the sessions of Strands on any store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from strands._async import run_async
from strands.hooks import (
    AfterInvocationEvent,
    AfterMultiAgentInvocationEvent,
    AfterNodeCallEvent,
    AgentInitializedEvent,
    HookRegistry,
    MessageAddedEvent,
    MultiAgentInitializedEvent,
)
from strands.session import SessionManager
from strands.types.content import Message

from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past
from outlive.adapters.strands.snapshots import (
    Snapshots,
    agent_namespace,
    captured,
    captured_now,
    described,
    group_namespace,
    restore,
    restore_stash,
)
from outlive.arguments import check_flag, optional_id
from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo

T = TypeVar("T")
_DEFAULT = "default"  # the id of an agent that was given none


class OutliveSessionManager(SessionManager[Any]):
    """A session on any store: `Agent(session_manager=OutliveSessionManager("trip-42", "sqlite:///agent.db"))`.

    Every message is a checkpoint, at the cost of that message: `history()`, `diff()` and `fork()`
    look back, `restore()` makes an agent what it was, and a manager with `at=` shows the past. A
    redacted message is also erased from the history, unless `keep_history=True`. When two processes
    work with one session at once, the second gets HeadMoved. Several agents, graphs and swarms may
    share a session. All other options are those of `outlive.open`. Use it from any event loop,
    thread or forked child.
    """

    def __init__(
        self,
        session_id: str,
        store: str | Store | AsyncStore,
        *,
        at: str | None = None,
        keep_history: bool = False,
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self._at = optional_id("at", at)
        self._keep_history = check_flag("keep_history", keep_history)
        self._lines: dict[str, Snapshots] = {}
        self._home = StoreHome.of(store, options, "OutliveSessionManager")

    def __repr__(self) -> str:
        at = f" at {self._at}" if self._at else ""
        return f"<OutliveSessionManager {self.session_id!r}{at} {self._home.url}>"

    # The interface of Strands

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Restore an agent when it is made, and save it with each message and after each invocation."""
        registry.add_callback(AgentInitializedEvent, lambda event: self.initialize(event.agent))
        registry.add_callback(MessageAddedEvent, self._on_message)
        registry.add_callback(AfterInvocationEvent, self._on_invocation)
        registry.add_callback(
            MultiAgentInitializedEvent, lambda event: self.initialize_multi_agent(event.source)
        )
        registry.add_callback(AfterNodeCallEvent, self._on_node)
        registry.add_callback(AfterMultiAgentInvocationEvent, self._on_node)

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        """Make an agent what it was when it was saved last, or at the checkpoint of this manager."""
        line = self._line(agent_namespace(agent.agent_id))
        state = self._call(lambda store: line.load(store, self._at))
        if state is not None:
            self._restore(agent, state)

    def sync_agent(self, agent: Any, **kwargs: Any) -> None:
        """Save an agent: when this returns, it survives a crash. Raises HeadMoved when another process was faster."""
        self._check_writable()
        state = captured_now(agent) if agent.context_manager is None else run_async(lambda: captured(agent))
        self._call(lambda store: self._save(store, agent, state, is_new=False))

    def append_message(self, message: Message, agent: Any, **kwargs: Any) -> None:
        """Do nothing: an agent is saved with its messages."""

    def redact_latest_message(self, redact_message: Message, agent: Any, **kwargs: Any) -> None:
        """Save an agent whose last message was redacted, and erase what it was before, unless the history is kept."""
        self.sync_agent(agent)
        if not self._keep_history:
            line = self._line(agent_namespace(agent.agent_id))
            self._call(lambda store: line.forget(store, len(agent.messages)))

    def initialize_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Make a graph or a swarm what it was when it was saved last."""
        line = self._line(group_namespace(source.id))
        state = self._call(lambda store: line.load(store, self._at))
        if state is not None:
            source.deserialize_state(state["data"])

    def sync_multi_agent(self, source: Any, **kwargs: Any) -> None:
        """Save a graph or a swarm."""
        self._check_writable()
        self._call(lambda store: self._save_group(store, source))

    async def _on_message(self, event: MessageAddedEvent[Any]) -> None:
        await self._async_save(event.agent, is_new=True)

    async def _on_invocation(self, event: AfterInvocationEvent) -> None:
        await self._async_save(event.agent, is_new=False)  # the conversation manager may have changed it

    async def _on_node(self, event: Any) -> None:
        self._check_writable()
        await self._home.acall(lambda store: self._save_group(store, event.source))

    async def _async_save(self, agent: Any, *, is_new: bool) -> None:
        self._check_writable()
        state = await captured(agent)
        await self._home.acall(lambda store: self._save(store, agent, state, is_new=is_new))

    async def _save(self, store: AsyncStore, agent: Any, state: dict[str, Any], *, is_new: bool) -> None:
        line = self._line(agent_namespace(agent.agent_id))
        await line.save(store, state, is_new=is_new, metadata=described(agent))

    async def _save_group(self, store: AsyncStore, source: Any) -> None:
        line = self._line(group_namespace(source.id))
        await line.save(store, {"data": source.serialize_state()}, is_new=False)

    def _restore(self, agent: Any, state: dict[str, Any]) -> None:
        restore(agent, state)
        if "stash" in state["data"]:
            run_async(lambda: restore_stash(agent, state))

    # Time travel

    def history(self, limit: int | None = None, *, agent_id: str = _DEFAULT) -> list[CheckpointInfo]:
        """Return the checkpoints of an agent, newest first; the id of one is what `at=` takes."""
        return self._call(lambda store: self._past(agent_id).history(store, limit))

    def diff(self, old: str, new: str | None = None, *, agent_id: str = _DEFAULT) -> list[Change]:
        """Return what changed between two checkpoints of an agent (default: up to the newest), path by path."""
        return self._call(lambda store: self._past(agent_id).diff(store, old, new))

    def restore(self, agent: Any, at: str) -> None:
        """Make an agent what it was at a checkpoint, and save it as the newest one: the history is kept."""
        self._check_writable()
        line = self._line(agent_namespace(agent.agent_id))
        state = self._call(lambda store: line.load(store, at))
        assert state is not None
        self._restore(agent, state)
        self.sync_agent(agent)

    def fork(
        self, session_id: str, at: str | None = None, *, agent_id: str = _DEFAULT
    ) -> OutliveSessionManager:
        """Return a new session that starts with an agent of this one, as it is or as it was at a checkpoint."""
        self._call(lambda store: self._past(agent_id).fork(store, session_id, at or self._at))
        forked = OutliveSessionManager.__new__(OutliveSessionManager)
        forked.session_id, forked._at, forked._keep_history = session_id, None, self._keep_history
        forked._lines, forked._home = {}, self._home.share()
        return forked

    def prune(self, keep_last: int, *, agent_id: str = _DEFAULT) -> int:
        """Keep the newest checkpoints of an agent, erase the others, and return how many those were."""
        return self._call(lambda store: self._past(agent_id).prune(store, keep_last))

    def delete(self) -> bool:
        """Delete the whole session, with its runs; no byte stays in the store. False when it did not exist."""
        self._lines.clear()
        return self._call(lambda store: store.thread(self.session_id).delete(erase=True))

    def _past(self, agent_id: str) -> Past:
        return Past(self.session_id, agent_namespace(agent_id))

    # Inside

    def _call(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        return self._home.call(work)

    def _line(self, namespace: str) -> Snapshots:
        return self._lines.setdefault(namespace, Snapshots(self.session_id, namespace))

    def _check_writable(self) -> None:
        if self._at is not None:
            raise BadArgument(
                f"this session shows checkpoint {self._at!r} of the past; fork it: manager.fork(new_id)"
            )

    # Closing

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
