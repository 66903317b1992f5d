"""`OutliveSaver`: LangGraph's checkpointer interface, sync and async, on every backend.

Sync methods run in the calling thread. Async methods run in a worker thread, so one saver serves
any number of event loops, one after the other or at once. Only on a store from `open_async` do they
run on the event loop of that store. Nothing waits for an event loop, so a sync method that is
called on one blocks it for its own time only.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from outlive.adapters.common.home import StoreHome
from outlive.adapters.langgraph.config import CheckpointRef, is_of_graph, ref_of, thread_of
from outlive.adapters.langgraph.listing import Listing
from outlive.adapters.langgraph.operations import CheckpointOperations
from outlive.adapters.langgraph.prune import policy_of
from outlive.adapters.langgraph.values.serializer import StrictSerializer
from outlive.adapters.langgraph.values.user_types import listed
from outlive.adapters.langgraph.write_order import Turn, WriteOrder
from outlive.arguments import check_flag
from outlive.backend import Fence
from outlive.errors import BadArgument
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.iterator import each
from outlive.sync.store import Store
from outlive.values import Pruned

T = TypeVar("T")
Work = Callable[[CheckpointOperations], Coroutine[Any, Any, T]]
Turning = Callable[[CheckpointOperations, Turn], Coroutine[Any, Any, T]]  # waits for its turn itself


class _Shared(StoreHome):
    """What a saver and its shallow copies have in common: LangGraph copies savers to give them another serde."""

    def __init__(self, store: str | Store | AsyncStore, options: dict[str, Any]) -> None:
        self.write_order = WriteOrder()
        super().__init__(store, options, "OutliveSaver")

    def begin_in_turn(self, thread: str, work: Callable[[Turn], T]) -> Future[T]:
        """Take a turn and submit the work to a worker thread.

        Both under one lock: workers get work in the order of the turns. Otherwise all of them could
        wait for a turn whose work is still in the queue.
        """

        def work_in_turn(turn: Turn) -> T:
            try:
                return work(turn)
            finally:
                turn.end()

        with self.write_order.starting:
            turn = self.write_order.take(thread)
            try:
                return self._submit(lambda: work_in_turn(turn))
            except BaseException:
                turn.end()
                raise


class OutliveSaver(BaseCheckpointSaver[str]):
    """A checkpointer on any store: `OutliveSaver("sqlite:///agent.db")`, or on a store that is open.

    Your own data classes in states (dataclasses, pydantic models, Enums and so on) need no mention:
    see `outlive docs langgraph`. `strict=True` stores only those that are named in `types`, or that
    `outlive.register` knows. `serde` replaces the whole serializer. `refuse_stale=True` refuses
    (HeadMoved) a checkpoint whose parent is no longer the newest of its thread, unless the caller
    named that parent by its id: two invocations at once cannot fork a thread unnoticed. All other
    options are those of `outlive.open`.
    """

    def __init__(
        self,
        store: str | Store | AsyncStore,
        *,
        serde: SerializerProtocol | None = None,
        types: Iterable[type] = (),
        strict: bool = False,
        refuse_stale: bool = False,
        **options: Any,
    ) -> None:
        kinds = listed(types)
        if kinds and serde is not None:
            raise BadArgument("pass types= or serde=, not both: your own serde decides what it stores")
        super().__init__(serde=serde or StrictSerializer(kinds, strict=check_flag("strict", strict)))
        self._refuse_stale = check_flag("refuse_stale", refuse_stale)
        self._fence: Fence | None = None
        self._shared = _Shared(store, options)
        self._operations_by_store: dict[
            int, CheckpointOperations
        ] = {}  # by store; a copy of this saver has its own

    def _fenced(self, fence: Fence | None) -> Self:
        """Return a saver on the same store whose writes are refused after another process took its run over."""
        clone = copy.copy(self)
        clone._fence = fence
        return clone

    def __repr__(self) -> str:
        return f"<OutliveSaver {self._shared.url}>"

    # Opening and closing

    def setup(self) -> None:
        """Do nothing: a store creates its tables when it is opened."""

    async def asetup(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close what this saver opened."""
        self._shared.close()

    async def aclose(self) -> None:
        """Close what this saver opened."""
        await self._shared.in_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Sync and async

    def _operations(self, store: AsyncStore) -> CheckpointOperations:
        """Return the operations on a store with the serde that this saver has now."""
        operations = self._operations_by_store.get(id(store))
        if operations is None or operations.serde is not self.serde:
            operations = CheckpointOperations(store, self.serde)
            self._operations_by_store = {**self._operations_by_store, id(store): operations}
        return operations

    def _sync(self, work: Work[T]) -> T:
        return run_now(work(self._operations(self._shared.sync)))

    async def _async(self, work: Work[T]) -> T:
        store = self._shared.asynchronous
        if store is not None:
            return await work(self._operations(store))
        return await self._shared.in_thread(lambda: self._sync(work))

    def _in_turn(self, thread: str, work: Turning[T]) -> T:
        """Write to a thread after the calls that were made before."""
        turn = self._shared.write_order.take(thread)
        try:
            return self._sync(lambda operations: work(operations, turn))
        finally:
            turn.end()

    async def _in_turn_async(self, thread: str, work: Turning[T]) -> T:
        """Write to a thread after the calls that were made before.

        A write that has begun is finished, also when the caller is cancelled.
        """
        # Take the turn before anything is awaited: tasks begin in the order in which they were
        # made.
        if self._shared.asynchronous is not None:
            return await self._in_turn_on_loop(thread, work)
        begun = self._shared.begin_in_turn(
            thread, lambda turn: self._sync(lambda operations: work(operations, turn))
        )
        return await AsyncRuntime().shielded(_finish(begun))

    async def _in_turn_on_loop(self, thread: str, work: Turning[T]) -> T:
        turn = self._shared.write_order.take(thread, asyncio.get_running_loop())
        try:
            return await AsyncRuntime().shielded(self._async(lambda operations: work(operations, turn)))
        finally:
            turn.end()

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, the newest of its thread when it names none, or None."""
        ref = ref_of(config)
        return self._sync(lambda operations: operations.get_tuple(ref))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, the newest of its thread when it names none, or None."""
        ref = ref_of(config)
        return await self._async(lambda operations: operations.get_tuple(ref))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first; `outlive docs langgraph` says what the arguments mean."""
        return each(Listing(self._operations(self._shared.sync).session, config, filter, before, limit))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Iterate over checkpoints, newest first; `outlive docs langgraph` says what the arguments mean."""
        store = self._shared.asynchronous
        if store is not None:
            async for checkpoint in Listing(self._operations(store).session, config, filter, before, limit):
                yield checkpoint
            return
        rest = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await self._shared.in_thread(lambda: next(rest, None))) is not None:
            yield item

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what DeltaChannels had above a checkpoint: the nearest stored value and the writes since."""
        ref = ref_of(config)
        return self._sync(lambda operations: operations.delta_history(ref, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what DeltaChannels had above a checkpoint: the nearest stored value and the writes since."""
        ref = ref_of(config)
        return await self._async(lambda operations: operations.delta_history(ref, channels))

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint below the one that the config names.

        When this returns, it survives a crash.
        """
        ref, work = self._putting(config, checkpoint, metadata, new_versions)
        return self._in_turn(ref.thread, work).config

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint below the one that the config names.

        When this returns, it survives a crash.
        """
        ref, work = self._putting(config, checkpoint, metadata, new_versions)
        return (await self._in_turn_async(ref.thread, work)).config

    def _putting(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[CheckpointRef, Turning[CheckpointRef]]:
        ref = ref_of(config)
        whole = get_checkpoint_metadata(config, metadata)
        is_stale_refused = self._refuse_stale and not _is_fork(config, ref)

        def work(operations: CheckpointOperations, turn: Turn) -> Coroutine[Any, Any, CheckpointRef]:
            return operations.put(
                ref,
                checkpoint,
                whole,
                new_versions,
                refuse_stale=is_stale_refused,
                fence=self._fence,
                turn=turn,
            )

        return ref, work

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, on a checkpoint that may not be stored yet."""
        ref = ref_of(config)
        self._in_turn(ref.thread, self._writing(config, ref, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, on a checkpoint that may not be stored yet."""
        ref = ref_of(config)
        await self._in_turn_async(ref.thread, self._writing(config, ref, writes, task_id, task_path))

    def _writing(
        self,
        config: RunnableConfig,
        ref: CheckpointRef,
        writes: Sequence[tuple[str, Any]],
        task: str,
        path: str,
    ) -> Turning[None]:
        is_followed = is_of_graph(config)
        return lambda operations, turn: operations.put_writes(
            ref, writes, task, path, fence=self._fence, turn=turn, is_followed=is_followed
        )

    # Deleting and copying

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        thread = thread_of(thread_id)
        self._in_turn(thread, lambda operations, turn: operations.delete_thread(thread, turn))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        thread = thread_of(thread_id)
        await self._in_turn_async(thread, lambda operations, turn: operations.delete_thread(thread, turn))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs (`run_id` in their metadata) in all threads; others keep what they need."""
        self._sync(lambda operations: operations.delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs (`run_id` in their metadata) in all threads; others keep what they need."""
        await self._async(lambda operations: operations.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread into an empty thread. Raises ThreadNotEmpty."""
        source, target = thread_of(source_thread_id), thread_of(target_thread_id)
        self._in_turn(target, lambda operations, turn: operations.copy_thread(source, target, turn))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread into an empty thread. Raises ThreadNotEmpty."""
        source, target = thread_of(source_thread_id), thread_of(target_thread_id)
        await self._in_turn_async(
            target, lambda operations, turn: operations.copy_thread(source, target, turn)
        )

    def prune(  # type: ignore[override]  # it returns None in LangGraph
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete checkpoints of threads: all but the newest of each namespace ("keep_latest"), or all ("delete").

        `keep_last` keeps more of them, `older_than_s` deletes only older ones. A checkpoint that
        waits for an answer stays, and so does what a DeltaChannel needs.
        """
        policy = policy_of(strategy, keep_last, older_than_s)
        return self._sync(lambda operations: operations.prune(thread_ids, policy, dry_run))

    async def aprune(  # type: ignore[override]
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep_last: int | None = None,
        older_than_s: float | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Delete checkpoints of threads; see `prune`."""
        policy = policy_of(strategy, keep_last, older_than_s)
        return await self._async(lambda operations: operations.prune(thread_ids, policy, dry_run))

    # Versions and types

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Return a version that sorts after `current`, also when another saver made that."""
        if current is None:
            number = 0
        elif isinstance(current, int | float):
            number = int(current)
        else:
            number = int(current.split(".")[0])
        return f"{number + 1:032}.{random.getrandbits(26):08}"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:
        """Return a saver on the same store that knows these types too."""
        return super().with_allowlist(extra_allowlist)  # type: ignore[return-value]


async def _finish(begun: Future[T]) -> T:
    return await asyncio.wrap_future(begun)


def _is_fork(config: RunnableConfig, ref: CheckpointRef) -> bool:
    """Tell whether an invocation continues from a checkpoint that its caller named, and not from the newest.

    LangGraph keeps the caller's checkpoint_id in the metadata of the config. A subgraph then
    continues from what it had at that time.
    """
    named = config.get("metadata", {}).get("checkpoint_id")
    return named is not None and (ref.namespace != "" or named == ref.id)
