"""Deleting LangGraph checkpoints without breaking those that stay.

Three things always hold. The newest checkpoint of every namespace stays. So does a checkpoint at
which the graph waits for an answer (it has a write to `__interrupt__`, and no child). And when the
chain of writes of a DeltaChannel would be cut, the checkpoint that stays gets what it needs of it
(`delta_channels.py`) before anything is deleted: a crash in between leaves both, and they agree.

A subgraph without its own memory gets a new namespace, `name:task`, each time it is called. Only
the checkpoint of its caller leads to it, so it is deleted together with that one. Otherwise a
thread would grow with every call, however often it is pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from outlive.adapters.langgraph.config import CheckpointRef
from outlive.adapters.langgraph.delta_channels import read_history
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.state import Delta, Snapshot, pack_deltas, unpack_state
from outlive.backend import CheckpointKey, CheckpointRecord, ThreadKey, ThreadQuery, WriteRecord
from outlive.errors import BadArgument, StaleBase
from outlive.format import manifest
from outlive.runtime.runtime import Deadline
from outlive.threads.keep_policy import KeepPolicy, keys_of
from outlive.threads.prune import remove_chosen
from outlive.threads.save import Draft, Save
from outlive.values import Pruned

STRATEGIES = ("keep_latest", "delete")
_RETRY_S = 60.0
_BAR, _OF_TASK = "|", ":"  # in the namespace of a subgraph


def policy_of(strategy: str, keep_last: int | None, older_than_s: float | None) -> KeepPolicy | None:
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
        return KeepPolicy(keep_last=1)
    return KeepPolicy(keep_last, older_than_s)


async def prune_thread(session: Session, key: ThreadKey, policy: KeepPolicy | None, dry_run: bool) -> Pruned:
    """Delete what a policy does not keep of one thread."""
    if policy is None:
        return await _delete_all(session, key, dry_run)
    now_s = session.engine.runtime.now() / 1e6

    def choose(records: Sequence[CheckpointRecord], writes: Sequence[WriteRecord]) -> set[CheckpointKey]:
        waiting = _open_interrupts(records, writes)
        kept = keys_of(records).difference(*policy.due(records, now_s).values()) | waiting
        kept -= _orphaned(session, key, records, kept) - waiting
        return keys_of(records) - kept

    return await _remove(session, key, choose, dry_run)


async def _delete_all(session: Session, key: ThreadKey, dry_run: bool) -> Pruned:
    rows = await session.engine.backend.threads(ThreadQuery(key.tenant, only=key.id, heads=False))
    if not rows:
        if not dry_run:
            await session.engine.confirm_deletion(key)  # it may repeat a call that was refused
        return Pruned()
    if not dry_run:
        await session.store.thread(key.id).delete()
    return Pruned(rows[0].checkpoints, freed_bytes=rows[0].stored)


async def delete_checkpoints_of(session: Session, key: ThreadKey, runs: frozenset[str]) -> Pruned:
    """Delete the checkpoints of runs in one thread."""

    def choose(records: Sequence[CheckpointRecord], writes: Sequence[WriteRecord]) -> set[CheckpointKey]:
        return {(record.namespace, record.id) for record in records if record.run in runs}

    return await _remove(session, key, choose, False)


def _open_interrupts(
    records: Iterable[CheckpointRecord], writes: Iterable[WriteRecord]
) -> set[CheckpointKey]:
    """Return where the graph waits for an answer."""
    continued = {(record.namespace, record.parent) for record in records}
    waiting = {(write.namespace, write.checkpoint) for write in writes if write.channel == "__interrupt__"}
    return waiting - continued


def _orphaned(
    session: Session,
    key: ThreadKey,
    records: Sequence[CheckpointRecord],
    kept: set[CheckpointKey],
) -> set[CheckpointKey]:
    """Return the kept checkpoints of subgraph calls whose caller's checkpoint is deleted, now or before."""
    newest = max((record.order for record in records if record.namespace == ""), default=None)
    stays = set(kept)
    for record in sorted(records, key=_depth):  # callers first
        around, here = _caller(record.namespace), (record.namespace, record.id)
        # With durability="async" it may be stored before the checkpoint that it runs in.
        is_early = newest is None or record.order > newest
        if around is None or here not in stays or is_early:
            continue
        parents = session.metadata(key, record).get("parents")
        parent = parents.get(around) if isinstance(parents, dict) else None
        if isinstance(parent, str) and (around, parent) not in stays:
            stays.remove(here)
    return kept - stays


