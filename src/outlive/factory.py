"""Open a store: options are checked, backends opened, and layers put around them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, cast

from outlive.arguments import check_choice, check_count, check_durability, check_flag, check_timeout
from outlive.backend import RESERVED, Backend, escape
from outlive.backends.local.sync_local import SharedSyncLocal, SyncLocal
from outlive.backends.server.urls import BackendFactory
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, BadURL, KeyMissing, StoreMissing
from outlive.events import EventSink, Watcher
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.format.program_types import ProgramTypes
from outlive.format.registry import default_registry
from outlive.layers.encryption.keyring import KeyRing, is_encrypted, key_of
from outlive.layers.replication.single import guarded
from outlive.runtime.runtime import SyncRuntime, run_now
from outlive.runtime.wrong_mode import AsyncContext
from outlive.store import AsyncStore, Opener, Settings
from outlive.sync.store import Store
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine
from outlive.urls import BackendOptions, parse_location

if TYPE_CHECKING:
    from outlive.layers.replication.layer import Replicate
    from outlive.layers.replication.options import Replication
    from outlive.retention.policy import Retain
    from outlive.runtime.loop import Home
    from outlive.urls import Location

DEFAULT_CACHE_BYTES = 64 << 20
_DEFAULTS = {"tenant": "", "durability": "sync", "cache_bytes": DEFAULT_CACHE_BYTES, "timeout_s": 30.0}


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What a call of `open` asks for, checked."""

    served: BackendFactory
    settings: Settings
    cache_bytes: int
    events: EventSink
    ring: KeyRing | None = None
    retain: Retain | None = None
    secondary: BackendFactory | None = None
    replication: Replication | None = None
    is_single: bool = False  # one store of a pair is used alone
    creates: bool = True
    codec: Codec = field(default_factory=Codec)


class StoreParts(NamedTuple):
    """What a store is made of: the arguments of `AsyncStore`."""

    engine: Engine
    settings: Settings
    opener: Opener | None
    retain: Retain | None
    pair: Replicate | None


def open(
    url: Location,
    *,
    tenant: str = "",
    durability: Literal["sync", "async"] = "sync",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    timeout_s: float | None = 30.0,
    on_event: Watcher | Sequence[Watcher] | None = None,
    key: KeyRing | None = None,
    retain: Retain | None = None,
    replication: Replication | None = None,
    types: Literal["registered", "program"] = "registered",
    single: bool = False,
    create: bool = True,
    **backend_options: Unpack[BackendOptions],
) -> Store:
    """Open a store: `with outlive.open("agent.db") as store`.

    `url` is the path of a SQLite file or one of: `sqlite:///path.db` (four slashes for an absolute
    path), `file:///folder`, `postgresql://user@host/database`, `redis://host`, `rediss://`,
    `redis+sentinel://host,host/service`, `redis+cluster://host,host`, `memory:`, `null:`, a client
    of redis-py, or a `BackendFactory` or registered scheme of your own (`outlive docs
    writing-a-backend`).

    tenant:       a name; a store shows only the threads of its own tenant
    durability:   "sync": a save is stored when it returns; "async": it is stored in the background
    cache_bytes:  memory for the newest states, so that a save needs to read nothing
    timeout_s:    the longest that a call may take; None for no limit (SQLite and file: 30 s for other processes)
    on_event:     a function that is called with an `outlive.Event` after every save, load, run and sweep, or a list of them
    key:          an `outlive.KeyRing`, to encrypt everything that is stored
    retain:       an `outlive.Retain`, to delete old checkpoints
    replication:  an `outlive.Replication`, to keep everything in a second store too
    types:        "registered": states may hold classes of yours that `outlive.register` knows; "program": all data classes
    single:       use one store of a pair alone; the other one gets everything when both are opened again
    create:       False: raise StoreMissing instead of creating a store that does not exist

    Further options depend on the backend: see `outlive docs backends`. Raises BadURL and
    BadArgument for options that are wrong, and StoreError when the store cannot be opened.
    """
    config = configure(
        url, tenant, durability, cache_bytes, timeout_s, on_event, key, retain, replication, types, single, create, backend_options
    )  # fmt: skip
    return Store(run_now(_open_inline(config)))


