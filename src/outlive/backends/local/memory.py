"""Records in the memory of this process: nothing survives it. `null:` keeps nothing at all.

`Table` is one thread's records as dicts. The file backend keeps the same tables, filled from its
log.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import TypeVar

from outlive.backend import (
    CachedHead,
    CheckpointRecord,
    Commit,
    Cursor,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    WriteRecord,
    escape,
    unescape,
)
from outlive.backend.clock import Clock, clock, has_lapsed, lease_facts
from outlive.backend.entries import LISTING, RUN, check_kinds
from outlive.backends.local.run_index import RunIndex
from outlive.backends.rules.decide import check_found, decide
from outlive.backends.rules.view import Counters, Effect, fitting, write_order
from outlive.errors import Corrupt, OutliveError

T = TypeVar("T")
# Reads chunks by name; errors name the checkpoint that needs them.
ReadChunks = Callable[[Sequence[bytes], str | None], dict[bytes, bytes]]


class Table:
    """One thread: the view that `decide` reads and an effect changes.

    Fill it by applying one effect with all that is stored. These dicts are what to store of it:

    records   checkpoints by (namespace, id)
    pending   writes by (namespace, checkpoint), then by their keys
    entries   by (kind, key)
    chunks    name → (stored bytes, revision); their bytes are kept elsewhere

    and `counters`, `updated_at`, `metadata` and `projection`, which is that of the metadata.
    """

    def __init__(self, key: ThreadKey) -> None:
        self.key = key
        self.counters: Counters | None = None
        self.updated_at = 0
        self.metadata: bytes | None = None
        self.projection: str | None = None
        self.records: dict[tuple[str, str], CheckpointRecord] = {}
        self.orders: dict[str, list[Cursor]] = {}
        self.chunks: dict[bytes, tuple[int, int]] = {}
        self.pending: dict[tuple[str, str], dict[tuple[str, str, str, int], WriteRecord]] = {}
        self.entries: dict[tuple[str, str], EntryRecord] = {}

    # The view

    def find(self, namespace: str, id: str) -> CheckpointRecord | None:
        return self.records.get((namespace, id))

    def head(self, namespace: str) -> str | None:
        order = self.orders.get(namespace)
        return unescape(order[-1][2]) if order else None

    def count(self) -> int:
        return len(self.records)

    def write(self, key: tuple[str, str, str, int]) -> WriteRecord | None:
        return self.pending.get(key[:2], {}).get(key)

    def has(self, pair: tuple[str, str]) -> bool:
        return pair in self.records or pair in self.pending

    def thread_metadata(self) -> bytes | None:
        return self.metadata

    def entry(self, kind: str, key: str) -> EntryRecord | None:
        return self.entries.get((kind, key))

    def chunk(self, name: bytes) -> tuple[int, int] | None:
        return self.chunks.get(name)

    # Changing

    def apply(self, effect: Effect) -> None:
        """Do what was decided. Cannot fail half-way: every row was checked before."""
        self.counters = effect.counters
        self.updated_at = effect.at
        if effect.everything:
            self._delete_all()
        for pair in effect.removed:
            self._remove(pair)
        for name in effect.removed_chunks:
            del self.chunks[name]
        for name, data in effect.chunks:
            size = self.chunks[name][0] if name in self.chunks else len(data)
            self.chunks[name] = (size, effect.counters.revision)
        for record in (*effect.checkpoints, *effect.rewrites):
            self._put(record)
        for write in effect.writes:
            self.pending.setdefault(write.checkpoint_key, {})[write.key] = write
        for entry in effect.entries:
            if entry.gone:
                self.entries.pop((entry.kind, entry.key), None)
            else:
                self.entries[entry.kind, entry.key] = entry
        if effect.metadata is not None:
            self.metadata, self.projection = effect.metadata, effect.metadata_projection

    def _delete_all(self) -> None:
        self.metadata = self.projection = None
        for rows in (self.records, self.orders, self.chunks, self.pending, self.entries):
            rows.clear()

    def _put(self, record: CheckpointRecord) -> None:
        pair = record.key
        old = self.records.get(pair)
        order = self.orders.setdefault(record.namespace, [])
        if old is not None and old.order != record.order:
            order.remove(old.order)
        if old is None or old.order != record.order:
            insort(order, record.order)
        self.records[pair] = record

    def _remove(self, pair: tuple[str, str]) -> None:
        self.pending.pop(pair, None)
        record = self.records.pop(pair, None)
        if record is None:  # only writes, of a checkpoint that never came
            return
        order = self.orders[record.namespace]
        order.remove(record.order)
        if not order:
            del self.orders[record.namespace]

    # Reading

    def find_at(self, namespace: str, id: str | None, at: int | None) -> CheckpointRecord | None:
        """Return the checkpoint with this id, or the head, or with `at` the newest until then."""
        if id is not None:
            return self.find(namespace, id)
        order = self.orders.get(namespace, [])
        for cursor in reversed(order):
            record = self.records[namespace, unescape(cursor[2])]
            if at is None or record.created_at <= at:
                return record
        return None

    def page(self, query: HistoryQuery) -> list[CheckpointRecord]:
        """Return a page of records, newest first, for `Backend.history`."""
        page: list[CheckpointRecord] = []
        for cursor, name in self._descending(query.namespace, query.before):
            if len(page) >= query.limit:
                break
            record = self.records[name, unescape(cursor[2])]
            if query.run is None or record.run == query.run:
                page.append(record)
        return page

    def _descending(self, namespace: str | None, before: Cursor | None) -> Iterable[tuple[Cursor, str]]:
        if namespace is not None:
            order = self.orders.get(namespace, [])
            stop = len(order) if before is None else bisect_left(order, before)
            return ((cursor, namespace) for cursor in reversed(order[:stop]))
        rows = ((cursor, name) for name, order in self.orders.items() for cursor in order)
        return sorted((row for row in rows if before is None or row[0] < before), reverse=True)

    def writes_of(self, pairs: Sequence[tuple[str, str]] | None) -> list[WriteRecord]:
        """Return the writes of the given (namespace, checkpoint) pairs, or all, in their order."""
        wanted = self.pending if pairs is None else pairs
        writes = [write for pair in wanted for write in self.pending.get(pair, {}).values()]
        return sorted(writes, key=write_order)

    def stored(self) -> int:
        """Return how many bytes chunks and bodies take."""
        bodies = sum(len(record.body) for record in self.records.values())
        return bodies + sum(size for size, _ in self.chunks.values())

    def summary(self) -> ThreadRecord:
        """Return the thread as `Backend.threads` lists it."""
        row = self.counters or Counters(0, 0, 0, 0, 0)
        return ThreadRecord(
            id=self.key.id,
            generation=row.generation,
            revision=row.revision,
            epoch=row.epoch,
            seq=row.seq,
            checkpoints=len(self.records),
            stored=self.stored(),
            created_at=row.created_at,
            updated_at=self.updated_at,
            metadata=self.metadata,
            metadata_projection=self.projection,
            metadata_version=row.metadata_version,
            head=self.find_at("", None, None),
        )

    @property
    def is_listed(self) -> bool:
        """Tell whether a thread has anything to list: a deleted one has only its counters."""
        if self.records or self.pending or self.metadata is not None:
            return True
        return any(kind in LISTING for kind, _ in self.entries)


class MemoryBackend:
    """All threads in dicts, under one lock."""

    name = "memory"

    def __init__(self) -> None:
        self._tables: dict[bytes, Table] = {}
        self._data: dict[tuple[bytes, bytes], bytes] = {}
        self._key: bytes | None = None
        self._runs = RunIndex()
        self.lock = threading.RLock()

    def identity(self, offered: bytes) -> bytes:
        self._key = self._key or offered
        return self._key

    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do each commit on its own; a refusal of one does not touch the others."""
        results: list[Receipt | OutliveError] = []
        for commit in commits:
            try:
                results.append(self._commit(commit))
            except OutliveError as error:
                results.append(error)
        return results

    def _commit(self, commit: Commit) -> Receipt:
        table = self._table(commit.thread)
        effect, receipt = decide(commit, table, clock())
        if effect is not None:
            check_found(effect, table)
            self._apply(table, effect)
        return receipt

    def _apply(self, table: Table, effect: Effect) -> None:
        digest = table.key.digest
        doomed = list(table.chunks) if effect.everything else effect.removed_chunks
        table.apply(effect)
        for name in doomed:
            self._data.pop((digest, name), None)
        for name, data in effect.chunks:
            self._data.setdefault((digest, name), data)
        self._tables[digest] = table
        for entry in effect.entries:
            if entry.kind == RUN:
                self._runs.add(table.key, entry.key)

    def _table(self, thread: ThreadKey) -> Table:
        return self._tables.get(thread.digest) or Table(thread)

    def _look(self, thread: ThreadKey, look: Callable[[Table, ReadChunks], T], timeout_s: float | None) -> T:
        """Call `look` with the table of a thread and what reads its chunks, both of one moment."""
        stored = self._data

        def data(names: Sequence[bytes], checkpoint: str | None) -> dict[bytes, bytes]:
            keys = {name: (thread.digest, name) for name in names}
            return {name: stored[key] for name, key in keys.items() if key in stored}

        return look(self._table(thread), data)

    def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult:
        def look(table: Table, data: ReadChunks) -> ReadResult:
            generation = table.counters.generation if table.counters else 0
            record = table.find_at(namespace, id, at)
            if record is None:
                return ReadResult(generation)
            writes = table.writes_of([(namespace, record.id)])
            wanted = [] if known is not None and known.matches(record) else list(record.chunks)
            wanted += [name for write in writes for name in write.chunks]
            return ReadResult(generation, record, data(wanted, record.id) if chunks else {}, tuple(writes))

        return self._look(thread, look, timeout_s)

    def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]:
        table = self._table(query.thread)
        return (table.counters.generation if table.counters else 0), table.page(query)

    def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page:
        def look(table: Table, data: ReadChunks) -> Page:
            page = table.page(query)
            records, names = fitting(page, table, max_bytes)
            generation = table.counters.generation if table.counters else 0
            return Page(generation, records, data(names, None), len(records) < len(page))

        return self._look(query.thread, look, timeout_s)

    def writes(
        self,
        thread: ThreadKey,
        checkpoints: Sequence[tuple[str, str]] | None,
        *,
        timeout_s: float | None = None,
    ) -> list[WriteRecord]:
        return self._table(thread).writes_of(checkpoints)

    def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]:
        now = clock()
        if query.kind == RUN and query.thread is None and query.prefix:
            return self._runs_by_id(query, now)
        tables = [self._table(query.thread)] if query.thread is not None else self._all_tables()
        matches = [
            ((escape(entry.key), table.key.digest), table.key, entry)
            for table in tables
            for entry in table.entries.values()
            if table.key.tenant == query.tenant
            and entry.kind == query.kind
            and entry.key.startswith(query.prefix)
            and _is_asked_for(entry, query, now)
        ]
        start = None if query.after is None else (escape(query.after[0]), query.after[1])
        rows = sorted((row for row in matches if start is None or row[0] > start), key=itemgetter(0))
        return [(key, entry) for _, key, entry in rows[: query.limit]]

    def _runs_by_id(self, query: EntryQuery, now: Clock) -> list[tuple[ThreadKey, EntryRecord]]:
        """Return a page of runs whose ids have a prefix, reading only threads with such a run."""
        page: list[tuple[ThreadKey, EntryRecord]] = []
        for key, run in self._run_index().matches(query.tenant, query.prefix, query.after):
            if len(page) >= query.limit:
                break
            entry = self._table(key).entry(RUN, run)
            if entry is not None and _is_asked_for(entry, query, now):
                page.append((key, entry))
        return page

    def _run_index(self) -> RunIndex:
        return self._runs

    def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]:
        if query.only is not None:
            table = self._table(ThreadKey.of(query.tenant, query.only))
            return [table.summary()] if table.is_listed else []
        if query.newest:
            return [table.summary() for table in self._newest(query)]
        listed = [
            (escape(table.key.id), table)
            for table in self._all_tables()
            if table.key.tenant == query.tenant and table.key.id.startswith(query.prefix) and table.is_listed
        ]
        start = None if query.after is None else escape(query.after)
        rows = sorted((row for row in listed if start is None or row[0] > start), key=itemgetter(0))
        return [table.summary() for _, table in rows[: query.limit]]

    def _newest(self, query: ThreadQuery) -> list[Table]:
        tables = self._listed(query.tenant)
        start = None if query.before is None else (-query.before[0], escape(query.before[1]))
        rows = [((-table.updated_at, escape(table.key.id)), table) for table in tables]
        page = heapq.nsmallest(
            query.limit, (row for row in rows if start is None or row[0] > start), itemgetter(0)
        )
        return [table for _, table in page]

    def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals:
        tables = self._listed(tenant)
        counts = [(len(table.records), table.stored()) for table in tables]
        return Totals(len(counts), sum(count for count, _ in counts), sum(size for _, size in counts))

    def _listed(self, tenant: str) -> list[Table]:
        return [table for table in self._all_tables() if table.key.tenant == tenant and table.is_listed]

    def _all_tables(self) -> Iterable[Table]:
        return self._tables.values()

    def inventory(self, thread: ThreadKey, *, timeout_s: float | None = None) -> Inventory:
        table = self._table(thread)
        row = table.counters or Counters(0, 0, 0, 0, 0)
        return Inventory(row.generation, row.revision, dict(table.chunks))

    def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], *, timeout_s: float | None = None
    ) -> dict[bytes, bytes]:
        return self._look(thread, lambda table, data: data(names, None), timeout_s)

    def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int:
        chunks = self.fetch(source, names)
        result = self.commit_all([Commit(target, chunks=tuple(chunks.items()))])[0]
        if isinstance(result, Exception):
            raise result
        return result.generation

    def audit(self, thread: ThreadKey | None) -> list[Corrupt]:
        return []

    def facts(self) -> dict[str, object]:
        return {"backend": self.name, **lease_facts()}

    def version(self) -> object:
        """No other process commits to this one's memory."""
        return None

    def before_fork(self) -> None:
        """A child gets its own copy of everything."""

    def roll_back(self) -> None:
        """No transaction stays open between two calls."""

    def close(self) -> None:
        """Nothing to release: the records live as long as this object."""


class NullBackend(MemoryBackend):
    """Persistence switched off: every commit succeeds and nothing is kept."""

    name = "null"

    def _commit(self, commit: Commit) -> Receipt:
        """Nothing is kept, so nothing can be in the way either."""
        check_kinds(commit.entries)
        return super()._commit(Commit(commit.thread, commit.checkpoints, commit.chunks, commit.writes))

    def _apply(self, table: Table, effect: Effect) -> None:
        """Keep nothing."""


def _is_asked_for(entry: EntryRecord, query: EntryQuery, now: Clock) -> bool:
    """Tell whether a query asks for entries with this status and lease."""
    has_status = query.statuses is None or entry.status in query.statuses
    return has_status and (query.lapsed is None or query.lapsed == has_lapsed(entry, now))
