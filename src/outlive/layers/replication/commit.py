"""A commit to two stores: decided in the active one with a note of what it changes, then brought to where it has to be.

Every answer says one of three things, and the caller relies on each: it is done (a receipt); it may be done (`OutcomeUnknown`,
`StoredElsewhere`); this attempt did nothing (any other error). Once the active store has answered with a receipt, nothing that goes wrong
afterwards is of the third kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from outlive.errors import Corrupt, EpochPassed, NotReplicated, OutliveError, OutOfTurn, StaleBase, StoreError
from outlive.layers.replication.checks import has_gap
from outlive.layers.replication.note import ChangeSet, buried, items_of, note, without_notes
from outlive.layers.replication.options import Replication
from outlive.layers.replication.pair import PRIMARY, SECONDARY, PairEnded, read_pair_record
from outlive.layers.replication.queue import Queue, SavedId
from outlive.layers.replication.stores import Stores
from outlive.layers.replication.switch import Switching
from outlive.layers.replication.thread_epoch import Sealing
from outlive.layers.replication.transfer import lineage, replica_of
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
    """A commit on its way: as it was given, as it was sent, what it changes, and the key of its note."""

    given: Commit
    commit: Commit
    items: ChangeSet
    key: str = ""
    done: tuple[str, ...] = ()  # notes that it takes off the queue


class Committing:
    """Commits of one epoch at a time."""

    def __init__(self, stores: Stores, switching: Switching, queue: Queue, options: Replication) -> None:
        self._stores = stores
        self._switching = switching
        self._queue = queue
        self._options = options
        self._sealing = Sealing(stores, queue)

    async def commit(
        self,
        commits: Sequence[Commit],
        epoch: int,
        share_s: float | None,
        deadline: Deadline,
        repeated: Sequence[bool],
    ) -> list[Result]:
        """Do each commit in the store that is active in an epoch, and as the mode says in the other one.

        `repeated` says of each whether an attempt in another epoch may have stored it.
        """
        active = self._stores.both[epoch % 2]
        if not self._options.enabled:
            return await active.commit_all([buried(replace(one, timeout_s=share_s)) for one in commits])
        if any(map(_claims, commits)) and (refusal := await self._refusal(epoch, deadline)) is not None:
            rest = [one for one in commits if not _claims(one)]
            again = [is_again for one, is_again in zip(commits, repeated, strict=True) if not _claims(one)]
            done = iter(await self.commit(rest, epoch, share_s, deadline, again) if rest else ())
            return [refusal if _claims(one) else next(done) for one in commits]
        sent = [self._noted(one, epoch, share_s) for one in commits]
        results: list[Result] = []
        try:
            results = await active.commit_all([one.commit for one in sent])
            await self._delete_damaged(sent, results, epoch)
            await self._seal(sent, results, epoch, deadline)
            await self._check_repeated(sent, results, epoch, repeated)
            await self._settle(sent, results, epoch, deadline)
        except BaseException as error:  # whether something is queued is not known
            self._queue.is_dirty = True
            if isinstance(error, OutliveError):
                results = results or [error for _ in commits]
                return [
                    _after(one, result, error) if isinstance(result, Receipt) else result
                    for one, result in zip(commits, results, strict=True)
                ]
            raise
        finally:
            self._queue.finished(one.key for one in sent)
        for one, result in zip(sent, results, strict=True):
            if not isinstance(result, Receipt) and one.done:
                self._queue.finish(one.given.thread, one.done)  # they are still on it
        return [
            without_notes(one.given, result) if isinstance(result, Receipt) else result
            for one, result in zip(sent, results, strict=True)
        ]

    async def _refusal(self, epoch: int, deadline: Deadline) -> OutliveError | None:
        """Tell why nothing may be claimed now; None when it may.

        In a store that was left, leases seem to have run out: they are renewed in the other one. What somebody claimed there would
        outrank the owner when it is merged, although nobody was told that he has it. So the store that knows is asked first.
        """
        role = SECONDARY if self._options.is_strict else epoch % 2
        try:
            side = await self._stores.side(role, deadline.left_s())
        except StoreError as error:
            return error if role == epoch % 2 or isinstance(error, PairEnded) else _not_claimed(error)
        if side is None or side.epoch != epoch:
            return EpochPassed("", epoch, epoch if side is None else side.epoch)
        return None

    # With a note

    def _noted(self, given: Commit, epoch: int, share_s: float | None) -> _Sent:
        """Return a commit with a note of what it changes, in the epoch that we are in."""
        items = items_of(given)
        if not items:  # a renewed lease, or chunks that nobody names yet
            return _Sent(given, replace(given, timeout_s=share_s), items)
        key = self._queue.new_key()
        commit = buried(replace(given, timeout_s=share_s))
        if _may_be_overtaken(given):  # with an epoch it could not, nor when it takes notes off
            commit.entries = (self._note(key, items, epoch),)
            return _Sent(given, commit, items, key)
        done = self._queue.take_done(given.thread) if epoch % 2 == PRIMARY else ()
        commit.entries = (
            *(_in_epoch(entry, epoch) for entry in given.entries),
            self._note(key, items, epoch),
            *(EntryRecord(OUTBOX, name, gone=True) for name in done),
        )
        commit.epoch = epoch if given.epoch is None else given.epoch
        return _Sent(given, commit, items, key, done=done)

    def _note(self, key: str, items: ChangeSet, epoch: int) -> EntryRecord:
        return note(key, items, epoch if self._options.is_strict else None)

    async def _delete_damaged(self, sent: list[_Sent], results: list[Result], epoch: int) -> None:
        """A thread that is damaged can be deleted too, in both stores at once: it cannot tell until where it went."""
        for at, one in enumerate(sent):
            removal = one.given.removal
            if isinstance(results[at], Corrupt) and removal is not None and removal.everything:
                for role in (epoch % 2, 1 - epoch % 2):
                    deletion = Commit(one.given.thread, removal=removal, timeout_s=one.commit.timeout_s)
                    (answer,) = await self._stores.both[role].commit_all([deletion])
                    results[at] = answer if role == epoch % 2 else results[at]

    # What is said of a thread after the stores have changed places

    async def _seal(self, sent: list[_Sent], results: list[Result], epoch: int, deadline: Deadline) -> None:
        """In strict mode move a thread to this epoch before anything definite is said of it, and look again."""
        if not self._options.is_strict or epoch == 0:
            return
        for at, one in enumerate(sent):
            if not self._sealing.is_needed(one.given.thread, results[at], epoch):
                continue
            try:
                await self._sealing.seal(one.given.thread, epoch, deadline)
                (results[at],) = await self._stores.both[epoch % 2].commit_all([one.commit])
            except OutliveError as error:
                found = results[at]
                results[at] = _after(one.given, found, error) if isinstance(found, Receipt) else error

    async def _check_repeated(
        self, sent: list[_Sent], results: list[Result], epoch: int, repeated: Sequence[bool]
    ) -> None:
        """A checkpoint that is there is proof that it was saved: idempotency comes first, in every epoch.

        But for a commit of which nobody was told yet: what an earlier attempt stored may be a branch, because both stores went on. With an
        expected head that must not be acknowledged; a repetition of the call finds out.
        """
        for at, one in enumerate(sent):
            found, expected = results[at], one.given.expect_head
            if not (repeated[at] and expected is not None and isinstance(found, Receipt)):
                continue
            if found.existing is not None and found.existing.epoch != epoch:
                backend, patience_s = self._stores.both[epoch % 2], self._stores.patience_s
                line = await lineage(backend, one.given.thread, expected[0], patience_s)
                if found.existing.id not in line:
                    results[at] = outcome_unknown(one.given, "it is stored, in a branch: both stores went on")

    # Where it has to be before it is acknowledged

    async def _settle(self, sent: list[_Sent], results: list[Result], epoch: int, deadline: Deadline) -> None:
        stored = [at for at, result in enumerate(results) if isinstance(result, Receipt)]
        if any(isinstance(result, StoreError) for result in results):
            self._queue.is_dirty = True
        if epoch % 2 == SECONDARY or any(_begins(results[at]) for at in stored):
            await self._check_epoch(sent, stored, results, epoch, deadline)
        stored = [at for at in stored if sent[at].items and isinstance(results[at], Receipt)]
        if not stored:
            return
        is_direct = self._options.mode == "sync" and epoch % 2 == PRIMARY
        if is_direct and (self._options.is_strict or self._queue.in_step):
            await self._replicate(sent, stored, results, epoch, deadline)
        else:
            alone = [sent[at] for at in stored if not _is_there(results[at])]
            self._queue.leave(epoch % 2, {one.key: saved_ids(one.given) for one in alone})

    async def _check_epoch(
        self, sent: list[_Sent], stored: list[int], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """Make sure that the store was active when it did it, and is still the one that it was.

        While the secondary is active, what it stored counts only if it had not been told of a failback. A store that begins a thread
        may have lost all it had.
        """
        try:
            backend = self._stores.both[epoch % 2]
            side = await read_pair_record(backend, self._stores.tenant, deadline.remaining_s())
        except StoreError as error:
            failure: OutliveError = error
        else:
            if side is not None and side.epoch == epoch:
                return
            failure = EpochPassed("", epoch, side.epoch if side is not None else epoch + 1)
        for at in stored:
            if isinstance(receipt := results[at], Receipt):
                results[at] = _after(sent[at].given, receipt, failure)

    async def _replicate(
        self, sent: list[_Sent], stored: list[int], results: list[Result], epoch: int, deadline: Deadline
    ) -> None:
        """Merge what was decided into the secondary, directly."""
        left_s = deadline.remaining_s()
        if not self._options.is_strict:
            left_s = _DIRECT_S if left_s is None else min(_DIRECT_S, left_s)
        replicas: dict[int, Commit] = {}
        for at in stored:
            receipt = results[at]
            assert isinstance(receipt, Receipt)
            believed = max(epoch, sent[at].given.epoch or 0)
            replica = None if receipt.existing else replica_of(sent[at].given, receipt, believed)
            if replica is not None:
                replica.timeout_s = left_s
                replicas[at] = replica
        found = dict(zip(replicas, await self._send(list(replicas.values())), strict=True))
        for at in stored:
            answer: Result | None = found.get(at)
            if isinstance(answer, OutOfTurn) and await self._switching.has_lost(sent[at].given.thread):
                answer = EpochPassed("", epoch, epoch)
            elif answer is None or isinstance(answer, StaleBase | OutOfTurn):
                answer = await self._carry(
                    sent[at], epoch, whole=answer is not None or _may_repeat(sent[at].given, results[at])
                )
            if isinstance(answer, OutliveError):
                results[at] = self._refused(sent[at], results[at], answer) or results[at]
            else:
                self._stores.note_health(SECONDARY, None)
                self._queue.finish(sent[at].given.thread, (sent[at].key,))

    async def _send(self, replicas: list[Commit]) -> Sequence[Result]:
        if not replicas:
            return []
        try:
            await self._stores.ensure_open(SECONDARY)
            return await self._stores.both[SECONDARY].commit_all(replicas)
        except OutliveError as error:
            return [error for _ in replicas]

    async def _carry(self, sent: _Sent, epoch: int, *, whole: bool) -> OutliveError | None:
        """Read from the primary what the secondary is to get; the whole backlog of the thread, when something is missing."""
        try:
            await self._stores.ensure_open(SECONDARY)
            if whole and epoch > 0 and self._options.is_strict:  # what it has alone was never acknowledged
                await self._stores.settle_left(SECONDARY, sent.given.thread, epoch)
            if whole:
                sent.items.add(await self._stores.backlog(PRIMARY).items_of(sent.given.thread))
            carrier = self._stores.carrier(PRIMARY, self._stores.patience_s)
            await carrier.carry(sent.given.thread, sent.items, epoch)
            if whole and await has_gap(*self._stores.both, sent.given, self._stores.patience_s):
                await carrier.carry(sent.given.thread, ChangeSet(everything=True), epoch)
        except OutliveError as error:
            return error
        return None

    async def confirm(self, thread: ThreadKey, epoch: int) -> None:
        """Make sure that what was removed from a thread is in both stores, when that is what an acknowledgement says.

        A removal that was refused because the secondary did not take it finds nothing to remove when it is repeated: what is left of it is
        the note, which is carried over now. Raises NotReplicated when it cannot be.
        """
        if not (self._options.enabled and self._options.is_strict and epoch % 2 == PRIMARY):
            return
        items = await self._stores.backlog(PRIMARY).items_of(thread, self._queue.done_of(thread))
        if not items.buried:
            return
        try:
            await self._stores.ensure_open(SECONDARY)
            await self._stores.carrier(PRIMARY, self._stores.patience_s).carry(thread, items, epoch)
        except EpochPassed:
            raise
        except OutliveError as error:
            self._stores.note_health(SECONDARY, error)
            raise _not_replicated(thread.id, "", error) from error

    def _refused(self, sent: _Sent, result: Result, error: OutliveError) -> OutliveError | None:
        """Return what to tell when the secondary did not take it; None when it is queued instead."""
        self._queue.leave(PRIMARY, {sent.key: saved_ids(sent.given)})
        if isinstance(error, EpochPassed):
            return StoredElsewhere(error, result if isinstance(result, Receipt) else None)
        self._stores.note_health(SECONDARY, error)
        if not self._options.is_strict:
            self._queue.in_step = False
            return None
        ids = [draft.id for draft in sent.given.checkpoints]
        return _not_replicated(sent.given.thread.id, ids[0] if ids else "", error)


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


def _after(commit: Commit, receipt: Receipt, error: OutliveError) -> OutliveError:
    """Return what to say of a commit that the active store has done, when something went wrong after that."""
    if isinstance(error, EpochPassed):
        return StoredElsewhere(error, receipt)
    if isinstance(error, NotReplicated):
        return error
    failure = outcome_unknown(commit, str(error))
    failure.__cause__ = error
    return failure


def _may_be_overtaken(commit: Commit) -> bool:
    """Tell whether a deletion may come behind saves that it has not seen: a busy thread must not starve it."""
    removal = commit.removal or Removal(everything=True)
    return not (removal.everything or commit.checkpoints or commit.entries or commit.writes)


def _may_repeat(commit: Commit, result: object) -> bool:
    """Tell whether a commit may be one that was not acknowledged before, so that more than its own note is to be carried over.

    What a save that is there already follows may not be in the other store either. The checkpoints that a removal names may be gone already; or
    what it is to erase was erased then, in chunks that it does not name any more.
    """
    if _is_there(result):
        return True
    removal = commit.removal
    return removal is not None and (removal.erase or (isinstance(result, Receipt) and not result.removed))


def _claims(commit: Commit) -> bool:
    return any(entry.fence == NEXT for entry in commit.entries)


def _begins(result: object) -> bool:
    return isinstance(result, Receipt) and result.revision == 1


def _is_there(result: object) -> bool:
    return isinstance(result, Receipt) and result.existing is not None


def _in_epoch(entry: EntryRecord, epoch: int) -> EntryRecord:
    """A fence is given in the epoch that we are in: whatever was given before is outranked."""
    return replace(entry, epoch=max(entry.epoch, epoch)) if entry.fence == NEXT else entry
