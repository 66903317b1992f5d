"""Saves with durability="async": handed over at once, committed in order, in the background.

The state is split when the call is made, so what is stored is what the caller had then. Each save builds on
the one before it, stored or not. When one fails, those behind it cannot stand either: all of them are
dropped, and the next call on that thread raises `DelayedSaveFailed` with their ids. What is still in
the queue when the process dies is lost; `flush` and `close` wait for it.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from . import chunk
from .backend import Commit, Receipt, ThreadKey
from .cache import Base
from .checkpoint import Checkpoint
from .engine import Draft, Engine, Prepared
from .errors import CheckpointExists, DelayedSaveFailed, StaleBase
from .runtime import Task


class Delayed:
    """The queue of one thread."""

    def __init__(self, engine: Engine, key: ThreadKey) -> None:
        self._engine = engine
        self._key = key
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = self._engine.runtime.lock()
        self._queue: list[Prepared] = []
        self._task: Task | None = None
        self._failure: DelayedSaveFailed | None = None
        self._generation: int | None = None  # of the last commit of this queue
        self._lost_base = False  # somebody deleted what the queued saves share: store them whole

    def _after_fork(self) -> None:
        if self._pid != os.getpid():  # the parent commits what it queued
            self._reset()

    async def save(self, state: Any, draft: Draft) -> Checkpoint:
        """Queue a save; it has no seq yet."""
        self._after_fork()
        self.raise_failure()
        engine, key = self._engine, self._key
        before = engine.cache.get((key.digest, draft.namespace))
        prepared = await engine.prepare(key, state, draft)
        prepared.plan.settle()  # on trust: a failure drops the base
        record = prepared.commit.checkpoints[0]
        generation = prepared.commit.generation or (before.generation if before else 0)
        engine.cache.put((key.digest, draft.namespace), Base(record, generation, prepared.plan.pieces))
        with self._lock:
            self._queue.append(prepared)
            if self._task is None:
                self._task = engine.runtime.spawn(self._drain)
        return engine.describe(key, record, draft)

    async def flush(self) -> None:
        """Wait until everything is stored; raise what went wrong."""
        self._after_fork()
        while (task := self._task) is not None:
            await task.wait()
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error of an earlier save, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _drain(self) -> None:
        try:
            while (prepared := self._next()) is not None:
                self._settle(prepared, await self._commit(prepared))
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise

    def _next(self) -> Prepared | None:
        """Return the first of the queue; when there is none, this worker is done."""
        with self._lock:
            if self._queue:
                return self._queue[0]
            self._task, self._generation, self._lost_base = None, None, False
            return None

    async def _commit(self, prepared: Prepared) -> Receipt:
        commit = prepared.commit
        if self._lost_base:
            commit = self._whole(prepared)
        elif commit.generation is not None and self._generation is not None:
            commit = replace(commit, generation=self._generation)
        try:
            return await self._engine.backend.commit(commit)
        except StaleBase:
            self._lost_base = True
            return await self._engine.backend.commit(self._whole(prepared))

    def _settle(self, prepared: Prepared, receipt: Receipt) -> None:
        if receipt.existing is not None:
            raise CheckpointExists(self._key.id, prepared.draft.id)
        self._generation = receipt.generation
        base = self._engine.cache.get((self._key.digest, prepared.draft.namespace))
        if base is not None and base.record.id == prepared.draft.id:
            base.record, base.generation = receipt.checkpoints[0], receipt.generation
        with self._lock:
            self._queue.pop(0)

    def _whole(self, prepared: Prepared) -> Commit:
        """Store all pieces anew."""
        engine = self._engine
        engine.cache.drop(self._key.digest)
        for part in prepared.plan.pieces.parts:
            part.spans, part.kept = None, []
        plan = chunk.plan(engine.codec, engine.namer, prepared.plan.pieces, None)
        record = engine.record(prepared.draft, plan)
        return replace(
            prepared.commit, checkpoints=(record,), chunks=tuple(plan.chunks.items()), generation=None
        )

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            lost = [prepared.draft.id for prepared in self._queue]
            self._queue.clear()
            self._task, self._generation, self._lost_base = None, None, False
            self._engine.cache.drop(self._key.digest)
            self._failure = DelayedSaveFailed(self._key.id, lost, error)
            self._failure.__cause__ = error
