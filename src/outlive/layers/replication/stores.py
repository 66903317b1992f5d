"""The two stores of a pair: which of them is active, how they are, and what one has that the other is to get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlive.backend import Backend, CheckpointKey, ThreadKey
from outlive.errors import BadURL, StoreError
from outlive.events import FAILBACK, FAILOVER, Event, EventSink
from outlive.layers.replication.backlog import Backlog
from outlive.layers.replication.health import Health, has_no_answer, is_unreachable
from outlive.layers.replication.note import ChangeSet
from outlive.layers.replication.pair import (
    PRIMARY,
    ROLES,
    SECONDARY,
    ActiveStoreLost,
    PairEnded,
    PairRecord,
    check_match,
    read_pair_record,
    write_pair_record,
)
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.transfer import IsNamed, Replicator, lineage
from outlive.layers.replication.withdrawal import Withdrawal
from outlive.runtime.runtime import Deadline, Runtime

PATIENCE_S = 5.0  # for one call that nobody asked for
_LEAST_S = 0.05  # in which a store that is well answers

Errors = Sequence[StoreError | None]  # of the primary and the secondary


class Stores:
    """A primary and a secondary, and which of them is active."""

    def __init__(
        self,
        primary: Backend,
        secondary: Backend,
        *,
        tenant: str,
        runtime: Runtime,
        watched: EventSink,
        timeout_s: float | None,
    ) -> None:
        self.both = (primary, secondary)
        self.tenant = tenant
        self.runtime = runtime
        self.is_named: IsNamed = lambda name, data: True
        self.epoch = 0
        self.is_whole = True  # the store that is not active
        self.failovers = 0
        self.failed_over_at = 0  # microseconds; as the secondary says
        self.is_manual = False  # the secondary was promoted by somebody
        self.is_announced = False  # a failback has begun, and the primary is gone again
        self.automatic = 0  # failovers since the primary was last stable
        self.health = (Health(), Health())
        self.last_error: str | None = None
        self.branched: set[str] = set()  # threads that both stores had gone on with
        self.timeout_s = timeout_s
        self.patience_s = min(PATIENCE_S, timeout_s or PATIENCE_S)
        self.carry_s = PATIENCE_S  # for a merge in the background, which may be larger than any save: callers that are in a hurry are not
        self._watched = watched
        self.key: bytes | None = None  # the naming key
        self.met = [False, False]

    # Which is which

    @property
    def active(self) -> Backend:
        return self.both[self.epoch % 2]

    @property
    def other(self) -> Backend:
        return self.both[1 - self.epoch % 2]

    @property
    def is_failed_over(self) -> bool:
        return self.epoch % 2 == SECONDARY

    def carrier(self, source: int, timeout_s: float) -> Replicator:
        return Replicator(
            self.both[source], self.both[1 - source], self.is_named, self.runtime.now, timeout_s
        )

    def note_health(self, role: int, error: BaseException | None) -> None:
        """Remember whether a store answered: also that it is locked, full or damaged is an answer."""
        health = self.health[role]
        is_healthy = not is_unreachable(error)
        if health.is_healthy != is_healthy or not health.since:
            health.is_healthy, health.since = is_healthy, self.runtime.now()
        if error is not None:
            self.last_error = f"{ROLES[role]}: {error}"

    async def ensure_open(self, role: int, timeout_s: float = PATIENCE_S) -> None:
        """Make sure that a store is open and has the naming key of the pair."""
        if self.met[role]:
            return
        try:  # `identity` has no deadline of its own, so it is not asked of a store that does not answer
            await read_pair_record(self.both[role], self.tenant, min(timeout_s, self.patience_s))
        except StoreError as error:
            if has_no_answer(error):
                raise
        key = await self.both[role].identity(self.key or b"")
        if self.key is not None and key != self.key:
            raise other_key()
        self.met[role] = True

    async def side(self, role: int, timeout_s: float = PATIENCE_S) -> PairRecord | None:
        """Ask a store what it says of the pair; raise when it cannot be reached."""
        try:
            await self.ensure_open(role, timeout_s)
            found = await read_pair_record(self.both[role], self.tenant, min(timeout_s, self.patience_s))
        except StoreError as error:
            self.note_health(role, error)
            raise
        self.note_health(role, None)
        if found is not None and found.ended:
            raise PairEnded(found)
        return found

    async def sides(
        self, timeout_s: float = PATIENCE_S, absent: Errors = (None, None)
    ) -> tuple[list[PairRecord | None], Errors]:
        """Ask both stores, but for one that is known not to answer. Both together have so much time, the first two thirds of it."""
        sides: list[PairRecord | None] = [None, None]
        errors, deadline = list(absent), Deadline(timeout_s)
        for role, share in ((PRIMARY, 2 / 3), (SECONDARY, 1)):
            if absent[role] is None:
                try:
                    sides[role] = await self.side(role, max(_LEAST_S, deadline.left_s() * share))
                except PairEnded:
                    raise
                except StoreError as error:
                    errors[role] = error
        return sides, errors

    async def write(self, role: int, old: PairRecord | None, new: PairRecord) -> PairRecord:
        """Let a store say something else of the pair; raise EntryHeld when it does by now."""
        return await write_pair_record(self.both[role], self.tenant, old, new, self.patience_s)

    def enter(self, epoch: int, *, is_whole: bool) -> None:
        """Take note of an epoch; a later one is an event."""
        if epoch > self.epoch:
            name = FAILOVER if epoch % 2 == SECONDARY else FAILBACK
            self.failovers += name == FAILOVER
            self._watched.tell(Event(name, "", status=f"epoch {epoch}"))
        self.epoch, self.is_whole = max(epoch, self.epoch), is_whole

    # Catching up

    async def drain(self, source: int, queue: Queue | None, *, mine: str | None = None) -> int:
        """Carry over what a store has queued; return how many commits. See `Backlog.drain`."""
        await self.ensure_open(1 - source)
        backlog = self.backlog(source)
        try:
            return await backlog.drain(queue, mine)
        except StoreError as error:
            if is_unreachable(error):
                self.note_health(1 - source, error)
            raise
        finally:
            if source != self.epoch % 2:  # news of a store that was left
                await self._note_branches(backlog.carried)

    async def _note_branches(self, carried: dict[ThreadKey, set[CheckpointKey]]) -> None:
        """Remember the threads that both stores had gone on with."""
        for key, pairs in carried.items():
            for namespace in {namespace for namespace, _ in pairs}:
                line = await lineage(self.active, key, namespace, self.patience_s)
                if any(id not in line for other, id in pairs if other == namespace):
                    self.branched.add(key.id)

    async def copy_all(self, source: int) -> None:
        """Carry over everything that a store has; then the other one is whole."""
        target = 1 - source
        old = await self.side(target)
        if old is None:
            mine = await self.side(source)
            assert mine is not None
            old = await self.write(target, None, PairRecord(mine.pair, target, mine.epoch, is_whole=False))
        await self.backlog(source).carry_everything()
        # Refused when it says something else by now: it may have lost on the way what it had got.
        await self.write(target, old, replace(old, is_whole=True))
        self.is_whole = True

    def backlog(self, role: int) -> Backlog:
        """Return what a store has queued for the other one."""

        async def settle(key: ThreadKey, items: ChangeSet) -> None:
            await self.settle(role, key, items)

        carrier = self.carrier(role, self.carry_s)
        return Backlog(self.both[role], carrier, self.tenant, self.runtime, self.patience_s, settle)

    # What was never acknowledged

    async def line(self) -> tuple[int, int]:
        """Return which store has the line that counts, and the epoch of the pair; both stores are asked.

        While a failback is announced and the primary is not opened, that is still the secondary.
        """
        primary, secondary = await self.side(PRIMARY), await self.side(SECONDARY)
        if primary is None or secondary is None:
            raise ActiveStoreLost(PRIMARY if primary is None else SECONDARY)
        check_match(primary, secondary)
        epoch = max(primary.epoch, secondary.epoch)
        if epoch % 2 == SECONDARY and secondary.epoch < epoch:
            raise ActiveStoreLost(SECONDARY)
        return (PRIMARY if epoch % 2 == PRIMARY and primary.epoch == epoch else SECONDARY), epoch

    async def settle(self, source: int, key: ThreadKey, items: ChangeSet) -> None:
        """Decide what becomes of what a store has queued of a thread that is in a later epoch in the other store."""
        line, epoch = await self.line()
        carrier = self.carrier(source, self.carry_s)
        if line == source or items.everything:
            await carrier.carry(key, items)
            return
        back = self.carrier(line, self.carry_s)
        await Withdrawal(self.both[source], self.both[line], back, epoch, self.carry_s).withdraw(key, items)
        await carrier.carry(key, ChangeSet(written=items.written, buried=items.buried, erased=items.erased))

    async def settle_left(self, source: int, key: ThreadKey, epoch: int) -> None:
        """Withdraw what a store that was left has queued of a thread, after that was moved to this epoch in the other one."""
        items = await self.backlog(source).items_of(key)
        if items.epoch is not None and items.epoch < epoch:
            await self.settle(source, key, items)


def other_key() -> BadURL:
    return BadURL(
        "the secondary is a store of its own already: its chunks are named by another naming key than the primary's. Give an empty "
        "place instead (a new file, folder, schema or prefix), which becomes a copy of the primary by itself; and if the old one holds "
        "threads that you want, copy them into the primary first: outlive copy PRIMARY --store SECONDARY"
    )
