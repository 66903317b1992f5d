"""Deleting checkpoints of LangGraph without breaking what stays.

Three things are never broken. The newest checkpoint of every namespace stays. So does a checkpoint at which the graph
waits for an answer (it has a write to `__interrupt__`, and nobody went on from it). And a DeltaChannel whose chain of
writes would be cut gets what it needs written into the checkpoint that stays (`deltas.py`), before anything is deleted: a
crash in between leaves both, which say the same.

A subgraph without a memory of its own gets a new namespace each time it is called, `name:task`. Nobody comes back to it but by the
checkpoint of the graph around it, so it goes when that goes: else a thread would grow with every call however often it is pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from outlive.adapters.langgraph import delta_channels as deltas
from outlive.adapters.langgraph.config import Place
from outlive.adapters.langgraph.state import Delta, Snapshot, pack_deltas, unpack_state
from outlive.backend import CheckpointRecord, ThreadKey, ThreadQuery, WriteRecord
from outlive.errors import BadArgument, StaleBase
from outlive.format import manifest
from outlive.runtime.runtime import Deadline
from outlive.threads import prune as pruning
from outlive.threads.engine import Draft
from outlive.values import Pruned

if TYPE_CHECKING:
    from outlive.adapters.langgraph.operations import CheckpointOperations

CheckpointKey = tuple[str, str]  # (namespace, id)
STRATEGIES = ("keep_latest", "delete")
_PATIENCE_S = 60.0
_BAR, _OF_TASK = "|", ":"  # in the namespace of a subgraph


@dataclass(frozen=True, slots=True)
class Rule:
    """What stays of a thread: the newest `keep_last` of each namespace, as far as they are not older than `older_than_s`."""

    keep_last: int | None = 1
    older_than_s: float | None = None

    def keeps(self, records: Sequence[CheckpointRecord], now: int) -> set[CheckpointKey]:
        """Return what stays of records, which are newest first; the newest of each namespace always does."""
        counts: dict[str, int] = {}
        kept = set()
        for record in records:
            count = counts[record.namespace] = counts.get(record.namespace, 0) + 1
            is_many = self.keep_last is not None and count > self.keep_last
            is_old = self.older_than_s is not None and record.created_at < now - self.older_than_s * 1e6
            if count == 1 or not (is_many or is_old):
                kept.add((record.namespace, record.id))
        return kept


def rule_of(strategy: str, keep_last: int | None, older_than_s: float | None) -> Rule | None:
    """Return what `prune` was asked for; None means to delete all."""
    if strategy not in STRATEGIES:
        raise BadArgument(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    if keep_last is not None and (type(keep_last) is not int or keep_last < 1):
        raise BadArgument(f'keep_last must be 1 or more, not {keep_last!r}; strategy="delete" deletes all')
    if older_than_s is not None and (
        not isinstance(older_than_s, int | float) or isinstance(older_than_s, bool) or not older_than_s >= 0
    ):
        raise BadArgument(f"older_than_s must be a number of seconds, not {older_than_s!r}")
    if strategy == "delete":
        if keep_last is not None or older_than_s is not None:
            raise BadArgument('strategy="delete" deletes all; leave keep_last and older_than_s out')
        return None
    if keep_last is None and older_than_s is None:
        return Rule()
    return Rule(keep_last, older_than_s)


async def prune(keeper: CheckpointOperations, key: ThreadKey, rule: Rule | None, dry_run: bool) -> Pruned:
    """Delete what a rule does not keep of one thread."""
    if rule is None:
        return await _delete_all(keeper, key, dry_run)
    now = keeper.engine.runtime.now()

    def choose(records: Sequence[CheckpointRecord], writes: Sequence[WriteRecord]) -> set[CheckpointKey]:
        waiting = _open_interrupts(records, writes)
        kept = rule.keeps(records, now) | waiting
        kept -= _forsaken(keeper, key, records, kept) - waiting
        return {(record.namespace, record.id) for record in records} - kept

    return await _remove(keeper, key, choose, dry_run)


async def _delete_all(keeper: CheckpointOperations, key: ThreadKey, dry_run: bool) -> Pruned:
    rows = await keeper.engine.backend.threads(ThreadQuery(key.tenant, only=key.id, heads=False))
    if not rows:
        if not dry_run:
            await keeper.engine.confirm(key)  # it may be a repetition of what was refused
        return Pruned()
    if not dry_run:
        await keeper.store.thread(key.id).delete()
    return Pruned(rows[0].checkpoints, freed_bytes=rows[0].stored)


async def delete_for_runs(keeper: CheckpointOperations, key: ThreadKey, runs: frozenset[str]) -> Pruned:
    """Delete the checkpoints of runs in one thread."""

    def choose(records: Sequence[CheckpointRecord], writes: Sequence[WriteRecord]) -> set[CheckpointKey]:
        return {(record.namespace, record.id) for record in records if record.run in runs}

    return await _remove(keeper, key, choose, False)


def _open_interrupts(
    records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]
) -> set[CheckpointKey]:
    """Return where the graph waits for an answer."""
    continued = {(record.namespace, record.parent) for record in records}
    waiting = {(write.namespace, write.checkpoint) for write in writes if write.channel == "__interrupt__"}
    return waiting - continued


def _forsaken(
    keeper: CheckpointOperations,
    key: ThreadKey,
    records: Sequence[CheckpointRecord],
    kept: set[CheckpointKey],
) -> set[CheckpointKey]:
    """Return what calls of subgraphs left behind, of those that are kept, whose caller's checkpoint goes or has gone."""
    newest = max((record.order for record in records if record.namespace == ""), default=None)
    stays = set(kept)
    for record in sorted(records, key=_depth):  # what is around comes first
        around, here = _caller(record.namespace), (record.namespace, record.id)
        # With durability="async" it may be stored before the checkpoint that it runs in.
        is_early = newest is None or record.order > newest
        if around is None or here not in stays or is_early:
            continue
        parents = keeper.metadata(key, record).get("parents")
        parent = parents.get(around) if isinstance(parents, dict) else None
        if isinstance(parent, str) and (around, parent) not in stays:
            stays.remove(here)
    return kept - stays


