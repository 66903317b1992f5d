"""What is done in the background for a pair: carrying over what is queued, looking after both stores, changing places."""

from __future__ import annotations

import datetime as dt
from typing import Any

from outlive.errors import OutliveError, StoreError
from outlive.layers.replication.note import age_s
from outlive.layers.replication.options import Replication, ReplicationStatus
from outlive.layers.replication.pair import PRIMARY, ROLES, SECONDARY
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.stores import Stores
from outlive.layers.replication.switch import Switching
from outlive.runtime.runtime import Runtime

_IDLE_S = 1.0  # for which a thread had no commit that could take its notes off


class Upkeep:
    """One beat at a time; what goes wrong is in the status, and tried again at the next one."""

    def __init__(
        self, stores: Stores, switching: Switching, queue: Queue, options: Replication, runtime: Runtime
    ) -> None:
        self._stores = stores
        self._switching = switching
        self._queue = queue
        self._options = options
        self._runtime = runtime
        self._looked_at = 0
        self.is_over = False
        self.busy = runtime.mutex()

    def after_fork(self) -> None:
        self.busy = self._runtime.mutex()

    async def beat(self) -> None:
        """Take off the queue what is done, carry over what is not, and look after both stores when it is time."""
        async with self.busy:
            if self.is_over:
                return
            try:
                await self._beat()
            except Exception as error:  # noqa: BLE001  # nobody waits for this; the status tells
                self._stores.last_error = f"{type(error).__name__}: {error}"

    async def _beat(self) -> None:
        stores, now = self._stores, self._runtime.now()
        is_due = now - self._looked_at >= self._options.health_check_interval_s * 1e6
        if is_due:
            self._looked_at = now
            await self._look_after()
        if not self._options.enabled:
            return
        await self.flush(_IDLE_S)
        if (self._queue.is_dirty and stores.health[1 - stores.epoch % 2].is_healthy) or is_due:
            await self._catch_up(None if is_due else self._queue.mine)

    async def _catch_up(self, mine: str | None) -> None:
        stores, queue = self._stores, self._queue
        source = stores.epoch % 2
        queue.is_dirty = False
        try:
            if not stores.is_whole:
                await stores.copy_all(source)
            await self._drain(source, mine)
        except BaseException:
            queue.is_dirty = True
            raise
        queue.in_step = True
        if mine is None:
            await self._drain(1 - source, None)  # what it had queued when it was left

    async def _drain(self, source: int, mine: str | None) -> None:
        left = self._queue.left_in(source)
        await self._stores.drain(source, self._queue, mine=mine)
        self._queue.has_carried(source, left)

    async def flush(self, idle_s: float = 0.0) -> None:
        """Take off the queue of the primary what the secondary has."""
        done = self._queue.take_idle(idle_s)
        try:
            await self._stores.backlog(PRIMARY).take_off(done.items())
        except OutliveError:
            for key, names in done.items():
                self._queue.finish(key, names)

    async def _look_after(self) -> None:
        """See how both stores are; fail over or back when that is to happen by itself."""
        stores, options = self._stores, self._options
        await self._switching.refresh()
        primary = stores.health[PRIMARY]
        if not primary.is_healthy:
            if self.may_fail_over() and stores.health[SECONDARY].is_healthy:
                await self._switching.refresh()  # one question without an answer may be a busy machine
                if self.may_fail_over() and not primary.is_healthy and stores.health[SECONDARY].is_healthy:
                    await self._switching.promote(automatic=True)
        elif self._runtime.now() - primary.since >= options.failback_delay_s * 1e6:
            if not stores.is_failed_over:
                stores.automatic = 0  # it is stable
            elif options.auto_failover and options.enabled and not stores.is_manual:
                await self._switching.failback()

    def may_fail_over(self) -> bool:
        """Tell whether the secondary may be promoted without anybody saying so."""
        options, stores = self._options, self._stores
        return (
            options.enabled
            and bool(options.auto_failover)
            and (stores.is_announced or not stores.is_failed_over)
            and stores.automatic < options.max_failover_attempts
        )

    async def status(self) -> ReplicationStatus:
        """Return how the pair is now."""
        stores, options = self._stores, self._options
        if options.enabled:
            try:
                await self._switching.refresh()
            except OutliveError as error:  # it is asked for most when something is wrong
                stores.last_error = str(error)
        figures = await self._figures()
        return ReplicationStatus(
            mode=options.mode,
            on_secondary_down=str(options.on_secondary_down),
            is_enabled=options.enabled,
            active=ROLES[stores.epoch % 2],
            is_failed_over=stores.is_failed_over,
            failed_over_at=_moment(stores.failed_over_at) if stores.is_failed_over else None,
            epoch=stores.epoch,
            failovers=stores.failovers,
            primary_healthy=stores.health[PRIMARY].is_healthy,
            secondary_healthy=stores.health[SECONDARY].is_healthy,
            is_whole=stores.is_whole,
            last_error=stores.last_error,
            **figures,
        )

    async def _figures(self) -> dict[str, Any]:
        """Count what is queued; where a store does not answer, what this process knows of it."""
        counts = [await self._count(role) for role in (PRIMARY, SECONDARY)]
        known = [one for one in counts if one is not None]
        hidden = [self._queue.left_in(role) for role in (PRIMARY, SECONDARY) if counts[role] is None]
        ages = [age_s(keys, self._runtime.now()) for keys in hidden]
        return {
            "queued": sum(one[0] for one in known) + sum(map(len, hidden)),
            "queued_bytes": sum(one[1] for one in known),
            "lag_s": max(*ages, *(one[2] for one in known), 0.0),
            "is_exact": len(known) == len(counts),
            "unreachable": sum(map(len, hidden)),
        }

    async def _count(self, role: int) -> tuple[int, int, float] | None:
        """Count what a store has queued; None when it does not answer."""
        if not self._stores.health[role].is_healthy:
            return None
        try:
            return await self._stores.backlog(role).count(self._queue.done_keys())
        except StoreError as error:
            self._stores.note_health(role, error)
            return None


def _moment(microseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(microseconds / 1e6, dt.UTC)
