"""Sealing: a thread moves to the epoch of the pair before anything definite is said of it.

Only in strict mode. A thread that is in the epoch of the pair refuses what was stored and never acknowledged in an earlier one (`withdrawal.py`).
An ordinary commit moves its thread by itself. A refusal does not, nor does the answer that a checkpoint is there already.
"""

from __future__ import annotations

import contextlib

from outlive.backend import Commit, Receipt, ThreadKey, ThreadQuery, commit
from outlive.errors import (
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    MetadataMoved,
    OutliveError,
    StoreError,
    ThreadNotEmpty,
)
from outlive.layers.replication.note import ChangeSet, note
from outlive.layers.replication.pair import SECONDARY, read_pair_record
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.stores import Stores
from outlive.runtime.runtime import Deadline

# What a commit is refused with because of what its thread is like now.
REFUSALS = (HeadMoved, LeaseLost, EntryHeld, MetadataMoved, ThreadNotEmpty)
_MOST = 10_000  # threads that are remembered


class Sealing:
    """Moves threads, each once in an epoch."""

    def __init__(self, stores: Stores, queue: Queue) -> None:
        self._stores = stores
        self._queue = queue
        self._epoch = 0
        self._sealed: set[bytes] = set()  # threads that are in it

    def is_needed(self, thread: ThreadKey, result: Receipt | OutliveError, epoch: int) -> bool:
        """Tell whether a result says something definite of a thread that may still be in an earlier epoch."""
        if isinstance(result, Receipt):
            is_definite = result.existing is not None and result.existing.epoch != epoch
        else:
            is_definite = isinstance(result, REFUSALS)
        return is_definite and not (self._epoch == epoch and thread.digest in self._sealed)

    async def seal(self, thread: ThreadKey, epoch: int, deadline: Deadline) -> None:
        """Move a thread to an epoch, unless it is there. With a note: the other store moves it too."""
        role = epoch % 2
        rows = await self._stores.both[role].threads(
            ThreadQuery(thread.tenant, only=thread.id, heads=False), timeout_s=deadline.remaining_s()
        )
        if not rows or rows[0].epoch < epoch:
            await self._move(thread, epoch, deadline)
        if 1 - role == SECONDARY:  # it may be promoted again, with whatever it has then
            with contextlib.suppress(StoreError):
                await self._stores.settle_left(1 - role, thread, epoch)
        if self._epoch != epoch or len(self._sealed) >= _MOST:
            self._epoch, self._sealed = epoch, set()
        self._sealed.add(thread.digest)

    async def _move(self, thread: ThreadKey, epoch: int, deadline: Deadline) -> None:
        key, role = self._queue.new_key(), epoch % 2
        backend = self._stores.both[role]
        try:
            entry = note(key, ChangeSet(moved=True), epoch)
            moved = Commit(thread, entries=(entry,), epoch=epoch, timeout_s=deadline.remaining_s())
            receipt = await commit(backend, moved)
        finally:
            self._queue.finished((key,))
        self._queue.leave(role, {key: []})
        if receipt.revision == 1:  # a store that begins a thread may have lost all it had
            side = await read_pair_record(backend, self._stores.tenant, deadline.remaining_s())
            if side is None or side.epoch != epoch:
                raise EpochPassed(thread.id, epoch, side.epoch if side is not None else epoch + 1)
