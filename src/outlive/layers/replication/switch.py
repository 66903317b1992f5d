"""How two stores change roles: promotion, failback, and how every process notices.

Every step leaves something from which any process can continue. A promotion is one commit in the
secondary. A failback is announced there by one commit, after which the secondary acknowledges
nothing; then what is left is transferred; then one commit in the primary makes it active. A process
that finds an announced failback finishes it; if the primary cannot be reached by then, the
secondary is promoted once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from outlive.backend import ThreadKey, ThreadQuery
from outlive.errors import EntryHeld, StoreBusy, StoreError, StoreUnavailable
from outlive.layers.replication.backlog import Outbox
from outlive.layers.replication.checks import has_lost, has_lost_lock
from outlive.layers.replication.options import RoleChange
from outlive.layers.replication.pair import (
    PRIMARY,
    SECONDARY,
    ActiveStoreLost,
    PairRecord,
    active_role,
    first_epoch,
    new_pair,
)
from outlive.layers.replication.stores import PATIENCE_S, Stores
from outlive.runtime.runtime import Deadline

_RACES = 10


class RoleSwitch:
    """Looks in which epoch a pair is, and brings it into the next one."""

    def __init__(self, stores: Stores, outbox: Outbox) -> None:
        self._stores = stores
        self._outbox = outbox
        self._one_at_a_time = stores.runtime.mutex()

    def after_fork(self) -> None:
        """Replace the locks, which a child has from its parent and nothing in it would release."""
        self._one_at_a_time = self._stores.runtime.mutex()

    # In which epoch we are

    async def refresh(self, timeout_s: float = PATIENCE_S) -> bool:
        """Look where the pair is by now; tell whether that is another epoch than we thought."""
        before, deadline = self._stores.epoch, Deadline(timeout_s)
        for _ in range(_RACES):
            with contextlib.suppress(EntryHeld):  # another process was faster
                await self._look(deadline.remaining_s())
                break
            # Look again at once: that process may be dead, and what it began is finished here.
            if not deadline.remaining_s():
                break
        return self._stores.epoch != before

    async def _look(self, timeout_s: float) -> None:
        """Read the record of the pair in both stores, and enter the epoch that they tell."""
        stores = self._stores
        (primary, secondary), errors = await stores.records(timeout_s)
        stores.is_announced = False
        if primary is not None and secondary is not None:
            await self.adopt(primary, secondary)
        # A store that answers without a record is new, or has lost its data.
        elif secondary is not None and errors[PRIMARY] is None:
            await self.replace_primary(secondary)
        elif primary is not None and errors[SECONDARY] is None:
            await self.add_secondary(primary)
        # Only one store answers. Its word counts for the epochs in which it is the active one.
        elif secondary is not None and secondary.epoch > stores.epoch:
            if secondary.is_active:
                stores.failed_over_at = secondary.failed_over_at
                stores.enter(secondary.epoch, is_caught_up=stores.is_caught_up)
            else:  # an announced failback: whether the primary has everything, it alone can tell
                stores.is_announced = stores.is_failed_over
        elif primary is not None and primary.is_active and primary.epoch > stores.epoch:
            stores.enter(primary.epoch, is_caught_up=stores.is_caught_up)

    async def adopt(self, primary: PairRecord, secondary: PairRecord) -> None:
        """Enter the epoch of two records, when both stores can be asked."""
        stores, epoch = self._stores, max(primary.epoch, secondary.epoch)
        active, standby = (primary, secondary) if active_role(epoch) == PRIMARY else (secondary, primary)
        if active.epoch < epoch:
            if active is secondary:
                raise ActiveStoreLost(SECONDARY)
            await self._finish_failback(primary, epoch)
        elif active is primary and secondary.epoch < epoch:
            # A process died while it raised the epoch. In strict mode nothing can be claimed until
            # the secondary has it too.
            secondary = await stores.write(SECONDARY, secondary, replace(secondary, epoch=epoch))
        stores.is_manual, stores.failed_over_at = secondary.is_manual, secondary.failed_over_at
        stores.enter(epoch, is_caught_up=standby.is_caught_up)

    async def raise_epoch(self, least: int) -> bool:
        """Go to an epoch of the same store that is not below that of a thread which came from
        elsewhere; tell whether we did.
        """
        stores = self._stores
        async with self._one_at_a_time:
            now = stores.epoch
            records, _ = await stores.records()
            active, standby = records[stores.active_role], records[stores.standby_role]
            if active is None or standby is None or least <= now:
                return False
            if active.epoch != now or standby.epoch > now:
                return False  # other processes are changing roles
            epoch = first_epoch(stores.active_role, least)
            # The active one first. A crash between the two leaves an epoch that its active store
            # has: `adopt` finishes it.
            for record in (active, standby):
                await stores.write(record.role, record, replace(record, epoch=epoch))
            stores.epoch = epoch
            return True

    # A store that has lost its data

    async def has_lost(self, key: ThreadKey) -> bool:
        """Tell whether the primary has lost commits. Then it is left, even without automatic
        failover: what was acknowledged is in the secondary alone.
        """
        return await self._leave_if(await has_lost(*self._stores.both, key, self._stores.patience_s))

    async def has_lost_lock(self, key: ThreadKey, namespace: str) -> bool:
        """Tell whether the primary has lost who holds a place. Then it is left too."""
        stores = self._stores
        return await self._leave_if(await has_lost_lock(*stores.both, key, namespace, stores.patience_s))

    async def _leave_if(self, is_lost: bool) -> bool:
        if is_lost:
            async with self._one_at_a_time:
                await self._leave_primary()
        return is_lost

    async def _leave_primary(self) -> None:
        stores = self._stores
        (primary, secondary), _ = await stores.records()
        if primary is None or secondary is None:
            return
        epoch = max(primary.epoch, secondary.epoch)
        if active_role(epoch) == SECONDARY:
            return  # another process has done it
        stores.last_error = "the primary has lost commits: the secondary has them"
        # The primary's record first: it gets everything before it is active again. A crash after
        # that leaves a primary that is still active, and the next save in such a thread comes here
        # again. In the other order a failback would bring only what is queued.
        await stores.write(PRIMARY, primary, replace(primary, is_caught_up=False))
        await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch + 1))
        stores.enter(epoch + 1, is_caught_up=False)
        await self._tell_primary(epoch + 1)

    async def add_secondary(self, primary: PairRecord | None, *, is_told: bool = False) -> None:
        """Fill a secondary that is new, or has lost its data: it gets all that the primary has.

        `is_told`: replication is switched off, so an operator decided this, even if the secondary
        was the active store.
        """
        stores = self._stores
        # A crash between these writes leaves a primary with a record and a secondary without one:
        # the next look comes here again. The background copies what the primary has.
        if primary is None:
            primary = await stores.write(PRIMARY, None, PairRecord(new_pair(), PRIMARY))
        if not primary.is_active:
            if not is_told:
                raise ActiveStoreLost(SECONDARY)
            primary = await self.abandon_secondary(primary)
        is_empty = not await stores.both[PRIMARY].threads(ThreadQuery(stores.tenant, limit=1, heads=False))
        record = PairRecord(primary.pair, SECONDARY, primary.epoch, is_caught_up=is_empty)
        await stores.write(SECONDARY, None, record)
        stores.enter(primary.epoch, is_caught_up=is_empty)

    async def abandon_secondary(self, primary: PairRecord) -> PairRecord:
        """Continue with what the primary has, although the secondary was active."""
        return await self._stores.write(
            PRIMARY, primary, replace(primary, epoch=primary.epoch + 1, is_caught_up=True)
        )

    async def replace_primary(self, secondary: PairRecord, *, is_told: bool = False) -> None:
        """Leave an empty primary: the secondary has everything.

        `is_told`: replication is switched off, so an operator decided this, even if the secondary
        lacks what the primary had.
        """
        stores = self._stores
        epoch = first_epoch(SECONDARY, secondary.epoch)
        if not secondary.is_active:
            if not (secondary.is_caught_up or is_told):
                raise ActiveStoreLost(PRIMARY)
            await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch))
        # A crash before this leaves a primary without a record, and the next look comes here again.
        await stores.write(PRIMARY, None, PairRecord(secondary.pair, PRIMARY, epoch, is_caught_up=False))
        stores.enter(epoch, is_caught_up=False)

    # Changing roles

    async def _retry_races(self, switch: Callable[[], Awaitable[RoleChange]]) -> RoleChange:
        """Change roles, once at a time in this process.

        If another process is faster, look again.
        """
        async with self._one_at_a_time:
            for _ in range(_RACES):
                with contextlib.suppress(EntryHeld):
                    return await switch()
                await self.refresh()
        raise StoreBusy(
            "other processes keep changing the roles of this pair; look at store.replication_status()"
        )

    async def promote(self, *, automatic: bool = False) -> RoleChange:
        """Make the secondary the active store. What the primary has queued is transferred first
        when it can be reached.
        """
        return await self._retry_races(lambda: self._promote(automatic))

    async def _promote(self, automatic: bool) -> RoleChange:
        stores = self._stores
        # 1. Look where the pair is, and transfer what can still be read. A crash changes no role.
        if not automatic:  # else we have just looked
            await self.refresh()
        if stores.is_failed_over and not stores.is_announced:
            return RoleChange(stores.epoch, 0)
        carried = 0 if automatic else await self._try_to_drain_primary()
        secondary = await stores.record(SECONDARY)
        if secondary is None or not secondary.is_caught_up:
            raise StoreUnavailable(
                "the secondary does not have everything yet; store.replication_status() tells what is missing"
            )
        epoch = first_epoch(SECONDARY, max(stores.epoch, secondary.epoch) + 1)
        # 2. This one commit is the promotion. From here on a thread that is saved in the secondary is in
        #    the new epoch, and refuses what is merged from an earlier one; so a process that still uses
        #    the primary gets no acknowledgement in strict mode.
        await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch, is_manual=not automatic))
        stores.automatic += automatic
        stores.is_manual, stores.is_announced = not automatic, False
        stores.enter(epoch, is_caught_up=True)
        # 3. Tell the primary. A crash before this leaves a primary that does not know: every process that
        #    reaches the secondary does.
        await self._tell_primary(epoch)
        return RoleChange(epoch, carried)

    async def _try_to_drain_primary(self) -> int:
        """Transfer what the primary has queued. If that fails, it may be why it is being left."""
        try:
            return await self._stores.drain(PRIMARY, self._outbox)
        except StoreError as error:
            self._stores.last_error = f"what the primary has queued stays there: {error}"
            return 0

    async def _tell_primary(self, epoch: int) -> None:
        """Tell processes that reach only the primary, if we can; the secondary's record counts."""
        stores = self._stores
        with contextlib.suppress(StoreError, EntryHeld):
            if stores.health[PRIMARY].is_healthy and (primary := await stores.record(PRIMARY)) is not None:
                await stores.write(PRIMARY, primary, replace(primary, epoch=epoch))

    async def failback(self) -> RoleChange:
        """Make the primary the active store again, once it has everything; raise if it cannot."""
        return await self._retry_races(self._failback)

    async def _failback(self) -> RoleChange:
        stores = self._stores
        await self.refresh()
        if not stores.is_failed_over:
            return RoleChange(stores.epoch, 0)
        primary, secondary = await stores.record(PRIMARY), await stores.record(SECONDARY)
        if secondary is None:
            raise ActiveStoreLost(SECONDARY)
        # 1. Bring the primary up to date while the secondary still serves. A crash leaves the pair
        #    as it was.
        if primary is None or not primary.is_caught_up:
            await stores.copy_all(SECONDARY)
            primary = await stores.record(PRIMARY)
        elif primary.is_paused:  # it was written alone, and did not know that it had been left
            await stores.backlog(PRIMARY).transfer_everything()
        carried = await stores.drain(SECONDARY, self._outbox) + await stores.drain(PRIMARY, self._outbox)
        # 2. Announce. From here on no commit to the secondary is acknowledged. A crash leaves an
        #    announced failback, which the next process that reaches both stores finishes.
        epoch = secondary.epoch + 1
        announced = replace(secondary, epoch=epoch, is_caught_up=True, is_manual=False, failed_over_at=0)
        await stores.write(SECONDARY, secondary, announced)
        # 3. Transfer what the secondary stored until then, and make the primary active.
        assert primary is not None
        carried += await self._finish_failback(primary, epoch)
        stores.enter(epoch, is_caught_up=True)
        branched, stores.branched = stores.branched, set()
        return RoleChange(epoch, carried, tuple(sorted(branched)))

    async def _finish_failback(self, primary: PairRecord, epoch: int) -> int:
        """Finish a failback that was announced, by this process or by another one."""
        carried = await self._stores.drain(SECONDARY, None)
        # A process that missed the promotion may have stored something in the primary until just
        # now. Threads that were continued in the secondary have come over, so they refuse it from
        # here on; what is there is withdrawn or merged before anybody reads it.
        carried += await self._stores.drain(PRIMARY, None)
        # This one commit makes the primary active. A crash before it leaves the announced failback.
        with contextlib.suppress(EntryHeld):  # another process has finished it
            await self._stores.write(PRIMARY, primary, replace(primary, epoch=epoch, is_caught_up=True))
        return carried

    def _promoted(self, secondary: PairRecord, epoch: int, *, is_manual: bool = False) -> PairRecord:
        """Return the record of the secondary when it becomes active. A second promotion keeps the
        moment of the first.
        """
        stores = self._stores
        stores.failed_over_at = secondary.failed_over_at or stores.runtime.now()
        return replace(
            secondary,
            epoch=epoch,
            is_caught_up=True,
            is_manual=is_manual,
            failed_over_at=stores.failed_over_at,
        )