def open_async(
    url: Location,
    *,
    tenant: str = "",
    durability: Literal["sync", "async"] = "sync",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    timeout_s: float | None = 30.0,
    on_event: Watcher | Sequence[Watcher] | None = None,
    key: KeyRing | None = None,
    retain: Retain | None = None,
    replication: Replication | None = None,
    types: Literal["registered", "program"] = "registered",
    single: bool = False,
    create: bool = True,
    **backend_options: Unpack[BackendOptions],
) -> PendingStore:
    """Open a store for asyncio: `async with outlive.open_async("agent.db") as store`, or `store = await outlive.open_async(...)`.

    The options are those of `outlive.open`.
    """
    config = configure(
        url, tenant, durability, cache_bytes, timeout_s, on_event, key, retain, replication, types, single, create, backend_options
    )  # fmt: skip
    return PendingStore(config)


class PendingStore(AsyncContext):
    """A store on its way: await it, or use it in `async with`."""

    def __init__(self, target: StoreConfig) -> None:
        self._target = target
        self._store: AsyncStore | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore]:
        return self._open().__await__()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"the store is not open yet: write `async with outlive.open_async(url) as store` or "
            f"`store = await outlive.open_async(url)` before store.{name}"
        )

    async def _open(self) -> AsyncStore:
        return await _open_threaded(self._target)

    async def __aenter__(self) -> AsyncStore:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._store is not None:
            await self._store.close()


def configure(
    url: Location,
    tenant: str = "",
    durability: str = "sync",
    cache_bytes: int = DEFAULT_CACHE_BYTES,
    timeout_s: float | None = 30.0,
    on_event: Watcher | Sequence[Watcher] | None = None,
    key: KeyRing | None = None,
    retain: Retain | None = None,
    replication: Replication | None = None,
    types: str = "registered",
    single: bool = False,
    create: bool = True,
    backend_options: BackendOptions | None = None,
) -> StoreConfig:
    """Check the options of a store, and return what they ask for. Nothing is opened."""
    passed = {"tenant": tenant, "durability": durability, "cache_bytes": cache_bytes, "timeout_s": timeout_s}
    served, in_url = parse_location(url, dict(backend_options or {}))
    for name in in_url:
        if passed[name] != _DEFAULTS[name]:
            raise BadURL(f"option {name!r} is in the URL and beside it; give it once")
    settings = _settings(served.shown, {**passed, **in_url})
    watchers = _check_watchers(on_event)
    if key is not None and not isinstance(key, KeyRing):
        raise BadArgument(f"key must be an outlive.KeyRing({{id: key}}), not {type(key).__name__}")
    config = StoreConfig(
        served,
        settings,
        check_count("cache_bytes", in_url.get("cache_bytes", cache_bytes)),
        EventSink(*watchers),
        key,
        _check_retain(retain),
        codec=_codec(types),
        is_single=check_flag("single", single),
        creates=check_flag("create", create),
    )
    return config if replication is None else _paired(config, url, replication, backend_options or {})


def _settings(url: str, common: dict[str, Any]) -> Settings:
    tenant, timeout_s = common["tenant"], common["timeout_s"]
    if not isinstance(tenant, str) or len(tenant) > 1000 or tenant.startswith(RESERVED):
        raise BadArgument(f"tenant must be a str of at most 1,000 characters, not {tenant!r:.100}")
    timeout_s = None if timeout_s is None else check_timeout(timeout_s)
    return Settings(url, tenant, check_durability(common["durability"]), timeout_s)


def _check_watchers(on_event: object) -> tuple[Watcher, ...]:
    if on_event is None:
        return ()
    watchers = tuple(on_event) if isinstance(on_event, list | tuple) else (on_event,)
    for watcher in watchers:
        if not callable(watcher):
            raise BadArgument(
                f"on_event must be a function that takes an outlive.Event, or a list of them, not {watcher!r:.100}"
            )
    return watchers


def _codec(types: str) -> Codec:
    check_choice("types", types, ("registered", "program"))
    return Codec(_of_program) if types == "program" else Codec()


_of_program = ProgramTypes(default_registry)  # one for all stores: what one has seen, another can load


def _check_retain(retain: object) -> Retain | None:
    if retain is None:
        return None
    from outlive.retention.policy import Retain

    if not isinstance(retain, Retain):
        raise BadArgument(f"retain must be an outlive.Retain(keep_last=..., ...), not {retain!r:.100}")
    return retain


