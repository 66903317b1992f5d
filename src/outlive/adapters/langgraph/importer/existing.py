"""What the target has of a thread already, and what that means for moving it once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from outlive.adapters.langgraph.importer.batch import SYSTEM
from outlive.adapters.langgraph.importer.source import CheckpointKey, WriteKey
from outlive.backend import CheckpointRecord, EntryQuery, ThreadKey, WriteRecord
from outlive.backend.entries import MOVED
from outlive.threads.engine import Engine


class Held:
    """A thread of the target beside the same thread of the source."""

    def __init__(
        self,
        generation: int | None,
        records: Sequence[CheckpointRecord],
        writes: Sequence[WriteRecord],
        pairs: Sequence[CheckpointKey],
        write_keys: set[WriteKey],
        moved: int,
    ) -> None:
        self.generation = generation
        self.records = {(record.namespace, record.id): record for record in records}
        self.writes = {write.key for write in writes}
        self.pairs = pairs
        self._shared = [pair for pair in pairs if pair in self.records]
        self._source_writes = write_keys
        self._is_overwritten = any(write.rank[2] > moved for write in writes if write.index < 0)

    @classmethod
    async def read(
        cls, engine: Engine, key: ThreadKey, pairs: Sequence[CheckpointKey], write_keys: set[WriteKey]
    ) -> Self:
        generation = (await engine.backend.read(key, "", chunks=False)).generation
        records = await engine.records(key)
        writes = await engine.backend.writes(key, None)
        notes = await engine.backend.entries(
            EntryQuery(key.tenant, MOVED, thread=key, prefix=SYSTEM, limit=1)
        )
        moved = notes[0][1].fence if notes else 0
        return cls(generation or None, records, writes, pairs, write_keys, moved)

    @property
    def namespaces(self) -> set[str]:
        return {namespace for namespace, _ in self.records}

    @property
    def is_behind(self) -> bool:
        """Tell whether the source has checkpoints or writes that are not here."""
        return len(self._shared) < len(self.pairs) or not self._source_writes <= self.writes

    @property
    def lacking(self) -> list[CheckpointKey]:
        """The checkpoints of the source that are not here, or not with all of their writes."""
        written = {(key[0], key[1]) for key in self._source_writes - self.writes}
        return [pair for pair in self.pairs if pair not in self.records or pair in written]

    @property
    def has_gone_on(self) -> bool:
        """Tell whether something happened here that the source does not know: a newer checkpoint, another write, or a
        control write after the last one of a mover. (Older checkpoints that only the target has were pruned from the source.)
        """
        if self._is_overwritten:
            return True
        shared = set(self._shared)
        last = max((self.records[pair].order for pair in shared), default=None)
        own = [record for pair, record in self.records.items() if pair not in shared]
        if any(last is None or record.order > last for record in own):
            return True
        return any((key[0], key[1]) in shared for key in self.writes - self._source_writes)

    def places(self) -> dict[CheckpointKey, tuple[int, int]]:
        """Return the (epoch, seq) of checkpoints that are missing here before others that are not.

        They get the seq of the one before them; ids decide between equal ones.
        """
        found: dict[CheckpointKey, tuple[int, int]] = {}
        if not self._shared:
            return found
        before = self.records[self._shared[0]]
        left = len(self._shared)
        for pair in self.pairs:
            if left == 0:
                break
            if pair in self.records:
                before, left = self.records[pair], left - 1
            else:
                found[pair] = (before.epoch, before.seq)
        return found
