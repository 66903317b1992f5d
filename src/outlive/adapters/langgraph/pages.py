"""Reading many checkpoints of a thread: a page of records, their writes and chunks, in three round trips.

No transaction is open between pages. A chunk that several checkpoints share is fetched and expanded
once per page; every checkpoint still gets its own objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from outlive.backend import CheckpointRecord, Cursor, HistoryQuery, ThreadKey, WriteRecord
from outlive.errors import StaleBase
from outlive.format import layout, manifest
from outlive.threads.engine import Engine, Located, check_format
from outlive.values import PendingWrite

PAGE = 64
_TRIES = 8
Read = tuple[CheckpointRecord, Any, tuple[PendingWrite, ...]]  # (record, state, writes)


class Pages:
    """The records of a thread, newest first, with what belongs to them."""

    def __init__(self, engine: Engine, key: ThreadKey, namespace: str | None, before: Cursor | None) -> None:
        self._engine = engine
        self._key = key
        self._namespace = namespace
        self._cursor = before
        self._ended = False

    async def next(self, wanted: Callable[[CheckpointRecord], bool], limit: int = PAGE) -> Loaded | None:
        """Read the next `limit` records, and all of those that are wanted; None when there are no more."""
        if self._ended:
            return None
        for _ in range(_TRIES):
            generation, page = await self._engine.backend.history(
                HistoryQuery(self._key, self._namespace, before=self._cursor, limit=limit)
            )
            try:
                loaded = await load(
                    self._engine, self._key, [record for record in page if wanted(record)], generation
                )
            except StaleBase:  # something was deleted between two round trips: look again
                continue
            self._cursor = page[-1].order if page else self._cursor
            self._ended = len(page) < limit
            return loaded
        raise StaleBase(self._key.id)


async def load(
    engine: Engine, key: ThreadKey, records: Sequence[CheckpointRecord], generation: int
) -> Loaded:
    """Read the writes and chunks of records; raise StaleBase when some were deleted meanwhile."""
    pairs = [(record.namespace, record.id) for record in records]
    writes = await engine.backend.writes(key, pairs) if pairs else []
    lists = [*(record.chunks for record in records), *(write.chunks for write in writes)]
    names = list(dict.fromkeys(name for chunks in lists for name in chunks))
    data = await engine.backend.fetch(key, names) if names else {}
    if len(data) < len(names) and await engine.has_moved(key, generation):
        raise StaleBase(key.id)
    return Loaded(engine, key, records, writes, data)


class Loaded:
    """Records with all that is needed to build their states."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        records: Sequence[CheckpointRecord],
        writes: Iterable[WriteRecord],
        data: dict[bytes, bytes],
    ) -> None:
        self.records = records
        self._engine = engine
        self._key = key
        self._data = data
        self._raw: dict[bytes, bytes] = {}
        self._writes: dict[tuple[str, str], list[WriteRecord]] = {}
        for write in writes:
            self._writes.setdefault((write.namespace, write.checkpoint), []).append(write)

    def open(self, record: CheckpointRecord) -> Read:
        """Return a record with its state and writes."""
        with Located(self._key, record.id):
            check_format(record)
            raws = [self._expand(name) for name in record.chunks]
            stream = layout.assemble(manifest.layout_of(record.body), raws, record.size)
        state = self._engine.unpack(self._key, record.id, stream)
        writes = self._writes.get((record.namespace, record.id), [])
        return record, state, self._engine.pending(self._key, writes, self._data)

    def _expand(self, name: bytes) -> bytes:
        raw = self._raw.get(name)
        if raw is None:
            raw = self._raw[name] = self._engine.raw(name, self._data.get(name))
        return raw
