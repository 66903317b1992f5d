"""A commit to two stores: decided in the active one with an outbox entry of what it changes, then
merged into the other one.

Every answer says one of three things, and the caller relies on each: it is done (a receipt); it may
be done (`OutcomeUnknown`, `StoredElsewhere`); this attempt did nothing (any other error). Once the
active store has answered with a receipt, no later failure is of the third kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from outlive.backend import (
    NEXT,
    OUTBOX,
    Commit,
    EntryRecord,
    Receipt,
    Removal,
    ThreadKey,
    outcome_unknown,
)
from outlive.backend.entries import LOCK
from outlive.dataclass import dataclass
from outlive.errors import (
    Corrupt,
    EntryHeld,
    EpochPassed,
    HeadMoved,
    LeaseLost,
    NotReplicated,
    OutliveError,
    OutOfTurn,
    StaleBase,
    StoreError,
)
from outlive.layers.replication.backlog import Outbox, SavedId
from outlive.layers.replication.checks import has_gap
from outlive.layers.replication.options import Replication
from outlive.layers.replication.outbox_entry import (
    ChangeSet,
    changes_of,
    leaving_tombstones,
    outbox_entry,
    without_outbox,
)
from outlive.layers.replication.pair import PRIMARY, SECONDARY, PairEnded, active_role, read_pair_record
from outlive.layers.replication.stores import Stores
from outlive.layers.replication.switch import RoleSwitch
from outlive.layers.replication.thread_epoch import ThreadEpochs
from outlive.layers.replication.transfer import line_of, replica_of
from outlive.runtime.runtime import Deadline

Result = Receipt | OutliveError
_DIRECT_S = 2.0  # for the secondary, when a commit can be queued instead


class StoredElsewhere(EpochPassed):
    """It is stored, in a store that was being left: whether it counts is not known."""

    def __init__(self, passed: EpochPassed, receipt: Receipt | None = None) -> None:
        super().__init__(passed.thread, passed.epoch, passed.current)
        self.was_there = receipt is not None and receipt.existing is not None  # before this attempt


@dataclass(slots=True)
class _Sent:
    """A commit on its way: the caller's, as it was sent, its changes, its outbox entry's key."""

    original: Commit
    commit: Commit
    changes: ChangeSet
    key: str = ""
    removed: tuple[str, ...] = ()  # outbox entries that it removes

    @property
    def thread(self) -> ThreadKey:
        return self.original.thread


class Committer:
    """Commits of one epoch at a time."""

    def __init__(self, stores: Stores, switch: RoleSwitch, outbox: Outbox, options: Replication) -> None:
        self._stores = stores
        self._switch = switch
        self._outbox = outbox
        self._options = options
        self._thread_epochs = ThreadEpochs(stores, outbox)

    async def commit(
        self,
        commits: Sequence[Commit],
        epoch: int,
        share_s: float | None,
        deadline: Deadline,
        repeated: Sequence[bool],
    ) -> list[Result]:
        """Do each commit in the store that is active in an epoch, and in the other by the mode.

        `repeated` says of each whether an attempt in another epoch may have stored it.
        """
        active = self._stores.active_in(epoch)
        if not self._options.enabled:
            return await active.commit_all(
                [leaving_tombstones(replace(commit, timeout_s=share_s)) for commit in commits]
            )
        if any(map(_is_claim, commits)) and (refusal := await self._refusal(epoch, deadline)) is not None:
            return await self._commit_unclaimed(commits, epoch, share_s, deadline, repeated, refusal)
        sent = [self._with_outbox_entry(commit, epoch, share_s) for commit in commits]
        results: list[Result] = []
        try:
            # 1. The active store decides. A crash after this leaves commits that are stored and not
            #    acknowledged, each with its outbox entry: another process transfers them.
            results = await active.commit_all([each.commit for each in sent])
            await self._delete_damaged(sent, results, epoch)
            # 2. Before a definite answer the thread moves to this epoch, so that the answer holds
            #    after a change of roles.
            await self._move_threads(sent, results, epoch, deadline)
            await self._check_repeated(sent, results, epoch, repeated)
            # 3. What was decided goes where it has to be before it is acknowledged.
            await self._deliver(sent, results, epoch, deadline)
        except BaseException as error:  # whether something is queued is not known
            self._outbox.is_dirty = True
            if isinstance(error, OutliveError):
                results = results or [error for _ in commits]
                return [
                    _failure_after(commit, result, error) if isinstance(result, Receipt) else result
                    for commit, result in zip(commits, results, strict=True)
                ]
            raise
        finally:
            self._outbox.finished(each.key for each in sent)
        return [self._answer(each, result) for each, result in zip(sent, results, strict=True)]

    def _answer(self, sent: _Sent, result: Result) -> Result:
        if isinstance(result, Receipt):
            return without_outbox(sent.original, result)
        if sent.removed:
            self._outbox.mark_delivered(sent.thread, sent.removed)  # they are still there
        return result

    async def _commit_unclaimed(
        self,
        commits: Sequence[Commit],
        epoch: int,
        share_s: float | None,
        deadline: Deadline,
        repeated: Sequence[bool],
        refusal: OutliveError,
    ) -> list[Result]:
        """Do the commits that claim nothing, and refuse the others."""
        positions = [at for at, commit in enumerate(commits) if not _is_claim(commit)]
        results: list[Result] = [refusal] * len(commits)
        if positions:
            unclaimed, again = [commits[at] for at in positions], [repeated[at] for at in positions]
            for at, result in zip(
                positions, await self.commit(unclaimed, epoch, share_s, deadline, again), strict=True
            ):
                results[at] = result
        return results

    async def _refusal(self, epoch: int, deadline: Deadline) -> OutliveError | None:
        """Return why nothing may be claimed now; None when it may.

        In a store that was left, leases seem to have expired: they are renewed in the other one. A
        claim there would outrank the owner when it is merged, although its caller was never told
        that it has it. So the store that knows is asked first.
        """
        role = SECONDARY if self._options.is_strict else active_role(epoch)
        try:
            record = await self._stores.record(role, deadline.remaining_s())
        except StoreError as error:
            return (
                error if role == active_role(epoch) or isinstance(error, PairEnded) else _not_claimed(error)
            )
        if record is None or record.epoch != epoch:
            return EpochPassed("", epoch, epoch if record is None else record.epoch)
        return None

    def _with_outbox_entry(self, original: Commit, epoch: int, share_s: float | None) -> _Sent:
        """Return a commit with an outbox entry of what it changes, in the epoch that we are in."""
        changes = changes_of(original)
        if not changes:  # a renewed lease, or chunks that no record names yet
            return _Sent(original, replace(original, timeout_s=share_s), changes)
        key = self._outbox.new_key()
        entry = outbox_entry(key, changes, epoch if self._options.is_strict else None)
        commit = leaving_tombstones(replace(original, timeout_s=share_s))
        # Such a commit names no epoch and removes no outbox entries: either would make it fail
        # when another commit comes first.
        if _may_be_overtaken(original):
            commit.entries = (entry,)
            return _Sent(original, commit, changes, key)
        # Entries of earlier commits that the secondary has are removed by this one: that saves a
        # commit of its own.
        removed = self._outbox.take_delivered(original.thread) if active_role(epoch) == PRIMARY else ()
        commit.entries = (
            *(_in_epoch(changed, epoch) for changed in original.entries),
            entry,
            *(EntryRecord(OUTBOX, name, gone=True) for name in removed),
        )
        commit.epoch = epoch if original.epoch is None else original.epoch
        return _Sent(original, commit, changes, key, removed)

    async def _delete_damaged(self, sent: list[_Sent], results: list[Result], epoch: int) -> None:
        """Delete a damaged thread in both stores at once: it cannot tell the place after which a
        tombstone would let records in.
        """
        for at, each in enumerate(sent):
            removal = each.original.removal
            if isinstance(results[at], Corrupt) and removal is not None and removal.everything:
                active = active_role(epoch)
                for role in (active, 1 - active):
                    deletion = Commit(each.thread, removal=removal, timeout_s=each.commit.timeout_s)
                    (answer,) = await self._stores.both[role].commit_all([deletion])
                    results[at] = answer if role == active else results[at]

    # What is answered about a thread after the stores have changed roles

    async def _move_threads(
        self, sent: list[_Sent], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """In strict mode move a thread to this epoch before a definite answer, and ask again."""
        if not self._options.is_strict or epoch == 0:
            return
        for at, each in enumerate(sent):
            result = results[at]
            if not self._thread_epochs.must_move(each.thread, result, epoch):
                continue
            try:
                await self._thread_epochs.move(each.thread, epoch, deadline)
                (results[at],) = await self._stores.active_in(epoch).commit_all([each.commit])
            except OutliveError as error:
                if isinstance(result, Receipt):
                    error = _failure_after(each.original, result, error)
                results[at] = error

    async def _check_repeated(
        self, sent: list[_Sent], results: list[Result], epoch: int, repeated: Sequence[bool]
    ) -> None:
        """Refuse to acknowledge a repeated commit that an earlier attempt has stored in a branch.

        A checkpoint that is there is proof that it was saved: idempotency comes first, in every
        epoch. But nobody was told of that attempt yet, and both stores may have been written since.
        With an expected head a branch must not be acknowledged.
        """
        for at, each in enumerate(sent):
            result, expected = results[at], each.original.expect_head
            if not (repeated[at] and expected is not None and isinstance(result, Receipt)):
                continue
            if result.existing is not None and result.existing.epoch != epoch:
                active, patience_s = self._stores.active_in(epoch), self._stores.patience_s
                line = await line_of(active, each.thread, expected[0], patience_s)
                if result.existing.id not in line:
                    results[at] = outcome_unknown(
                        each.original, "it is stored in a branch: the thread was continued in both stores"
                    )

    # Where it has to be before it is acknowledged

    async def _deliver(
        self, sent: list[_Sent], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """Bring what was stored to where the mode wants it before it is acknowledged.

        A crash at any place in here leaves commits that are stored and not acknowledged, each with
        its outbox entry in the active store: another process transfers them.
        """
        # 1. Was the active store the right one? If it was being left, or has lost its data, its
        #    receipts become failures.
        stored = [at for at, result in enumerate(results) if isinstance(result, Receipt)]
        if any(isinstance(result, StoreError) for result in results):
            self._outbox.is_dirty = True
        is_primary = active_role(epoch) == PRIMARY
        if not is_primary or any(map(_finds_nothing, results)):
            await self._check_epoch(sent, results, epoch, deadline)
        stored = [at for at in stored if sent[at].changes and isinstance(results[at], Receipt)]
        if not stored:
            return
        # 2. In sync mode merge it into the secondary now. Otherwise its outbox entry is the queue, and
        #    the background transfers it.
        is_direct = self._options.mode == "sync" and is_primary
        if is_direct and (self._options.is_strict or self._outbox.is_in_step):
            await self._replicate(sent, stored, results, epoch, deadline)
        else:
            new = [sent[at] for at in stored if not _is_existing(results[at])]
            queued = {each.key: saved_ids(each.original) for each in new}
            self._outbox.mark_queued(active_role(epoch), queued)

    async def _check_epoch(
        self, sent: list[_Sent], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """Make sure that the store was active when it did it, and is still the same store.

        While the secondary is active, what it stored counts only if no failback had been announced
        to it. A store in which a thread is new, or an entry is missing, may have lost its data.
        """
        try:
            active = self._stores.active_in(epoch)
            record = await read_pair_record(active, self._stores.tenant, deadline.as_timeout_s())
        except StoreError as error:
            failure: OutliveError = error
        else:
            if record is not None and record.epoch == epoch:
                return
            failure = EpochPassed("", epoch, record.epoch if record is not None else epoch + 1)
        for at, result in enumerate(results):
            if isinstance(result, Receipt):
                results[at] = _failure_after(sent[at].original, result, failure)
            elif _finds_nothing(result):
                results[at] = failure

    async def _replicate(
        self, sent: list[_Sent], stored: list[int], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """Merge what was decided into the secondary, directly."""
        # 1. Build the replicas. Some commits have none: they are read from the primary in step 3.
        left_s = deadline.as_timeout_s()
        if not self._options.is_strict:
            left_s = _DIRECT_S if left_s is None else min(_DIRECT_S, left_s)
        replicas: dict[int, Commit] = {}
        lost = {at for at in stored if await self._has_lost_lock(sent[at].original)}
        for at in stored:
            receipt = results[at]
            assert isinstance(receipt, Receipt)
            if at in lost:
                continue
            believed = max(epoch, sent[at].original.epoch or 0)
            replica = None if receipt.existing else replica_of(sent[at].original, receipt, believed)
            if replica is not None:
                replica.timeout_s = left_s
                replicas[at] = replica
        # 2. Send them. A crash leaves commits with their outbox entries in the primary, some of
        #    them in both stores: another process merges them again, which changes nothing.
        answers = dict(zip(replicas, await self._send(list(replicas.values())), strict=True))
        # 3. Transfer what could not be merged directly, and answer each commit.
        for at in stored:
            each, answer = sent[at], answers.get(at)
            # Out of turn means that the two stores differ. Either the primary gives out places that
            # it gave out before, because it has lost commits; or the secondary lacks some, which
            # are queued.
            is_out_of_turn = isinstance(answer, OutOfTurn)
            if at in lost or (is_out_of_turn and await self._switch.has_lost(each.thread)):
                answer = EpochPassed("", epoch, epoch)
            elif answer is None or isinstance(answer, StaleBase | OutOfTurn):
                is_behind = answer is not None or _may_repeat(each.original, results[at])
                answer = await self._transfer(each, epoch, with_backlog=is_behind)
            if isinstance(answer, OutliveError):
                results[at] = self._not_taken(each, results[at], answer) or results[at]
            else:
                # A crash from here on leaves an outbox entry whose changes the secondary has: they
                # are merged once more.
                self._stores.update_health(SECONDARY, None)
                self._outbox.mark_delivered(each.thread, (each.key,))

    async def _has_lost_lock(self, commit: Commit) -> bool:
        """Tell whether the primary gave away a place that has a holder, because it has lost commits.

        Before the replica is sent: it may have the very rank of that holder.
        """
        for entry in commit.entries:
            if entry.kind == LOCK and entry.fence == NEXT and entry.status == "running":
                with contextlib.suppress(StoreError):  # then the replica is not merged either
                    return await self._switch.has_lost_lock(commit.thread, entry.key)
        return False

    async def _send(self, replicas: list[Commit]) -> Sequence[Result]:
        if not replicas:
            return []
        try:
            await self._stores.ensure_open(SECONDARY)
            return await self._stores.both[SECONDARY].commit_all(replicas)
        except OutliveError as error:
            return [error for _ in replicas]

    async def _transfer(self, sent: _Sent, epoch: int, *, with_backlog: bool) -> OutliveError | None:
        """Read from the primary what the secondary needs; if asked, with the thread's backlog."""
        stores, thread = self._stores, sent.thread
        try:
            await stores.ensure_open(SECONDARY)
            # 1. What an earlier commit of the thread has left to transfer goes along: without it this
            #    one would be acknowledged before what it follows.
            if with_backlog:
                # What only the secondary has was never acknowledged.
                if epoch > 0 and self._options.is_strict:
                    await stores.resolve_left(SECONDARY, thread, epoch)
                sent.changes.add(await stores.backlog(PRIMARY).changes_of(thread))
            # 2. Transfer both. A crash leaves their outbox entries, and they are transferred again.
            replicator = stores.replicator(PRIMARY, stores.patience_s)
            await replicator.transfer(thread, sent.changes, epoch)
            # 3. If checkpoints are still missing in between, no outbox entry names them any more:
            #    transfer the whole thread.
            if with_backlog and await has_gap(*stores.both, sent.original, stores.patience_s):
                await replicator.transfer(thread, ChangeSet(everything=True), epoch)
        except OutliveError as error:
            return error
        return None

    async def confirm(self, thread: ThreadKey, epoch: int) -> None:
        """Make sure that what was removed from a thread is removed in both stores, when that is
        what an acknowledgement says.

        A removal that failed because the secondary did not take it finds nothing to remove when it
        is repeated: what is left of it is the outbox entry, which is transferred now. Raises
        NotReplicated when it cannot be.
        """
        stores = self._stores
        if not (self._options.enabled and self._options.is_strict and active_role(epoch) == PRIMARY):
            return
        changes = await stores.backlog(PRIMARY).changes_of(thread, self._outbox.delivered_keys(thread))
        if not changes.deleted:
            return
        try:
            await stores.ensure_open(SECONDARY)
            await stores.replicator(PRIMARY, stores.patience_s).transfer(thread, changes, epoch)
        except EpochPassed:
            raise
        except OutliveError as error:
            stores.update_health(SECONDARY, error)
            raise _not_replicated(thread.id, "", error) from error

    def _not_taken(self, sent: _Sent, result: Result, error: OutliveError) -> OutliveError | None:
        """Return the answer when the secondary refused; None when the change is queued instead."""
        self._outbox.mark_queued(PRIMARY, {sent.key: saved_ids(sent.original)})
        if isinstance(error, EpochPassed):
            return StoredElsewhere(error, result if isinstance(result, Receipt) else None)
        self._stores.update_health(SECONDARY, error)
        if not self._options.is_strict:
            self._outbox.is_in_step = False
            return None
        return _not_replicated(sent.thread.id, sent.original.first_id, error)


