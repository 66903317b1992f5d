"""Following the stream of a run from any process: what is stored, and what comes, in order.

A follower reads the entries after its cursor, by their keys. When there are none, it looks whether
the run has ended. The commit that ends a run has its last chunks, so one more read after that has
everything. Otherwise it waits a little: a twentieth of a second at first, up to a second while
nothing comes. Nothing wakes it: streams would wake every worker that waits for work.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

from outlive.backend import EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import STREAM
from outlive.errors import RunMissing, well_formed
from outlive.runs.lease import RUN, UNFINISHED, find
from outlive.runs.stream_entry import EntryKey, Position, StreamChunk, unpack_entry
from outlive.runtime.runtime import Deadline
from outlive.threads.engine import Engine

_PAGE = 100
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


async def follow(
    engine: Engine, key: ThreadKey, run_id: str, after: Position | None, *, wait: bool, idle_s: float | None
) -> AsyncIterator[StreamChunk]:
    """Iterate over the chunks of a run after a position."""
    query = _Query(key, run_id, after)
    idle, pause_s, is_over = Deadline(idle_s), _FIRST_PAUSE_S, not wait
    while True:
        entries = await query.next_page(engine)
        for entry_key, entry in entries:
            skipped = after.index + 1 if after is not None and after.entry_key == entry_key else 0
            for chunk in _chunks(engine, key, run_id, entry_key, entry)[skipped:]:
                yield chunk
            idle, pause_s = Deadline(idle_s), _FIRST_PAUSE_S
        if query.has_more:
            continue
        if is_over or not idle.remaining_s():
            return
        is_over = await _is_over(engine, key, run_id)
        if not is_over:
            await engine.runtime.sleep(min(idle.remaining_s(), pause_s * random.uniform(0.8, 1.2)))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 1.5)


class _Query:
    """The pages of a stream, each after the one before."""

    def __init__(self, key: ThreadKey, run_id: str, after: Position | None) -> None:
        self._key = key
        self._run_id = run_id
        self._seen: EntryCursor | None = None  # the last entry of this run
        if after is not None:  # the entry of that chunk may have more
            before = after.entry_key._replace(first=max(0, after.entry_key.first - 1))
            self._seen = (before.key(run_id), key.digest)
        self._after = self._seen
        self.has_more = True

    async def next_page(self, engine: Engine) -> list[tuple[EntryKey, EntryRecord]]:
        prefix = f"{self._run_id}\n"
        query = EntryQuery(
            self._key.tenant, STREAM, thread=self._key, prefix=prefix, after=self._after, limit=_PAGE
        )
        page = await engine.backend.entries(query)
        placed = [(EntryKey.of(self._run_id, entry.key), entry) for _, entry in page]
        entries = [(entry_key, entry) for entry_key, entry in placed if entry_key is not None]
        if entries:
            self._seen = (entries[-1][1].key, self._key.digest)
        # An id may contain a line break: then the prefix also matches entries of other runs, which
        # may come after those that this run has yet to write.
        self.has_more = len(page) == _PAGE
        self._after = (page[-1][1].key, self._key.digest) if self.has_more else self._seen
        return entries


def _chunks(
    engine: Engine, key: ThreadKey, run_id: str, entry_key: EntryKey, entry: EntryRecord
) -> list[StreamChunk]:
    with well_formed(f"the stream of run {run_id!r}", key.id):
        attempt, chunks = unpack_entry(engine.codec, entry)
        return [
            StreamChunk(
                engine.codec.unpack(chunk), str(Position(entry_key, index)), attempt, entry_key.first + index
            )
            for index, chunk in enumerate(chunks)
        ]


async def _is_over(engine: Engine, key: ThreadKey, run_id: str) -> bool:
    run = await find(engine, key, RUN, run_id)
    if run is None:
        raise RunMissing(run_id)  # deleted with its thread
    return run.status not in UNFINISHED
