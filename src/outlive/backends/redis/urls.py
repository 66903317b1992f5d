"""From a Redis URL and its options to a backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from outlive.backend import Backend
from outlive.backends.server.urls import BackendFactory, Options, query_of
from outlive.dataclass import dataclass
from outlive.errors import BadURL, ExtraMissing

if TYPE_CHECKING:
    from outlive.backends.redis.io_modes import IOMode
    from outlive.backends.redis.topology import Nodes

EXAMPLES = {
    "redis": "redis://host:6379/0",
    "rediss": "rediss://user:password@host:6379/0",
    "redis+sentinel": "redis+sentinel://host1:26379,host2:26379/service/0",
    "redis+cluster": "redis+cluster://host1:6379,host2:6379",
}
STORE_OPTIONS = (
    "prefix", "ttl_s", "refresh_ttl_on_read", "dial_timeout_s", "read_timeout_s", "write_timeout_s", "pool_size",
    "min_idle_conns", "max_retries", "wait_replicas", "allow_eviction", "tls",
)  # fmt: skip
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_DEFAULT_POOL_SIZE = 10
SENTINEL_POOL_SIZE = 2
MakeBackend = Callable[["IOMode", float | None], Backend]


@dataclass(slots=True)
class _Target:
    """What a URL names: servers, a database, and who logs in."""

    scheme: str
    addresses: list[tuple[str, int]]
    db: int = 0
    service: str = ""  # that Sentinels know
    login: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_login: dict[str, Any] = field(default_factory=dict, repr=False)
    tls: dict[str, Any] | None = None

    @property
    def shown(self) -> str:
        """The URL without anything secret."""
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)
        service = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{','.join(hosts)}{service}/{self.db}"


def parse_url(url: str, options: dict[str, Any]) -> BackendFactory:
    """Return how to open the store that a URL names. Options may be in its query or beside it."""
    scheme, _, _ = url.partition("://")
    if scheme not in EXAMPLES:
        raise BadURL(f"a Redis store is opened by one of: {'  '.join(EXAMPLES.values())}")
    query = dict(query_of(url))
    if twice := query.keys() & options.keys():
        raise BadURL(f"option {min(twice)!r} is in the URL and beside it; give it once")
    options = {**query, **options}
    target, secrets = _parse_target(scheme, url, options)
    sentinel_options = _SENTINEL_OPTIONS if scheme == "redis+sentinel" else ()
    store = parse_options(scheme, options, (*STORE_OPTIONS, *_TLS_OPTIONS, *sentinel_options))
    return backend_factory(
        target.shown,
        lambda io_mode, timeout_s: store.backend(
            io_mode, _nodes(io_mode, target, store), target.shown, secrets, timeout_s
        ),
    )


def backend_factory(shown: str, make: MakeBackend) -> BackendFactory:
    """Return a factory that makes the backend in either mode. The driver is imported only then."""
    if find_spec("hiredis") is None:
        raise ExtraMissing("redis://", "redis")

    def sync(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.io_modes import Sync

        return make(Sync(), timeout_s)

    async def asynchronous(timeout_s: float | None) -> Backend:
        from outlive.backends.redis.io_modes import Async

        return make(Async(), timeout_s)

    return BackendFactory(shown, sync, asynchronous)


def _nodes(io_mode: IOMode, target: _Target, store: StoreOptions) -> Nodes:
    from outlive.backends.redis.connection import ConnectionSettings
    from outlive.backends.redis.tls import tls_context
    from outlive.backends.redis.topology import Cluster, Sentinels, Single

    tls = None if target.tls is None else tls_context(target.tls)
    settings = ConnectionSettings(**target.login, db=target.db, tls=tls, **store.connection)
    if target.scheme == "redis+cluster":
        return Cluster(io_mode, settings, target.addresses)
    if target.scheme == "redis+sentinel":
        limits = {**store.connection, "pool_size": SENTINEL_POOL_SIZE}
        asked = ConnectionSettings(**target.sentinel_login, tls=tls, **limits)
        sentinels = [asked.at(address) for address in target.addresses]
        return Sentinels(io_mode, settings, sentinels, target.service)
    return Single(io_mode, settings.at(target.addresses[0]))


# The URL ------------------------------------------------------------------------------------------


def _parse_target(scheme: str, url: str, options: dict[str, Any]) -> tuple[_Target, tuple[str, ...]]:
    """Return what a URL names, and the words in it that no message may show."""
    rest = url.partition("://")[2].partition("?")[0].partition("#")[0]
    location, _, path = rest.partition("/")
    credentials, _, hosts = location.rpartition("@")
    username, _, password = credentials.partition(":")
    default_port = 26379 if scheme == "redis+sentinel" else 6379
    addresses = [_parse_address(host, default_port, EXAMPLES[scheme]) for host in hosts.split(",")]
    if len(addresses) > 1 and scheme in ("redis", "rediss"):
        raise BadURL(f"{scheme}: takes one host; for several write {EXAMPLES['redis+cluster']}")
    service, db = _parse_path(scheme, path)
    login = {"username": unquote(username) or None, "password": unquote(password) or None}
    sentinel_login = {
        name.removeprefix("sentinel_"): options[name] for name in _SENTINEL_OPTIONS if name in options
    }
    secrets = (unquote(password), password, str(sentinel_login.get("password") or ""))
    target = _Target(scheme, addresses, db, service, login, sentinel_login, _parse_tls(scheme, options))
    return target, tuple(filter(None, secrets))


def _parse_address(text: str, default_port: int, example: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host:
        raise BadURL(f"a host is missing or its port is not a number; write {example}")
    return host, default_port if port is None else port


def _parse_path(scheme: str, path: str) -> tuple[str, int]:
    """Return the service that Sentinels know, if any, and the number of the database."""
    service, example = "", EXAMPLES[scheme]
    parts = [unquote(part) for part in path.split("/") if part]
    if scheme == "redis+sentinel":
        if not parts:
            raise BadURL(f"the name of the service is missing; write {example}")
        service = parts.pop(0)
    if len(parts) > 1 or (parts and not (parts[0].isascii() and parts[0].isdigit())):
        raise BadURL(f"only the number of a database may follow the host; write {example}")
    if parts and scheme == "redis+cluster" and parts != ["0"]:
        raise BadURL(f"a Cluster has no databases; write {example}")
    return service, int(parts[0]) if parts else 0


def _parse_tls(scheme: str, options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options of TLS; None for a connection without it."""
    tls = {name: options[name] for name in _TLS_OPTIONS if name in options}
    if scheme != "rediss" and not Options(scheme, options).switch("tls", False):
        if tls:
            raise BadURL(
                f"option {min(tls)!r} needs an encrypted connection; write rediss://, or tls=true for others"
            )
        return None
    requirement = tls.get("ssl_cert_reqs", "required")
    if requirement not in ("required", "optional", "none"):
        raise BadURL(f"ssl_cert_reqs must be required, optional or none, not {requirement!r}")
    return tls


