"""What the saver does with a store, written once for sync and async.

A put is a save of outlive: one commit, refused as a whole or done. A checkpoint whose id is there already is replaced
and keeps its place in the order, as LangGraph's savers have it. Writes of a task are pending writes of outlive: the first
of a place wins, those of the control channels are overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from outlive.adapters.langgraph import delta_channels as deltas
from outlive.adapters.langgraph import prune as pruning
from outlive.adapters.langgraph.config import Place, thread_of
from outlive.adapters.langgraph.state import (
    Delta,
    describe,
    kept_values,
    metadata_of,
    pack_state,
    unpack_state,
)
from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.adapters.langgraph.values.messages import Messages, opened
from outlive.arguments import check_id, check_text
from outlive.backend import CheckpointRecord, Commit, ThreadKey, WriteRecord
from outlive.errors import BadArgument, CheckpointExists, CheckpointMissing, OutliveError
from outlive.format import manifest
from outlive.store import AsyncStore
from outlive.threads.engine import Draft, Located
from outlive.values import PendingWrite, Pruned

Fence = tuple[str, str, int, int]


class Turn(Protocol):
    """A place in the order of those who write to a thread."""

    async def wait(self) -> None:
        """Wait until it is one's turn; nothing is stored before."""
        ...

    def storing(self) -> AbstractContextManager[float]:
        """Say how long what is stored now may wait for what comes next."""
        ...

    def end(self) -> None:
        """Let the next one go on."""
        ...