def _paired(config: StoreConfig, url: Any, replication: object, backend_options: Any) -> StoreConfig:
    """Add the second store."""
    from outlive.layers.replication.options import Replication

    if not isinstance(replication, Replication):
        raise BadArgument(f"replication must be an outlive.Replication(secondary), not {replication!r:.100}")
    if config.is_single:
        raise BadArgument("single=True uses one store alone; leave out replication=, or single=")
    second = replication.secondary
    schemes = [str(where).partition(":")[0] for where in (url, second)]
    if "null" in schemes:
        raise BadURL("null: keeps nothing, so it cannot be one of two stores; leave out replication=")
    if second == url and schemes[0] != "memory":
        raise BadURL("the secondary is the primary; give the URL of another store")
    if "ttl_s" in backend_options or "ttl_s=" in f"{url} {second}":
        raise BadURL(
            "ttl_s and replication= exclude each other: what expires in one store comes back from the other"
        )
    served, in_url = parse_location(second, {})
    if in_url:
        raise BadURL(f"option {min(in_url)!r} holds for both stores: give it with the first URL")
    return replace(config, secondary=served, replication=replication)


async def _open_inline(target: StoreConfig) -> AsyncStore:
    return AsyncStore(*await open_parts(target))


async def open_parts(target: StoreConfig) -> StoreParts:
    """Open what a sync store is made of, for a program that reads below the store."""

    async def another(url: str, tenant: str) -> AsyncStore:
        return await _open_inline(configure(url, tenant, key=target.ring))

    def opener(served: BackendFactory) -> Callable[[], Awaitable[Backend]]:
        async def make() -> Backend:
            return served.sync(target.settings.timeout_s)

        return make if target.creates else lambda: existing_backend(served, make)

    runtime = SyncRuntime()
    primary, secondary = await _made(target, opener, runtime)
    return await _build(primary, secondary, target, runtime, another)


async def _open_threaded(target: StoreConfig) -> AsyncStore:
    from outlive.runtime.loop import AsyncRuntime, Homed

    async def another(url: str, tenant: str) -> AsyncStore:
        return await _open_threaded(configure(url, tenant, key=target.ring))

    def opener(served: BackendFactory) -> Callable[[], Awaitable[Backend]]:
        def make() -> Awaitable[Backend]:
            return served.asynchronous(target.settings.timeout_s)

        return make if target.creates else lambda: existing_backend(served, make)

    runtime = AsyncRuntime()
    primary, secondary = await _made(target, opener, runtime)
    homed = [
        None if backend is None else cast(Backend, Homed(backend, runtime.home))
        for backend in (primary, secondary)
    ]
    assert homed[0] is not None
    store = AsyncStore(*await _build(homed[0], homed[1], target, runtime, another))
    store._sync_sibling = lambda: _sync_sibling(primary, secondary, target)
    store._sync_api = Store
    return store


async def existing_backend(served: BackendFactory, make: Callable[[], Awaitable[Backend]]) -> Backend:
    """Open a backend only if there is a store in it: opening would otherwise create one."""
    if served.is_missing is not None and served.is_missing():
        raise StoreMissing(served.shown)
    backend = await make()
    try:
        # A server answers whether or not there is a store in it. It adopts no naming key when none
        # is offered.
        if served.is_missing is None and not await backend.identity(b""):
            raise StoreMissing(served.shown)
    except BaseException:
        await backend.close()
        raise
    return backend


async def _made(
    target: StoreConfig,
    opener: Callable[[BackendFactory], Callable[[], Awaitable[Backend]]],
    runtime: SyncRuntime,
) -> tuple[Backend, Backend | None]:
    """Return the backends.

    One of a pair may be out of reach: then the other one tells what to do.
    """
    if target.secondary is None:
        return await opener(target.served)(), None
    from outlive.layers.replication.lazy_store import open_lazily

    primary = await open_lazily(target.served.shown, opener(target.served), runtime)
    try:
        return primary, await open_lazily(target.secondary.shown, opener(target.secondary), runtime)
    except BaseException:
        await primary.close()
        raise


def _sync_sibling(primary: Backend, secondary: Backend | None, target: StoreConfig) -> AsyncStore:
    """Return a sync store on an open async one; closing it leaves the async one open."""
    from outlive.backends.local.async_local import AsyncLocal

    def same(backend: Backend, served: BackendFactory) -> Backend:
        if isinstance(backend, AsyncLocal):
            return cast(Backend, SharedSyncLocal(backend.local))
        return served.sync(target.settings.timeout_s)

    other = None
    if secondary is not None and target.secondary is not None:
        other = same(secondary, target.secondary)
    first, target = same(primary, target.served), replace(target, retain=None)
    return AsyncStore(*run_now(_build(first, other, target, SyncRuntime(), None)))