# Options ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a store, read and checked, as keyword arguments of those that use them."""

    records: dict[str, Any]  # of RecordOptions
    connection: dict[str, Any]  # of ConnectionSettings

    def backend(
        self, io_mode: IOMode, nodes: Nodes, shown: str, secrets: tuple[str, ...], timeout_s: float | None
    ) -> Backend:
        """Return a backend whose calls have so much time by default."""
        from outlive.backends.redis.backend import RedisBackend
        from outlive.backends.redis.client import Client
        from outlive.backends.redis.session import RecordOptions, Session

        options = RecordOptions(**self.records, timeout_s=timeout_s)
        return RedisBackend(Session(Client(io_mode, nodes, secrets), options, shown))


def parse_options(scheme: str, options: dict[str, Any], known: tuple[str, ...]) -> StoreOptions:
    """Check the options of a store. Raises BadURL with what to write instead."""
    for name in options:
        if name not in known:
            raise BadURL(f"{scheme}: has no option {name!r}; it has {', '.join(sorted(known))}")
    prefix = options.get("prefix", "outlive:")
    if not isinstance(prefix, str) or len(prefix) > 200 or any(char in prefix for char in "{}\0"):
        raise BadURL(f"prefix must be a str of at most 200 characters without braces, not {prefix!r:.100}")
    checked = Options(scheme, options)
    ttl_s, refreshes = checked.seconds("ttl_s", None), checked.switch("refresh_ttl_on_read", False)
    if refreshes and ttl_s is None:
        raise BadURL("refresh_ttl_on_read needs ttl_s, the time that a thread lives")
    pool_size = checked.count("pool_size", _DEFAULT_POOL_SIZE, least=1) or _DEFAULT_POOL_SIZE
    idle = checked.count("min_idle_conns", 0) or 0
    if idle > pool_size:
        raise BadURL(
            f"min_idle_conns={idle} is more than pool_size={pool_size}, the most connections to one server; "
            "raise pool_size or lower min_idle_conns"
        )
    records: dict[str, Any] = {
        "prefix": prefix,
        "ttl_ms": 0 if ttl_s is None else max(1, round(ttl_s * 1000)),
        "refreshes_on_read": refreshes,
        "wait_replicas": checked.count("wait_replicas", 0) or 0,
        "max_retries": checked.count("max_retries", None),
        "idle_connections": idle,
        "allow_eviction": checked.switch("allow_eviction", False),
    }
    limits = {
        name: checked.seconds(f"{name[:-2]}_timeout_s", None) for name in ("dial_s", "read_s", "write_s")
    }
    connection = {name: limit for name, limit in limits.items() if limit is not None}
    return StoreOptions(records, {"pool_size": pool_size, **connection})
