"""One test on one backend, sync or async: opens stores, and runs work at once.

On the sync side a whole test is one coroutine that never suspends, driven by `run_now` over the
sync mode of everything; on the async side it runs in an event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar, cast

import pytest

from outlive.backend import Backend, ThreadKey
from outlive.backends.local.async_local import AsyncLocal
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.protocol import Local
from outlive.backends.local.sync_local import SyncLocal
from outlive.backends.server.urls import BackendFactory
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.format.registry import Registry
from outlive.runtime.loop import AsyncRuntime
from outlive.runtime.runtime import SyncRuntime, run_now
from outlive.store import AsyncStore, Settings
from outlive.sync.run import Lock, Run
from outlive.sync.store import Store
from outlive.sync.thread import Thread
from outlive.testing.interposed import Interposed
from outlive.testing.thread_records import Probe
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, Any]]
NAMING_KEY = b"\x01" * 32
ROUNDS = 20 if os.environ.get("OUTLIVE_LONG") else 1  # of tests that hope to meet a rare moment


@dataclass(frozen=True)
class Opener:
    """How to open the backend under test: each call gives another handle on the same store.

    `survives` tells that what is stored outlives a closed handle; a store in memory does not.
    `is_remote` tells that a network is between the backend and its store, so that a commit may
    arrive twice (rule 9). A mode that the backend does not have is None, and its tests are skipped
    by name.
    """

    sync: Callable[[], Backend] | None
    asynchronous: Callable[[], Awaitable[Backend]] | None
    survives: bool = True
    is_remote: bool = True

    @classmethod
    def local(cls, make: Callable[[], Local], *, survives: bool = True) -> Opener:
        """Open a backend of this process, sync and async."""

        async def threaded() -> Backend:
            return cast(Backend, AsyncLocal(make()))

        return cls(lambda: cast(Backend, SyncLocal(make())), threaded, survives, is_remote=False)

    @classmethod
    def served(cls, factory: BackendFactory, timeout_s: float | None = 30.0) -> Opener:
        """Open what a URL was parsed into: a backend of a server."""
        return cls(lambda: factory.sync(timeout_s), lambda: factory.asynchronous(timeout_s))

    @classmethod
    def of(cls, source: Any) -> Opener:
        """Return the opener of a fixture: it returns an opener, or a local backend that is used as it is."""
        if isinstance(source, Opener):
            return source
        if not hasattr(source, "commit_all"):
            raise TypeError("the fixture `backend` must return a local backend or an outlive.testing.Opener")
        return cls.local(lambda: cast(Local, source), survives=False)


class SyncDriver:
    """No event loop: a coroutine that suspends is an error."""

    def __init__(self) -> None:
        self.runtime = SyncRuntime()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return run_now(coroutine)

    async def open(self, opener: Opener) -> Backend:
        if opener.sync is None:
            pytest.skip("this backend has no sync mode")
        return opener.sync()

    async def together(self, works: Sequence[Work]) -> list[Any]:
        """Run each work in a thread of its own; return results and exceptions."""
        results: list[Any] = [None] * len(works)
        start = threading.Barrier(len(works))

        def call(index: int) -> None:
            start.wait()
            try:
                results[index] = run_now(works[index]())
            except Exception as error:  # noqa: BLE001  # the caller that waits looks at it
                results[index] = error

        threads = [threading.Thread(target=call, args=(index,)) for index in range(len(works))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # there is no event loop on this side

    def store(self, store: AsyncStore) -> AsyncStore:
        return cast(AsyncStore, _Awaited(Store(store)))


class AsyncDriver:
    """One event loop for a whole test."""

    def __init__(self) -> None:
        self.runtime = AsyncRuntime()
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    async def open(self, opener: Opener) -> Backend:
        if opener.asynchronous is None:
            pytest.skip("this backend has no async mode")
        return await opener.asynchronous()

    async def together(self, works: Sequence[Work]) -> list[Any]:
        """Run each work as a task; return results and exceptions."""
        return await asyncio.gather(*(work() for work in works), return_exceptions=True)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def store(self, store: AsyncStore) -> AsyncStore:
        return store


Driver = SyncDriver | AsyncDriver
IO_MODES: dict[str, type[SyncDriver | AsyncDriver]] = {"sync": SyncDriver, "async": AsyncDriver}


class Trial:
    """What a test opens; everything is closed at its end."""

    def __init__(self, opener: Opener, driver: Driver) -> None:
        self.opener = opener
        self.driver = driver
        self._open: list[Backend] = []

    async def backend(self) -> Backend:
        """Open another handle on the store."""
        handle = await self.driver.open(self.opener)
        self._open.append(handle)
        return handle

    async def probe(self, id: str = "thread", *, tenant: str = "") -> Probe:
        """Open a handle and look at one thread through it."""
        backend = await self.backend()
        await backend.identity(NAMING_KEY)
        return Probe(backend, ThreadKey.of(tenant, id))

    async def store(
        self,
        *,
        backend: Backend | None = None,
        tenant: str = "",
        durability: str = "sync",
        cache_bytes: int = 64 << 20,
        registry: Registry | None = None,
    ) -> AsyncStore:
        """Open a store in the mode of the test; its methods are awaited in both modes."""
        backend = backend or await self.backend()
        key = await backend.identity(NAMING_KEY)
        codec = Codec(registry) if registry is not None else Codec()
        engine = Engine(backend, codec, Namer(key), Cache(cache_bytes), self.driver.runtime)
        return self.driver.store(AsyncStore(engine, Settings("testing:", tenant, durability)))

    async def other_store(self, tenant: str = "") -> AsyncStore:
        """Open another store, in memory, with a naming key of its own."""
        backend = await self.driver.open(Opener.of(MemoryBackend()))
        self._open.append(backend)
        await backend.identity(b"\x02" * 32)
        return await self.store(backend=backend, tenant=tenant)

    async def interposed(self, **options: Any) -> tuple[Interposed, AsyncStore]:
        """Open a store whose backend calls a test can interrupt."""
        backend = Interposed(await self.backend())
        return backend, await self.store(backend=cast(Backend, backend), **options)

    async def reopened(self, store: AsyncStore) -> AsyncStore:
        """Close a store and open it again; one that does not survive closing stays open."""
        if self.opener.survives:
            await store.close()
        return await self.store(tenant=store._settings.tenant)

    def handler(self, body: Callable[[Any], Coroutine[Any, Any, Any]]) -> Callable[[Any], Any]:
        """Return a handler of `recover` that awaits the methods of its run, sync or async."""
        if isinstance(self.driver, SyncDriver):
            return lambda run: run_now(body(_Awaited(run)))
        return body

    async def together(self, *works: Work) -> list[Any]:
        """Run all of them at once; return results and exceptions in order."""
        return await self.driver.together(works)

    async def sleep(self, seconds: float) -> None:
        await self.driver.sleep(seconds)

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


class _Awaited:
    """A sync store or thread whose methods are awaited, so that one test fits sync and async."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    async def __aenter__(self) -> Self:
        self._inner.__enter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return self._inner.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # internals that a test looks at are the same sync and async
            return getattr(_wrapped(self._inner), name)
        member = getattr(self._inner, name)
        if not callable(member):
            return member
        if name in ("thread", "run", "lock"):
            return lambda *args, **options: _Awaited(member(*args, **options))
        if name in ("history", "threads", "runs", "recoverable", "questions", "follow", "workers"):
            return lambda *args, **options: _each(member(*args, **options))
        if name == "step":
            return lambda *args, **options: _step(member, *args, **options)

        async def call(*args: Any, **options: Any) -> Any:
            named = {name: _inner(value) for name, value in options.items()}
            result = member(*map(_inner, args), **named)
            return _Awaited(result) if isinstance(result, Thread | Run | Lock) else result

        return call


def _inner(value: Any) -> Any:
    # Since Python 3.12 a protocol does not see what __getattr__ passes on.
    return value._inner if isinstance(value, _Awaited) else value


def _step(step: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Await a step of a sync run; without a function, return an awaitable decorator."""

    async def call() -> Any:
        return step(*args, **options)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        async def decorated(*args_: Any, **options_: Any) -> Any:
            return step(*args, **options)(function)(*args_, **options_)

        return decorated

    return call() if len(args) > 1 else decorate


def _wrapped(inner: Any) -> Any:
    """Return the object that a sync object wraps."""
    return next(
        getattr(inner, name) for name in ("_store", "_thread", "_run", "_lock") if hasattr(inner, name)
    )


async def _each(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
