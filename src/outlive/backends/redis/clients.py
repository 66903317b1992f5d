"""From an existing client of redis-py to a backend that connects to the same servers.

The client itself is not used: the store opens connections of its own with the client's settings.
Either may be closed before the other.
"""

from __future__ import annotations

from typing import Any

from outlive.backend import Backend
from outlive.backends.redis.io_modes import IOMode, Sync
from outlive.backends.redis.urls import (
    SENTINEL_POOL_SIZE,
    STORE_OPTIONS,
    StoreOptions,
    backend_factory,
    parse_options,
)
from outlive.backends.server.urls import BackendFactory
from outlive.errors import BadArgument

# Settings of a connection that have the same name in redis-py and here.
_SAME = ("host", "port", "path", "username", "password", "credential_provider", "db", "client_name")


def parse_client(client: object, options: dict[str, Any]) -> BackendFactory:
    """Return how to open a store on the servers of a client of redis-py."""
    import redis
    import redis.asyncio

    store = parse_options("a Redis client", options, STORE_OPTIONS)
    is_sync = isinstance(client, redis.Redis | redis.RedisCluster)
    if not is_sync and not isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster):
        raise BadArgument(
            f"a store is opened by a URL or by a client of redis-py (redis.Redis, redis.RedisCluster or their "
            f"asyncio twins), not by {type(client).__name__}"
        )
    is_cluster = isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster)
    shown = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
    make = _from_cluster_client if is_cluster else _from_client

    def backend(io_mode: IOMode, timeout_s: float | None) -> Backend:
        if isinstance(io_mode, Sync) and not is_sync:
            raise BadArgument("this client is for asyncio; use outlive.open_async, or give a redis.Redis")
        if is_sync and not isinstance(io_mode, Sync):
            raise BadArgument("this client blocks; use outlive.open, or give a redis.asyncio.Redis")
        return make(io_mode, client, store, shown, timeout_s)

    return backend_factory(shown, backend)


def _from_client(
    io_mode: IOMode, client: Any, store: StoreOptions, shown: str, timeout_s: float | None
) -> Backend:
    from outlive.backends.redis.topology import Nodes, Sentinels, Single

    pool = client.connection_pool
    kind = pool.connection_class
    if kind.__module__.partition(".")[0] != "redis":
        raise BadArgument(
            f"this client makes connections of its own class {kind.__name__}, which a store cannot imitate; "
            "give a URL, or a client with the connections of redis-py"
        )
    settings = _pool_settings(pool, store.connection)
    manager = getattr(pool, "sentinel_manager", None)
    nodes: Nodes
    if manager is None:
        nodes = Single(io_mode, settings)
    else:
        limits = {**store.connection, "pool_size": SENTINEL_POOL_SIZE}
        sentinels = [_pool_settings(sentinel.connection_pool, limits) for sentinel in manager.sentinels]
        nodes = Sentinels(io_mode, settings, sentinels, pool.service_name)
    return store.backend(io_mode, nodes, shown, _secrets(pool.connection_kwargs), timeout_s)


def _from_cluster_client(
    io_mode: IOMode, client: Any, store: StoreOptions, shown: str, timeout_s: float | None
) -> Backend:
    from outlive.backends.redis.topology import Cluster

    options = getattr(client, "connection_kwargs", None) or client.nodes_manager.connection_kwargs
    is_tls = bool(options.get("ssl")) or "ssl_cert_reqs" in options or "ssl_ca_certs" in options
    addresses = [(node.host, node.port) for node in client.nodes_manager.startup_nodes.values()]
    nodes = Cluster(io_mode, _settings(options, store.connection, is_tls=is_tls), addresses)
    return store.backend(io_mode, nodes, shown, _secrets(options), timeout_s)


def _pool_settings(pool: Any, limits: dict[str, Any]) -> Any:
    is_tls = any("SSL" in base.__name__ for base in pool.connection_class.__mro__)
    return _settings(pool.connection_kwargs, limits, is_tls=is_tls)


def _settings(options: dict[str, Any], limits: dict[str, Any], *, is_tls: bool) -> Any:
    """Return the settings of a connection, without what the client itself does (retries)."""
    from outlive.backends.redis.connection import ConnectionSettings
    from outlive.backends.redis.tls import tls_context

    same = {name: options[name] for name in _SAME if options.get(name) is not None}
    if isinstance(keepalive := options.get("socket_keepalive_options"), dict):  # else its default
        same["keepalive_options"] = keepalive
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return ConnectionSettings(**same, tls=tls_context(tls) if is_tls else None, **limits)


def _secrets(options: dict[str, Any]) -> tuple[str, ...]:
    return (str(options["password"]),) if options.get("password") else ()
