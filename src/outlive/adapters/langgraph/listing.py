"""Listing checkpoints: newest first, page by page; no lock or transaction is held while the caller pauses.

A listing covers the thread that the config names, or all of them, thread by thread. Without a
namespace in the config it covers all namespaces; "" is the root alone. `filter` compares metadata
by equality; a missing key equals None. `before` means: stored before that checkpoint. If the thread
does not have that checkpoint, it means ids that sort before it. If it is in another namespace
(LangGraph asks what a subgraph had before a checkpoint of its parent), checkpoints that were made
below it or later are left out too: with durability="async" a subgraph may store before the
checkpoint is stored that it runs in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from outlive.adapters.langgraph.config import checkpoint_of, configurable_of, thread_of
from outlive.adapters.langgraph.pages import PAGE, Loaded, Pages
from outlive.adapters.langgraph.session import Session
from outlive.adapters.langgraph.values.codec import is_snapshot
from outlive.arguments import check_filter, check_limit, check_namespace
from outlive.backend import CheckpointRecord, Cursor, ThreadKey, escape
from outlive.values import ThreadInfo


class Listing:
    """Iterates over checkpoints."""

    def __init__(
        self,
        session: Session,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> None:
        configurable = configurable_of(config)
        self._session = session
        self._threads = _Threads(
            session, thread_of(configurable["thread_id"]) if "thread_id" in configurable else None
        )
        namespace = configurable.get("checkpoint_ns")
        self._namespace = None if namespace is None else check_namespace(namespace)
        self._id = checkpoint_of(config)
        self._filter = check_filter(filter)
        self._before = before
        self._left = check_limit(limit)
        self._key: ThreadKey | None = None
        self._pages: Pages | None = None
        self._bound: str | None = None
        self._around: CheckpointRecord | None = (
            None  # the checkpoint `before`, when it is in another namespace
        )
        self._cursors: dict[str, Cursor | None] = {}  # of checkpoints in that namespace
        self._page: Loaded | None = None
        self._records: Iterator[CheckpointRecord] = iter(())

    def __aiter__(self) -> AsyncIterator[CheckpointTuple]:
        return self

    async def __anext__(self) -> CheckpointTuple:
        while self._left != 0:
            record = next(self._records, None)
            if record is None:
                if not await self._turn():
                    break
                continue
            assert self._page is not None
            assert self._key is not None
            if await self._is_inside(record):
                continue
            _, state, writes = self._page.open(record)
            if self._threads.are_all and not is_snapshot(state):
                continue  # not a LangGraph thread
            self._left = None if self._left is None else self._left - 1
            return self._session.checkpoint_tuple(self._key, record, state, writes)
        raise StopAsyncIteration

    async def _turn(self) -> bool:
        """Read the next page, of this thread or the next."""
        self._page = None if self._pages is None else await self._pages.next(self._is_wanted, self._size())
        if self._page is not None:
            self._records = iter(self._page.records)
            return True
        self._key = await self._threads.next()
        if self._key is None:
            return False
        self._cursors = {}
        cursor = await self._begin(self._key)
        self._pages = Pages(self._session.engine, self._key, self._namespace, cursor)
        return True

    def _size(self) -> int:
        """Return how many records to look at: no more than are asked for, when all of them are wanted."""
        narrow = self._filter or self._id is not None or self._bound is not None
        return PAGE if self._left is None or narrow else min(PAGE, self._left)

    def _is_wanted(self, record: CheckpointRecord) -> bool:
        if self._id is not None and record.id != self._id:
            return False
        if self._bound is not None and escape(record.id) >= escape(self._bound):
            return False
        if not self._filter:
            return True
        assert self._key is not None
        metadata: Mapping[str, Any] = {**self._session.metadata(self._key, record)}
        return all(metadata.get(name) == value for name, value in self._filter.items())

    async def _begin(self, key: ThreadKey) -> Cursor | None:
        """Find where to begin: after the checkpoint `before`, in any namespace; otherwise set a bound for the ids."""
        self._bound, self._around = None, None
        id = checkpoint_of(self._before)
        if id is None:
            return None
        record = await self._find(key, id)
        if record is None:
            self._bound = id
            return None
        if record.namespace != self._namespace:
            self._around = record
        return record.order

    async def _find(self, key: ThreadKey, id: str) -> CheckpointRecord | None:
        named = configurable_of(self._before).get("checkpoint_ns")
        for namespace in dict.fromkeys((*_with_parents(named), *_with_parents(self._namespace))):
            record = await self._record(key, namespace, id)
            if record is not None:
                return record
        records = await self._session.engine.records(key)
        return next((record for record in records if record.id == id), None)

    async def _record(self, key: ThreadKey, namespace: str, id: str) -> CheckpointRecord | None:
        return (await self._session.engine.backend.read(key, namespace, id, chunks=False)).record

    async def _is_inside(self, record: CheckpointRecord) -> bool:
        """Tell whether a checkpoint of a subgraph was made below the one that `before` names, or below a later one."""
        around = self._around
        if around is None or record.namespace == around.namespace:
            return False
        assert self._key is not None
        parents = self._session.metadata(self._key, record).get("parents")
        parent = parents.get(around.namespace) if isinstance(parents, dict) else None
        if not isinstance(parent, str) or not parent:
            return False
        if parent not in self._cursors:
            stored = await self._record(self._key, around.namespace, parent)
            self._cursors[parent] = None if stored is None else stored.order
        cursor = self._cursors[parent]
        return cursor is not None and cursor >= around.order


class _Threads:
    """One thread, or all."""

    def __init__(self, session: Session, only: str | None) -> None:
        self.are_all = only is None
        self._session = session
        self._only = only
        self._rest: AsyncIterator[ThreadInfo] | None = session.store.threads() if only is None else None

    async def next(self) -> ThreadKey | None:
        """Return the next thread."""
        if self._rest is None:
            only, self._only = self._only, None
            return None if only is None else self._session.key(only)
        try:
            return self._session.key((await self._rest.__anext__()).id)
        except StopAsyncIteration:
            return None


def _with_parents(namespace: str | None) -> list[str]:
    """Return a namespace and those of the graphs around it."""
    parts = namespace.split("|") if namespace else []
    return ["|".join(parts[:count]) for count in range(len(parts), -1, -1)]
