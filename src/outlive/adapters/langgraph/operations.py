"""What the saver does with a store, written once for sync and async.

A put is a save: one commit, refused as a whole or done. A checkpoint whose id exists already is
replaced and keeps its position in the order, as in LangGraph's savers. Writes of a task are pending
writes: the first write of an index wins, and those to control channels are overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from outlive.adapters.langgraph.config import CheckpointRef, thread_of
from outlive.adapters.langgraph.delta_channels import read_history
from outlive.adapters.langgraph.prune import add, delete_checkpoints_of, prune_thread
from outlive.adapters.langgraph.refusals import Refusals, nodes_between, sent_to, source_of
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.state import Delta, describe, pack_state
from outlive.adapters.langgraph.values.messages import opened
from outlive.arguments import check_id, check_text
from outlive.backend import Commit, Fence, ThreadKey, WriteRecord
from outlive.errors import BadArgument, CheckpointExists, CheckpointMissing, OutliveError, Unencodable
from outlive.store import AsyncStore
from outlive.threads.keep_policy import KeepPolicy
from outlive.threads.save import Draft, Save
from outlive.values import PendingWrite, Pruned

_LINGER_S = 0.005  # a graph takes less from the writes of its last task to its next checkpoint


class Turn(Protocol):
    """A turn in the order of the calls that write to a thread."""

    async def wait(self) -> None:
        """Wait for this turn; nothing is stored before."""
        ...

    def end(self) -> None:
        """Let the next call continue."""
        ...


class CheckpointOperations:
    """A store as LangGraph sees it, through one serializer."""

    def __init__(self, store: AsyncStore, serde: SerializerProtocol) -> None:
        self.serde = serde
        self._refusals = Refusals()
        self.session = Session.of(store, serde)
        self._store, self._codec, self._engine = store, self.session.codec, self.session.engine

    # Writing

    async def put(
        self,
        ref: CheckpointRef,
        checkpoint: Checkpoint,
        metadata: Mapping[str, Any],
        new_versions: ChannelVersions,
        *,
        turn: Turn,
        refuse_stale: bool = False,
        fence: Fence | None = None,
    ) -> CheckpointRef:
        """Store a checkpoint whose parent is the one that `ref` names."""
        key, id = self.session.key(ref.thread), check_id("checkpoint id", checkpoint.get("id"))
        draft = Draft(
            ref.namespace,
            id,
            parent=ref.id,
            follows=False,
            expect=(ref.namespace, ref.id) if refuse_stale else None,
            fence=fence,
            timeout_s=self.session.timeout_s,
        )
        describe(self._codec, draft, metadata, checkpoint["channel_values"])
        state = pack_state(self._codec, checkpoint, ref.id, new_versions, {})
        await turn.wait()
        try:
            await Save(self._engine, key, state, draft).run()
        except CheckpointExists:
            draft.replace, draft.expect = True, None
            deltas = await self._deltas_in(key, ref.namespace, id)
            state = pack_state(self._codec, checkpoint, ref.id, new_versions, deltas)
            await Save(self._engine, key, state, draft).run()
        except Unencodable as error:
            nodes = nodes_between(self._cached(key, ref.namespace, ref.id), checkpoint)
            raise self._refusals.of_checkpoint(error, key, ref.namespace, ref.id, nodes) from None
        return CheckpointRef(ref.thread, ref.namespace, id)

    async def _deltas_in(self, key: ThreadKey, namespace: str, id: str) -> Mapping[str, Any]:
        """Return what a checkpoint got when those above it were deleted: no other copy exists."""
        loaded = await self.session.load(key, namespace, id)
        state = None if loaded is None else self._codec.unpack(loaded[1], opaque=True)
        return {"deltas": state["deltas"]} if isinstance(state, dict) and "deltas" in state else {}

    async def put_writes(
        self,
        ref: CheckpointRef,
        writes: Sequence[tuple[str, Any]],
        task: str,
        path: str,
        *,
        turn: Turn,
        fence: Fence | None = None,
        is_followed: bool = False,
    ) -> None:
        """Store what a task wrote on a checkpoint, which may not be stored yet.

        `is_followed`: a put comes soon, and may take the writes along in its transaction.
        """
        key, target = self.session.key(ref.thread), check_id("checkpoint_id", ref.id)
        check_id("task_id", task)
        check_text("task_path", path)
        records: list[WriteRecord] = []
        chunks: dict[bytes, bytes] = {}
        for position, (channel, value) in enumerate(writes):
            write = PendingWrite(task, WRITES_IDX_MAP.get(channel, position), channel, value, path)
            record, new = self._write_record(key, ref.namespace, target, write)
            records.append(record)
            chunks.update(new)
        await turn.wait()
        if not records:
            return
        commit = Commit(
            key,
            writes=tuple(records),
            chunks=tuple(chunks.items()),
            fence=fence,
            timeout_s=self.session.timeout_s,
            on_queued=turn.end,  # the next call may share this transaction, and is ordered after it
            linger_s=_LINGER_S if is_followed else 0.0,
        )
        await self._engine.commit(commit)

    def _write_record(
        self, key: ThreadKey, namespace: str, target: str, write: PendingWrite
    ) -> tuple[WriteRecord, dict[bytes, bytes]]:
        task, path, channel = write.task, write.path, write.channel
        check_text("channel", channel)
        is_open = self._codec.is_open
        value = (
            opened(write.value) if is_open else self._codec.seal(write.value, None, f"write to {channel!r}")
        )
        try:
            return self._engine.write_record(namespace, target, task, write.index, channel, value, path)
        except Unencodable as error:
            node = sent_to(path, self._cached(key, namespace, target))
            source = source_of(task, path, channel, node)
            raise self._refusals.of_write(error, key, namespace, target, channel, source) from None
        except OutliveError as error:
            error.add_note(f"in what {source_of(task, path, channel)}")
            raise

    def _cached(self, key: ThreadKey, namespace: str, id: str | None) -> Any:
        """Return the state of a checkpoint in opaque form, when the cache has it."""
        base = self._engine.cache.get((key.digest, namespace))
        if base is None or base.record.id != id:
            return None
        return self._codec.unpack(base.bytes_of(self._codec), opaque=True)

    # Reading

    async def get_tuple(self, ref: CheckpointRef) -> CheckpointTuple | None:
        """Return a checkpoint, the newest when `ref` names none."""
        key = self.session.key(ref.thread)
        loaded = await self.session.load(key, ref.namespace, ref.id)
        if loaded is None:
            return None
        reading, stream = loaded
        record = reading.record
        assert record is not None
        state = self._engine.unpack(key, record.id, stream)
        writes = self._engine.pending(key, reading.writes, reading.chunks)
        return self.session.checkpoint_tuple(key, record, state, writes)

    # DeltaChannels

    async def delta_history(
        self, ref: CheckpointRef, channels: Sequence[str]
    ) -> dict[str, DeltaChannelHistory]:
        """Return, per channel, the nearest stored value above a checkpoint and the writes since."""
        deltas = await read_history(self.session, self.session.key(ref.thread), ref, channels)
        return {channel: _history(channel, deltas[channel]) for channel in channels}

    # Deleting

    async def delete_thread(self, thread: str, turn: Turn) -> None:
        """Delete everything of a thread."""
        await turn.wait()
        await self._store.thread(thread).delete()

    async def copy_thread(self, source: str, target: str, turn: Turn) -> None:
        """Copy a whole thread, with all namespaces and writes."""
        await turn.wait()
        try:
            await self._store.thread(source).copy(target)
        except CheckpointMissing:
            return  # nothing to copy

    async def delete_for_runs(self, runs: Sequence[str]) -> None:
        """Delete the checkpoints of runs, in all threads."""
        wanted = frozenset(check_id("run_id", run) for run in _several("run_ids", runs))
        if not wanted:
            return
        async for info in self._store.threads():
            await delete_checkpoints_of(self.session, self.session.key(info.id), wanted)
        # A thread that lost its last checkpoint to a refused call is in no list.
        await self._engine.confirm_deletion(None)

    async def prune(self, threads: Sequence[str], policy: KeepPolicy | None, dry_run: bool) -> Pruned:
        """Delete the checkpoints of threads that a policy does not keep."""
        total = Pruned()
        for thread in [thread_of(thread) for thread in _several("thread_ids", threads)]:
            total = add(total, await prune_thread(self.session, self.session.key(thread), policy, dry_run))
        return total


def _several(name: str, ids: Sequence[str]) -> Sequence[str]:
    """Return ids; refuse a str, which would be read as a list of letters."""
    if isinstance(ids, str | bytes):
        raise BadArgument(f"{name} must be a list of ids, not {ids!r:.100}")
    return ids


def _history(channel: str, delta: Delta) -> DeltaChannelHistory:
    history: DeltaChannelHistory = {"writes": [(task, channel, value) for task, value in delta.writes]}
    if delta.seed:
        history["seed"] = delta.seed[0]
    return history
