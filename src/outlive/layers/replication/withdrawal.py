"""Withdrawal: what was stored in strict mode and never acknowledged does not come back after the stores changed places.

Theory of operation. In strict mode a commit is acknowledged when both stores have it (while the secondary is active: when the
record of the pair there, read after it, still has its epoch). A commit that reached only the store that was left is an *orphan*: its caller
was told that the outcome is unknown, or asked again and was refused. Two rules keep it from joining the line later:

- A note of strict mode names the epoch L of its commit, and what it names is merged strictly. A thread that has moved on to
  a later epoch refuses it, inside the commit.
- Whoever gives a definite answer in a later epoch moves the thread there first (`Committing._seal`): a refusal, or that a
  checkpoint of an earlier epoch is there. So after that answer no orphan of an earlier epoch comes in.

What is refused so is removed from the store that was left, in one commit: checkpoints that the line does not have, and the
line's version of entries, metadata and replaced checkpoints. That commit expects the revision at which the thread was read. So it does
nothing when somebody has written to the thread meanwhile, for example because that store is active again. It moves the thread to the
epoch of the pair, so that a process that missed the change of places cannot store another orphan there.

Not withdrawn, because each of them is only ever unknown and never refused: deletions, and pending writes on a checkpoint that stays. They
are merged as in the queueing modes.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlive.backend import (
    Backend,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryRecord,
    Removal,
    ThreadKey,
    ThreadQuery,
    ThreadRow,
    commit,
)
from outlive.errors import StaleBase, StoreBusy
from outlive.layers.replication.note import ChangeSet
from outlive.layers.replication.transfer import Replicator, all_entries, leased

_TRIES = 8


@dataclass(slots=True)
class Withdrawal:
    """Takes back what a store that was left has alone, of one thread."""

    left: Backend
    line: Backend
    carrier: Replicator  # from the line to the store that was left
    epoch: int  # of the pair
    timeout_s: float

    async def withdraw(self, key: ThreadKey, items: ChangeSet) -> None:
        """Let the store that was left have what the line has, of the items that a note names."""
        for _ in range(_TRIES):
            if (withdrawing := await self._prepare(key, items)) is None:
                return
            try:
                await commit(self.left, withdrawing)
            except StaleBase:
                continue  # the thread changed since it was read
            return
        raise StoreBusy(f"thread {key.id!r} changed whenever it was to be brought back to the line")

    async def _prepare(self, key: ThreadKey, items: ChangeSet) -> Commit | None:
        """Return the commit that withdraws; None when the line has everything."""
        seen = await self.left.inventory(key, timeout_s=self.timeout_s)
        orphans, records = await self._checkpoints(key, items)
        withdrawing = Commit(
            key,
            checkpoints=tuple(records),
            entries=tuple(await self._entries(key, items)),
            removal=Removal(checkpoints=tuple(orphans)) if orphans else None,
            merge=True,
            overrules=True,
            strict=True,
            epoch=self.epoch,
            revision=seen.revision,
            timeout_s=self.timeout_s,
        )
        if items.info:
            await self._bring_info(key, withdrawing)
        if not (orphans or records or withdrawing.entries or withdrawing.info is not None):
            return None
        withdrawing.chunks = await self.carrier.send_chunks(key, records, ())
        return withdrawing

    async def _checkpoints(
        self, key: ThreadKey, items: ChangeSet
    ) -> tuple[list[CheckpointKey], list[CheckpointRecord]]:
        """Return what the line does not have, and the line's form of what it has in another one."""
        orphans: list[CheckpointKey] = []
        records: list[CheckpointRecord] = []
        for namespace, id in sorted(items.pairs):
            here, there = [
                (await store.read(key, namespace, id, chunks=False, timeout_s=self.timeout_s)).record
                for store in (self.left, self.line)
            ]
            if here is not None and there is None:
                orphans.append((namespace, id))
            elif here is not None and there is not None and _age(here) > _age(there):
                records.append(there)
        return orphans, records

    async def _entries(self, key: ThreadKey, items: ChangeSet) -> list[EntryRecord]:
        found: list[EntryRecord] = []
        for kind, name in sorted(items.entries):
            here, there = [
                next((one for one in held if one.key == name), None)
                for held in [
                    await all_entries(store, key, kind, self.timeout_s, name)
                    for store in (self.left, self.line)
                ]
            ]
            if here is not None and there is None:
                found.append(EntryRecord(kind, name, gone=True))
            elif here is not None and there is not None and here.rank > there.rank:
                found.append(leased(there))
        return found

    async def _bring_info(self, key: ThreadKey, withdrawing: Commit) -> None:
        here, there = await self._row(self.left, key), await self._row(self.line, key)
        if here is None or there is None or there.info is None:
            return
        if (here.info_version, here.info) > (there.info_version, there.info):
            withdrawing.info, withdrawing.info_projection = there.info, there.info_projection
            withdrawing.info_version = there.info_version

    async def _row(self, store: Backend, key: ThreadKey) -> ThreadRow | None:
        rows = await store.threads(
            ThreadQuery(key.tenant, only=key.id, heads=False), timeout_s=self.timeout_s
        )
        return rows[0] if rows else None


def _age(record: CheckpointRecord) -> tuple[int, int, int]:
    return (record.version, record.epoch, record.seq)
