"""Time travel in what a framework stores: the past of a thread, a copy from there, what changed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from outlive.adapters.common.home import StoreHome
from outlive.errors import CheckpointMissing
from outlive.store import AsyncStore
from outlive.threads.thread import AsyncThread
from outlive.values import Change, CheckpointInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Past:
    """The past of a namespace of a thread. Its methods take the store, as those of `ThreadList` do."""

    thread_id: str
    namespace: str = ""

    def thread(self, store: AsyncStore) -> AsyncThread[Any]:
        """Return the thread."""
        return store.thread(self.thread_id, namespace=self.namespace)

    async def history(self, store: AsyncStore, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints, newest first."""
        return [info async for info in self.thread(store).history(limit=limit)]

    async def fork(self, store: AsyncStore, id: str, at: str | None = None) -> None:
        """Make a new thread that starts with a checkpoint of this one, by default the newest."""
        await self.thread(store).fork(id, checkpoint=at)

    async def diff(self, store: AsyncStore, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints, path by path."""
        return await self.thread(store).diff(old, new)

    async def load(self, store: AsyncStore, at: str) -> Any:
        """Return the state of a checkpoint. Raises CheckpointMissing."""
        state = await self.thread(store).load(at)
        if state is None:
            raise CheckpointMissing(self.thread_id, at)
        return state

    async def prune(self, store: AsyncStore, keep_last: int) -> int:
        """Keep the newest checkpoints, erase the others, and return how many those were."""
        pruned = await self.thread(store).prune(keep_last=keep_last, erase=True, all_namespaces=False)
        return pruned.checkpoints


class Travelling:
    """The past of a session, for adapters whose framework is async: mix it in, and set `_home` and `_past`."""

    _home: StoreHome
    _past: Past

    async def _do(self, work: Callable[[AsyncStore], Coroutine[Any, Any, T]]) -> T:
        return await self._home.acall(work)

    async def history(self, limit: int | None = None) -> list[CheckpointInfo]:
        """Return the checkpoints, newest first; the id of one is what `at=` takes."""
        return await self._do(lambda store: self._past.history(store, limit))

    async def diff(self, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints (default: up to the newest), path by path."""
        return await self._do(lambda store: self._past.diff(store, old, new))

    async def prune(self, keep_last: int) -> int:
        """Keep the newest checkpoints, erase the others, and return how many those were."""
        return await self._do(lambda store: self._past.prune(store, keep_last))

    async def delete(self) -> bool:
        """Delete the whole thread, with its runs; no byte stays in the store. False when it did not exist."""
        return await self._do(lambda store: self._past.thread(store).delete(erase=True))
