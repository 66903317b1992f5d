"""`OutliveRunStates`: the `RunState`s of a run of the Agents SDK, each as a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents import Agent, RunState

from outlive.adapters.common.current import save_in_run
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past, Travelling
from outlive.errors import BadArgument
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import CheckpointInfo

NAMESPACE = "run states"
_STATE = "run_state"


class OutliveRunStates(Travelling):
    """Run states in a thread: `states = OutliveRunStates("trip-42", "sqlite:///agent.db")`.

    A state shares what it has in common with the one before, so saving one after each turn costs
    what that turn has added. They are in a namespace of the thread of that id, next to its
    conversation.
    """

    def __init__(self, thread_id: str, store: str | Store | AsyncStore, **options: Any) -> None:
        self._past = Past(thread_id, NAMESPACE)
        self._home = StoreHome.of(store, options, "OutliveRunStates")

    def __repr__(self) -> str:
        return f"<OutliveRunStates {self._past.thread_id!r} {self._home.url}>"

    async def save(
        self, state: RunState[Any, Any], *, metadata: Mapping[str, Any] | None = None, **options: Any
    ) -> CheckpointInfo:
        """Save `result.to_state()`. `options` are those of `RunState.to_json`, such as `context_serializer`."""
        waits = {"interruptions": len(state.get_interruptions()), **(metadata or {})}
        source: Any = "interrupt" if waits["interruptions"] else "loop"
        plain = {_STATE: state.to_json(**options)}
        return await self._do(
            lambda store: save_in_run(self._past.thread(store), plain, source=source, metadata=waits)
        )

    async def load(
        self, agent: Agent[Any], at: str | None = None, **options: Any
    ) -> RunState[Any, Agent[Any]] | None:
        """Return the newest state, or that of a checkpoint; None when there is none.

        `Runner.run(agent, state)` continues it. Agents and tools are found by name, from `agent`
        on. `options` are those of `RunState.from_json`.
        """
        plain = await self._do(lambda store: self._past.thread(store).load(at))
        if plain is None:
            return None
        if not isinstance(plain, dict) or not isinstance(plain.get(_STATE), dict):
            raise BadArgument(f"this thread holds no run state in its namespace {NAMESPACE!r}")
        return await RunState.from_json(agent, plain[_STATE], **options)

    async def delete(self) -> bool:
        """Delete all run states of the thread, and leave no byte; False when there were none."""
        pruned = await self._do(lambda store: self._past.thread(store).delete_namespace(erase=True))
        return pruned.checkpoints > 0

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        self._home.close()
