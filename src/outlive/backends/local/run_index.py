"""Which threads have, or had, a run of an id: a run is found without reading the other threads."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from outlive.backend import EntryCursor, ThreadKey, escape

# (tenant, escaped id of the run, digest of the thread): the order of listings.
_Row = tuple[str, str, bytes]


class RunIndex:
    """A sorted list. A row is never removed: the reader checks that the run is still there."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._threads: dict[_Row, tuple[ThreadKey, str]] = {}

    def has(self, thread: ThreadKey, run: str) -> bool:
        return (thread.tenant, escape(run), thread.digest) in self._threads

    def add(self, thread: ThreadKey, run: str) -> None:
        row = (thread.tenant, escape(run), thread.digest)
        if row not in self._threads:
            self._threads[row] = (thread, run)
            insort(self._rows, row)

    def matches(self, tenant: str, prefix: str, after: EntryCursor | None) -> Iterator[tuple[ThreadKey, str]]:
        """Iterate over the runs of a tenant whose ids begin like this, by (escaped id, thread)."""
        start = escape(prefix)
        at = bisect_left(self._rows, (tenant, start, b""))
        if after is not None:
            at = max(at, bisect_right(self._rows, (tenant, escape(after[0]), after[1])))
        while at < len(self._rows):
            row = self._rows[at]
            if row[0] != tenant or not row[1].startswith(start):
                return
            yield self._threads[row]
            at = bisect_right(self._rows, row)  # reading the thread may have brought rows
