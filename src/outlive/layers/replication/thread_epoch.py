"""The epoch of a thread: it moves to that of the pair before any definite answer about it.

Only in strict mode. A thread in the epoch of the pair refuses what was stored and never
acknowledged in an earlier one (`withdrawal.py`). An ordinary commit moves its thread by itself. A
refusal does not, nor does the answer that a checkpoint is there.
"""

from __future__ import annotations

import contextlib

from outlive.backend import Commit, Receipt, ThreadKey, commit, thread_record
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
from outlive.layers.replication.backlog import Outbox
from outlive.layers.replication.outbox_entry import ChangeSet, outbox_entry
from outlive.layers.replication.pair import SECONDARY, active_role, read_pair_record, standby_role
from outlive.layers.replication.stores import Stores
from outlive.runtime.runtime import Deadline

# What a commit is refused with because of the state that its thread is in.
REFUSALS = (HeadMoved, LeaseLost, EntryHeld, MetadataMoved, ThreadNotEmpty)
_MOST = 10_000  # threads that are remembered


class ThreadEpochs:
    """Moves threads, each once in an epoch."""

    def __init__(self, stores: Stores, outbox: Outbox) -> None:
        self._stores = stores
        self._outbox = outbox
        self._epoch = 0
        self._moved: set[bytes] = set()  # threads that are in it

    def must_move(self, thread: ThreadKey, result: Receipt | OutliveError, epoch: int) -> bool:
        """Tell whether a result is definite, and its thread may still be in an earlier epoch."""
        if isinstance(result, Receipt):
            is_definite = result.existing is not None and result.existing.epoch != epoch
        else:
            is_definite = isinstance(result, REFUSALS)
        return is_definite and not (self._epoch == epoch and thread.digest in self._moved)

    async def move(self, thread: ThreadKey, epoch: int, deadline: Deadline) -> None:
        """Move a thread to an epoch, unless it is there; by an outbox entry also in the other
        store.
        """
        row = await thread_record(self._stores.active_in(epoch), thread, timeout_s=deadline.as_timeout_s())
        if row is None or row.epoch < epoch:
            await self._commit(thread, epoch, deadline)
        # The secondary may be promoted again, with what it has then: what it has alone is withdrawn
        # now.
        if standby_role(epoch) == SECONDARY:
            with contextlib.suppress(StoreError):
                await self._stores.resolve_left(SECONDARY, thread, epoch)
        if self._epoch != epoch or len(self._moved) >= _MOST:
            self._epoch, self._moved = epoch, set()
        self._moved.add(thread.digest)

    async def _commit(self, thread: ThreadKey, epoch: int, deadline: Deadline) -> None:
        key, backend = self._outbox.new_key(), self._stores.active_in(epoch)
        try:
            entry = outbox_entry(key, ChangeSet(moved=True), epoch)
            moving = Commit(thread, entries=(entry,), epoch=epoch, timeout_s=deadline.as_timeout_s())
            receipt = await commit(backend, moving)
        finally:
            self._outbox.finished((key,))
        self._outbox.mark_queued(active_role(epoch), {key: []})
        if receipt.revision == 1:  # a store in which a thread is new may have lost its data
            record = await read_pair_record(backend, self._stores.tenant, deadline.as_timeout_s())
            if record is None or record.epoch != epoch:
                raise EpochPassed(thread.id, epoch, record.epoch if record is not None else epoch + 1)
