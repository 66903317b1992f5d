"""Two real servers, each behind a network that fails on demand, and stores over both in both colours."""

import contextlib
import itertools

import outlive
from outlive.testing.proxy import FaultProxy
from outlive.testing.trial import COLOURS, _Awaited

QUICK = {"timeout_s": 0.8, "health_check_interval_s": 0.1, "failback_delay_s": 0}
_number = itertools.count(1)


class Rig:
    """A Valkey and a PostgreSQL server. `primary` and `secondary` are the networks that lead to them."""

    def __init__(self, valkey, postgres_url, postgres, driver):
        prefix = f"p{next(_number)}:"
        self.driver = driver
        self.servers = valkey, postgres
        self.urls = f"{valkey.url}?prefix={prefix}", postgres_url
        self.primary = FaultProxy(valkey.host, valkey.port)
        self.secondary = FaultProxy(postgres.host, postgres.port)
        self._stack = contextlib.ExitStack()
        self._open = []

    def __enter__(self):
        for proxy in (self.primary, self.secondary):
            self._stack.enter_context(proxy)
        return self

    def __exit__(self, *error):
        self.heal()
        self._stack.close()

    async def open(self, **options):
        """Open the pair; by default nothing happens by itself."""
        chosen = {**QUICK, "auto_failover": False, **options}
        return await self._opened(
            self.primary.through(self.urls[0]), secondary=self.secondary.through(self.urls[1]), **chosen
        )

    async def alone(self, which):
        """Open one of the two stores by itself, past the network."""
        return await self._opened(self.urls[which])

    async def _opened(self, url, **options):
        if self.driver.runtime.thread_ident() is None:
            store = await outlive.open_async(url, **options)
        else:
            store = _Awaited(outlive.open(url, **options))
        self._open.append(store)
        return store

    async def close(self):
        self.heal()
        for store in self._open:
            await store.close()

    def cut(self, *proxies):
        """Make a server unreachable: at once, by a reset."""
        for proxy in proxies:
            proxy.mode = "refuse"
            proxy.drop_connections()

    def heal(self):
        for proxy in (self.primary, self.secondary):
            if proxy.mode != "pass":
                proxy.mode = "pass"


def run(rig, scenario):
    """Run a scenario in the colour of its rig."""

    async def whole():
        try:
            await scenario(rig)
        finally:
            await rig.close()

    rig.driver.run(whole())


async def ids(store, thread):
    return [one.id async for one in store.thread(thread).history()]


async def until(rig, condition, timeout_s=8.0):
    """Wait until something is so."""
    for _ in range(int(timeout_s / 0.05)):
        if await condition():
            return
        await rig.driver.sleep(0.05)
    raise AssertionError("it did not come to be so")


async def drained(rig, store):
    async def is_empty():
        status = await store.replication_status()
        return status.is_exact and status.queued == 0

    await until(rig, is_empty)


__all__ = ["COLOURS", "Rig", "drained", "ids", "run", "until"]
