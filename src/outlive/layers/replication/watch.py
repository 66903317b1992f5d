"""Waiting for work in a pair: in the store that is active."""

from __future__ import annotations

from outlive.backend import Watch
from outlive.errors import OutliveError
from outlive.layers.replication.stores import Stores
from outlive.runtime.runtime import Deadline

_LOOK_S = 1.0  # between looks at which store is active


class PairWatch:
    """Watches the active store, and the other one after they have changed roles."""

    def __init__(self, stores: Stores, tenant: str) -> None:
        self._stores = stores
        self._tenant = tenant
        self._role: int | None = None
        self._inner: Watch | None = None

    async def follow(self) -> bool:
        """Watch the store that is active now; tell whether it is another one than before."""
        role = self._stores.active_role
        if role == self._role and self._inner is not None:
            return False
        await self.close()
        self._inner = await self._stores.both[role].watch(self._tenant)
        self._role = role
        return True

    async def wait(self, timeout_s: float) -> bool:
        """Return True when work was stored, False when the time is over."""
        deadline = Deadline(timeout_s)
        while True:
            share_s = min(deadline.remaining_s(), _LOOK_S)
            try:
                if await self.follow():
                    return True
            except OutliveError:  # a store that could not be opened so far
                await self._stores.runtime.sleep(share_s)
            if self._inner is not None and await self._inner.wait(share_s):
                return True
            if not deadline.remaining_s():
                return False

    async def close(self) -> None:
        """Stop watching."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await inner.close()
