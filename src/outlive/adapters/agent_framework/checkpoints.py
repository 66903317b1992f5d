"""`OutliveCheckpointStorage`: the checkpoints of workflows, each as a checkpoint of a thread.

The state is `{"checkpoint": {...}}`, encoded as the framework encodes it: values that are no JSON
are pickled by it, one by one, so lists share what is equal. Only classes that the framework allows,
and those that you name, are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent_framework import WorkflowCheckpoint, WorkflowCheckpointException
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value

from outlive.adapters.common.current import save_in_run
from outlive.adapters.common.home import StoreHome
from outlive.adapters.common.travel import Past
from outlive.errors import BadArgument, CheckpointExists
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import Change, CheckpointInfo

NAMESPACE = "workflow"
_CHECKPOINT = "checkpoint"
_WORKFLOW = "workflow"
Types = Iterable[str | type[Any]]
Plain = dict[str, Any]


class OutliveCheckpointStorage:
    """Checkpoints of workflows in a thread: `OutliveCheckpointStorage("trip-42", "sqlite:///agent.db")`.

    A checkpoint costs what changed since the one before, and finding the latest reads one. Give
    each conversation a thread of its own: the framework tells workflows apart by name, not their
    runs. `allowed_checkpoint_types` are classes that a checkpoint may hold beside those of the
    framework, as classes or as "module:qualname". Options are those of `outlive.open`. Use it from
    any event loop, thread or forked child.
    """

    def __init__(
        self,
        thread_id: str,
        store: str | Store | AsyncStore,
        *,
        allowed_checkpoint_types: Types = (),
        **options: Any,
    ) -> None:
        self._log = CheckpointLog(thread_id, allowed_checkpoint_types)
        self._home = StoreHome.of(store, options, "OutliveCheckpointStorage")

    def __repr__(self) -> str:
        return f"<OutliveCheckpointStorage {self._log.past.thread_id!r} {self._home.url}>"

    # The interface of the framework

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint as it is now, and return its id: when this returns, it survives a crash."""
        plain = encoded(checkpoint)
        await self._home.acall(lambda store: self._log.save(store, plain))
        return checkpoint.checkpoint_id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. Raises WorkflowCheckpointException when there is none."""
        return await self._home.acall(lambda store: self._log.load(store, checkpoint_id))

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        return await self._home.acall(lambda store: self._log.all(store, workflow_name))

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        return await self._home.acall(lambda store: self._log.ids(store, workflow_name))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow that was saved last; None when there is none."""
        return await self._home.acall(lambda store: self._log.latest(store, workflow_name))

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and leave no byte of it alone; False when there is none."""

        async def delete(store: AsyncStore) -> int:
            thread = self._log.past.thread(store)
            return (await thread.delete_checkpoints(checkpoint_id, erase=True)).checkpoints

        return await self._home.acall(delete) > 0

    # More

    async def history(self, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints of all workflows, newest first, without their states."""
        return await self._home.acall(lambda store: self._log.past.history(store, limit))

    async def diff(self, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints (default: up to the newest), path by path."""
        return await self._home.acall(lambda store: self._log.past.diff(store, old, new))

    async def fork(self, thread_id: str, at: str | None = None) -> OutliveCheckpointStorage:
        """Return the storage of a new thread, which has one checkpoint of this one: the newest, or that of an id."""
        await self._home.acall(lambda store: self._log.past.fork(store, thread_id, at))
        forked = OutliveCheckpointStorage.__new__(OutliveCheckpointStorage)
        forked._log, forked._home = CheckpointLog(thread_id, self._log.types), self._home.share()
        return forked

    async def prune(self, keep_last: int) -> int:
        """Keep the newest checkpoints, erase the others, and return how many those were."""
        return await self._home.acall(lambda store: self._log.past.prune(store, keep_last))

    async def clear(self) -> int:
        """Delete all checkpoints, leave no byte of them, and return how many there were."""

        async def clear(store: AsyncStore) -> int:
            return (await self._log.past.thread(store).delete_namespace(erase=True)).checkpoints

        return await self._home.acall(clear)

    def close(self) -> None:
        """Close the store if it was opened here, and nothing else of this process uses it."""
        self._home.close()


class CheckpointLog:
    """The checkpoints in a thread. Its methods take the store, as those of `ThreadList` do."""

    def __init__(self, thread_id: str, types: Types) -> None:
        self.past = Past(thread_id, NAMESPACE)
        self.types = frozenset(_type_name(kind) for kind in types)
        self._last: str | None = None  # the checkpoint that was saved here last

    async def save(self, store: AsyncStore, plain: Plain, **more: Any) -> CheckpointInfo:
        """Save an encoded checkpoint as the child of the one it names. Another one of its id is replaced."""
        thread, id = self.past.thread(store), plain["checkpoint_id"]
        options: Any = {
            "id": id,
            "step": plain["iteration_count"],
            "source": "interrupt" if plain["pending_request_info_events"] else "loop",
            "metadata": {_WORKFLOW: plain["workflow_name"]},
        }
        previous = plain["previous_checkpoint_id"]
        if previous is not None and (previous == self._last or await thread.exists(previous)):
            options["parent"] = previous
        state = {_CHECKPOINT: plain, **more}
        try:
            saved = await save_in_run(thread, state, **options)
        except CheckpointExists:
            options.pop("parent", None)
            saved = await save_in_run(thread, state, **options, replace=True)
        self._last = id
        return saved

    async def read(self, store: AsyncStore, id: str) -> Any:
        """Return the state of a checkpoint. Raises WorkflowCheckpointException."""
        state = await self.past.thread(store).load(id) if id else None
        if state is None:
            raise WorkflowCheckpointException(f"no checkpoint with ID {id} in thread {self.past.thread_id}")
        return state

    async def load(self, store: AsyncStore, id: str) -> WorkflowCheckpoint:
        """Return a checkpoint. Raises WorkflowCheckpointException."""
        return self.decoded(await self.read(store, id))

    async def all(self, store: AsyncStore, workflow: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow, oldest first."""
        filter = {_WORKFLOW: workflow}
        found = [each async for each in self.past.thread(store).history(filter=filter, states=True)]
        return [self.decoded(each.state) for each in reversed(found)]

    async def ids(self, store: AsyncStore, workflow: str, limit: int | None = None) -> list[str]:
        """Return the ids of the checkpoints of a workflow, oldest first."""
        filter = {_WORKFLOW: workflow}
        found = [each.id async for each in self.past.thread(store).history(filter=filter, limit=limit)]
        return found[::-1]

    async def latest(self, store: AsyncStore, workflow: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow that was saved last."""
        for id in await self.ids(store, workflow, limit=1):
            return await self.load(store, id)
        return None

    def decoded(self, state: Any) -> WorkflowCheckpoint:
        """Return the checkpoint in a state. Raises WorkflowCheckpointException."""
        plain = state.get(_CHECKPOINT) if isinstance(state, dict) else None
        if not isinstance(plain, dict):
            raise WorkflowCheckpointException(
                f"thread {self.past.thread_id} holds no checkpoint of a workflow in its namespace {NAMESPACE!r}"
            )
        return WorkflowCheckpoint.from_dict(self.value(plain))

    def value(self, plain: Any) -> Any:
        """Return the value of its encoded form. Raises WorkflowCheckpointException for a class that is not allowed."""
        return decode_checkpoint_value(plain, allowed_types=self.types)


def encoded(checkpoint: WorkflowCheckpoint) -> Plain:
    """Return a checkpoint as plain values, which share nothing with it."""
    plain: Plain = encode_checkpoint_value(checkpoint.to_dict())
    return plain


def plain_value(value: Any) -> Any:
    """Return any value as the framework encodes it."""
    return encode_checkpoint_value(value)


def _type_name(kind: Any) -> str:
    if isinstance(kind, type):
        return f"{kind.__module__}:{kind.__qualname__}"
    if isinstance(kind, str) and ":" in kind:
        return kind
    raise BadArgument(f'allowed_checkpoint_types takes classes and "module:qualname", not {kind!r:.100}')
