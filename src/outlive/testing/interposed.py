"""A backend in whose calls a test can meddle: see them, act between two of them, lose an answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from ..backend import Backend

Hook = Callable[..., Awaitable[Any]]


class Interposed:
    """Forwards everything. A hook acts once, at the next call of its method, and may raise instead of it."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.name = inner.name
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._before: dict[str, list[Hook]] = defaultdict(list)
        self._after: dict[str, list[Hook]] = defaultdict(list)

    def before(self, method: str, hook: Hook) -> None:
        """Let `hook(*args)` act before the next call of a method."""
        self._before[method].append(hook)

    def after(self, method: str, hook: Hook) -> None:
        """Let `hook(result)` act after the next call of a method; what it returns, if anything, is the answer."""
        self._after[method].append(hook)

    def counted(self, method: str) -> int:
        return sum(name == method for name, _, _ in self.calls)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        async def call(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            if self._before[name]:
                await self._before[name].pop(0)(*args)
            result = await method(*args, **options)
            if self._after[name]:
                changed = await self._after[name].pop(0)(result)
                result = result if changed is None else changed
            return result

        return call
