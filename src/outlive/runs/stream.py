"""What a run emits while it works: chunks of text, progress, tool calls, for clients that follow it.

`emit` only buffers. The next write of the run (a save, a step, its end) takes the chunks along in
its own commit. Without one, a timer stores them after a fifth of a second, and `emit` itself does
when 64 KiB wait. So a stream of tokens costs a few commits a second, and none beside those of a
busy run. All of them have the fence of the run: the chunks of a process that lost its run are
refused.

A crash loses what was buffered, at most the chunks of the last fifth of a second. A commit whose
outcome is not known may be stored: its entries are sealed, and are sent again exactly as they were,
so that a client never sees an entry change after it was read.

A stream keeps the newest 16 MiB, in at most 10,000 entries. The commit that exceeds this drops the
oldest entries. The attempts of a run share one stream and one limit: the first `emit` of a resumed
run reads what there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from outlive.backend import EntryQuery, EntryRecord, Receipt
from outlive.backend.entries import STREAM
from outlive.backend.paging import entry_pages
from outlive.errors import BadArgument, OutliveError, RunSuspended, well_formed
from outlive.runs.lease import RunInfo
from outlive.runs.progress import Progress
from outlive.runs.stream_entry import EntryKey, pack_entry, unpack_entry
from outlive.runs.writing_run import WritingRun
from outlive.runtime.runtime import Ticker

FLUSH_S = 0.2
FLUSH_BYTES = 64 << 10
MAX_CHUNK = 1 << 20  # bytes
MAX_BYTES = 16 << 20  # of the stored chunks of a run
MAX_ENTRIES = 10_000
_IDLE_TICKS = 25  # without a chunk, until the timer stops
_PAGE = 100


class Writer(WritingRun, Protocol):
    """The run that emits."""

    info: RunInfo
    _progress: Progress
    _is_live: bool

    @property
    def _mutex(self) -> AbstractAsyncContextManager[Any]: ...
    @property
    def _is_replayed(self) -> bool: ...
    def _check_live(self) -> None: ...
    async def _write_held(self, *entries: EntryRecord) -> Receipt: ...


class Stream:
    """The stream of one run, as the process that works on the run sees it."""

    def __init__(self, run: Writer) -> None:
        self._run = run
        self._lock = run._engine.runtime.lock()  # chunks come from many threads at once
        self._ticker: Ticker | None = None
        self.begin(is_new=False)

    def begin(self, *, is_new: bool) -> None:
        """Begin an attempt; the stream of a new run is empty."""
        self._chunks: list[bytes] = []
        self._sealed: list[EntryRecord] = []  # a commit that failed may have stored them
        self._waiting_bytes = 0
        self._number = 1  # of the first chunk that is not sealed
        self._stored: deque[tuple[str, int]] = deque()  # (key, bytes), oldest first
        self._stored_bytes = 0
        self._is_read = is_new
        self._idle_ticks = 0

    @property
    def is_waiting(self) -> bool:
        """Tell whether chunks are not stored yet."""
        return bool(self._waiting_bytes)

    async def emit(self, value: Any) -> None:
        """Add a chunk. A call that raises adds nothing."""
        run = self._run
        run._check_live()
        if run._is_replayed:  # its clients have it
            return
        chunk = run._engine.codec.pack(value, f"a chunk of run {run.id!r}")
        if len(chunk) > MAX_CHUNK:
            raise BadArgument(
                f"a chunk has {len(chunk):,} bytes, and at most {MAX_CHUNK:,} can be emitted; "
                "save large values in the state, and emit where they are"
            )
        if not self._is_read:
            await self._read()
        if self._waiting_bytes + len(chunk) > FLUSH_BYTES:
            await self.flush()
        with self._lock:
            self._chunks.append(chunk)
            self._waiting_bytes += len(chunk)
            self._idle_ticks = 0
            if self._ticker is None:
                self._ticker = run._engine.runtime.tick("outlive-stream", FLUSH_S, self._tick)
        run._progress.moved()

    async def flush(self) -> None:
        """Store what was emitted, unless another write has done so by now."""
        async with self._run._mutex:
            await self.flush_held()

    async def flush_held(self) -> None:
        """Store what was emitted; the caller holds the mutex of the run."""
        if self.is_waiting:
            await self._run._write_held()

    async def _tick(self) -> None:
        with self._lock:
            self._idle_ticks += 1
            if self._idle_ticks > _IDLE_TICKS and not self.is_waiting:
                self._stop_ticker()
                return
        if self.is_waiting and self._run._is_live:
            try:
                await self.flush()
            except (OutliveError, RunSuspended):
                pass  # the next write of the run, or the next tick, tries again; a lost lease is noted

    def stop(self) -> None:
        """Stop the timer: the run has ended, or is lost."""
        with self._lock:
            self._stop_ticker()

    def _stop_ticker(self) -> None:
        ticker, self._ticker = self._ticker, None
        if ticker is not None:
            ticker.stop()

    # What a commit takes along; its caller holds the mutex of the run

    def take(self) -> tuple[EntryRecord, ...]:
        """Return the entries for the next commit of the run: what was emitted, and the oldest to be dropped."""
        if not self._waiting_bytes:
            return ()
        run = self._run
        with self._lock:
            chunks, self._chunks = self._chunks, []
        if chunks:
            entry_key = EntryKey(*run._rank, self._number)
            self._number += len(chunks)
            self._sealed.append(pack_entry(run._engine.codec, run.id, entry_key, run.info.attempt, chunks))
        return (*self._sealed, *self._dropped())

    def _dropped(self) -> Iterable[EntryRecord]:
        epoch, fence = self._run._rank
        count = len(self._stored) + len(self._sealed)
        size = self._stored_bytes + sum(len(entry.body or b"") for entry in self._sealed)
        for key, entry_bytes in self._stored:
            if count <= MAX_ENTRIES and size <= MAX_BYTES:
                return
            yield EntryRecord(STREAM, key, epoch=epoch, fence=fence, gone=True)
            count, size = count - 1, size - entry_bytes

    def settle(self, taken: tuple[EntryRecord, ...]) -> None:
        """Note that these entries are stored."""
        for entry in taken:
            if entry.gone:
                _, size = self._stored.popleft()
                self._stored_bytes -= size
            else:
                size = len(entry.body or b"")
                self._stored.append((entry.key, size))
                self._stored_bytes += size
        if taken:
            with self._lock:
                self._sealed = []
                self._waiting_bytes = sum(map(len, self._chunks))

    async def _read(self) -> None:
        """Read how much earlier attempts emitted."""
        run = self._run
        async with run._mutex:
            if self._is_read:
                return
            stored: deque[tuple[str, int]] = deque()
            number = 1
            query = EntryQuery(run._key.tenant, STREAM, thread=run._key, prefix=f"{run.id}\n", limit=_PAGE)
            async for page in entry_pages(run._engine.backend, query):
                for _, entry in page:
                    if (entry_key := EntryKey.of(run.id, entry.key)) is None:
                        continue
                    with well_formed(f"the stream of run {run.id!r}", run._key.id):
                        number = entry_key.first + len(unpack_entry(run._engine.codec, entry)[1])
                    stored.append((entry.key, len(entry.body or b"")))
            self._stored, self._stored_bytes = stored, sum(size for _, size in stored)
            self._number, self._is_read = number, True