def async_sibling(store: AsyncStore) -> AsyncStore | None:
    """Return an async store on an open sync one, with the same cache; None where that needs other connections.

    It works in the event loop that calls it, knows nothing of retention and of delayed saves, and
    ends with the sync store, which alone closes the backend.
    """
    from outlive.runtime.loop import AsyncRuntime

    engine, runtime = store._engine, AsyncRuntime()
    backend = _on_loop(engine.backend, runtime.home)
    if backend is None or store._durability != "sync" or store._sweeper is not None:
        return None
    beside = Engine(
        backend, engine.codec, engine.namer, engine.cache, runtime, events=engine.events, timeout_s=engine.timeout_s
    )  # fmt: skip
    return AsyncStore(beside, store._settings)


def _on_loop(backend: Backend, home: Home) -> Backend | None:
    """Return a backend of a sync store as an event loop can use it; None for a server's and for a pair."""
    from outlive.backends.local.async_local import SharedAsyncLocal
    from outlive.runtime.loop import Homed

    if isinstance(backend, SyncLocal):
        return cast(Backend, Homed(SharedAsyncLocal(backend.local, backend.is_closed), home))
    ring = getattr(backend, "ring", None)
    if not isinstance(ring, KeyRing):
        return None
    inner = _on_loop(cast(Any, backend).inner, home)  # of the layer that encrypts
    return None if inner is None else _encrypting(inner, ring)


async def _build(
    primary: Backend,
    secondary: Backend | None,
    target: StoreConfig,
    runtime: SyncRuntime,
    opener: Opener | None,
) -> StoreParts:
    pair = None if secondary is None else _replicated(primary, secondary, target, runtime)
    backend = _encrypting(primary if pair is None else cast(Backend, pair), target.ring)
    try:
        key = await backend.identity(secrets.token_bytes(32))
        if is_encrypted(key):
            raise KeyMissing(key_of(await _newest(backend) or key))
        if pair is None:
            settings = target.settings
            alone = await guarded(primary, settings.tenant, settings.timeout_s, may_write=target.is_single)
            backend = _encrypting(alone, target.ring)
    except BaseException:
        await backend.close()
        raise
    namer = _namer(key, target.settings.tenant)
    confirm = {} if pair is None else {"confirm_deletion": pair.confirm_deletion}
    engine = Engine(
        backend, target.codec, namer, Cache(target.cache_bytes), runtime,
        events=target.events, timeout_s=target.settings.timeout_s, **confirm,
    )  # fmt: skip
    return StoreParts(engine, target.settings, opener, target.retain, pair)


def _encrypting(backend: Backend, ring: KeyRing | None) -> Backend:
    """Return a backend that encrypts, if there are keys.

    It wraps a pair, so both stores have the same bytes.
    """
    if ring is None:
        return backend
    from outlive.layers.encryption.layer import Encrypted

    return Encrypted(backend, ring)


async def _newest(backend: Backend) -> bytes | None:
    """Return the naming key as the last rotation encrypted it, if there was one."""
    from outlive.layers.encryption.layer import current_naming_key

    entry = await current_naming_key(backend)
    return None if entry is None else entry.body


def _namer(key: bytes, tenant: str) -> Namer:
    """Return what names the chunks of one tenant.

    Equal chunks of two tenants have different names.
    """
    if tenant:
        key = hashlib.blake2b(
            escape(tenant).encode(), digest_size=32, key=key, person=b"outlive.tenant"
        ).digest()
    return Namer(key)


def _replicated(primary: Backend, secondary: Backend, target: StoreConfig, runtime: SyncRuntime) -> Replicate:
    from outlive.layers.replication.layer import Replicate

    assert target.replication is not None

    def naming(key: bytes) -> Callable[[bytes, bytes], bool]:
        if target.ring is not None or is_encrypted(key):
            # Decrypting a chunk shows whether it is the one that was named.
            return lambda name, data: True
        namer = _namer(key, target.settings.tenant)
        return lambda name, data: namer.name(data) == name

    return Replicate(
        primary, secondary, target.replication, runtime=runtime, naming=naming, tenant=target.settings.tenant,
        timeout_s=target.settings.timeout_s, events=target.events,
    )  # fmt: skip
