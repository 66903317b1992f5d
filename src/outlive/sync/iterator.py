"""An async iterator that never suspends, as a plain one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from outlive.runtime.runtime import run_now
from outlive.runtime.wrong_mode import SyncItems

T = TypeVar("T")


class _Each(SyncItems[T]):
    """Iterates over what never suspends."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items

    def __next__(self) -> T:
        try:
            return run_now(self._items.__anext__())  # type: ignore[arg-type]
        except StopAsyncIteration:
            raise StopIteration from None


def each(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over what never suspends."""
    return _Each(items)
