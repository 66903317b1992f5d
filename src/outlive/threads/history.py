"""The history of a thread, page by page. States are read only on demand.

A page with states is read by one call: its records, and every chunk that they name, once. Chunks
that several states share are also unpacked once, as long as they fit into `_UNPACKED_BYTES`. A
state is built when its checkpoint is returned, so that memory holds the chunks of one page and one
state, however long the history is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from outlive.backend import CheckpointRecord, Cursor, HistoryQuery, ThreadKey, escape
from outlive.errors import CheckpointMissing
from outlive.format import layout, manifest
from outlive.runtime.wrong_mode import AsyncItems
from outlive.threads.engine import Engine, Located
from outlive.values import Checkpoint, CheckpointInfo, matches, parse_cursor

_PAGE = 100
_PAGE_BYTES = 8 << 20  # of stored chunks in a page with states
_UNPACKED_BYTES = 32 << 20


class History(AsyncItems[CheckpointInfo]):
    """Checkpoints, newest first, one at a time."""

    def __init__(
        self,
        engine: Engine,
        key: ThreadKey,
        namespace: str,
        *,
        flush: Callable[[ThreadKey], Awaitable[None]],
        touch: Callable[[ThreadKey], Awaitable[None]],
        limit: int | None,
        before: str | CheckpointInfo | None,
        filter: dict[str, Any],
        run: str | None,
        all_namespaces: bool,
        states: bool,
    ) -> None:
        self._engine = engine
        self._key = key
        self._namespace = namespace
        self._flush = flush
        self._touch = touch
        self._left = limit
        self._before = before
        self._filter = filter
        self._run = run
        self._all = all_namespaces
        self._cursor: Cursor | None = None
        self._page: list[CheckpointRecord] = []
        self._with_states = states
        self._chunks = _Chunks(engine, {})
        self._started = self._ended = False

    def __aiter__(self) -> AsyncIterator[CheckpointInfo]:
        return self

    async def __anext__(self) -> CheckpointInfo:
        while self._left is None or self._left > 0:
            if not self._page and not await self._turn():
                break
            record = self._page.pop(0)
            checkpoint = self._engine.checkpoint(self._key, record)
            if matches(checkpoint.metadata, self._filter):
                self._engine.cache.cursors.note(self._key.digest, record)
                self._left = None if self._left is None else self._left - 1
                return Checkpoint.of(checkpoint, self._state(record)) if self._with_states else checkpoint
        raise StopAsyncIteration

    async def _turn(self) -> bool:
        """Read the next page."""
        if self._ended:
            return False
        if not self._started:
            await self._start()
        limit = _PAGE if self._left is None or self._filter else min(_PAGE, self._left)
        namespace = None if self._all else self._namespace
        if self._with_states:
            page = await self._engine.backend.states(
                HistoryQuery(self._key, namespace, before=self._cursor, limit=limit, run=self._run),
                max_bytes=_PAGE_BYTES,
            )
            self._page, self._chunks = page.records, _Chunks(self._engine, page.chunks)
            self._ended = len(self._page) < limit and not page.is_cut
            if self._page:
                await self._touch(self._key)
        else:
            _, self._page = await self._engine.backend.history(
                HistoryQuery(self._key, namespace, before=self._cursor, limit=limit, run=self._run)
            )
            self._ended = len(self._page) < limit
        self._cursor = self._page[-1].order if self._page else None
        return bool(self._page)

    def _state(self, record: CheckpointRecord) -> Any:
        with Located(self._key, record.id):
            stream = layout.assemble(
                manifest.layout_of(record.body),
                [self._chunks.raw(name) for name in record.chunks],
                record.size,
            )
        return self._engine.unpack(self._key, record.id, stream)

    async def _start(self) -> None:
        self._started = True
        await self._flush(self._key)
        before = self._before
        if isinstance(before, CheckpointInfo) and before.seq is not None:
            self._cursor = (before.epoch, before.seq, escape(before.id))
        elif before is not None:
            self._cursor = await self._find(before.id if isinstance(before, CheckpointInfo) else before)

    async def _find(self, id: str) -> Cursor:
        """Return the place of a checkpoint: as stored, as last seen here, or from a cursor."""
        reading = await self._engine.backend.read(self._key, self._namespace, id, chunks=False)
        record = reading.record
        if record is None and self._all:  # newest first: the newest of this id, in whichever namespace
            records = await self._engine.records(self._key)
            record = next((other for other in records if other.id == id), None)
        if record is not None:
            return record.order
        namespace = None if self._all else self._namespace
        if (known := self._engine.cache.cursors.find(self._key.digest, namespace, id)) is not None:
            return known
        if (cursor := parse_cursor(id)) is not None:
            return (cursor[0], cursor[1], escape(cursor[2]))
        raise CheckpointMissing(
            self._key.id,
            id,
            "if it was deleted, pass the checkpoint itself or its .cursor as before=, which outlast it",
        )


class _Chunks:
    """The chunks of a page. What was unpacked is kept for the next state, up to a bound."""

    def __init__(self, engine: Engine, data: Mapping[bytes, bytes]) -> None:
        self._engine = engine
        self._data = data
        self._raws: dict[bytes, bytes] = {}
        self._bytes = 0

    def raw(self, name: bytes) -> bytes:
        raw = self._raws.get(name)
        if raw is None:
            raw = self._engine.raw(name, self._data.get(name))
            if self._bytes + len(raw) > _UNPACKED_BYTES:
                self._raws.clear()
                self._bytes = 0
            self._raws[name] = raw
            self._bytes += len(raw)
        return raw
