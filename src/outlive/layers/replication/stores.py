"""The two stores of a pair: which is active, whether they answer, what they have queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlive.backend import Backend, CheckpointKey, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import (
    BadURL,
    NotReplicated,
    OutcomeUnknown,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from outlive.events import FAILBACK, FAILOVER, Event, EventSink
from outlive.layers.replication.backlog import Backlog, Outbox
from outlive.layers.replication.outbox_entry import ChangeSet
from outlive.layers.replication.pair import (
    PRIMARY,
    ROLES,
    SECONDARY,
    ActiveStoreLost,
    PairEnded,
    PairRecord,
    active_role,
    check_match,
    read_pair_record,
    standby_role,
    write_pair_record,
)
from outlive.layers.replication.transfer import IsNamed, Replicator, line_of
from outlive.layers.replication.withdrawal import Withdrawal
from outlive.runtime.runtime import Deadline, Runtime

PATIENCE_S = 5.0  # for one call that no caller waits for
_LEAST_S = 0.05  # in which a healthy store answers

Errors = Sequence[StoreError | None]  # of the primary and the secondary


def is_unreachable(error: object) -> bool:
    """Tell whether an error means that a store cannot be reached, or that its answer was lost.

    Nothing else is a reason to leave it: not missing or damaged data, not a lock, not a full disk,
    not a wrong call.
    """
    if isinstance(error, StoreUnavailable):
        return not isinstance(error, StoreBusy | StoreFull)
    return isinstance(error, OutcomeUnknown) and not isinstance(error, NotReplicated)


def has_no_answer(error: object) -> bool:
    """Tell whether a store that may be new did not answer. "No tables yet" is an answer."""
    return is_unreachable(error) and not isinstance(error, SchemaMissing)


@dataclass(slots=True)
class Health:
    """Whether one store answers."""

    is_healthy: bool = True
    since: int = 0  # microseconds


class Stores:
    """A primary and a secondary, and which of them is active."""

    def __init__(
        self,
        primary: Backend,
        secondary: Backend,
        *,
        tenant: str,
        runtime: Runtime,
        events: EventSink,
        timeout_s: float | None,
    ) -> None:
        self.both = (primary, secondary)
        self.tenant = tenant
        self.runtime = runtime
        self.is_named: IsNamed = lambda name, data: True
        self.epoch = 0
        self.is_caught_up = True  # the standby
        self.failovers = 0
        self.failed_over_at = 0  # microseconds; as the secondary has it
        self.is_manual = False  # the secondary was promoted by a person
        self.is_announced = False  # a failback has begun, and the primary cannot be reached again
        self.automatic = 0  # failovers since the primary was last stable
        self.health = (Health(), Health())
        self.last_error: str | None = None
        self.branched: set[str] = set()  # threads that were continued in both stores
        self.timeout_s = timeout_s
        self.patience_s = min(PATIENCE_S, timeout_s or PATIENCE_S)
        # For a merge in the background, which may be larger than any save: it has time also when
        # callers are in a hurry.
        self.transfer_s = PATIENCE_S
        self.key: bytes | None = None  # the naming key
        self.is_open = [False, False]
        self._events = events

    # Which is which

    @property
    def active_role(self) -> int:
        return active_role(self.epoch)

    @property
    def standby_role(self) -> int:
        return standby_role(self.epoch)

    @property
    def active(self) -> Backend:
        return self.both[self.active_role]

    def active_in(self, epoch: int) -> Backend:
        """Return the store that is active in an epoch."""
        return self.both[active_role(epoch)]

    @property
    def is_failed_over(self) -> bool:
        return self.active_role == SECONDARY

    def replicator(self, source: int, timeout_s: float) -> Replicator:
        """Return what transfers from one store to the other."""
        return Replicator(
            self.both[source], self.both[1 - source], self.is_named, self.runtime.now, timeout_s
        )

    def update_health(self, role: int, error: BaseException | None) -> None:
        """Remember whether a store answered. "Locked", "full" and "damaged" are answers too."""
        health = self.health[role]
        is_healthy = not is_unreachable(error)
        if health.is_healthy != is_healthy or not health.since:
            health.is_healthy, health.since = is_healthy, self.runtime.now()
        if error is not None:
            self.last_error = f"{ROLES[role]}: {error}"

    async def ensure_open(self, role: int, timeout_s: float = PATIENCE_S) -> None:
        """Make sure that a store is open and has the naming key of the pair."""
        if self.is_open[role]:
            return
        # `identity` has no deadline of its own, so it is not asked of a store that does not answer.
        try:
            await read_pair_record(self.both[role], self.tenant, min(timeout_s, self.patience_s))
        except StoreError as error:
            if has_no_answer(error):
                raise
        key = await self.both[role].identity(self.key or b"")
        if self.key is not None and key != self.key:
            raise other_key()
        self.is_open[role] = True

    async def record(self, role: int, timeout_s: float = PATIENCE_S) -> PairRecord | None:
        """Return the record of a store; raise when it cannot be reached."""
        try:
            await self.ensure_open(role, timeout_s)
            record = await read_pair_record(self.both[role], self.tenant, min(timeout_s, self.patience_s))
        except StoreError as error:
            self.update_health(role, error)
            raise
        self.update_health(role, None)
        if record is not None and record.ended:
            raise PairEnded(record)
        return record

    async def records(
        self, timeout_s: float = PATIENCE_S, absent: Errors = (None, None)
    ) -> tuple[list[PairRecord | None], Errors]:
        """Return the records of both stores, but for a store that is known not to answer.

        Both together have so much time, the first one two thirds of it.
        """
        records: list[PairRecord | None] = [None, None]
        errors, deadline = list(absent), Deadline(timeout_s)
        for role, share in ((PRIMARY, 2 / 3), (SECONDARY, 1)):
            if absent[role] is None:
                try:
                    records[role] = await self.record(role, max(_LEAST_S, deadline.remaining_s() * share))
                except PairEnded:
                    raise
                except StoreError as error:
                    errors[role] = error
        return records, errors

    async def write(self, role: int, old: PairRecord | None, new: PairRecord) -> PairRecord:
        """Replace the record of a store; raise EntryHeld when it is not the old one any more."""
        return await write_pair_record(self.both[role], self.tenant, old, new, self.patience_s)

    def enter(self, epoch: int, *, is_caught_up: bool) -> None:
        """Take note of an epoch; a later one is an event."""
        if epoch > self.epoch:
            name = FAILOVER if active_role(epoch) == SECONDARY else FAILBACK
            self.failovers += name == FAILOVER
            self._events.emit(Event(name, "", status=f"epoch {epoch}"))
        self.epoch, self.is_caught_up = max(epoch, self.epoch), is_caught_up

    # Catching up

    async def drain(self, source: int, outbox: Outbox | None, *, process: str | None = None) -> int:
        """Transfer what a store has queued; return how many commits. See `Backlog.drain`."""
        await self.ensure_open(1 - source)
        backlog = self.backlog(source)
        try:
            return await backlog.drain(outbox, process)
        except StoreError as error:
            if is_unreachable(error):
                self.update_health(1 - source, error)
            raise
        finally:
            if source != self.active_role:  # news of a store that was left
                await self._find_branches(backlog.transferred)

    async def _find_branches(self, transferred: dict[ThreadKey, set[CheckpointKey]]) -> None:
        """Remember the threads that were continued in both stores."""
        for key, checkpoints in transferred.items():
            for namespace in {namespace for namespace, _ in checkpoints}:
                line = await line_of(self.active, key, namespace, self.patience_s)
                if any(id not in line for other, id in checkpoints if other == namespace):
                    self.branched.add(key.id)

    async def copy_all(self, source: int) -> None:
        """Transfer everything that a store has; then the other one is caught up."""
        target = 1 - source
        old = await self.record(target)
        if old is None:
            record = await self.record(source)
            assert record is not None
            old = await self.write(
                target, None, PairRecord(record.pair, target, record.epoch, is_caught_up=False)
            )
        await self.backlog(source).transfer_everything()
        # Refused when the record has changed: the store may have lost on the way what it had got.
        await self.write(target, old, replace(old, is_caught_up=True))
        self.is_caught_up = True

    def backlog(self, role: int) -> Backlog:
        """Return what a store has queued for the other one."""

        async def on_refused(key: ThreadKey, changes: ChangeSet) -> None:
            await self.resolve(role, key, changes)

        replicator = self.replicator(role, self.transfer_s)
        return Backlog(self.both[role], replicator, self.tenant, self.runtime, self.patience_s, on_refused)

    # What was never acknowledged

    async def leading(self) -> tuple[int, int]:
        """Return which store's history counts, and the epoch of the pair; both stores are asked.

        While a failback is announced and the primary is not active yet, that is still the
        secondary.
        """
        primary, secondary = await self.record(PRIMARY), await self.record(SECONDARY)
        if primary is None or secondary is None:
            raise ActiveStoreLost(PRIMARY if primary is None else SECONDARY)
        check_match(primary, secondary)
        epoch = max(primary.epoch, secondary.epoch)
        if active_role(epoch) == SECONDARY:
            if secondary.epoch < epoch:
                raise ActiveStoreLost(SECONDARY)
            return SECONDARY, epoch
        return (PRIMARY if primary.epoch == epoch else SECONDARY), epoch

    async def resolve(self, source: int, key: ThreadKey, changes: ChangeSet) -> None:
        """Merge or withdraw queued changes of a thread whose epoch is later in the other store."""
        leading, epoch = await self.leading()
        replicator = self.replicator(source, self.transfer_s)
        if leading == source or changes.everything:
            await replicator.transfer(key, changes)
            return
        back = self.replicator(leading, self.transfer_s)
        withdrawal = Withdrawal(self.both[source], self.both[leading], back, epoch, self.transfer_s)
        await withdrawal.withdraw(key, changes)
        # A crash here leaves the outbox entry: both steps are repeated, and the first finds nothing
        # to withdraw.
        remaining = ChangeSet(written=changes.written, deleted=changes.deleted, erased=changes.erased)
        await replicator.transfer(key, remaining)

    async def resolve_left(self, source: int, key: ThreadKey, epoch: int) -> None:
        """Withdraw what a store that was left has queued of a thread, after that moved to this
        epoch in the other one.
        """
        changes = await self.backlog(source).changes_of(key)
        if changes.epoch is not None and changes.epoch < epoch:
            await self.resolve(source, key, changes)


def other_key() -> BadURL:
    return BadURL(
        "the secondary already is a store of its own: its chunks are named by another naming key than the primary's. Give an empty "
        "place instead (a new file, folder, schema or prefix), which becomes a copy of the primary by itself. If the old one has "
        "threads that you want, copy them into the primary first: outlive copy PRIMARY --store SECONDARY"
    )