def saved_ids(commit: Commit) -> list[SavedId]:
    return [(commit.thread.digest, draft.namespace, draft.id) for draft in commit.checkpoints]


def _not_claimed(error: OutliveError) -> NotReplicated:
    failure = _not_replicated("", "", error)
    failure.args = (
        f"no run or lock is taken while the secondary cannot be asked ({error}); try again when it can",
    )
    return failure


def _not_replicated(thread: str, id: str, error: OutliveError) -> NotReplicated:
    failure = NotReplicated(thread, id, 0, 1)
    failure.__cause__ = error
    return failure


def _failure_after(commit: Commit, receipt: Receipt, error: OutliveError) -> OutliveError:
    """Return what to answer when the active store has done a commit and a later step failed."""
    if isinstance(error, EpochPassed):
        return StoredElsewhere(error, receipt)
    if isinstance(error, NotReplicated):
        return error
    failure = outcome_unknown(commit, str(error))
    failure.__cause__ = error
    return failure


def _may_be_overtaken(commit: Commit) -> bool:
    """Tell whether a commit is a deletion that may follow saves which it has not seen.

    Otherwise a busy thread would starve it.
    """
    removal = commit.removal or Removal(everything=True)
    return not (removal.everything or commit.checkpoints or commit.entries or commit.writes)


