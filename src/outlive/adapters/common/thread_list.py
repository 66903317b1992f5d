"""A list of items in a thread: the conversation of a session.

The state is `{"items": [...]}`, and each change is a checkpoint. A list remembers the head that it
saved last and the items there. An append saves with `expect=` that head, reads nothing first, and
packs the new items alone. When another process was faster, the list is read and the change is made
again, so nothing is lost; or it is refused, with `guard="head"`.

Inside a run of the same thread every change carries the fence of the run.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from outlive.adapters.common.current import run_on
from outlive.errors import BadArgument, CheckpointExists, CheckpointMissing, HeadMoved
from outlive.format.splitter import Growing
from outlive.runtime.fork import reset_in_child
from outlive.store import AsyncStore
from outlive.threads.thread import AsyncThread
from outlive.values import NEW, CheckpointInfo, New, Source

T = TypeVar("T")
ITEMS = "items"
Guard = Literal["head"] | None
Change = Callable[[list[Any]], list[Any]]
_ATTEMPTS = 200  # that may lose against others; each time at least one of them succeeds
_PAUSE_S = 0.002


@dataclass(slots=True)
class _Known:
    """The head of a list, and its items, which nobody else has."""

    head: str | None
    growing: Growing

    @property
    def items(self) -> list[Any]:
        return self.growing.elements


class ThreadList:
    """A list in a namespace of a thread. Its methods take the store: `home.acall(lambda store: items.append(store, new))`."""

    def __init__(
        self, thread_id: str, *, namespace: str = "", guard: Guard = None, keep_history: bool = False
    ) -> None:
        """With `guard="head"`, a change is refused (HeadMoved) when another process changed the list since this one saw it.

        What is popped, replaced or erased is also deleted from the history, unless `keep_history`.
        """
        if guard not in (None, "head"):
            raise BadArgument(f'guard must be None or "head", not {guard!r}')
        self.thread_id = thread_id
        self.namespace = namespace
        self.guard = guard
        self.keep_history = keep_history
        # What this process knows, if no change has it: taken out in one step, since several loops
        # may change the list.
        self._known: deque[_Known] = deque(maxlen=1)
        self._seen: str | New | None = None  # the head that this process saw last, for the guard
        self._mutexes: WeakKeyDictionary[Any, AbstractAsyncContextManager[Any]] = WeakKeyDictionary()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        self._known, self._mutexes = deque(maxlen=1), WeakKeyDictionary()

    def thread(self, store: AsyncStore) -> AsyncThread[Any]:
        """Return the thread of the list."""
        return store.thread(self.thread_id, namespace=self.namespace)

    # Reading

    async def read(self, store: AsyncStore, limit: int | None = None, at: str | None = None) -> list[Any]:
        """Return the last `limit` items, oldest first, of the head or of a checkpoint. They are the caller's to change."""
        items = await self._load(store, at)
        if limit is None or limit < 0:
            return items
        return items[max(0, len(items) - limit) :]

    async def _load(self, store: AsyncStore, at: str | None) -> list[Any]:
        thread = self.thread(store)
        stored = await thread._read(at, None, None)
        if stored is None and at is not None:
            raise CheckpointMissing(self.thread_id, at)
        if at is None:
            self._seen = NEW if stored is None else stored[0].record.id
        if stored is None:
            return []
        return items_of(store._engine.unpack(thread._key, stored[0].record.id, stored[1]))

    # Writing

    async def append(
        self,
        store: AsyncStore,
        items: Iterable[Any],
        *,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: Source = "loop",
    ) -> CheckpointInfo | None:
        """Add items at the end, all of them or none. Nothing is added again under an `id` that exists.

        Raises Unencodable, LeaseLost, and HeadMoved with a guard or when others change the list all
        the time.
        """
        new = list(items)
        if not new:
            return None
        codec = store._engine.codec
        own = codec.unpack(codec.pack(new, ITEMS))  # the caller may change its own later

        async def grow(known: _Known) -> CheckpointInfo | None:
            known.items.extend(own)  # if it is not saved, they are read again
            return await self._save(store, known, id=id, metadata=metadata, source=source)

        return await self._change(store, grow)

    async def pop(self, store: AsyncStore, *, id: str | None = None) -> Any:
        """Remove the last item and return it; None when there is none. Nothing is removed again under an `id` that exists."""
        popped: list[Any] = []

        async def shrink(known: _Known) -> None:
            popped[:] = known.items[-1:]
            if not popped:
                self._known.append(known)
                return
            rest = _Known(known.head, Growing(known.items[:-1]))
            saved = await self._save(store, rest, id=id, source="update")
            if saved is None:
                popped.clear()
            elif not self.keep_history:
                await self._forget(store, saved, len(known.items))

        await self._change(store, shrink)
        return popped[0] if popped else None

    async def replace(
        self,
        store: AsyncStore,
        change: Change,
        *,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo | None:
        """Replace the items by what a function makes of them; it may be called again when another process was faster.

        The older states are erased from the store, unless the list keeps its history.
        """

        async def swap(known: _Known) -> CheckpointInfo | None:
            codec = store._engine.codec
            items = codec.unpack(codec.pack(change(codec.unpack(codec.pack(known.items))), ITEMS))
            changed = _Known(known.head, Growing(items))
            saved = await self._save(store, changed, id=id, source="update", metadata=metadata)
            if saved is not None and not self.keep_history:
                await self._forget(store, saved)
            return saved

        return await self._change(store, swap)

    async def erase(self, store: AsyncStore, *, id: str | None = None) -> None:
        """Remove all items. No byte of them stays in the store, unless the list keeps its history."""
        await self.replace(store, lambda items: [], id=id)

    # A change

    async def _change(self, store: AsyncStore, change: Callable[[_Known], Awaitable[T]]) -> T:
        async with self._mutex(store):
            for attempt in range(_ATTEMPTS):
                try:
                    known = self._known.pop()
                except IndexError:
                    known = await self._read_known(store)
                try:
                    return await change(known)
                except HeadMoved:
                    if self.guard is not None or attempt == _ATTEMPTS - 1:
                        raise
                await store._engine.runtime.sleep(random.uniform(0, _PAUSE_S * min(attempt, 20)))
        raise AssertionError

    async def _read_known(self, store: AsyncStore) -> _Known:
        seen = self._seen
        items = await self._load(store, None)
        head = None if isinstance(self._seen, New) else self._seen
        if self.guard is not None and seen is not None:
            self._seen = seen
            if seen != (head or NEW):
                expected = None if isinstance(seen, New) else seen
                raise HeadMoved(self.thread_id, self.namespace, expected, head)
        return _Known(head, Growing(items))

    async def _save(
        self,
        store: AsyncStore,
        known: _Known,
        *,
        source: Source,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> CheckpointInfo | None:
        """Save what a list has become, which is then known. None: an earlier attempt has saved something under the id."""
        thread = self.thread(store)
        count = {"items": len(known.items), **(metadata or {})}
        draft = thread._draft(id=id, expect=known.head or NEW, source=source, metadata=count)
        draft.growing = known.growing
        work = run_on(store._engine, thread._key)
        with nullcontext() if work is None else work.guarded():
            if work is not None:
                draft.fence, draft.run = work.run._fence_of(store._engine, thread._key), work.run.id
            try:
                saved = await thread._save({ITEMS: known.items}, draft)
            except CheckpointExists:
                return None
        if draft.is_repeated:
            return None
        self._known.append(_Known(saved.id, known.growing))
        self._seen = saved.id
        return saved

    async def _forget(self, store: AsyncStore, saved: CheckpointInfo, count: int = 0) -> None:
        """Erase the states before one that have at least `count` items, back to the first that has fewer.

        A crash before this leaves them in the history. Another process may have erased `saved`
        itself.
        """
        thread, ids = self.thread(store), []
        async for info in thread.history(before=saved):
            if info.metadata.get("items", count) < count:
                break
            ids.append(info.id)
        await thread.delete_checkpoints(ids, erase=True)

    def _mutex(self, store: AsyncStore) -> AbstractAsyncContextManager[Any]:
        mutex = self._mutexes.get(store._engine)
        return mutex or self._mutexes.setdefault(store._engine, store._engine.runtime.mutex())


def items_of(state: Any) -> list[Any]:
    """Return the items of a state. Raises BadArgument for the state of something else."""
    if state is None:  # the first checkpoint of a run
        return []
    items = state.get(ITEMS) if isinstance(state, dict) else None
    if not isinstance(items, list):
        raise BadArgument(
            "this thread holds another state than a list of items: give the session an id of its own"
        )
    return items
