"""Reading all pages of a list, and reading again after a deletion by another process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from outlive.backend.protocol import Backend, EntryQuery, HistoryQuery, ThreadQuery
from outlive.backend.records import CheckpointRecord, EntryRecord, ThreadKey, ThreadRecord
from outlive.errors import DamagedEntry, StaleBase

T = TypeVar("T")
_ATTEMPTS = 8  # until deletions by others make the call fail


async def entry_pages(
    backend: Backend, query: EntryQuery, *, timeout_s: float | None = None
) -> AsyncIterator[list[tuple[ThreadKey, EntryRecord]]]:
    """Iterate over the pages of a query, each of `query.limit` entries.

    The last one may be empty.
    """
    while True:
        page = await backend.entries(query, timeout_s=timeout_s)
        yield page
        if len(page) < query.limit:
            return
        thread, last = page[-1]
        query = replace(query, after=(last.key, thread.digest))


async def all_entries(
    backend: Backend, query: EntryQuery, *, timeout_s: float | None = None
) -> list[tuple[ThreadKey, EntryRecord]]:
    """Return the entries of all pages."""
    pages = entry_pages(backend, query, timeout_s=timeout_s)
    return [entry async for page in pages for entry in page]


async def each_entry(
    backend: Backend, query: EntryQuery, *, timeout_s: float | None = None
) -> AsyncIterator[tuple[ThreadKey, EntryRecord | DamagedEntry]]:
    """Iterate over entries, page by page. A damaged entry hides no other: its error comes in its place."""
    limit = query.limit
    while True:
        try:
            page = await backend.entries(query, timeout_s=timeout_s)
        except DamagedEntry as error:
            if query.limit > 1:
                query = replace(query, limit=query.limit // 2)  # smaller pages return the entries before it
                continue
            key = ThreadKey.of(query.tenant, error.thread or "")
            place = (error.key, key.digest)
            if place == query.after:
                raise  # the backend does not continue after it
            yield key, error
            query = replace(query, after=place, limit=limit)
            continue
        for item in page:
            yield item
        if len(page) < query.limit:
            return
        thread, last = page[-1]
        query = replace(query, after=(last.key, thread.digest))


async def all_records(
    backend: Backend, query: HistoryQuery, *, timeout_s: float | None = None
) -> list[CheckpointRecord]:
    """Return the records of all pages, newest first, of one generation.

    A deletion between two pages would leave gaps: then it reads again from the first page.
    """
    while True:
        first, page = await backend.history(query, timeout_s=timeout_s)
        generation, records = first, page
        while len(page) == query.limit and generation == first:
            rest = replace(query, before=page[-1].order)
            generation, page = await backend.history(rest, timeout_s=timeout_s)
            records = records + page
        if generation == first:
            return records


async def all_threads(
    backend: Backend, tenant: str, *, page: int, timeout_s: float | None = None
) -> AsyncIterator[ThreadRecord]:
    """Iterate over the threads of a tenant, without their heads."""
    query = ThreadQuery(tenant, limit=page, heads=False)
    while True:
        rows = await backend.threads(query, timeout_s=timeout_s)
        for row in rows:
            yield row
        if len(rows) < page:
            return
        query = replace(query, after=rows[-1].id)


async def thread_record(
    backend: Backend, key: ThreadKey, *, heads: bool = False, timeout_s: float | None = None
) -> ThreadRecord | None:
    """Return the row of one thread; None when it is not listed."""
    query = ThreadQuery(key.tenant, only=key.id, heads=heads)
    rows = await backend.threads(query, timeout_s=timeout_s)
    return rows[0] if rows else None


def lineage(records: Iterable[CheckpointRecord], id: str | None = None) -> list[CheckpointRecord]:
    """Return a checkpoint (default: the first of `records`) and its ancestors, in one namespace."""
    by_id = {record.id: record for record in records}
    line: dict[str, CheckpointRecord] = {}
    record = next(iter(by_id.values()), None) if id is None else by_id.get(id)
    while record is not None and record.id not in line:  # a damaged store may have a cycle
        line[record.id] = record
        record = by_id.get(record.parent) if record.parent is not None else None
    return list(line.values())


async def retry_stale(
    thread: str,
    attempt: Callable[[], Awaitable[T | None]],
    *,
    errors: tuple[type[Exception], ...] = (StaleBase,),
    attempts: int = _ATTEMPTS,
) -> T:
    """Return what an attempt returns; repeat it while it returns None or raises one of `errors`.

    Both mean that another process changed the thread after the attempt read it. After the last
    attempt it raises the last error, or StaleBase.
    """
    error: Exception = StaleBase(thread)
    for _ in range(attempts):
        try:
            result = await attempt()
        except errors as stale:
            error = stale
            continue
        if result is not None:
            return result
    raise error