class CheckpointOperations:
    """A store as LangGraph sees it, through one serializer."""

    def __init__(self, store: AsyncStore, serde: SerializerProtocol) -> None:
        self.serde = serde
        self.store = store
        self.codec = ValueCodec(store._engine.codec.registry, maybe_add_typed_methods(serde))
        self.engine = store._engine.with_codec(self.codec)

    def key(self, thread: str) -> ThreadKey:
        return self.store._key(thread)

    # Writing

    async def put(
        self,
        place: Place,
        checkpoint: Checkpoint,
        metadata: Mapping[str, Any],
        new_versions: ChannelVersions,
        *,
        turn: Turn,
        guarded: bool = False,
        fence: Fence | None = None,
    ) -> Place:
        """Store a checkpoint whose parent is the one that `place` names."""
        key, id = self.key(place.thread), check_id("checkpoint id", checkpoint.get("id"))
        draft = Draft(
            place.namespace,
            id,
            parent=place.id,
            follows=False,
            expect=(place.namespace, place.id) if guarded else None,
            fence=fence,
            before_plan=turn.wait,
            timeout_s=self.store._timeout(None),
        )
        describe(self.codec, draft, metadata, checkpoint["channel_values"])
        state = pack_state(self.codec, checkpoint, self._kept(key, place, checkpoint, new_versions))
        try:
            await self.engine.save(key, state, draft)
        except CheckpointExists:
            draft.replace, draft.expect = True, None
            await self.engine.save(key, {**state, **await self._deltas_in(key, place.namespace, id)}, draft)
        return Place(place.thread, place.namespace, id)

    async def _deltas_in(self, key: ThreadKey, namespace: str, id: str) -> Mapping[str, Any]:
        """Return what was written into a checkpoint when those above it were deleted: nobody else has it any more."""
        found = await self.engine.load(key, namespace, id, None, self.store._timeout(None))
        state = None if found is None else self.codec.unpack(found[1], opaque=True)
        return {"deltas": state["deltas"]} if isinstance(state, dict) and "deltas" in state else {}

    def _kept(
        self, key: ThreadKey, place: Place, checkpoint: Checkpoint, new_versions: ChannelVersions
    ) -> Mapping[str, Any]:
        """Return what of the parent need not be sealed again, when its bytes are at hand."""
        if self.codec.is_open:
            return {}
        base = self.engine.cache.get((key.digest, place.namespace))
        if base is None or base.record.id != place.id:
            return {}
        state = self.engine.codec.unpack(base.bytes_of(self.codec), opaque=True)
        return kept_values(state, checkpoint["channel_versions"], new_versions)

    async def put_writes(
        self,
        place: Place,
        writes: Sequence[tuple[str, Any]],
        task: str,
        path: str,
        *,
        turn: Turn,
        fence: Fence | None = None,
    ) -> None:
        """Store what a task wrote on a checkpoint, which may not be stored yet."""
        key, target = self.key(place.thread), check_id("checkpoint_id", place.id)
        records: list[WriteRecord] = []
        chunks: dict[bytes, bytes] = {}
        stored_pieces: dict[bytes, tuple[bytes, bytes, int]] = {}
        for position, (channel, given) in enumerate(writes):
            index, value = WRITES_IDX_MAP.get(channel, position), self._value(channel, given)
            record, new = self._write_record(place.namespace, target, task, index, channel, value, path)
            records.append(record)
            chunks.update(new)
            if new and isinstance(value, Messages | list):
                stored_pieces |= self.engine.stored_pieces(
                    record, new, value if isinstance(value, list) else value.items
                )
        await turn.wait()
        if not records:
            return
        # Before they are stored: the checkpoint that has them may go into the same transaction. Were they refused, it
        # would be too, and saved once more without them.
        self.engine.remember_stored(key, place.namespace, stored_pieces)
        with turn.storing() as group_wait_s:
            commit = Commit(
                key,
                writes=tuple(records),
                chunks=tuple(chunks.items()),
                fence=fence,
                timeout_s=self.store._timeout(None),
                group_wait_s=group_wait_s,
                on_queued=turn.end,  # what comes next may share its transaction, and stands behind it
            )
            await self.engine.commit(commit)

    def _value(self, channel: str, value: Any) -> Any:
        check_text("channel", channel)
        return opened(value) if self.codec.is_open else self.codec.seal(value, None, f"write to {channel!r}")

    def _write_record(
        self, namespace: str, target: str, task: str, index: int, channel: str, value: Any, path: str
    ) -> tuple[WriteRecord, dict[bytes, bytes]]:
        try:
            return self.engine.write_record(
                namespace, target, check_id("task_id", task), index, channel, value, check_text("task_path", path)
            )  # fmt: skip
        except OutliveError as error:
            error.add_note(f"in what task {task!r} wrote to channel {channel!r}")
            raise

    # Reading

    async def get_tuple(self, place: Place) -> CheckpointTuple | None:
        """Return a checkpoint, the newest when the place names none."""
        key = self.key(place.thread)
        found = await self.engine.load(key, place.namespace, place.id, None, self.store._timeout(None))
        if found is None:
            return None
        reading, stream = found
        record = reading.record
        assert record is not None
        state = self.engine.unpack(key, record.id, stream)
        return self.describe(key, record, state, self.engine.pending(key, reading.writes, reading.chunks))

    def describe(
        self, key: ThreadKey, record: CheckpointRecord, state: Any, writes: Sequence[PendingWrite]
    ) -> CheckpointTuple:
        """Return a checkpoint as LangGraph sees it."""
        here = Place(key.id, record.namespace, record.id)
        above = None if record.parent is None else Place(key.id, record.namespace, record.parent)
        return CheckpointTuple(
            config=here.config,
            checkpoint=unpack_state(key.id, record.id, state).checkpoint(record.id),
            metadata=self.metadata(key, record),
            parent_config=None if above is None else above.config,
            pending_writes=[(write.task, write.channel, write.value) for write in writes],
        )

    def metadata(self, key: ThreadKey, record: CheckpointRecord) -> CheckpointMetadata:
        """Return the metadata of a record as LangGraph gave them."""
        with Located(key, record.id):
            return metadata_of(record, manifest.decode(self.codec, record.body).metadata)

    # DeltaChannels

    async def delta_history(self, place: Place, channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
        """Return, per channel, the nearest stored value above a checkpoint and the writes since."""
        found = await deltas.above(self, self.key(place.thread), place, channels)
        return {channel: _history(channel, found[channel]) for channel in channels}

    # Deleting

    async def delete_thread(self, thread: str, turn: Turn) -> None:
        """Delete everything of a thread."""
        await turn.wait()
        await self.store.thread(thread).delete()

    async def copy_thread(self, source: str, target: str, turn: Turn) -> None:
        """Copy a whole thread, with all namespaces and writes."""
        await turn.wait()
        try:
            await self.store.thread(source).copy(target)
        except CheckpointMissing:
            return  # nothing to copy

    async def delete_for_runs(self, runs: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads."""
        wanted = frozenset(check_id("run_id", run) for run in _several("run_ids", runs))
        if not wanted:
            return
        async for info in self.store.threads():
            await pruning.delete_for_runs(self, self.key(info.id), wanted)
        await self.engine.confirm(
            None
        )  # a thread that lost its last checkpoint to a refused call is in no list

    async def prune(self, threads: Sequence[str], rule: pruning.Rule | None, dry_run: bool) -> Pruned:
        """Delete the checkpoints of threads that a rule does not keep."""
        total = Pruned()
        for thread in [thread_of(thread) for thread in _several("thread_ids", threads)]:
            total = pruning.add(total, await pruning.prune(self, self.key(thread), rule, dry_run))
        return total


def _several(name: str, ids: Sequence[str]) -> Sequence[str]:
    """Return ids; refuse a str, whose letters would be taken for ids."""
    if isinstance(ids, str | bytes):
        raise BadArgument(f"{name} must be a list of ids, not {ids!r:.100}")
    return ids


def _history(channel: str, delta: Delta) -> DeltaChannelHistory:
    history: DeltaChannelHistory = {"writes": [(task, channel, value) for task, value in delta.writes]}
    if delta.seed:
        history["seed"] = delta.seed[0]
    return history
