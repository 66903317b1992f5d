"""DeltaChannels: values that are stored as the writes since the last snapshot, along the chain of parents.

A checkpoint has no value for such a channel. LangGraph asks for the nearest ancestor that has one
and for the writes since, and applies its reducer, which a saver does not have. So before ancestors
are deleted, their part of the channel (the seed and the writes, in order) is written into the
checkpoint below them that stays, as `deltas` of its state; the walk ends there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlive.adapters.langgraph.config import CheckpointRef
from outlive.adapters.langgraph.pages import Pages
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.state import Delta, Snapshot, unpack_state
from outlive.backend import CheckpointRecord, ThreadKey
from outlive.values import PendingWrite

_LONGEST = 1_000_000


class Walk:
    """Collects what channels had, from a checkpoint upwards."""

    def __init__(self, channels: Sequence[str]) -> None:
        self._writes: dict[str, list[tuple[str, Any]]] = {channel: [] for channel in channels}  # newest first
        self._ends: dict[str, Delta] = {}

    @property
    def is_done(self) -> bool:
        return len(self._ends) == len(self._writes)

    def begin(self, snapshot: Snapshot) -> None:
        """Start at a checkpoint, which may contain already what was above it."""
        self._end_with(snapshot)

    def visit(self, snapshot: Snapshot, writes: Sequence[PendingWrite]) -> None:
        """Add the next ancestor. Its value is what the channel had before its writes."""
        for write in reversed(writes):
            if write.channel in self._writes and write.channel not in self._ends:
                self._writes[write.channel].append((write.task, write.value))
        for channel in self._writes:
            if channel not in self._ends and channel in snapshot.values:
                self._ends[channel] = Delta([], (snapshot.values[channel],))
        self._end_with(snapshot)

    def _end_with(self, snapshot: Snapshot) -> None:
        for channel, delta in snapshot.deltas.items():
            if channel in self._writes and channel not in self._ends:
                self._ends[channel] = delta

    def result(self) -> dict[str, Delta]:
        deltas = {}
        for channel, writes in self._writes.items():
            end = self._ends.get(channel, Delta([]))
            deltas[channel] = Delta([*end.writes, *reversed(writes)], end.seed)
        return deltas


async def read_history(
    session: Session, key: ThreadKey, ref: CheckpointRef, channels: Sequence[str]
) -> dict[str, Delta]:
    """Walk up from a checkpoint and return what was above it, per channel."""
    walk = Walk(channels)
    start = await _read(session, key, ref.namespace, ref.id)
    if start is not None:
        record, snapshot, _ = start
        walk.begin(snapshot)
        await _climb(session, key, record, walk)
    return walk.result()


async def _climb(session: Session, key: ThreadKey, record: CheckpointRecord, walk: Walk) -> None:
    """Visit the ancestors of a checkpoint until every channel has its end."""
    chain = {record.parent}
    while True:
        pages = Pages(session.engine, key, record.namespace, record.order)
        while (
            not walk.is_done
            and (page := await pages.next(lambda candidate: _is_next(candidate, chain))) is not None
        ):
            for record in page.records:
                _, state, writes = page.open(record)
                walk.visit(unpack_state(key.id, record.id, state), writes)
        if walk.is_done:
            return
        # A checkpoint that was put again keeps its place, and may have a parent that is newer than
        # itself.
        if record.parent is None or len(chain) > _LONGEST:
            return
        later = await _read(session, key, record.namespace, record.parent)
        if later is None or later[0].parent in chain:
            return  # the rest of the chain was deleted, or is a cycle
        record = later[0]
        chain.add(record.parent)
        walk.visit(later[1], later[2])


def _is_next(record: CheckpointRecord, chain: set[str | None]) -> bool:
    if record.id not in chain:
        return False
    chain.add(record.parent)  # may be asked again for the same record
    return True


async def _read(
    session: Session, key: ThreadKey, namespace: str, id: str | None
) -> tuple[CheckpointRecord, Snapshot, Sequence[PendingWrite]] | None:
    engine, loaded = session.engine, await session.load(key, namespace, id)
    if loaded is None:
        return None
    reading, stream = loaded
    assert reading.record is not None
    record = reading.record
    snapshot = unpack_state(key.id, record.id, engine.unpack(key, record.id, stream))
    return record, snapshot, engine.pending(key, reading.writes, reading.chunks)
