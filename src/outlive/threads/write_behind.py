"""Saves with durability="async": handed over at once, committed in order, in the background.

Theory of operation. The state is split when the call is made, so what is stored is what the caller
had then. Each save builds on the one before it, stored or not. No other code may do that, so the
bases of queues are in a cache of their own. One task per thread commits the queue from its first
item on, and removes an item only after its commit.

What goes wrong. When a save fails, those after it build on something that is not stored: all of
them are dropped, and the next call on that thread raises `DelayedSaveFailed` with their ids. When
others delete what a save shares, it is stored again as a whole. A crash loses what is in the queue
and nothing else: what is stored is a prefix of the saves, each of them whole. `flush` and `close`
wait for the queue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outlive.backend import Commit, Receipt, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import DelayedSaveFailed, StaleBase
from outlive.format import manifest
from outlive.format.planner import plan_chunks
from outlive.runtime.fork import reset_in_child
from outlive.runtime.runtime import Task
from outlive.threads.cache import Base, Cache
from outlive.threads.engine import Engine
from outlive.threads.save import Draft, Prepared, Save
from outlive.values import CheckpointInfo


@dataclass(slots=True)
class _Item:
    """A save in the queue. `before` is the one it was built on, stored by now or not."""

    prepared: Prepared
    before: _Item | None
    failure: BaseException | None = None  # why it was lost
    is_whole: bool = False  # others deleted what it shares: all of it was stored again
    generation: int = 0  # once it is stored


class SaveQueue:
    """The queue of one thread."""

    def __init__(self, engine: Engine, key: ThreadKey, cache: Cache) -> None:
        self._engine = engine
        self._key = key
        self._bases = cache  # of queues alone
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._lock = self._engine.runtime.lock()
        self._turn = self._engine.runtime.mutex()
        self._queue: list[_Item] = []
        self._task: Task | None = None
        self._failure: DelayedSaveFailed | None = None

    def after_fork_in_child(self) -> None:
        """Start with an empty queue: the parent commits what it queued."""
        self._bases.drop(self._key.digest)
        self._reset()

    async def save(self, state: Any, draft: Draft) -> CheckpointInfo:
        """Queue a save; it has no seq yet."""
        async with self._turn:  # saves are queued in the order in which they are split
            self.raise_failure()
            # 1. Split and plan on the base of the queue. Nothing is stored, nothing is in the
            #    queue.
            prepared = await Save(self._engine, self._key, state, draft).prepare(self._bases)
            # 2. Note the places of the plan as if they were stored, so that the next save can share
            #    them. If this save fails, the base is dropped with them.
            prepared.plan.record_spans()
            record, old = prepared.commit.checkpoints[0], prepared.base
            item = _Item(prepared, old.save if old is not None and isinstance(old.save, _Item) else None)
            base = Base(record, old.generation if old is not None else 0, prepared.plan.pieces, save=item)
            self._bases.put((self._key.digest, draft.namespace), base)
            # 3. Queue it. A crash from here until its commit loses it, and all that are queued after it.
            self._append(item)
        return manifest.describe(self._key.id, record, draft)

    def _append(self, item: _Item) -> None:
        with self._lock:
            self.raise_failure()  # a save may have failed while this one was split
            self._queue.append(item)
            self._start()

    def _start(self) -> Task | None:
        """Return the task that stores the queue, if there is anything to store; called under the lock.

        An event loop that ends cancels the task in the middle, and a loop that stops leaves it. The
        queue stays whole, and is stored again from its first item: the id shows if that was stored.
        """
        if self._task is not None and self._task.has_ended():
            self._task = None
        if self._task is None and self._queue:
            self._task = self._engine.runtime.spawn("outlive-save", self._drain)
        return self._task

    async def flush(self) -> None:
        """Wait until everything is stored; raise what went wrong."""
        while (task := self._running()) is not None:
            await task.wait()
        self.raise_failure()

    def _running(self) -> Task | None:
        with self._lock:
            return self._start()

    def raise_failure(self) -> None:
        """Raise the error of an earlier save, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _drain(self) -> None:
        """Store the queue in order. A crash between two commits leaves a prefix of the saves."""
        try:
            while (item := self._next()) is not None:
                await self._note_stored(item, await self._commit(item))
        except Exception as error:  # noqa: BLE001  # the next call on the thread raises it
            self._fail(error)

    def _next(self) -> _Item | None:
        """Return the first of the queue; when there is none, this worker is done."""
        with self._lock:
            if self._queue:
                return self._queue[0]
            self._task = None
            return None

    async def _commit(self, item: _Item) -> Receipt:
        """Commit one save, in the generation in which the one before it was stored, or its base was read."""
        commit, before = item.prepared.commit, item.before
        if before is not None and before.failure is not None:
            raise before.failure  # the save before failed after this one was split
        if before is not None and before.is_whole:
            # Its plan refers to places that the save before no longer has.
            return await self._engine.commit(self._whole(item))
        if before is not None and commit.generation is not None:
            # When this one was planned, the save before was not stored and had no generation yet.
            commit = replace(commit, generation=before.generation)
        try:
            return await self._engine.commit(commit)
        except StaleBase:  # others deleted what it shares
            return await self._engine.commit(self._whole(item))

    async def _note_stored(self, item: _Item, receipt: Receipt) -> None:
        base = self._bases.get((self._key.digest, item.prepared.draft.namespace))
        if receipt.existing is not None:
            # Its id is there: the same save again is done, another one under its id is an error.
            # The stored one may have its bytes in other places, so saves that were planned on this
            # one are stored as a whole.
            await item.prepared.compare(self._engine)
            self._bases.drop(self._key.digest)
            item.is_whole = True
        elif base is not None and base.save is item:
            base.record, base.generation = receipt.checkpoints[0], receipt.generation
        item.generation = receipt.generation
        item.before = None  # otherwise every item would keep all before it in memory
        with self._lock:
            self._queue.pop(0)

    def _whole(self, item: _Item) -> Commit:
        """Return a commit that stores all pieces again.

        Saves that were planned on the old places become whole too.
        """
        item.is_whole = True
        engine, prepared = self._engine, item.prepared
        self._bases.drop(self._key.digest)
        for part in prepared.plan.pieces.parts:
            part.spans, part.kept = None, []
        plan = plan_chunks(engine.codec, engine.namer, prepared.plan.pieces, None)
        record = prepared.draft.record(engine, plan, prepared.written.digest)
        chunks = plan.chunks | prepared.written.chunks
        return replace(prepared.commit, checkpoints=(record,), chunks=tuple(chunks.items()), generation=None)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            lost = [item.prepared.draft.id for item in self._queue]
            for item in self._queue:
                item.failure = error
            self._queue.clear()
            self._task = None
            self._bases.drop(self._key.digest)
            earlier = self._failure  # not raised yet: its cause counts for all
            cause = earlier.__cause__ if earlier is not None and earlier.__cause__ is not None else error
            self._failure = DelayedSaveFailed(
                self._key.id, (earlier.checkpoints if earlier else []) + lost, cause
            )
            self._failure.__cause__ = cause
