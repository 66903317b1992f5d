"""How a pair is opened: one naming key for both stores, and a look at what each says of the pair."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from outlive.errors import EntryHeld, OutliveError, StoreBusy, StoreError
from outlive.layers.replication.health import has_no_answer, is_unreachable
from outlive.layers.replication.options import Replication
from outlive.layers.replication.pair import (
    ALONE,
    PRIMARY,
    SECONDARY,
    PairEnded,
    PairRecord,
    check_match,
    new_pair,
    read_pair_record,
)
from outlive.layers.replication.stores import PATIENCE_S, Errors, Stores, other_key
from outlive.layers.replication.switch import Switching
from outlive.runtime.runtime import Deadline

_RACES = 20


class Joining:
    """Opens a pair, or makes one."""

    def __init__(self, stores: Stores, switching: Switching, options: Replication) -> None:
        self._stores = stores
        self._switching = switching
        self._options = options

    async def join(self, offered: bytes) -> bytes:
        """Open the pair; return the naming key. All of it has the time that one call has."""
        deadline = Deadline(self._stores.timeout_s)
        absent = await self._agree_on_key(offered, deadline)
        if not self._stores.key:  # both are new, and somebody only looks
            self._stores.key, self._stores.met = None, [False, False]
            return b""
        for _ in range(_RACES):
            with contextlib.suppress(EntryHeld):  # somebody else opens it at the same moment
                try:
                    await self._join(absent, deadline)
                except PairEnded:
                    if not await self._has_begun_anew(absent):
                        raise
                    continue
                assert self._stores.key is not None
                return self._stores.key
        raise StoreBusy("other processes keep changing the roles of this pair; try again")

    # The naming key

    async def _agree_on_key(self, offered: bytes, deadline: Deadline) -> Errors:
        """Let both have one naming key; return why one of them did not answer. When none does, raise."""
        stores = self._stores
        errors: list[StoreError | None] = [None, None]
        knows_pair = await self._knows_pair(SECONDARY, errors, deadline)
        await self._knows_pair(PRIMARY, errors, deadline)
        for role in (SECONDARY, PRIMARY) if knows_pair else (PRIMARY, SECONDARY):
            if errors[role] is not None:
                continue
            # Only a pair whose stores both answer gets a new key: one of them would else adopt another than its partner has.
            mine = stores.key or (b"" if any(errors) else offered)
            try:
                key = await stores.both[role].identity(mine)
            except StoreError as error:
                if not is_unreachable(error) or any(errors):
                    raise
                errors[role] = error
                stores.note_health(role, error)
                continue
            if not key and (failure := errors[1 - role]) is not None:
                raise failure
            if stores.key is not None and key != stores.key:
                raise other_key()
            stores.key, stores.met[role] = key, True
        if all(errors) and (failure := errors[PRIMARY]) is not None:
            raise failure
        return errors

    async def _knows_pair(self, role: int, errors: list[StoreError | None], deadline: Deadline) -> bool:
        """Tell whether a store has been one of a pair: then it has the key, and a primary that has lost everything adopts it.

        Each store is asked for half of the time that is left, before anything without a deadline of its own is asked of it.
        """
        stores = self._stores
        try:
            return await read_pair_record(stores.both[role], stores.tenant, _half(deadline)) is not None
        except OutliveError as error:  # a server without a schema, or none at all
            if isinstance(error, StoreError) and has_no_answer(error):
                errors[role] = error
                stores.note_health(role, error)
            return False

    # The record of the pair

    async def _has_begun_anew(self, absent: Errors) -> bool:
        """Make a store that goes on alone the primary of a new pair, when the secondary is new too; tell whether it is."""
        stores = self._stores
        if any(absent):
            return False
        primary, secondary = [
            await read_pair_record(one, stores.tenant, stores.patience_s) for one in stores.both
        ]
        if primary is None or primary.ended != ALONE or secondary is not None:
            return False
        # Not below the epochs of its threads, and one in which the primary is active.
        epoch = primary.epoch + primary.epoch % 2
        await stores.write(PRIMARY, primary, PairRecord(new_pair(), PRIMARY, epoch))
        return True

    async def _join(self, absent: Errors, deadline: Deadline) -> None:
        left_s = _half(deadline)
        (primary, secondary), (no_primary, no_secondary) = await self._stores.sides(left_s, absent)
        if no_primary is not None:
            await self._join_without_primary(secondary, no_primary, deadline)
        elif no_secondary is not None:
            await self._join_without_secondary(primary, no_secondary)
        elif primary is not None and secondary is not None:
            check_match(primary, secondary)
            await self._join_both(primary, secondary)
        else:
            is_told = not self._options.enabled  # whoever switches replication off knows that it was needed
            if secondary is not None:
                await self._switching.replace_primary(secondary, is_told=is_told)
            else:
                await self._switching.add_secondary(primary, is_told=is_told)
            await self._join(absent, deadline)  # now both say something

    async def _join_both(self, primary: PairRecord, secondary: PairRecord) -> None:
        is_paused = not self._options.enabled
        if is_paused and primary.epoch % 2 == SECONDARY and secondary.epoch < primary.epoch:
            primary = await self._switching.abandon_secondary(primary)
        epoch = max(primary.epoch, secondary.epoch)
        active, other = (primary, secondary) if epoch % 2 == PRIMARY else (secondary, primary)
        if active.is_paused != is_paused:
            # While replication is switched off, the other store is left behind; afterwards it gets everything. It says so first: a
            # crash between the two leaves nothing out.
            other = await self._stores.write(other.role, other, replace(other, is_whole=False))
            active = await self._stores.write(active.role, active, replace(active, is_paused=is_paused))
            primary, secondary = sorted((active, other), key=lambda side: side.role)
        await self._switching.adopt(primary, secondary)

    async def _join_without_primary(
        self, secondary: PairRecord | None, error: StoreError, deadline: Deadline
    ) -> None:
        """Open a pair whose primary does not answer, so that somebody can look at it, and promote the secondary."""
        stores, options = self._stores, self._options
        if secondary is None:
            raise error
        stores.epoch, stores.is_whole = secondary.epoch, True
        stores.failed_over_at = secondary.failed_over_at
        if stores.is_failed_over:
            await self._pause_alone(secondary)
            return
        if not options.enabled:
            raise error  # it is for the store that is active
        stores.is_whole = secondary.is_whole
        if options.auto_failover and secondary.is_whole:
            await self._switching.refresh(_half(deadline))  # one question without an answer is not enough
            if not (stores.is_failed_over or stores.health[PRIMARY].is_healthy):
                await self._switching.promote(automatic=True)

    async def _join_without_secondary(self, primary: PairRecord | None, error: StoreError) -> None:
        if primary is None or primary.epoch % 2 == SECONDARY:
            raise error
        self._stores.epoch = primary.epoch
        await self._pause_alone(primary)

    async def _pause_alone(self, active: PairRecord) -> None:
        """The other store cannot be told now that it is left behind: whoever switches replication on again tells it."""
        if not self._options.enabled and not active.is_paused:
            await self._stores.write(active.role, active, replace(active, is_paused=True))


def _half(deadline: Deadline) -> float:
    return min(deadline.left_s() / 2, PATIENCE_S if deadline.timeout_s is None else deadline.timeout_s)
