"""How the two stores of a pair change places: promotion, failback, and what every process does to notice either.

Every step leaves something from which any process can go on. A promotion is one commit in the secondary. A failback is announced
there by one commit, after which the secondary acknowledges nothing; then what is left is carried over; then one commit in the
primary opens it. Whoever finds a failback that was announced and not finished finishes it; if the primary is gone again by then, the
secondary is promoted once more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

from outlive.backend import ThreadKey, ThreadQuery
from outlive.errors import EntryHeld, StoreBusy, StoreError, StoreUnavailable
from outlive.layers.replication.checks import has_lost
from outlive.layers.replication.options import RoleChange
from outlive.layers.replication.pair import PRIMARY, SECONDARY, ActiveStoreLost, PairRecord, new_pair
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.stores import PATIENCE_S, Stores

_RACES = 10


class Switching:
    """Looks in which epoch a pair is, and brings it into the next one."""

    def __init__(self, stores: Stores, queue: Queue) -> None:
        self._stores = stores
        self._queue = queue
        self._one_at_a_time = stores.runtime.mutex()

    def after_fork(self) -> None:
        """A child has its parent's locks, which nobody of its own would release."""
        self._one_at_a_time = self._stores.runtime.mutex()

    # In which epoch we are

    async def refresh(self, timeout_s: float = PATIENCE_S) -> bool:
        """Look where the pair is by now; tell whether that is another epoch than we thought."""
        before = self._stores.epoch
        with contextlib.suppress(EntryHeld):  # somebody else is at it: the next look tells
            await self._look(timeout_s)
        return self._stores.epoch != before

    async def _look(self, timeout_s: float) -> None:
        stores = self._stores
        (primary, secondary), errors = await stores.sides(timeout_s)
        stores.is_announced = False
        if primary is not None and secondary is not None:
            await self.adopt(primary, secondary)
        elif secondary is not None and errors[PRIMARY] is None:
            await self.replace_primary(secondary)
        elif primary is not None and errors[SECONDARY] is None:
            await self.add_secondary(primary)
        elif secondary is not None and secondary.epoch > stores.epoch:
            if secondary.epoch % 2 == SECONDARY:
                stores.failed_over_at = secondary.failed_over_at
                stores.enter(secondary.epoch, is_whole=stores.is_whole)
            else:  # whether the primary has everything, it alone can tell
                stores.is_announced = stores.is_failed_over
        elif primary is not None and primary.epoch % 2 == PRIMARY and primary.epoch > stores.epoch:
            stores.enter(primary.epoch, is_whole=stores.is_whole)

    async def adopt(self, primary: PairRecord, secondary: PairRecord) -> None:
        """Enter the epoch that two stores say, when both can be asked."""
        stores, epoch = self._stores, max(primary.epoch, secondary.epoch)
        if epoch % 2 == PRIMARY and primary.epoch < epoch:
            await self._finish_failback(primary, epoch)
        elif epoch % 2 == SECONDARY and secondary.epoch < epoch:
            raise ActiveStoreLost(SECONDARY)
        stores.is_manual, stores.failed_over_at = secondary.is_manual, secondary.failed_over_at
        stores.enter(epoch, is_whole=(secondary if epoch % 2 == PRIMARY else primary).is_whole)

    async def raise_epoch(self, least: int) -> bool:
        """Go to an epoch of the same store that is not below that of a thread which came from elsewhere; tell whether we did."""
        stores = self._stores
        async with self._one_at_a_time:
            now = stores.epoch
            (primary, secondary), _ = await stores.sides()
            if primary is None or secondary is None or least <= now:
                return False
            if max(primary.epoch, secondary.epoch) != now or (primary, secondary)[now % 2].epoch != now:
                return False  # others are changing places
            epoch = least + (least - now) % 2
            for side in (
                (primary, secondary) if now % 2 == PRIMARY else (secondary, primary)
            ):  # the active one first
                await stores.write(side.role, side, replace(side, epoch=epoch))
            stores.epoch = epoch
            return True

    # A store that has lost what it had

    async def has_lost(self, key: ThreadKey) -> bool:
        """Tell whether the primary has lost commits. It is left then, whatever was said about leaving it: what was acknowledged
        is in the secondary alone.
        """
        if not await has_lost(*self._stores.both, key, self._stores.patience_s):
            return False
        async with self._one_at_a_time:
            await self._leave_primary()
        return True

    async def _leave_primary(self) -> None:
        stores = self._stores
        (primary, secondary), _ = await stores.sides()
        if primary is None or secondary is None or max(primary.epoch, secondary.epoch) % 2 == SECONDARY:
            return  # somebody else has done it
        epoch = max(primary.epoch, secondary.epoch) + 1
        stores.last_error = "the primary has lost commits: the secondary has them"
        await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch))
        await stores.write(PRIMARY, primary, replace(primary, epoch=epoch, is_whole=False))
        stores.enter(epoch, is_whole=False)

    async def add_secondary(self, primary: PairRecord | None, *, is_told: bool = False) -> None:
        """The secondary is new, or has lost what it had: it gets all that the primary has."""
        stores = self._stores
        if primary is None:
            primary = await stores.write(PRIMARY, None, PairRecord(new_pair(), PRIMARY))
        if primary.epoch % 2 == SECONDARY:
            if not is_told:
                raise ActiveStoreLost(SECONDARY)
            primary = await self.abandon_secondary(primary)
        is_empty = not await stores.both[PRIMARY].threads(ThreadQuery(stores.tenant, limit=1, heads=False))
        await stores.write(
            SECONDARY, None, PairRecord(primary.pair, SECONDARY, primary.epoch, is_whole=is_empty)
        )
        stores.enter(primary.epoch, is_whole=is_empty)

    async def abandon_secondary(self, primary: PairRecord) -> PairRecord:
        """Go on with what the primary has, although the secondary was active."""
        return await self._stores.write(
            PRIMARY, primary, replace(primary, epoch=primary.epoch + 1, is_whole=True)
        )

    async def replace_primary(self, secondary: PairRecord, *, is_told: bool = False) -> None:
        """An empty primary does not serve: the secondary has everything."""
        stores = self._stores
        epoch = secondary.epoch + 1 - secondary.epoch % 2
        if epoch != secondary.epoch:  # the primary was active
            if not (secondary.is_whole or is_told):
                raise ActiveStoreLost(PRIMARY)
            await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch))
        await stores.write(PRIMARY, None, PairRecord(secondary.pair, PRIMARY, epoch, is_whole=False))
        stores.enter(epoch, is_whole=False)

    # Changing places

    async def _insist(self, switch: Callable[[], Awaitable[RoleChange]]) -> RoleChange:
        """Change places, one at a time in this process; when another process is faster, look again."""
        async with self._one_at_a_time:
            for _ in range(_RACES):
                with contextlib.suppress(EntryHeld):
                    return await switch()
                await self.refresh()
        raise StoreBusy(
            "other processes keep changing the roles of this pair; look at store.replication_status()"
        )

    async def promote(self, *, automatic: bool = False) -> RoleChange:
        """Make the secondary the active store. What the primary has queued is carried over first when it can be reached."""
        return await self._insist(lambda: self._promote(automatic))

    async def _promote(self, automatic: bool) -> RoleChange:
        stores = self._stores
        if not automatic:  # else we have just looked
            await self.refresh()
        if stores.is_failed_over and not stores.is_announced:
            return RoleChange(stores.epoch, 0)
        carried = 0 if automatic else await self._carry_if_it_can_be()
        secondary = await stores.side(SECONDARY)
        if secondary is None or not secondary.is_whole:
            raise StoreUnavailable(
                "the secondary does not have everything yet; store.replication_status() tells what is missing"
            )
        epoch = max(stores.epoch, secondary.epoch) + 1
        epoch += epoch % 2 == PRIMARY
        await stores.write(SECONDARY, secondary, self._promoted(secondary, epoch, is_manual=not automatic))
        stores.automatic += automatic
        stores.is_manual, stores.is_announced = not automatic, False
        stores.enter(epoch, is_whole=True)
        await self._tell_primary(epoch)
        return RoleChange(epoch, carried)

    async def _carry_if_it_can_be(self) -> int:
        """Carry over what the primary has queued. Whatever is wrong with it may be why somebody wants to leave it."""
        try:
            return await self._stores.drain(PRIMARY, self._queue)
        except StoreError as error:
            self._stores.last_error = f"what the primary has queued stays there: {error}"
            return 0

    async def _tell_primary(self, epoch: int) -> None:
        """Let those who can still reach the primary know, if we can; the secondary's word is what counts."""
        stores = self._stores
        with contextlib.suppress(StoreError, EntryHeld):
            if stores.health[PRIMARY].is_healthy and (primary := await stores.side(PRIMARY)) is not None:
                await stores.write(PRIMARY, primary, replace(primary, epoch=epoch))

    async def failback(self) -> RoleChange:
        """Make the primary the active store again, after it got everything; raise when it cannot."""
        return await self._insist(self._failback)

    async def _failback(self) -> RoleChange:
        stores = self._stores
        await self.refresh()
        if not stores.is_failed_over:
            return RoleChange(stores.epoch, 0)
        primary, secondary = await stores.side(PRIMARY), await stores.side(SECONDARY)
        if secondary is None:
            raise ActiveStoreLost(SECONDARY)
        if primary is None or not primary.is_whole:
            await stores.copy_all(SECONDARY)
            primary = await stores.side(PRIMARY)
        elif primary.is_paused:  # it went on alone and did not know that it had been left
            await stores.backlog(PRIMARY).carry_everything()
        carried = await stores.drain(SECONDARY, self._queue) + await stores.drain(PRIMARY, self._queue)
        epoch = secondary.epoch + 1
        announced = replace(secondary, epoch=epoch, is_whole=True, is_manual=False, failed_over_at=0)
        await stores.write(SECONDARY, secondary, announced)
        # From here on nobody's commit to the secondary is acknowledged. A crash leaves an announced failback.
        assert primary is not None
        carried += await self._finish_failback(primary, epoch)
        stores.enter(epoch, is_whole=True)
        branched, stores.branched = stores.branched, set()
        return RoleChange(epoch, carried, tuple(sorted(branched)))

    async def _finish_failback(self, primary: PairRecord, epoch: int) -> int:
        carried = await self._stores.drain(SECONDARY, None)
        # A process that missed the promotion may have stored something in the primary until just now. Threads that went on in the
        # secondary have come over, so they refuse it from here on; what is there is withdrawn or merged before anybody reads it.
        carried += await self._stores.drain(PRIMARY, None)
        with contextlib.suppress(EntryHeld):  # somebody else has finished it
            await self._stores.write(PRIMARY, primary, replace(primary, epoch=epoch, is_whole=True))
        return carried

    def _promoted(self, secondary: PairRecord, epoch: int, *, is_manual: bool = False) -> PairRecord:
        """Return what the secondary says when it becomes active. A second promotion of it keeps the moment of the first."""
        stores = self._stores
        stores.failed_over_at = secondary.failed_over_at or stores.runtime.now()
        return replace(
            secondary,
            epoch=epoch,
            is_whole=True,
            is_manual=is_manual,
            failed_over_at=stores.failed_over_at,
        )
