"""Errors for using a sync store as an async one, or the reverse: they say what to write."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import NoReturn, ParamSpec, TypeVar

from outlive.errors import SyncAsyncMixed

P = ParamSpec("P")
T = TypeVar("T")

_SYNC = (
    "this is a sync store: write `{right}` instead of `{wrong}`, or open the store with outlive.open_async"
)
_ASYNC = "this is an async store: write `{right}` instead of `{wrong}`, or open the store with outlive.open"


class SyncContext:
    """A context manager for `with` alone."""

    def __aenter__(self) -> NoReturn:
        raise SyncAsyncMixed(_SYNC.format(right="with", wrong="async with"))

    def __aexit__(self, *error: object) -> NoReturn:
        raise SyncAsyncMixed(_SYNC.format(right="with", wrong="async with"))


class AsyncContext:
    """A context manager for `async with` alone."""

    def __enter__(self) -> NoReturn:
        raise SyncAsyncMixed(_ASYNC.format(right="async with", wrong="with"))

    def __exit__(self, *error: object) -> None:
        """Exist: Python looks it up before it calls `__enter__`."""


class SyncItems(Iterator[T]):
    """What `for` iterates over, and `async for` does not."""

    def __aiter__(self) -> NoReturn:
        raise SyncAsyncMixed(_SYNC.format(right="for", wrong="async for"))


class AsyncItems(AsyncIterator[T]):
    """What `async for` iterates over, and `for` does not."""

    def __iter__(self) -> NoReturn:
        raise SyncAsyncMixed(_ASYNC.format(right="async for", wrong="for"))

    def __next__(self) -> NoReturn:
        self.__iter__()


class _Generated(AsyncItems[T]):
    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items

    async def __anext__(self) -> T:
        return await self._items.__anext__()


def async_items(generate: Callable[P, AsyncIterator[T]]) -> Callable[P, AsyncIterator[T]]:
    """Make an async generator raise a helpful error in a plain `for`."""

    @functools.wraps(generate)
    def call(*args: P.args, **options: P.kwargs) -> AsyncIterator[T]:
        return _Generated(generate(*args, **options))

    return call
