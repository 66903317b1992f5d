"""The background work of a pair: transfer what is queued, check health, change roles."""

from __future__ import annotations

import datetime as dt
from typing import Any

from outlive.errors import OutliveError, StoreError
from outlive.layers.replication.backlog import Outbox
from outlive.layers.replication.options import Replication, ReplicationStatus
from outlive.layers.replication.outbox_entry import age_s
from outlive.layers.replication.pair import PRIMARY, ROLES, SECONDARY
from outlive.layers.replication.stores import Stores
from outlive.layers.replication.switch import RoleSwitch
from outlive.runtime.runtime import Runtime

_IDLE_S = 1.0  # for which a thread had no commit that could remove its outbox entries


class Upkeep:
    """One beat at a time; what fails is in the status, and tried again at the next one."""

    def __init__(
        self, stores: Stores, switch: RoleSwitch, outbox: Outbox, options: Replication, runtime: Runtime
    ) -> None:
        self._stores = stores
        self._switch = switch
        self._outbox = outbox
        self._options = options
        self._runtime = runtime
        self._looked_at = 0
        self.is_closed = False
        self.busy = runtime.mutex()

    def after_fork(self) -> None:
        self.busy = self._runtime.mutex()

    async def beat(self) -> None:
        """Remove outbox entries that were delivered, transfer the others, and check both stores
        when it is time.
        """
        async with self.busy:
            if self.is_closed:
                return
            try:
                await self._beat()
            # No caller waits for this; it is in the status.
            except Exception as error:  # noqa: BLE001
                self._stores.last_error = f"{type(error).__name__}: {error}"

    async def _beat(self) -> None:
        stores, now = self._stores, self._runtime.now()
        is_due = now - self._looked_at >= self._options.health_check_interval_s * 1e6
        if is_due:
            self._looked_at = now
            await self._check_health()
        if not self._options.enabled:
            return
        await self.flush(_IDLE_S)
        if (self._outbox.is_dirty and stores.health[stores.standby_role].is_healthy) or is_due:
            await self._catch_up(None if is_due else self._outbox.process)

    async def _catch_up(self, process: str | None) -> None:
        stores, outbox = self._stores, self._outbox
        source = stores.active_role
        outbox.is_dirty = False
        try:
            if not stores.is_caught_up:
                await stores.copy_all(source)
            await self._drain(source, process)
        except BaseException:
            outbox.is_dirty = True
            raise
        outbox.is_in_step = True
        if process is None:
            await self._drain(1 - source, None)  # what it had queued when it was left

    async def _drain(self, source: int, process: str | None) -> None:
        queued = self._outbox.queued_in(source)
        await self._stores.drain(source, self._outbox, process=process)
        self._outbox.mark_transferred(source, queued)

    async def flush(self, idle_s: float = 0.0) -> None:
        """Remove the outbox entries of the primary whose changes the secondary has."""
        delivered = self._outbox.take_idle(idle_s)
        try:
            await self._stores.backlog(PRIMARY).remove(delivered.items())
        except OutliveError:
            for key, names in delivered.items():
                self._outbox.mark_delivered(key, names)

    async def _check_health(self) -> None:
        """Ask both stores; fail over or back when that is to happen by itself."""
        stores, options = self._stores, self._options
        await self._switch.refresh()
        primary = stores.health[PRIMARY]
        if not primary.is_healthy:
            if self.may_fail_over() and stores.health[SECONDARY].is_healthy:
                await self._switch.refresh()  # one question without an answer may be a busy machine
                if self.may_fail_over() and not primary.is_healthy and stores.health[SECONDARY].is_healthy:
                    await self._switch.promote(automatic=True)
        elif self._runtime.now() - primary.since >= options.failback_delay_s * 1e6:
            if not stores.is_failed_over:
                stores.automatic = 0  # it is stable
            elif options.auto_failover and options.enabled and not stores.is_manual:
                await self._switch.failback()

    def may_fail_over(self) -> bool:
        """Tell whether the secondary may be promoted by itself."""
        options, stores = self._options, self._stores
        return (
            options.enabled
            and bool(options.auto_failover)
            and (stores.is_announced or not stores.is_failed_over)
            and stores.automatic < options.max_failover_attempts
        )

    async def status(self) -> ReplicationStatus:
        """Return the state of the pair now."""
        stores, options = self._stores, self._options
        if options.enabled:
            try:
                await self._switch.refresh()
            except OutliveError as error:  # it is asked for most when something is wrong
                stores.last_error = str(error)
        figures = await self._figures()
        return ReplicationStatus(
            mode=options.mode,
            on_secondary_down=str(options.on_secondary_down),
            is_enabled=options.enabled,
            active=ROLES[stores.active_role],
            is_failed_over=stores.is_failed_over,
            failed_over_at=_datetime(stores.failed_over_at) if stores.is_failed_over else None,
            epoch=stores.epoch,
            failovers=stores.failovers,
            primary_healthy=stores.health[PRIMARY].is_healthy,
            secondary_healthy=stores.health[SECONDARY].is_healthy,
            is_caught_up=stores.is_caught_up,
            last_error=stores.last_error,
            **figures,
        )

    async def _figures(self) -> dict[str, Any]:
        """Count what is queued; of a store that does not answer, what this process knows."""
        counts = [await self._count(role) for role in (PRIMARY, SECONDARY)]
        known = [count for count in counts if count is not None]
        hidden = [self._outbox.queued_in(role) for role in (PRIMARY, SECONDARY) if counts[role] is None]
        ages = [age_s(keys, self._runtime.now()) for keys in hidden]
        return {
            "queued": sum(count[0] for count in known) + sum(map(len, hidden)),
            "queued_bytes": sum(count[1] for count in known),
            "lag_s": max(*ages, *(count[2] for count in known), 0.0),
            "is_exact": len(known) == len(counts),
            "unreachable": sum(map(len, hidden)),
        }

    async def _count(self, role: int) -> tuple[int, int, float] | None:
        """Count what a store has queued; None when it does not answer."""
        if not self._stores.health[role].is_healthy:
            return None
        try:
            return await self._stores.backlog(role).count(self._outbox.delivered_keys())
        except StoreError as error:
            self._stores.update_health(role, error)
            return None


def _datetime(microseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC)