def _depth(record: CheckpointRecord) -> int:
    return record.namespace.count(_BAR)


def _caller(namespace: str) -> str | None:
    """Return the namespace that a subgraph was called from; None when it has its own memory, or is the root."""
    parts = namespace.split(_BAR)
    while len(parts) > 1 and parts[-1].isdecimal():  # called again in the same task
        parts.pop()
    return _BAR.join(parts[:-1]) if _OF_TASK in parts[-1] else None


async def _remove(
    session: Session,
    key: ThreadKey,
    choose: Callable[[Sequence[CheckpointRecord], Sequence[WriteRecord]], set[CheckpointKey]],
    dry_run: bool,
) -> Pruned:
    """Delete what is chosen, after those that stay have got what they need of it."""
    engine = session.engine
    safe: set[CheckpointKey] = set()  # those that have got what they need
    first: set[CheckpointKey] = set()

    async def chosen(records: Sequence[CheckpointRecord]) -> set[CheckpointKey]:
        writes = await engine.backend.writes(key, None) if records else []
        doomed = choose(records, writes) & first
        if not dry_run:
            # This changes the thread, so the deletion looks at it again.
            await _save_deltas(session, key, records, doomed, safe)
        return doomed

    # What a running graph adds meanwhile is left for the next call: it could cut chains faster than
    # they are saved.
    first |= choose(await engine.records(key), await engine.backend.writes(key, None))
    if not first:
        if not dry_run:
            await engine.confirm_deletion(key)  # it may repeat a call that was refused
        return Pruned()
    deadline = Deadline(session.timeout_s or _RETRY_S)
    while True:
        try:
            return await remove_chosen(engine, key, chosen, dry_run=dry_run)
        except StaleBase:  # others delete, or put checkpoints again
            if not deadline.remaining_s():
                raise


async def _save_deltas(
    session: Session,
    key: ThreadKey,
    records: Sequence[CheckpointRecord],
    doomed: set[CheckpointKey],
    safe: set[CheckpointKey],
) -> None:
    """Write into checkpoints that stay what they would lose with the deleted ones."""
    for record in records:
        here = (record.namespace, record.id)
        is_cut = record.parent is not None and (record.namespace, record.parent) in doomed
        if is_cut and here not in doomed and here not in safe:
            await _save_delta(session, key, record)
            safe.add(here)


async def _save_delta(session: Session, key: ThreadKey, record: CheckpointRecord) -> None:
    engine, codec = session.engine, session.codec
    loaded = await session.load(key, record.namespace, record.id)
    if loaded is None:
        return
    snapshot = unpack_state(key.id, record.id, engine.unpack(key, record.id, loaded[1]))
    needed = await _needed(session, key, record, snapshot)
    if needed:
        state = codec.unpack(loaded[1], opaque=True)  # what is there stays as it is, byte by byte
        state["deltas"] = pack_deltas(codec, needed)
        draft = Draft(
            record.namespace, record.id, parent=record.parent, follows=False, step=record.step, source=record.source,
            run=record.run, replace=True, metadata=manifest.decode(codec, record.body, opaque=True).metadata,
        )  # fmt: skip
        await Save(engine, key, state, draft).run()


async def _needed(
    session: Session, key: ThreadKey, record: CheckpointRecord, snapshot: Snapshot
) -> dict[str, Delta]:
    """Return what DeltaChannels have above a checkpoint that contains no value for them."""
    counted = session.metadata(key, record).get("counters_since_delta_snapshot") or {}
    versions = snapshot.fields.get("channel_versions", {})
    lacking = [channel for channel in {**versions, **counted} if channel not in snapshot.values]
    deltas = await read_history(session, key, CheckpointRef(key.id, record.namespace, record.id), lacking)
    return {
        channel: delta
        for channel, delta in deltas.items()
        if channel in counted or (delta.seed and isinstance(delta.seed[0], _DeltaSnapshot))
    }


def add(total: Pruned, more: Pruned) -> Pruned:
    """Return the sum of two deletions."""
    return replace(
        total,
        checkpoints=total.checkpoints + more.checkpoints,
        chunks=total.chunks + more.chunks,
        rewritten=total.rewritten + more.rewritten,
        freed_bytes=total.freed_bytes + more.freed_bytes,
    )
