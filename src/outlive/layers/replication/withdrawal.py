"""Withdrawal: unacknowledged commits of strict mode do not come back after a change of roles.

Theory of operation. In strict mode a commit is acknowledged when both stores have it (while the
secondary is active: when the record of the pair there, read after it, still has its epoch). A
commit that reached only the store that was left is an *orphan*: its caller was told that the
outcome is unknown, or asked again and was refused. Two rules keep it from joining the thread later:

- An outbox entry of strict mode names the epoch of its commit, and what it names is merged
  strictly. A thread that has moved to a later epoch refuses it, inside the commit.
- Before a definite answer is given in a later epoch, the thread moves there (`thread_epoch.py`):
  before a refusal, and before the answer that a checkpoint of an earlier epoch is there. So after
  that answer no orphan of an earlier epoch comes in.

What is refused so is removed from the store that was left, in one commit: checkpoints that the
leading store does not have, and the leading store's version of entries, metadata and replaced
checkpoints. That commit expects the revision at which the thread was read. So it does nothing when
another process has written to the thread meanwhile, for example because that store is active again.
It moves the thread to the epoch of the pair, so that a process that missed the change of roles
cannot store another orphan there.

Not withdrawn are deletions, and pending writes on a checkpoint that stays, because each of them is
only ever unknown and never refused. They are merged as in the queueing modes.
"""

from __future__ import annotations

from outlive.backend import (
    Backend,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Removal,
    ThreadKey,
    commit,
    thread_record,
)
from outlive.backend.transfer import entries_of
from outlive.dataclass import dataclass
from outlive.errors import StaleBase, StoreBusy
from outlive.layers.replication.outbox_entry import ChangeSet
from outlive.layers.replication.transfer import Replicator, renewed

_TRIES = 8


@dataclass(slots=True)
class Withdrawal:
    """Takes back what a store that was left has alone, of one thread."""

    left: Backend
    leading: Backend
    replicator: Replicator  # from the leading store to the one that was left
    epoch: int  # of the pair
    timeout_s: float

    async def withdraw(self, key: ThreadKey, changes: ChangeSet) -> None:
        """Bring the changes that an outbox entry names to what the leading store has."""
        for _ in range(_TRIES):
            if (withdrawing := await self._prepare(key, changes)) is None:
                return
            try:
                await commit(self.left, withdrawing)
            except StaleBase:
                continue  # the thread changed since it was read
            return
        raise StoreBusy(f"thread {key.id!r} changed at each attempt to withdraw what was not acknowledged")

    async def _prepare(self, key: ThreadKey, changes: ChangeSet) -> Commit | None:
        """Return the commit that withdraws; None when the leading store has everything."""
        # The revision is read first, and expected by the commit: what is read after it has not
        # changed when that is done.
        seen = await self.left.inventory(key, timeout_s=self.timeout_s)
        orphans, records = await self._checkpoints(key, changes)
        withdrawing = Commit(
            key,
            checkpoints=tuple(records),
            entries=tuple(await self._entries(key, changes)),
            removal=Removal(checkpoints=tuple(orphans)) if orphans else None,
            merge=True,
            overrules=True,
            strict=True,
            epoch=self.epoch,
            revision=seen.revision,
            timeout_s=self.timeout_s,
        )
        if changes.metadata:
            await self._add_info(key, withdrawing)
        if not (orphans or records or withdrawing.entries or withdrawing.metadata is not None):
            return None
        return await self.replicator.with_chunks(withdrawing)

    async def _checkpoints(
        self, key: ThreadKey, changes: ChangeSet
    ) -> tuple[list[CheckpointKey], list[CheckpointRecord]]:
        """Return what the leading store lacks, and its version of what differs."""
        orphans: list[CheckpointKey] = []
        records: list[CheckpointRecord] = []
        for namespace, id in sorted(changes.checkpoints):
            left, leading = [
                (await store.read(key, namespace, id, chunks=False, timeout_s=self.timeout_s)).record
                for store in (self.left, self.leading)
            ]
            if left is not None and leading is None:
                orphans.append((namespace, id))
            elif left is not None and leading is not None and _age(left) > _age(leading):
                records.append(leading)
        return orphans, records

    async def _entries(self, key: ThreadKey, changes: ChangeSet) -> list[EntryRecord]:
        entries: list[EntryRecord] = []
        for kind, name in sorted(changes.entries):
            left, leading = [await self._entry(store, key, kind, name) for store in (self.left, self.leading)]
            if left is not None and leading is None:
                entries.append(EntryRecord(kind, name, gone=True))
            elif leading is not None and (left is None or left.rank > leading.rank):
                entries.append(renewed(leading))
        return entries

    async def _entry(self, store: Backend, key: ThreadKey, kind: str, name: str) -> EntryRecord | None:
        entries = await entries_of(store, key, kind, self.timeout_s, prefix=name)
        return next((entry for entry in entries if entry.key == name), None)

    async def _add_info(self, key: ThreadKey, withdrawing: Commit) -> None:
        left, leading = (
            await thread_record(self.left, key, timeout_s=self.timeout_s),
            await thread_record(self.leading, key, timeout_s=self.timeout_s),
        )
        if left is None or leading is None or leading.metadata is None:
            return
        if (left.metadata_version, left.metadata) > (leading.metadata_version, leading.metadata):
            withdrawing.metadata, withdrawing.metadata_projection = (
                leading.metadata,
                leading.metadata_projection,
            )
            withdrawing.metadata_version = leading.metadata_version


def _age(record: CheckpointRecord) -> tuple[int, int, int]:
    return (record.version, record.epoch, record.seq)
