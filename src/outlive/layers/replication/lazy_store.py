"""A store that cannot be opened now, like one on an unmounted disk: every call tries again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from outlive.backend import Backend
from outlive.errors import StoreMissing, StoreUnavailable
from outlive.runtime.runtime import Runtime

Open = Callable[[], Awaitable[Backend]]


class LazyStore:
    """Takes the place of a backend until it can be opened. Its calls raise why it cannot."""

    def __init__(self, name: str, open: Open, runtime: Runtime) -> None:
        self.name = name
        self._open = open
        self._mutex = runtime.mutex()  # one attempt at a time
        self._backend: Backend | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(*args: Any, **options: Any) -> Any:
            async with self._mutex:
                if self._backend is None:
                    self._backend = await self._open()
            return await getattr(self._backend, name)(*args, **options)

        return call

    async def close(self) -> None:
        """Close the backend, if there is one."""
        if self._backend is not None:
            await self._backend.close()


async def open_lazily(name: str, open: Open, runtime: Runtime) -> Backend:
    """Return a backend, or what takes its place until it can be opened."""
    try:
        return await open()
    except StoreMissing:
        raise
    except StoreUnavailable:
        return cast(Backend, LazyStore(name, open, runtime))
