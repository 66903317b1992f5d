"""Which checkpoints of a thread may be deleted, and which of those are still needed.

`thread.prune`, a sweep and the LangGraph adapter decide by the same policy. What is due by its age
or its number is kept all the same while it is needed: an interrupt without an answer, the newest
checkpoint of a run that is not finished, and the ancestors without which a kept checkpoint cannot
be read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from outlive.backend import CheckpointKey, CheckpointRecord, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import OutliveError
from outlive.format import manifest
from outlive.threads.engine import Engine

ByReason = Mapping[str, set[CheckpointKey]]


@dataclass(frozen=True, slots=True)
class KeepPolicy:
    """Keep the newest `keep_last` checkpoints of each namespace that are not older than `max_age_s`."""

    keep_last: int | None = None
    max_age_s: float | None = None

    def due(self, records: Sequence[CheckpointRecord], now_s: float) -> dict[str, set[CheckpointKey]]:
        """Return the keys of records that may be deleted, by reason.

        `records` are newest first; the newest of a namespace always stays.
        """
        due: dict[str, set[CheckpointKey]] = {"max_age": set(), "keep_last": set()}
        newer: dict[str, int] = {}  # namespace → records seen
        oldest = None if self.max_age_s is None else (now_s - self.max_age_s) * 1e6
        for record in records:
            position = newer.get(record.namespace, 0)
            newer[record.namespace] = position + 1
            if position == 0:
                continue
            if oldest is not None and record.created_at < oldest:
                due["max_age"].add(record.key)
            elif self.keep_last is not None and position >= self.keep_last:
                due["keep_last"].add(record.key)
        return due


def keys_of(records: Collection[CheckpointRecord]) -> set[CheckpointKey]:
    """Return (namespace, id) of records."""
    return {record.key for record in records}


async def still_needed(
    engine: Engine,
    key: ThreadKey,
    records: Sequence[CheckpointRecord],
    due: ByReason,
    *,
    runs: Collection[str] = (),
    keep_lineage: bool = False,
) -> dict[str, set[CheckpointKey]]:
    """Return the keys of records that must stay, by reason. `runs` are the unfinished ones.

    Ancestors stay if a checkpoint cannot be read without them; with `keep_lineage` always.
    """
    newest: dict[str, CheckpointKey] = {}
    for record in records:
        if record.run in runs:
            newest.setdefault(record.run or "", record.key)
    needed = {
        "unfinished run": set(newest.values()),
        "open interrupt": await open_interrupts(engine, key, records),
    }
    kept = keys_of(records).difference(*due.values()).union(*needed.values())
    needed["ancestor"] = _ancestors(records, kept, keep_lineage)
    return needed


async def open_interrupts(
    engine: Engine, key: ThreadKey, records: Sequence[CheckpointRecord]
) -> set[CheckpointKey]:
    """Return the checkpoints that wait for an answer.

    They have no child, and an interrupt without a resume value.

    A framework asks by a pending write (`__interrupt__`) instead of an interrupt of the checkpoint.
    """
    continued = {(record.namespace, record.parent) for record in records}
    tips = [record for record in records if record.key not in continued]
    writes = await engine.backend.writes(key, [tip.key for tip in tips]) if tips else []
    waiting = {write.checkpoint_key for write in writes if write.channel == "__interrupt__"}
    answers = {(*write.checkpoint_key, write.task) for write in writes if write.channel == "__resume__"}
    for tip in tips:
        try:
            asked = manifest.decode(engine.codec, tip.body, opaque=True).interrupts
        except OutliveError:
            # Damaged or encrypted: unknown, so it stays until it is deleted by its id.
            waiting.add(tip.key)
            continue
        if any((tip.namespace, tip.id, interrupt.id) not in answers for interrupt in asked):
            waiting.add(tip.key)
    return waiting


def _ancestors(
    records: Sequence[CheckpointRecord], kept: set[CheckpointKey], keep_lineage: bool
) -> set[CheckpointKey]:
    by_key = {record.key: record for record in records}
    ancestors: set[CheckpointKey] = set()
    for key in kept:
        record = by_key.get(key)
        while record is not None and record.parent is not None and (keep_lineage or _needs_parent(record)):
            parent = (record.namespace, record.parent)
            record = by_key.get(parent) if parent not in ancestors else None
            ancestors |= {parent} & by_key.keys()
    return ancestors


def _needs_parent(record: CheckpointRecord) -> bool:
    """Tell whether a framework stored only the difference to the parent."""
    try:
        return manifest.needs_parent(record.body)
    except OutliveError:
        return True  # damaged, encrypted, or of a newer outlive: unknown
