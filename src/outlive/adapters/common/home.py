"""The store of an adapter, from any event loop, thread and forked child.

Frameworks make their sessions and services in plain constructors, call them from several event
loops one after the other, and some start a new loop for each call. So an adapter works on a sync
store, and its sync methods run in the calling thread. Its async methods run on the event loop, if
that can have a store of its own: the one from `open_async`, or one beside the sync store in this
process. All tasks that write in one turn of the loop then share a commit. A second loop that runs
at the same time, trio, and a store on a server that was opened by its URL get a worker thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from outlive.errors import BadArgument, StoreClosed, WrongLoop
from outlive.factory import async_sibling
from outlive.factory import open as open_store
from outlive.runtime.fork import call_in_child, reset_in_child
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.store import Store

T = TypeVar("T")
Work = Callable[[AsyncStore], Coroutine[Any, Any, T]]
_WORKERS = 16
_OWN = ("memory:", "null:")  # each of these is a new store
_UNMADE: Any = object()
_loop_runtime = AsyncRuntime()


class StoreHome:
    """A store that an adapter opened from a URL, or that was given to it.

    `StoreHome.of` shares the store of a URL: a program makes a session for each request. The last
    one that closes its home closes the store.
    """

    _shared: ClassVar[WeakValueDictionary[tuple[Any, ...], _Opened]] = WeakValueDictionary()
    _sharing: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def of(cls, store: str | Store | AsyncStore, options: dict[str, Any], owner: str) -> StoreHome:
        """Return a home in a store, which all that name the same URL share."""
        if not isinstance(store, str) or store.startswith(_OWN):
            return cls(store, options, owner)
        with cls._sharing:
            # A relative path is another one in another folder.
            key = (store, os.getcwd(), *((name, _hashable(options[name])) for name in sorted(options)))
            opened = cls._shared.get(key)
            if opened is None or opened.is_closed:
                opened = cls._shared[key] = _Opened(store, options, owner)
            return cls._in(opened)

    @classmethod
    def _in(cls, opened: _Opened) -> StoreHome:
        home = StoreHome.__new__(StoreHome)
        home._opened, home._is_closed = opened, False
        opened.users += 1
        return home

    def __init__(self, store: str | Store | AsyncStore, options: dict[str, Any], owner: str) -> None:
        """`options` are those of `outlive.open`, for a URL; `owner` is the class that takes them."""
        self._opened = _Opened(store, options, owner)
        self._opened.users = 1
        self._is_closed = False

    def share(self) -> StoreHome:
        """Return a home in the same store, for one more user, which closes it too."""
        with self._sharing:
            return self._in(self._opened)

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return (self.asynchronous or self.sync)._settings.url

    @property
    def sync(self) -> AsyncStore:
        """The store whose coroutines never suspend."""
        return self._opened.sync

    @property
    def asynchronous(self) -> AsyncStore | None:
        """The store that belongs to an event loop, if one was given."""
        return self._opened.asynchronous

    def call(self, work: Work[T]) -> T:
        """Work on the store in this thread."""
        return run_now(work(self._opened.sync))

    async def acall(self, work: Work[T]) -> T:
        """Work on the store without blocking the event loop. A cancellation is raised when the work has ended."""
        if not _is_asyncio():
            return await _in_thread_of_trio(lambda: self.call(work))
        store = self._opened.here()
        called = self.in_thread(lambda: self.call(work)) if store is None else work(store)
        return await _loop_runtime.shielded(called)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run something in our own pool: all workers of the loop may wait for nodes that wait for us."""
        return await asyncio.wrap_future(self._submit(work))

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        return self._opened.submit(work)

    def close(self) -> None:
        """Leave the store; closing twice is fine. The last one closes what was opened here: the store of a URL, the sync sibling of an async store."""
        with self._sharing:
            if self._is_closed:
                return
            self._is_closed = True
            self._opened.users -= 1
            if self._opened.users > 0:
                return
            self._opened.is_closed = True
        self._opened.close()


class _Opened:
    """A store, with what its homes share: worker threads, and the store of the event loop."""

    def __init__(self, store: str | Store | AsyncStore, options: dict[str, Any], owner: str) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self.users = 0
        self.is_closed = False
        reset_in_child(self)
        self._is_given = isinstance(store, Store)
        self.asynchronous: AsyncStore | None = None
        self._sync: AsyncStore | None = None
        self._sibling: AsyncStore | None = _UNMADE
        if isinstance(store, str):
            self._sync = open_store(store, **options)._store
        elif options:
            raise BadArgument(f"{', '.join(sorted(options))}: pass the options of a store when you open it")
        elif isinstance(store, Store):
            self._sync = store._store
        elif isinstance(store, AsyncStore):
            self.asynchronous = store
        else:
            raise BadArgument(f"{owner} takes a URL or an open store, not {type(store).__name__}")

    def after_fork_in_child(self) -> None:
        self._pool, self._lock = None, threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Call something in a worker thread, with the context of the caller."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="outlive-adapter")
            return self._pool.submit(contextvars.copy_context().run, work)

    @property
    def sync(self) -> AsyncStore:
        """The store whose coroutines never suspend."""
        asynchronous = self.asynchronous
        if asynchronous is not None and asynchronous._is_closed:
            raise StoreClosed
        with self._lock:
            if self._sync is None:
                assert asynchronous is not None
                if asynchronous._sync_sibling is None:
                    raise BadArgument(
                        "this store was not opened by outlive.open_async: use the async methods"
                    )
                self._sync = asynchronous._sync_sibling()
            return self._sync

    def here(self) -> AsyncStore | None:
        """Return the store for the running event loop; None: another loop has it, or it needs a worker thread."""
        store = self.asynchronous or self._beside()
        if store is None or not isinstance(store._engine.runtime, AsyncRuntime):
            return None
        try:
            store._engine.runtime.check_loop()
        except WrongLoop:
            return None
        return store

    def _beside(self) -> AsyncStore | None:
        """Return a store for event loops beside the sync one, if this opened that, and both share a file or memory."""
        if self._is_given or self.is_closed:
            return None
        with self._lock:
            if self._sibling is _UNMADE:
                assert self._sync is not None
                self._sibling = async_sibling(self._sync)
        return self._sibling

    def close(self) -> None:
        """Close what was opened here, and end the threads."""
        self._sibling = None
        if self._sync is not None and not self._is_given:
            run_now(self._sync.close())
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


call_in_child(lambda: setattr(StoreHome, "_sharing", threading.Lock()))


def _hashable(option: Any) -> Any:
    """Return an option to compare: by its value if it has a hash, otherwise it is that object alone."""
    try:
        hash(option)
    except TypeError:
        return id(option)
    return option


def _is_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _in_thread_of_trio(work: Callable[[], T]) -> T:
    import anyio.to_thread  # comes with every framework that runs on trio

    return await anyio.to_thread.run_sync(work)
