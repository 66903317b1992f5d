"""From a URL to a store: which backend, which options, and the sentence that mends a wrong one."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote

from outlive.backend import RESERVED, Backend, escape
from outlive.backends.local.inline import Local, SharedSyncLocal, SyncLocal
from outlive.backends.local.memory import MemoryBackend, NullBackend
from outlive.backends.server.urls import BackendFactory, hide_secrets, take_options
from outlive.errors import BadArgument, BadURL, KeyMissing
from outlive.events import EventSink
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.layers.encryption.keyring import KeyRing, is_sealed, key_of
from outlive.layers.replication.single import guarded
from outlive.runtime.runtime import SyncRuntime, run_now
from outlive.runtime.wrong_mode import AsyncContext
from outlive.store import AsyncStore, Opener, Settings, check_durability, check_timeout
from outlive.sync.facades import Store
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine

if TYPE_CHECKING:
    import redis
    import redis.asyncio

    from outlive.layers.replication.layer import Replicate
    from outlive.layers.replication.options import Replication
    from outlive.retention.policy import Retain

    RedisClient = redis.Redis | redis.RedisCluster | redis.asyncio.Redis | redis.asyncio.RedisCluster

DEFAULT_CACHE_BYTES = 64 << 20
_PAIR = (
    "secondary", "replication", "on_secondary_down", "enable_replication", "health_check_interval_s", "auto_failover",
    "max_failover_attempts", "failback_delay_s",
)  # fmt: skip
_COMMON = ("tenant", "durability", "cache_bytes", "timeout_s", "on_event", "key", "retain")
_EXAMPLES = (
    "sqlite:///agent.db  file:///folder  postgresql://host/database  redis://host  redis+sentinel://host/service  "
    "redis+cluster://host  memory:  null:"
)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """What a URL and its options ask for."""

    served: BackendFactory
    settings: Settings
    cache_bytes: int
    watched: EventSink
    ring: KeyRing | None = None
    retain: Retain | None = None
    secondary: BackendFactory | None = None
    replication: Replication | None = None
    is_alone: bool = False  # it goes on by itself, if it is one of a pair


def open(url: str | RedisClient, **options: Any) -> Store:
    """Open a store.

    URLs: `sqlite:///path.db` (four slashes for an absolute path), `file:///folder`, `postgresql://user@host/database`,
    `redis://host`, `rediss://`, `redis+sentinel://host,host/service`, `redis+cluster://host,host`, `memory:`, `null:`.
    In place of a URL a client of redis-py will do.
    Options for all: tenant="", durability="sync" | "async", cache_bytes=64 MiB, timeout_s=30, on_event=function,
    key=outlive.KeyRing({id: key}) to seal what is stored, retain=outlive.Retain(...) to let old states go.
    For file and SQLite: fsync="full" | "normal"; for SQLite: accept_loss=True, to open a store whose log is damaged; for servers see docs/backends.md.
    With secondary=url there are two stores, of which either may fail: see docs/replication.md.
    Raises BadURL for what it does not understand, StoreError when the store cannot be opened.
    """
    return Store(run_now(_open_inline(_parse(url, options))))


def open_async(url: str | RedisClient, **options: Any) -> PendingStore:
    """Open a store whose methods are awaited: `async with outlive.open_async(url) as store`, or `await` it."""
    return PendingStore(_parse(url, options))


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


async def _open_inline(target: StoreConfig) -> AsyncStore:
    async def another(url: str, tenant: str) -> AsyncStore:
        return await _open_inline(_parse(url, {"tenant": tenant, "key": target.ring}))

    def opener(served: BackendFactory) -> Callable[[], Awaitable[Backend]]:
        async def make() -> Backend:
            return served.sync(target.settings.timeout_s)

        return make

    runtime = SyncRuntime()
    primary, secondary = await _made(target, opener, runtime)
    return await _build(primary, secondary, target, runtime, another, checks_pair=True)


async def _open_threaded(target: StoreConfig) -> AsyncStore:
    from outlive.runtime.loop import AsyncRuntime, Homed

    async def another(url: str, tenant: str) -> AsyncStore:
        return await _open_threaded(_parse(url, {"tenant": tenant, "key": target.ring}))

    def opener(served: BackendFactory) -> Callable[[], Awaitable[Backend]]:
        return lambda: served.asynchronous(target.settings.timeout_s)

    runtime = AsyncRuntime()
    primary, secondary = await _made(target, opener, runtime)
    homed = [None if one is None else cast(Backend, Homed(one, runtime.home)) for one in (primary, secondary)]
    assert homed[0] is not None
    store = await _build(homed[0], homed[1], target, runtime, another, checks_pair=True)
    store._sync_sibling = lambda: _sync_sibling(primary, secondary, target)
    return store


async def _made(
    target: StoreConfig,
    opener: Callable[[BackendFactory], Callable[[], Awaitable[Backend]]],
    runtime: SyncRuntime,
) -> tuple[Backend, Backend | None]:
    """Return the backends. One of a pair may be out of reach: then the other one tells what to do."""
    if target.secondary is None:
        return await opener(target.served)(), None
    from outlive.layers.replication.lazy_store import made

    primary = await made(target.served.shown, opener(target.served), runtime)
    try:
        return primary, await made(target.secondary.shown, opener(target.secondary), runtime)
    except BaseException:
        await primary.close()
        raise


def _sync_sibling(primary: Backend, secondary: Backend | None, target: StoreConfig) -> AsyncStore:
    """Return what an async store has as a store of the sync mode; closing it leaves the other as it is."""
    from outlive.backends.local.threaded import AsyncLocal

    def same(backend: Backend, served: BackendFactory) -> Backend:
        if isinstance(backend, AsyncLocal):
            return cast(Backend, SharedSyncLocal(backend.local))
        return served.sync(target.settings.timeout_s)

    other = None
    if secondary is not None and target.secondary is not None:
        other = same(secondary, target.secondary)
    first, target = same(primary, target.served), replace(target, retain=None)
    return run_now(_build(first, other, target, SyncRuntime(), None, checks_pair=True))


async def _build(
    primary: Backend,
    secondary: Backend | None,
    target: StoreConfig,
    runtime: SyncRuntime,
    opener: Opener | None,
    *,
    checks_pair: bool = False,
) -> AsyncStore:
    pair = None if secondary is None else _replicated(primary, secondary, target, runtime)
    backend = _sealing(primary if pair is None else cast(Backend, pair), target.ring)
    try:
        key = await backend.identity(secrets.token_bytes(32))
        if is_sealed(key):
            raise KeyMissing(key_of(await _newest(backend) or key))
        if pair is None and checks_pair:
            settings, goes_on = target.settings, target.is_alone
            alone = await guarded(primary, settings.tenant, settings.timeout_s, goes_on=goes_on)
            backend = _sealing(alone, target.ring)
    except BaseException:
        await backend.close()
        raise
    namer = _namer(key, target.settings.tenant)
    confirm = {} if pair is None else {"confirm": pair.confirm}
    engine = Engine(
        backend, Codec(), namer, Cache(target.cache_bytes), runtime,
        watched=target.watched, timeout_s=target.settings.timeout_s, **confirm,
    )  # fmt: skip
    return AsyncStore(engine, target.settings, opener, retain=target.retain, pair=pair)


def _sealing(backend: Backend, ring: KeyRing | None) -> Backend:
    """Return a backend that seals, if there are keys: around a pair, so that both stores hold the same bytes."""
    if ring is None:
        return backend
    from outlive.layers.encryption.layer import Encrypted

    return Encrypted(backend, ring)


async def _newest(backend: Backend) -> bytes | None:
    """Return the naming key as it is sealed now, when the keys were rotated."""
    from outlive.layers.encryption.naming_key import current_naming_key

    found = await current_naming_key(backend)
    return None if found is None else found.body


def _namer(key: bytes, tenant: str) -> Namer:
    """Return what names the chunks of one tenant: equal ones of two tenants have other names, which nobody can compare."""
    if tenant:
        key = hashlib.blake2b(
            escape(tenant).encode(), digest_size=32, key=key, person=b"outlive.tenant"
        ).digest()
    return Namer(key)


def _replicated(primary: Backend, secondary: Backend, target: StoreConfig, runtime: SyncRuntime) -> Replicate:
    from outlive.layers.replication.layer import Replicate

    assert target.replication is not None

    def naming(key: bytes) -> Callable[[bytes, bytes], bool]:
        if target.ring is not None or is_sealed(
            key
        ):  # whoever opens it sees whether it is what it was named for
            return lambda name, data: True
        namer = _namer(key, target.settings.tenant)
        return lambda name, data: namer.name(data) == name

    return Replicate(
        primary, secondary, target.replication, runtime=runtime, naming=naming, tenant=target.settings.tenant,
        timeout_s=target.settings.timeout_s, watched=target.watched,
    )  # fmt: skip


def _parse(where: Any, options: dict[str, Any]) -> StoreConfig:
    """Read a URL or a client, and the options in it and beside it."""
    pair = {name: value for name, value in options.items() if name in _PAIR}
    served, common = _serve(where, {name: value for name, value in options.items() if name not in pair})
    settings = _settings(served.shown, common)
    target = StoreConfig(
        served, settings, _cache_bytes(common), _watched(common), _ring(common), _retain(common)
    )
    return target if not pair else _paired(target, where, options, pair)


def _paired(target: StoreConfig, where: Any, options: dict[str, Any], pair: dict[str, Any]) -> StoreConfig:
    """Add the second store."""
    from outlive.layers.replication.options import Replication

    second = pair.pop("secondary", None)
    replication = Replication.of(pair)
    if second is None and pair.keys() == {"enable_replication"} and not replication.is_enabled:
        return replace(target, is_alone=True)
    if second is None:
        raise BadURL(f"{min(pair, default='secondary')} needs a second store; give secondary=url beside it")
    shown = [str(where).partition(":")[0], str(second).partition(":")[0]]
    if "null" in shown:
        raise BadURL("null: keeps nothing, so it cannot be one of two stores; leave secondary= out")
    if second == where and shown[0] != "memory":
        raise BadURL("the secondary is the primary; give the URL of another store")
    if "ttl_s" in options or "ttl_s=" in f"{where} {second}":
        raise BadURL(
            "ttl_s and secondary= do not go together: what expires in one store comes back from the other"
        )
    served, common = _serve(second, {})
    if common:
        raise BadURL(f"option {min(common)!r} holds for both stores: give it beside the first URL")
    return replace(target, secondary=served, replication=replication)


def _serve(where: Any, options: dict[str, Any]) -> tuple[BackendFactory, dict[str, Any]]:
    parse_url: Callable[[Any, dict[str, Any]], BackendFactory]
    if type(where).__module__.partition(".")[0] == "redis":
        from outlive.backends.redis.urls import serve_client as parse_url
    else:
        parse_url = _SCHEMES[_scheme(where)]
        where, options = take_options(where, options, _COMMON)
    common = {name: _from_text(name, value) for name, value in options.items() if name in _COMMON}
    return parse_url(where, {name: value for name, value in options.items() if name not in _COMMON}), common


def _scheme(url: Any) -> str:
    if not isinstance(url, str):
        hint = f"; for a path write 'sqlite:///{os.fspath(url)}'" if isinstance(url, os.PathLike) else ""
        raise BadURL(f"a store is opened by a URL, not by {type(url).__name__}{hint}")
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in _SCHEMES:
        raise BadURL(f"{hide_secrets(url)[:200]!r} has no scheme that outlive knows; use one of: {_EXAMPLES}")
    return scheme


def _from_text(name: str, value: Any) -> Any:
    """Read an option that stands in the URL."""
    if not isinstance(value, str):
        return value
    kind = {"timeout_s": float, "cache_bytes": int}.get(name, str)
    try:
        return kind(value)
    except ValueError:
        raise BadURL(f"option {name!r} must be a number, not {value!r}") from None


def _settings(url: str, common: dict[str, Any]) -> Settings:
    tenant = common.get("tenant", "")
    if not isinstance(tenant, str) or len(tenant) > 1000 or tenant.startswith(RESERVED):
        raise BadArgument(f"tenant must be a str of at most 1,000 characters, not {tenant!r:.100}")
    timeout_s = common.get("timeout_s", 30.0)
    timeout_s = None if timeout_s is None else check_timeout(timeout_s)
    return Settings(url, tenant, check_durability(common.get("durability", "sync")), timeout_s)


def _cache_bytes(common: dict[str, Any]) -> int:
    value = common.get("cache_bytes", DEFAULT_CACHE_BYTES)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadArgument(f"cache_bytes must be 0 or more, not {value!r}")
    return value


def _watched(common: dict[str, Any]) -> EventSink:
    watcher = common.get("on_event")
    if watcher is not None and not callable(watcher):
        raise BadArgument(f"on_event must be a function that takes an outlive.Event, not {watcher!r:.100}")
    return EventSink(watcher)


def _ring(common: dict[str, Any]) -> KeyRing | None:
    ring = common.get("key")
    if ring is not None and not isinstance(ring, KeyRing):
        raise BadArgument(f"key must be an outlive.KeyRing({{id: key}}), not {type(ring).__name__}")
    return ring


def _retain(common: dict[str, Any]) -> Retain | None:
    retain = common.get("retain")
    if retain is None:
        return None
    from outlive.retention.policy import Retain

    if not isinstance(retain, Retain):
        raise BadArgument(f"retain must be an outlive.Retain(keep_last=..., ...), not {retain!r:.100}")
    return retain


def _refuse_rest(scheme: str, options: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    for name in options:
        if name not in known:
            names = ", ".join(sorted((*_COMMON, *known)))
            raise BadURL(f"{scheme}: has no option {name!r}; it has {names}")


def _local(shown: str, make: Callable[[float | None], Local]) -> BackendFactory:
    async def asynchronous(timeout_s: float | None) -> Backend:
        from outlive.backends.local.threaded import AsyncLocal, in_thread

        return cast(Backend, AsyncLocal(await in_thread(lambda: make(timeout_s))))

    return BackendFactory(shown, lambda timeout_s: cast(Backend, SyncLocal(make(timeout_s))), asynchronous)


def _parts(url: str, options: dict[str, Any], known: tuple[str, ...] = ()) -> tuple[str, str, dict[str, Any]]:
    """Return the scheme of a local store, what follows it, and its options."""
    names = {name for name, _ in parse_qsl(url.partition("?")[2], keep_blank_values=True)}
    url, options = take_options(url, options, names)
    scheme, _, rest = url.partition("?")[0].partition(":")
    _refuse_rest(scheme, options, known)
    return scheme, unquote(rest), options


def _fsync(options: dict[str, Any]) -> str:
    value = options.get("fsync", "full")
    if value not in ("full", "normal"):
        raise BadURL(f'fsync must be "full" or "normal", not {value!r}')
    return str(value)


def _flag(name: str, options: dict[str, Any]) -> bool:
    value = options.get(name, False)
    if value in ("true", "false"):  # in the URL
        return bool(value == "true")
    if not isinstance(value, bool):
        raise BadURL(f"{name} must be True or False, not {value!r}")
    return value


def _memory(url: str, options: dict[str, Any]) -> BackendFactory:
    scheme, rest, _ = _parts(url, options)
    if rest.strip("/"):
        raise BadURL(f"{scheme}: takes no path; write just {scheme + ':'!r}")
    return _local(f"{scheme}:", lambda _: MemoryBackend() if scheme == "memory" else NullBackend())


def _path(scheme: str, rest: str, example: str) -> str:
    if rest.startswith("///"):
        path = rest[2:] if scheme == "file" else rest[3:]
    elif rest.startswith("//"):
        raise BadURL(f"{scheme}: takes no host; write {example}")
    else:
        path = rest
    if not path.strip("/") or "\0" in path:
        raise BadURL(f"{scheme}: needs a path; write {example}")
    return path


def _sqlite(url: str, options: dict[str, Any]) -> BackendFactory:
    scheme, rest, options = _parts(url, options, ("fsync", "accept_loss"))
    fsync = _fsync(options)
    accept_loss = _flag("accept_loss", options)
    path = _path(scheme, rest, "sqlite:///agent.db, or sqlite:////home/me/agent.db for an absolute path")

    def make(timeout_s: float | None) -> Local:
        from outlive.backends.sqlite.backend import SQLiteBackend

        where = path if path == ":memory:" else os.path.abspath(path)
        return SQLiteBackend(where, fsync=fsync, timeout_s=timeout_s, accept_loss=accept_loss)

    return _local(url.partition("?")[0], make)


def _file(url: str, options: dict[str, Any]) -> BackendFactory:
    scheme, rest, options = _parts(url, options, ("fsync",))
    fsync = _fsync(options)
    path = _path(scheme, rest, "file:///absolute/folder, or file:relative/folder")

    def make(timeout_s: float | None) -> Local:
        from outlive.backends.file.backend import FileBackend

        return FileBackend(os.path.abspath(path), fsync=fsync, timeout_s=timeout_s)

    return _local(url.partition("?")[0], make)


def _postgres(url: str, options: dict[str, Any]) -> BackendFactory:
    from outlive.backends.postgres.urls import parse_url

    return parse_url(url, options)


def _redis(url: str, options: dict[str, Any]) -> BackendFactory:
    from outlive.backends.redis.urls import parse_url

    return parse_url(url, options)


_SCHEMES: dict[str, Callable[[str, dict[str, Any]], BackendFactory]] = {
    "memory": _memory,
    "null": _memory,
    "sqlite": _sqlite,
    "file": _file,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
    "redis+sentinel": _redis,
    "redis+cluster": _redis,
}
