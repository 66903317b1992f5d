"""From a redis URL, or a client of redis-py, to a backend: options, credentials, and where to connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from outlive.backend import Backend
from outlive.backends.server.urls import BackendFactory, Options, query_of
from outlive.errors import BadArgument, BadURL, MissingExtra

EXAMPLES = {
    "redis": "redis://host:6379/0",
    "rediss": "rediss://user:password@host:6379/0",
    "redis+sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
    "redis+cluster": "redis+cluster://host1:6379,host2:6379",
}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_SENTINEL = ("sentinel_username", "sentinel_password")
_KNOWN = (
    "prefix", "ttl_s", "refresh_ttl_on_read", "dial_timeout_s", "read_timeout_s", "write_timeout_s", "pool_size",
    "min_idle_conns", "max_retries", "wait_replicas", "allow_eviction", "tls",
)  # fmt: skip
DEFAULT_POOL_SIZE = 10


@dataclass(slots=True)
class Target:
    """What a URL says: which kind, where, who."""

    scheme: str
    addresses: list[tuple[str, int]]
    service: str = ""
    connection: dict[str, Any] = field(default_factory=dict, repr=False)  # options of a connection
    asking: dict[str, Any] = field(default_factory=dict, repr=False)  # of one to a Sentinel
    is_tls: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)


def parse_url(url: str, options: dict[str, object]) -> BackendFactory:
    """Return how to reach what a URL names. Options may stand in its query or beside it."""
    scheme, _, _ = url.partition("://")
    if scheme not in EXAMPLES:
        raise BadURL(f"a Redis store is opened by one of: {'  '.join(EXAMPLES.values())}")
    options = _merged(url, dict(options))
    target = _target(scheme, url, options)
    chosen = _chosen(scheme, options, (*_KNOWN, *_TLS, *(_SENTINEL if scheme == "redis+sentinel" else ())))
    return _served(
        f"{scheme}://{_shown(target)}",
        lambda io_mode, timeout_s: _from_target(io_mode, target, chosen.within(timeout_s)),
    )


def _merged(url: str, options: dict[str, Any]) -> dict[str, Any]:
    given = dict(query_of(url))
    if twice := given.keys() & options.keys():
        raise BadURL(f"option {min(twice)!r} is in the URL and beside it; give it once")
    return {**given, **options}


def _target(scheme: str, url: str, options: dict[str, Any]) -> Target:
    example = EXAMPLES[scheme]
    rest = url.partition("://")[2].partition("?")[0].partition("#")[0]
    place, _, path = rest.partition("/")
    credentials, _, hosts = place.rpartition("@")
    username, _, password = credentials.partition(":")
    default = 26379 if scheme == "redis+sentinel" else 6379
    target = Target(scheme, [_address(host, default, example) for host in hosts.split(",")])
    if len(target.addresses) > 1 and scheme in ("redis", "rediss"):
        raise BadURL(f"{scheme}: takes one host; for several write {EXAMPLES['redis+cluster']}")
    target.is_tls = scheme == "rediss" or Options(scheme, options).switch("tls", False)
    who = {"username": unquote(username) or None, "password": unquote(password) or None}
    target.connection = {**who, "db": _place(target, path, example)}
    if target.is_tls:
        target.connection.update({name: options[name] for name in _TLS if name in options})
        _check_requirement(target.connection.get("ssl_cert_reqs", "required"))
    elif given := [name for name in _TLS if name in options]:
        raise BadURL(
            f"option {given[0]!r} needs an encrypted connection; write rediss://, or tls=true for others"
        )
    asker = {name.removeprefix("sentinel_"): options[name] for name in _SENTINEL if name in options}
    target.asking = {
        **{name: value for name, value in target.connection.items() if name.startswith("ssl")},
        **asker,
    }
    secrets = (unquote(password), password, str(asker.get("password") or ""))
    target.secrets = tuple(secret for secret in secrets if secret)
    return target


def _address(text: str, default: int, example: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise BadURL(f"a host is missing or its port is not a number; write {example}")
    return host, default if port is None else port


def _place(target: Target, path: str, example: str) -> int:
    """Return the number of the database; note the service that Sentinels know."""
    parts = [unquote(part) for part in path.split("/") if part]
    if target.scheme == "redis+sentinel":
        if not parts:
            raise BadURL(f"the name of the service is missing; write {example}")
        target.service = parts.pop(0)
    if len(parts) > 1 or (parts and not (parts[0].isascii() and parts[0].isdigit())):
        raise BadURL(f"behind the host stands the number of a database; write {example}")
    if parts and target.scheme == "redis+cluster" and parts != ["0"]:
        raise BadURL(f"a Cluster has no databases; write {example}")
    return int(parts[0]) if parts else 0


def _check_requirement(value: object) -> None:
    if value not in ("required", "optional", "none"):
        raise BadURL(f"ssl_cert_reqs must be required, optional or none, not {value!r}")


def _shown(target: Target) -> str:
    """Where it is, without who asks."""
    hosts = ",".join(
        f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in target.addresses
    )
    service = f"/{target.service}" if target.service else ""
    return f"{hosts}{service}/{target.connection['db']}"


# Options --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Chosen:
    """The options, read and checked."""

    records: dict[str, Any]
    size: int
    limits: dict[str, float | None]

    def within(self, timeout_s: float | None) -> Chosen:
        """Return the same for a store whose calls have so much time."""
        return Chosen({**self.records, "timeout_s": timeout_s}, self.size, self.limits)


def _chosen(scheme: str, options: dict[str, Any], known: tuple[str, ...]) -> Chosen:
    for name in options:
        if name not in known:
            raise BadURL(f"{scheme}: has no option {name!r}; it has {', '.join(sorted(known))}")
    prefix = options.get("prefix", "outlive:")
    if not isinstance(prefix, str) or len(prefix) > 200 or any(char in prefix for char in "{}\0"):
        raise BadURL(f"prefix must be a str of at most 200 characters without braces, not {prefix!r:.100}")
    given = Options(scheme, options)
    ttl_s, refreshes = given.seconds("ttl_s", None), given.switch("refresh_ttl_on_read", False)
    if refreshes and ttl_s is None:
        raise BadURL("refresh_ttl_on_read needs ttl_s, the time that a thread lives")
    records: dict[str, Any] = {
        "prefix": prefix,
        "ttl_ms": 0 if ttl_s is None else max(1, round(ttl_s * 1000)),
        "refreshes": refreshes,
        "wait_replicas": given.count("wait_replicas", 0) or 0,
        "max_retries": given.count("max_retries", None),
        "idle": given.count("min_idle_conns", 0) or 0,
        "allow_eviction": given.switch("allow_eviction", False),
    }
    limits = {f"{name}_s": given.seconds(f"{name}_timeout_s", None) for name in ("dial", "read", "write")}
    size = given.count("pool_size", DEFAULT_POOL_SIZE, least=1) or DEFAULT_POOL_SIZE
    if records["idle"] > size:
        raise BadURL(
            f"min_idle_conns={records['idle']} is more than pool_size={size}, the most connections to one server; "
            "raise pool_size or lower min_idle_conns"
        )
    return Chosen(records, size, limits)


# Backends --------------------------------------------------------------------------------------------------


def _served(shown: str, make: Callable[[Any, float | None], Backend]) -> BackendFactory:
    _need_redis()

    def sync(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.connection import Blocking

        return make(Blocking(), timeout_s)

    async def asynchronous(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.connection import Awaiting

        return make(Awaiting(), timeout_s)

    return BackendFactory(shown, sync, asynchronous)


def _need_redis() -> None:
    from importlib.util import find_spec

    if find_spec("redis") is None:  # it is not imported yet: that takes a quarter of a second
        raise MissingExtra("redis://", "redis")


def _from_target(io_mode: Any, target: Target, chosen: Chosen) -> Backend:
    from outlive.backends.redis.topology import Cluster, Dialling, Nodes, Sentinels, Single

    family = io_mode.families.SSLConnection if target.is_tls else io_mode.families.Connection
    limits = _limits(chosen)
    dialling = Dialling(family, target.connection, chosen.size, limits)
    nodes: Nodes
    if target.scheme == "redis+cluster":
        nodes = Cluster(io_mode, dialling, target.addresses)
    elif target.scheme == "redis+sentinel":
        asking = Dialling(family, target.asking, 2, limits)
        nodes = Sentinels(io_mode, dialling, target.addresses, asking, target.service)
    else:
        nodes = Single(io_mode, dialling.to(target.addresses[0]))
    return _backend(io_mode, nodes, chosen, f"{target.scheme}://{_shown(target)}", target.secrets)


def _limits(chosen: Chosen) -> Any:
    from outlive.backends.redis.connection import Limits

    return Limits(**chosen.limits)


def _backend(io_mode: Any, nodes: Any, chosen: Chosen, shown: str, secrets: tuple[str, ...]) -> Backend:
    from outlive.backends.redis.backend import RedisBackend
    from outlive.backends.redis.client import Client
    from outlive.backends.redis.commits import Choices

    return RedisBackend(Client(io_mode, nodes, secrets), Choices(**chosen.records), shown)


# An existing client -----------------------------------------------------------------------------------------


def serve_client(client: object, options: dict[str, object]) -> BackendFactory:
    """Return how to reach what a client of redis-py reaches: by connections of its own, made like the client's.

    The client itself is left alone: it may be closed before the store, and the store before it.
    """
    _need_redis()
    import redis
    import redis.asyncio

    chosen = _chosen("a Redis client", dict(options), _KNOWN)
    is_sync = isinstance(client, redis.Redis | redis.RedisCluster)
    if not is_sync and not isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
        raise BadArgument(
            f"a store is opened by a URL or by a client of redis-py (redis.Redis, redis.RedisCluster or their "
            f"asyncio twins), not by {type(client).__name__}"
        )
    is_cluster = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
    shown = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
    make = _from_cluster_client if is_cluster else _from_client

    def sync(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.connection import Blocking

        if not is_sync:
            raise BadArgument("this client is for asyncio; use outlive.open_async, or give a redis.Redis")
        return make(Blocking(), client, chosen.within(timeout_s), shown)

    async def asynchronous(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.connection import Awaiting

        if is_sync:
            raise BadArgument("this client blocks; use outlive.open, or give a redis.asyncio.Redis")
        return make(Awaiting(), client, chosen.within(timeout_s), shown)

    return BackendFactory(shown, sync, asynchronous)


def _secrets(options: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(options[name]) for name in ("password",) if options.get(name))


def _from_client(io_mode: Any, client: Any, chosen: Chosen, shown: str) -> Backend:
    from outlive.backends.redis.topology import Dialling, Nodes, Sentinels, Single

    pool = client.connection_pool
    family, options = pool.connection_class, dict(pool.connection_kwargs)
    limits = _limits(chosen)
    manager = getattr(pool, "sentinel_manager", None)
    nodes: Nodes
    if manager is not None:
        is_tls = issubclass(family, io_mode.families.SSLConnection)
        family = io_mode.families.SSLConnection if is_tls else io_mode.families.Connection
        options.pop("connection_pool", None)
        askers = [dict(one.connection_pool.connection_kwargs) for one in manager.sentinels]
        asking = Dialling(family, _plain(askers[0]), 2, limits)
        places = [(one["host"], one["port"]) for one in askers]
        dialling = Dialling(family, _plain(options), chosen.size, limits)
        nodes = Sentinels(io_mode, dialling, places, asking, pool.service_name)
    else:
        nodes = Single(io_mode, Dialling(family, _plain(options), chosen.size, limits))
    return _backend(io_mode, nodes, chosen, shown, _secrets(options))


def _from_cluster_client(io_mode: Any, client: Any, chosen: Chosen, shown: str) -> Backend:
    from outlive.backends.redis.topology import Cluster, Dialling

    options = dict(getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs)
    is_tls = bool(options.pop("ssl", False)) or "ssl_cert_reqs" in options or "ssl_ca_certs" in options
    family = io_mode.families.SSLConnection if is_tls else io_mode.families.Connection
    known = {name for base in family.__mro__ for name in _names(base)}
    options = {name: value for name, value in options.items() if name in known}
    places = [(node.host, node.port) for node in client.nodes_manager.startup_nodes.values()]
    nodes = Cluster(io_mode, Dialling(family, _plain(options), chosen.size, _limits(chosen)), places)
    return _backend(io_mode, nodes, chosen, shown, _secrets(options))


def _names(base: type) -> list[str]:
    import inspect

    return list(inspect.signature(base.__init__).parameters)  # type: ignore[misc]


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out what belongs to the client: callbacks, notifications, parsers."""
    own = (
        "parser_class",
        "redis_connect_func",
        "event_dispatcher",
        "command_packer",
        "oss_cluster_maint_notifications_handler",
    )
    return {
        name: value
        for name, value in options.items()
        if name not in own and not name.startswith(("maint_", "himport", "orig_", "lib_"))
    }
