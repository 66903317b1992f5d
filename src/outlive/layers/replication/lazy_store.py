"""A store of a pair that cannot be opened now, like one on a disk that is not mounted: every call tries again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from outlive.backend import Backend
from outlive.errors import StoreMissing, StoreUnavailable
from outlive.runtime.runtime import Runtime

Make = Callable[[], Awaitable[Backend]]


class Unopened:
    """Stands for a backend until it can be made. Its calls raise what stands in the way."""

    def __init__(self, name: str, make: Make, runtime: Runtime) -> None:
        self.name = name
        self._make = make
        self._mutex = runtime.mutex()  # one attempt at a time
        self._backend: Backend | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        async def call(*args: Any, **options: Any) -> Any:
            async with self._mutex:
                if self._backend is None:
                    self._backend = await self._make()
            return await getattr(self._backend, name)(*args, **options)

        return call

    async def close(self) -> None:
        """Close the backend, if there is one."""
        if self._backend is not None:
            await self._backend.close()


async def made(name: str, make: Make, runtime: Runtime) -> Backend:
    """Return a backend, or what stands for it until it can be made."""
    try:
        return await make()
    except StoreMissing:
        raise
    except StoreUnavailable:
        return cast(Backend, Unopened(name, make, runtime))