def _depth(record: CheckpointRecord) -> int:
    return record.namespace.count(_BAR)


def _caller(namespace: str) -> str | None:
    """Return the namespace that a subgraph was called from; None when it has a memory of its own, or is none."""
    parts = namespace.split(_BAR)
    while len(parts) > 1 and parts[-1].isdecimal():  # called again in the same task
        parts.pop()
    return _BAR.join(parts[:-1]) if _OF_TASK in parts[-1] else None


async def _remove(
    keeper: CheckpointOperations,
    key: ThreadKey,
    choose: Callable[[Sequence[CheckpointRecord], Sequence[WriteRecord]], set[CheckpointKey]],
    dry_run: bool,
) -> Pruned:
    """Delete what is chosen, after those that stay got what they need of it."""
    engine = keeper.engine
    safe: set[CheckpointKey] = set()  # those that have what they need of what goes
    first: set[CheckpointKey] = set()

    async def chosen(records: Sequence[CheckpointRecord]) -> set[CheckpointKey]:
        writes = await engine.backend.writes(key, None) if records else []
        doomed = choose(records, writes) & first
        if not dry_run:
            await _save_deltas(keeper, key, records, doomed, safe)  # which lets the deletion begin anew
        return doomed

    # What a graph at work adds meanwhile is for the next call: else it could cut chains faster than they are saved.
    first |= choose(await engine.records(key), await engine.backend.writes(key, None))
    if not first:
        if not dry_run:
            await engine.confirm(key)  # it may be a repetition of what was refused
        return Pruned()
    deadline = Deadline(keeper.store._timeout(None) or _PATIENCE_S)
    while True:
        try:
            return await pruning.remove_chosen(engine, key, chosen, dry_run=dry_run)
        except StaleBase:  # others delete, or graphs put checkpoints again, all the time
            if not deadline.left_s():
                raise


async def _save_deltas(
    keeper: CheckpointOperations,
    key: ThreadKey,
    records: Sequence[CheckpointRecord],
    doomed: set[CheckpointKey],
    safe: set[CheckpointKey],
) -> None:
    """Write into checkpoints that stay what they would lose with those that go."""
    for record in records:
        here = (record.namespace, record.id)
        is_cut = record.parent is not None and (record.namespace, record.parent) in doomed
        if is_cut and here not in doomed and here not in safe:
            await _save_delta(keeper, key, record)
            safe.add(here)


async def _save_delta(keeper: CheckpointOperations, key: ThreadKey, record: CheckpointRecord) -> None:
    engine, codec = keeper.engine, keeper.codec
    found = await engine.load(key, record.namespace, record.id, None, keeper.store._timeout(None))
    if found is None:
        return
    snapshot = unpack_state(key.id, record.id, engine.unpack(key, record.id, found[1]))
    needed = await _needed(keeper, key, record, snapshot)
    if needed:
        state = codec.unpack(found[1], opaque=True)  # what is there stays as it is, byte by byte
        state["deltas"] = pack_deltas(codec, needed)
        draft = Draft(
            record.namespace, record.id, parent=record.parent, follows=False, step=record.step, source=record.source,
            run=record.run, replace=True, metadata=manifest.decode(codec, record.body, opaque=True).metadata,
        )  # fmt: skip
        await engine.save(key, state, draft)


async def _needed(
    keeper: CheckpointOperations, key: ThreadKey, record: CheckpointRecord, snapshot: Snapshot
) -> dict[str, Delta]:
    """Return what DeltaChannels have above a checkpoint that has no value of them itself."""
    counted = keeper.metadata(key, record).get("counters_since_delta_snapshot") or {}
    versions = snapshot.fields.get("channel_versions", {})
    lacking = [channel for channel in {**versions, **counted} if channel not in snapshot.values]
    found = await deltas.above(keeper, key, Place(key.id, record.namespace, record.id), lacking)
    return {
        channel: delta
        for channel, delta in found.items()
        if channel in counted or (delta.seed and isinstance(delta.seed[0], _DeltaSnapshot))
    }


def add(total: Pruned, more: Pruned) -> Pruned:
    """Return what two deletions took away."""
    return replace(
        total,
        checkpoints=total.checkpoints + more.checkpoints,
        chunks=total.chunks + more.chunks,
        rewritten=total.rewritten + more.rewritten,
        freed_bytes=total.freed_bytes + more.freed_bytes,
    )
