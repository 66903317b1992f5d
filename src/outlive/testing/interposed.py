"""A backend whose calls a test can record, interrupt and refuse, and whose answers it can lose."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from outlive.backend import Backend, Reservation, Unreserved
from outlive.errors import StoreUnavailable

Hook = Callable[..., Awaitable[Any]]


class Interposed:
    """Forwards everything. A hook acts once, at the next call of its method, and may raise."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name = inner.name
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._before: dict[str, list[Hook]] = defaultdict(list)
        self._after: dict[str, list[Hook]] = defaultdict(list)
        self._at_call: tuple[int, Hook] | None = None
        self.on_call: Hook | None = None  # acts before every call, with the name of its method

    def before(self, method: str, hook: Hook) -> None:
        """Call `hook(*args)` before the next call of a method."""
        self._before[method].append(hook)

    def refuse(self, method: str, *, after: int = 0) -> None:
        """Make a call of a method fail as if the store could not be reached: by default the next one."""

        async def refuse(*args: Any) -> None:
            raise StoreUnavailable("unreachable")

        async def forward(*args: Any) -> None:
            pass

        self._before[method] += [*[forward] * after, refuse]

    def after(self, method: str, hook: Hook) -> None:
        """Call `hook(result)` after the next call of a method.

        What it returns, if anything, is the answer.
        """
        self._after[method].append(hook)

    def forget(self) -> None:
        """Forget all hooks that have not acted."""
        self._before.clear()
        self._after.clear()
        self._at_call = None

    def before_call(self, number: int, hook: Hook) -> None:
        """Call `hook()` before one of the next calls of any method: 0 is the very next."""
        self._at_call = (len(self.calls) + number, hook)

    async def act_now(self) -> None:
        """Call the hook of `before_call` now, unless it was called already."""
        if self._at_call is not None:
            (_, hook), self._at_call = self._at_call, None
            await hook()

    def counted(self, method: str) -> int:
        return sum(name == method for name, _, _ in self.calls)

    async def reserve(self) -> Reservation:
        """Reserve nothing, so that the calls of a reservation are seen too."""
        return Unreserved(self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            if self._at_call is not None and self._at_call[0] == len(self.calls):
                await self.act_now()
            if self.on_call is not None:
                await self.on_call(name)
            self.calls.append((name, args, options))
            if self._before[name]:
                await self._before[name].pop(0)(*args)
            result = await method(*args, **options)
            if self._after[name]:
                changed = await self._after[name].pop(0)(result)
                result = result if changed is None else changed
            return result

        return call
