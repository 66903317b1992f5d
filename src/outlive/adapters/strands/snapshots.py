"""Snapshots of an agent in a namespace of a thread: its messages, its state, what it waits for.

A snapshot shares what it has in common with the one before, so saving one with each message costs
that message. It is saved only after the one that this process loaded or saved last: of two
processes that work with one session at once, the second is told (HeadMoved), and overwrites
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strands import Snapshot

from outlive.adapters.common.current import save_in_run
from outlive.errors import BadArgument, CheckpointMissing
from outlive.store import AsyncStore
from outlive.threads.thread import AsyncThread
from outlive.values import NEW, CheckpointInfo, New

_DATA = "data"
_VERSION = "schema_version"


def agent_namespace(agent_id: str) -> str:
    """Return the namespace of an agent."""
    return f"agent/{agent_id}"


def group_namespace(id: str) -> str:
    """Return the namespace of a graph or a swarm."""
    return f"multi-agent/{id}"


class Snapshots:
    """The line of snapshots in a namespace, and the head that this process has seen."""

    def __init__(self, thread_id: str, namespace: str) -> None:
        self.thread_id = thread_id
        self.namespace = namespace
        self._head: str | New | None = None

    def thread(self, store: AsyncStore) -> AsyncThread[Any]:
        """Return the thread."""
        return store.thread(self.thread_id, namespace=self.namespace)

    async def load(self, store: AsyncStore, at: str | None = None) -> dict[str, Any] | None:
        """Return the newest state, or that of a checkpoint; None when there is none."""
        thread = self.thread(store)
        stored = await thread._read(at, None, None)
        if stored is None and at is not None:
            raise CheckpointMissing(self.thread_id, at)
        if at is None:
            self._head = NEW if stored is None else stored[0].record.id
        if stored is None:
            return None
        state = store._engine.unpack(thread._key, stored[0].record.id, stored[1])
        if not isinstance(state, dict) or not isinstance(state.get(_DATA), dict):
            raise BadArgument(f"namespace {self.namespace!r} of this thread holds no snapshot of Strands")
        return state

    async def save(
        self, store: AsyncStore, state: Mapping[str, Any], *, is_new: bool = True, **options: Any
    ) -> CheckpointInfo | None:
        """Save a state, unless it may be that of the head (`is_new=False`) and is. Raises HeadMoved."""
        if self._head is None:
            await self.load(store)
        thread = self.thread(store)
        if not is_new and self._head is not NEW and await thread.load(str(self._head)) == state:
            return None
        saved = await save_in_run(thread, state, expect=self._head, **options)
        self._head = saved.id
        return saved

    async def forget(self, store: AsyncStore, count: int) -> None:
        """Erase the older states with at least `count` messages, back to the first that has fewer."""
        thread, ids = self.thread(store), []
        async for info in thread.history(before=None if self._head is NEW else str(self._head)):
            if info.metadata.get("messages", count) < count:
                break
            ids.append(info.id)
        await thread.delete_checkpoints(ids, erase=True)


async def captured(agent: Any) -> dict[str, Any]:
    """Return the snapshot of an agent as a plain value, with its stash if that is lost with the process."""
    state = captured_now(agent)
    context = agent.context_manager
    if context is not None and context.stash is not None and not context.stash_is_durable:
        state[_DATA]["stash"] = await context.stash.take_snapshot()
    return state


def captured_now(agent: Any) -> dict[str, Any]:
    """Return the snapshot of an agent as a plain value, without its stash."""
    fields: Any = agent.take_snapshot(preset="session", include=["system_prompt"], exclude=["messages"])
    # Not copied: it is packed at once.
    return {_VERSION: fields.schema_version, _DATA: {**fields.data, "messages": agent.messages}}


def restore(agent: Any, state: dict[str, Any]) -> None:
    """Make an agent what it was; a model that has the messages on its own server gets none."""
    data = {name: value for name, value in state[_DATA].items() if name != "stash"}
    agent.load_snapshot(Snapshot(scope="agent", schema_version=state[_VERSION], data=data, app_data={}))
    if agent.model.stateful:
        agent.messages = []


async def restore_stash(agent: Any, state: dict[str, Any]) -> None:
    """Give the stash of an agent what it had."""
    entries, context = state[_DATA].get("stash"), agent.context_manager
    if entries and context is not None and context.stash is not None:
        await context.stash.load_snapshot(entries)


def described(agent: Any) -> dict[str, Any]:
    """Return the metadata of a snapshot."""
    role = agent.messages[-1]["role"] if agent.messages else None
    return {"messages": len(agent.messages), "role": role}