def _may_repeat(commit: Commit, result: object) -> bool:
    """Tell whether a commit may repeat one that was not acknowledged, so that more than its own
    changes is to be transferred.

    What a save that is there already follows may not be in the other store either. The checkpoints
    that a removal names may be gone already; or what it is to erase was erased then, in chunks that
    it does not name any more.
    """
    if _is_existing(result):
        return True
    removal = commit.removal
    return removal is not None and (removal.erase or (isinstance(result, Receipt) and not result.removed))


def _is_claim(commit: Commit) -> bool:
    return any(entry.fence == NEXT for entry in commit.entries)


def _finds_nothing(result: Result) -> bool:
    """Tell whether a store found none of what a commit continues: it may have lost its data."""
    if isinstance(result, Receipt):
        return result.revision == 1
    if isinstance(result, HeadMoved):
        return result.head is None
    if isinstance(result, LeaseLost):
        return result.current is None
    return isinstance(result, EntryHeld) and result.stored is None


def _is_existing(result: object) -> bool:
    return isinstance(result, Receipt) and result.existing is not None


def _in_epoch(entry: EntryRecord, epoch: int) -> EntryRecord:
    """Return an entry whose new fence, if it takes one, is of this epoch: it outranks all that were given before."""
    return replace(entry, epoch=max(entry.epoch, epoch)) if entry.fence == NEXT else entry
