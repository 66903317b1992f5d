"""Deleting the streams of runs that ended long ago.

A stream serves clients while its run works, and for a while after. The result, the steps and the
checkpoints of the run stay. A run that is not finished, or parked, keeps its stream.
"""

from __future__ import annotations

import datetime as dt

from outlive.backend import Commit, EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import STREAM
from outlive.errors import well_formed
from outlive.runs.lease import CANCELLED, COMPLETED, FAILED, RUN, find
from outlive.runs.stream_entry import run_of
from outlive.threads.engine import Engine

_PAGE = 200
_FOREVER = float("inf")


class StreamSweep:
    """The streams of one thread that are older than `keep_s`."""

    def __init__(self, engine: Engine, key: ThreadKey, keep_s: float, now: float) -> None:
        self._engine = engine
        self._key = key
        self._keep_s = keep_s
        self._now = now
        self.freed_bytes = 0
        self.due_at = _FOREVER  # nothing more is due before, unless the thread changes

    async def delete_due(self, *, dry_run: bool) -> None:
        """Delete them, in small commits."""
        after: EntryCursor | None = None
        run_id, is_due = None, False
        while True:
            query = EntryQuery(self._key.tenant, STREAM, thread=self._key, after=after, limit=_PAGE)
            page = await self._engine.backend.entries(query)
            due: list[EntryRecord] = []
            for _, entry in page:
                owner = run_of(entry.key)
                if owner != run_id:
                    run_id, is_due = owner, await self._is_due(owner)
                if is_due:
                    due.append(entry)
                    self.freed_bytes += len(entry.body or b"")
            if due and not dry_run:
                # A chunk that a retried run has emitted since is not among them.
                await self._engine.commit(Commit(self._key, entries=tuple(map(_removed, due))))
            if len(page) < _PAGE:
                return
            after = (page[-1][1].key, self._key.digest)

    async def _is_due(self, run_id: str) -> bool:
        run = await find(self._engine, self._key, RUN, run_id)
        if run is None:
            return True
        if run.status not in (COMPLETED, FAILED, CANCELLED):
            return False
        with well_formed(f"run {run_id!r}", self._key.id):
            ended_at = self._engine.codec.unpack(run.body or b"", opaque=True)["ended_at"]
            if not isinstance(ended_at, dt.datetime):
                raise TypeError("the end of a run must be a datetime")
            due_at = ended_at.timestamp() + self._keep_s
        if due_at > self._now:
            self.due_at = min(self.due_at, due_at)
        return due_at <= self._now


def _removed(entry: EntryRecord) -> EntryRecord:
    epoch, fence, revision = entry.rank
    return EntryRecord(STREAM, entry.key, epoch=epoch, fence=fence, revision=revision, gone=True)
