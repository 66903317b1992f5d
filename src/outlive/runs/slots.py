"""Limits that hold across processes: a run of a limited agent needs a slot.

A slot is a lock with a lease in a thread of the store itself, one for each run that may work at the
same time. It is taken by compare-and-set before the run is claimed, and freed after the run has
left its handler. So the number is exact, whatever the processes see of each other. The slots of a
process that died are free when their leases end, or at once on its own machine.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence

from outlive.backend import EntryQuery, EntryRecord, ThreadKey
from outlive.backend.records import reserved
from outlive.errors import BadArgument, Corrupt, OutliveError, ThreadBusy
from outlive.runs.lease import LOCK, RUNNING, Lock
from outlive.runs.lock import AsyncLock, LeaseRegistry
from outlive.threads.engine import Engine

_LEASE_S = 30.0
MOST = 1000  # slots of one limit
TENANT = "*"


def check_limits(limits: object, limit_tenant: object) -> dict[str | None, int]:
    """Return how many runs may work at the same time, by agent; of "*" for all agents together."""
    if limits is not None and not isinstance(limits, Mapping):
        raise BadArgument(f'limits must be a dict such as {{"planner": 2}}, not {limits!r:.100}')
    checked = dict(limits or {})
    if TENANT in checked:
        raise BadArgument('limits are for agents by name; for all together use limit_tenant, not "*"')
    if limit_tenant is not None:
        checked[TENANT] = limit_tenant
    for agent, count in checked.items():
        if not isinstance(agent, str | None):
            raise BadArgument(f"limits must have names of agents as keys, not {agent!r:.100}")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            name = "limit_tenant" if agent == TENANT else f"the limit of {agent!r}"
            raise BadArgument(f"{name} must be a whole number, 1 to {MOST:,}, not {count!r:.100}")
    return checked


class Slots:
    """The slots of a tenant, as one worker takes them."""

    def __init__(
        self, engine: Engine, tenant: str, heart: LeaseRegistry, limits: Mapping[str | None, int]
    ) -> None:
        self._engine = engine
        self._key = reserved(f"slots {ThreadKey.of(tenant, '').digest.hex()}")
        self._heart = heart
        self._limits = limits

    async def take(self, agent: str | None) -> list[AsyncLock] | None:
        """Take the slots that a run of an agent needs; None: there is none free."""
        taken: list[AsyncLock] = []
        for name in dict.fromkeys((TENANT, agent)):
            if name not in self._limits:
                continue
            slot = await self._take_one(name, self._limits[name])
            if slot is None:
                await self.free(taken)
                return None
            taken.append(slot)
        return taken

    async def free(self, slots: Sequence[AsyncLock]) -> None:
        """Free slots. If that fails, their leases end."""
        for slot in slots:
            with contextlib.suppress(OutliveError):
                await slot.release()

    async def _take_one(self, name: str | None, limit: int) -> AsyncLock | None:
        """Take one slot of a limit; None if none is free. A crash leaves it to its lease, and to `_is_dead`."""
        prefix = _prefix(name)
        query = EntryQuery(
            self._key.tenant,
            LOCK,
            thread=self._key,
            statuses=[RUNNING],
            lapsed=False,
            prefix=prefix,
            limit=MOST,
        )
        held = {
            entry.key for _, entry in await self._engine.backend.entries(query) if not self._is_dead(entry)
        }
        free = [key for number in range(limit) if (key := f"{prefix}{number}") not in held]
        random.shuffle(free)
        for key in free:
            slot = AsyncLock(self._engine, self._key, key, self._heart, timeout_s=0.001, lease_s=_LEASE_S)
            try:
                return await slot.acquire()
            except ThreadBusy:
                continue  # another process was faster
        return None

    def _is_dead(self, slot: EntryRecord) -> bool:
        """Tell whether the process that holds a slot has certainly ended."""
        try:
            return Lock.unpack(self._engine.codec, slot).owner.is_gone()
        except Corrupt:
            return False  # its lease decides


def _prefix(name: str | None) -> str:
    # The length comes first: no agent's slots begin like those of another.
    return "-\n" if name is None else f"{len(name)}:{name}\n"
