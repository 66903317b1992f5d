"""How a pair is opened: one naming key for both stores, and a look at both pair records."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from outlive.errors import EntryHeld, OutliveError, StoreBusy, StoreError
from outlive.layers.replication.options import Replication
from outlive.layers.replication.pair import (
    ALONE,
    PRIMARY,
    SECONDARY,
    PairEnded,
    PairRecord,
    active_role,
    check_match,
    first_epoch,
    new_pair,
    read_pair_record,
)
from outlive.layers.replication.stores import (
    PATIENCE_S,
    Errors,
    Stores,
    has_no_answer,
    is_unreachable,
    other_key,
)
from outlive.layers.replication.switch import RoleSwitch
from outlive.runtime.runtime import Deadline

_RACES = 20


class Join:
    """Opens a pair, or makes one."""

    def __init__(self, stores: Stores, switch: RoleSwitch, options: Replication) -> None:
        self._stores = stores
        self._switch = switch
        self._options = options

    async def run(self, offered: bytes) -> bytes:
        """Open the pair; return the naming key. All of it has the time that one call has."""
        deadline = Deadline(self._stores.timeout_s)
        absent = await self._agree_on_key(offered, deadline)
        if not self._stores.key:  # both are new, and the caller only looks
            self._stores.key, self._stores.is_open = None, [False, False]
            return b""
        for _ in range(_RACES):
            with contextlib.suppress(EntryHeld):  # another process opens it at the same moment
                try:
                    await self._join(absent, deadline)
                except PairEnded:
                    if not await self._has_begun_new_pair(absent):
                        raise
                    continue
                assert self._stores.key is not None
                return self._stores.key
        raise StoreBusy("other processes keep changing the roles of this pair; try again")

    # The naming key

    async def _agree_on_key(self, offered: bytes, deadline: Deadline) -> Errors:
        """Give both one naming key; return why one did not answer. Raise when none does."""
        stores = self._stores
        errors: list[StoreError | None] = [None, None]
        knows_pair = await self._knows_pair(SECONDARY, errors, deadline)
        await self._knows_pair(PRIMARY, errors, deadline)
        for role in (SECONDARY, PRIMARY) if knows_pair else (PRIMARY, SECONDARY):
            if errors[role] is not None:
                continue
            # Only a pair whose stores both answer gets a new key: otherwise one could adopt another
            # key than its partner has.
            proposed = stores.key or (b"" if any(errors) else offered)
            try:
                key = await stores.both[role].identity(proposed)
            except StoreError as error:
                if not is_unreachable(error) or any(errors):
                    raise
                errors[role] = error
                stores.update_health(role, error)
                continue
            if not key and (failure := errors[1 - role]) is not None:
                raise failure
            if stores.key is not None and key != stores.key:
                raise other_key()
            stores.key, stores.is_open[role] = key, True
        if all(errors) and (failure := errors[PRIMARY]) is not None:
            raise failure
        return errors

    async def _knows_pair(self, role: int, errors: list[StoreError | None], deadline: Deadline) -> bool:
        """Tell whether a store has been one of a pair: then it has the key, and a primary that has
        lost everything adopts it.

        Each store has half of the time that is left, before anything without a deadline of its own
        is asked of it.
        """
        stores = self._stores
        try:
            return await read_pair_record(stores.both[role], stores.tenant, _half(deadline)) is not None
        except OutliveError as error:  # a server without a schema, or none at all
            if isinstance(error, StoreError) and has_no_answer(error):
                errors[role] = error
                stores.update_health(role, error)
            return False

    # The record of the pair

    async def _has_begun_new_pair(self, absent: Errors) -> bool:
        """Make a store that was left alone the primary of a new pair, when the secondary is new
        too; tell whether it is.
        """
        stores = self._stores
        if any(absent):
            return False
        primary, secondary = [
            await read_pair_record(backend, stores.tenant, stores.patience_s) for backend in stores.both
        ]
        if primary is None or primary.ended != ALONE or secondary is not None:
            return False
        # Not below the epochs of its threads.
        epoch = first_epoch(PRIMARY, primary.epoch)
        await stores.write(PRIMARY, primary, PairRecord(new_pair(), PRIMARY, epoch))
        return True

    async def _join(self, absent: Errors, deadline: Deadline) -> None:
        left_s = _half(deadline)
        (primary, secondary), (no_primary, no_secondary) = await self._stores.records(left_s, absent)
        if no_primary is not None:
            await self._join_without_primary(secondary, no_primary, deadline)
        elif no_secondary is not None:
            await self._join_without_secondary(primary, no_secondary)
        elif primary is not None and secondary is not None:
            check_match(primary, secondary)
            await self._join_both(primary, secondary)
        else:
            # To switch replication off is to accept that a store which was needed is gone.
            is_told = not self._options.enabled
            if secondary is not None:
                await self._switch.replace_primary(secondary, is_told=is_told)
            else:
                await self._switch.add_secondary(primary, is_told=is_told)
            await self._join(absent, deadline)  # now both have a record

    async def _join_both(self, primary: PairRecord, secondary: PairRecord) -> None:
        is_paused = not self._options.enabled
        if is_paused and not primary.is_active and secondary.epoch < primary.epoch:
            primary = await self._switch.abandon_secondary(primary)
        epoch = max(primary.epoch, secondary.epoch)
        active, standby = (primary, secondary) if active_role(epoch) == PRIMARY else (secondary, primary)
        if active.is_paused != is_paused:
            # While replication is paused, the standby misses what is saved; afterwards it gets
            # everything. Its own record says so first: a crash between the two leaves nothing out.
            standby = await self._stores.write(standby.role, standby, replace(standby, is_caught_up=False))
            active = await self._stores.write(active.role, active, replace(active, is_paused=is_paused))
            primary, secondary = sorted((active, standby), key=lambda record: record.role)
        await self._switch.adopt(primary, secondary)

    async def _join_without_primary(
        self, secondary: PairRecord | None, error: StoreError, deadline: Deadline
    ) -> None:
        """Open a pair whose primary does not answer, to be looked at, or promoted."""
        stores, options = self._stores, self._options
        if secondary is None:
            raise error
        stores.epoch, stores.is_caught_up = secondary.epoch, True
        stores.failed_over_at = secondary.failed_over_at
        if stores.is_failed_over:
            await self._pause_alone(secondary)
            return
        if not options.enabled:
            raise error  # it is for the store that is active
        stores.is_caught_up = secondary.is_caught_up
        if options.auto_failover and secondary.is_caught_up:
            # One question without an answer is not enough.
            await self._switch.refresh(_half(deadline))
            if not (stores.is_failed_over or stores.health[PRIMARY].is_healthy):
                await self._switch.promote(automatic=True)

    async def _join_without_secondary(self, primary: PairRecord | None, error: StoreError) -> None:
        if primary is None or not primary.is_active:
            raise error
        self._stores.epoch = primary.epoch
        await self._pause_alone(primary)

    async def _pause_alone(self, active: PairRecord) -> None:
        """Pause while the other store cannot be told: the process that ends the pause tells it."""
        if not self._options.enabled and not active.is_paused:
            await self._stores.write(active.role, active, replace(active, is_paused=True))


def _half(deadline: Deadline) -> float:
    return min(deadline.remaining_s() / 2, PATIENCE_S if deadline.timeout_s is None else deadline.timeout_s)
