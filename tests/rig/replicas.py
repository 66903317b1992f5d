"""Two real stores, each behind a network or on a disk that fails on demand, and pairs of both sync and async."""

import contextlib
import itertools
import os
import threading
import time

import outlive
from outlive.backend import outcome_unknown
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.layers.replication.layer import Replicate
from outlive.layers.replication.options import Replication
from outlive.runtime.runtime import SyncRuntime, run_now
from outlive.store import AsyncStore, Settings
from outlive.sync.store import Store
from outlive.testing.interposed import Interposed
from outlive.testing.patience import PATIENCE_S
from outlive.testing.trial import IO_MODES, _Awaited
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine
from rig.proxy import FaultProxy


class Disk:
    """The disk under a SQLite file, which fails on demand like a network does: see `mode`.

    While it fails, each descriptor that this process has of the file leads to a folder instead: the system refuses every
    read and write with an error.
    """

    def __init__(self, path):
        self.path = os.path.realpath(path)
        self._kept = {}  # descriptor → one of what it was
        self._lock = threading.Lock()

    @property
    def mode(self):
        return "refuse" if self._kept else "pass"

    @mode.setter
    def mode(self, mode):
        with self._lock:
            self._heal() if mode == "pass" else self._fail()

    def _fail(self):
        folder = os.open("/", os.O_RDONLY)
        for descriptor in self._descriptors():  # all of them are known before the first is copied
            self._kept[descriptor] = os.dup(descriptor)
            os.dup2(folder, descriptor, inheritable=False)
        os.close(folder)

    def _descriptors(self):
        found, files = [], {self.path, f"{self.path}-wal"}
        for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {*self._kept.values()}:
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(f"/proc/self/fd/{descriptor}") in files:
                    found.append(descriptor)
        return found

    def _heal(self):
        for descriptor, kept in self._kept.items():
            os.dup2(kept, descriptor, inheritable=False)
            os.close(kept)
        self._kept.clear()

    def drop_connections(self):
        pass

    def through(self, url):
        return url

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.mode = "pass"


class Link:
    """The way of one client to one store, which can be cut: `mode` is pass, refuse, or deaf (it is done, and no answer comes)."""

    def __init__(self, inner):
        self.inner = inner
        self.name = inner.name
        self.mode = "pass"

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            if self.mode == "pass" or name == "close":
                return await method(*args, **options)
            error = outlive.errors.StoreUnavailable(f"the link is {self.mode}")
            if name != "commit_all":
                raise error
            if self.mode == "refuse":
                return [error for _ in args[0]]
            results = await method(*args, **options)
            return [
                outcome_unknown(one, "no answer") if isinstance(result, outlive.backend.Receipt) else error
                for one, result in zip(*args, results, strict=True)
            ]

        return call


class Client:
    """A client of a pair in memory, in which nothing happens by itself: its store, and its links to both backends."""

    def __init__(self, backends, runtime=None, timeout_s=5.0, key=b"k" * 32, **options):
        self.links = [Link(Interposed(backend)) for backend in backends]
        chosen = Replication("", **{"health_check_interval_s": 1000, "auto_failover": False, **options})
        runtime = runtime or SyncRuntime()
        self.pair = Replicate(
            *self.links, chosen, runtime=runtime, naming=lambda key: lambda *chunk: True, timeout_s=timeout_s
        )
        self.pair._keep_beating = lambda: None
        key = run_now(self.pair.identity(key))
        engine = Engine(self.pair, Codec(), Namer(key), Cache(1 << 20), runtime)
        self.store = Store(AsyncStore(engine, Settings("testing:"), pair=self.pair))

    def heal(self):
        for link in self.links:
            link.mode = "pass"

    def beat(self):
        """Do now what is done in the background."""
        self.pair._upkeep._looked_at = 0
        run_now(self.pair._upkeep.beat())

    def at_call(self, number, act):
        """Let something happen before one of the next calls to either store; return a function that tells whether it did."""
        calls, happened = itertools.count(), []

        async def hook(*_):
            if next(calls) == number:
                happened.append(True)
                act()

        for link in self.links:
            link.inner.on_call = hook
        return lambda: bool(happened)


def memories():
    return [SyncLocal(MemoryBackend()), SyncLocal(MemoryBackend())]


QUICK = {"timeout_s": 30, "health_check_interval_s": 0.1, "failback_delay_s": 0}
_number = itertools.count(1)


def hasty(url):
    """Return the URL of a server that is given up soon when it refuses, though it has all the time to answer."""
    if url.startswith("sqlite"):
        return url
    return f"{url}{'&' if '?' in url else '?'}max_retries=3"


def pair_options(secondary, options):
    """Return options as `outlive.open` takes them: those of the pair in one object."""
    pair = {name: options.pop(name) for name in list(options) if name in Replication.__slots__}
    return {**options, "replication": Replication(secondary, **pair)}


def open_pair(primary, secondary, **options):
    """Open two stores, with the options of both kinds in one place."""
    return outlive.open(primary, **pair_options(secondary, options))


class Rig:
    """A Valkey server, or a SQLite file, and a PostgreSQL server. `primary` and `secondary` are what leads to them."""

    def __init__(self, valkey, postgres_url, postgres, driver, disk=None):
        self.driver = driver
        if disk is None:
            self.servers = [valkey, postgres]
            self.urls = f"{valkey.url}?prefix=p{next(_number)}:", postgres_url
            self.primary = FaultProxy(valkey.host, valkey.port)
        else:
            self.servers = [postgres]
            self.urls = f"sqlite:///{disk.path}", postgres_url
            self.primary = disk
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
        """Open the pair; by default nothing happens by itself, and a store may be slow but not refuse."""
        chosen = {**QUICK, "auto_failover": False, **options}
        primary, secondary = self.primary.through(self.urls[0]), self.secondary.through(self.urls[1])
        if "timeout_s" not in options:
            primary, secondary = hasty(primary), hasty(secondary)
        return await self._opened(primary, **pair_options(secondary, chosen))

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
    """Run a scenario in the mode of its rig."""

    async def whole():
        try:
            await scenario(rig)
        finally:
            await rig.close()

    rig.driver.run(whole())


async def ids(store, thread):
    return [one.id async for one in store.thread(thread).history()]


async def until(rig, condition, timeout_s=PATIENCE_S):
    """Wait until something is so."""
    end = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < end, "it did not come to be so"
        await rig.driver.sleep(0.05)


async def drained(rig, store):
    async def is_empty():
        status = await store.replication_status()
        return status.is_exact and status.queued == 0

    await until(rig, is_empty)


__all__ = ["IO_MODES", "Client", "Disk", "Rig", "drained", "hasty", "ids", "memories", "run", "until"]
