"""An async iterator that never suspends, as a plain one."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from outlive.errors import OutliveError
from outlive.runtime.runtime import run_now
from outlive.runtime.wrong_mode import SyncItems
from outlive.values import COLUMNS, CheckpointInfo

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


C = TypeVar("C", bound=CheckpointInfo)


class History(_Each[C]):
    """Checkpoints, newest first. A notebook shows the first ones; they are still iterated over after that."""

    def __init__(self, items: AsyncIterator[C]) -> None:
        super().__init__(items)
        self._ahead: list[C] = []  # that were shown, in reverse
        self._failure: OutliveError | None = None  # that ended the reading ahead

    def __next__(self) -> C:
        if self._ahead:
            return self._ahead.pop()
        if self._failure is not None:
            raise self._failure
        return super().__next__()

    def _repr_html_(self) -> str:
        """Show the next checkpoints in a notebook, without taking them from the iterator."""
        from outlive.notebook import ROWS, table

        shown = self._peek(ROWS + 1)
        rows = [checkpoint._cells() for checkpoint in shown[:ROWS]]
        thread = f"History of thread {shown[0].thread!r}" if shown else "no checkpoints"
        return table(thread, COLUMNS, rows, is_more=len(shown) > ROWS or self._failure is not None)

    def _peek(self, count: int) -> list[C]:
        """Return the next ones, which stay. An error is raised where the iterator comes to it."""
        shown: list[C] = []
        try:
            shown.extend(itertools.islice(self, count))
        except OutliveError as error:
            self._failure = error
        finally:
            self._ahead = [*self._ahead, *reversed(shown)]
        return shown


def each(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over what never suspends."""
    return _Each(items)
