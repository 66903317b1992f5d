"""From a URL, a path, a Redis client or a factory to a backend: which engine, where, which options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast
from urllib.parse import unquote

from outlive.arguments import check_choice, check_flag
from outlive.backends.local.protocol import Local, check_complete
from outlive.backends.local.sync_local import SyncLocal
from outlive.backends.server.urls import BackendFactory, hide_secrets, take_options
from outlive.errors import BadArgument, BadURL
from outlive.runtime.platform import system

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import redis
    import redis.asyncio

    from outlive.backend import Backend

    RedisClient = redis.Redis | redis.RedisCluster | redis.asyncio.Redis | redis.asyncio.RedisCluster
    Location = str | os.PathLike[str] | RedisClient | BackendFactory

Parser = Callable[[str, dict[str, Any]], BackendFactory]
ENTRY_POINTS = "outlive.backends"  # the group in which a package declares its schemes
COMMON = ("tenant", "durability", "cache_bytes", "timeout_s")  # options of every store that a URL can carry
_EXAMPLES = (
    "agent.db  sqlite:///agent.db  file:///folder  postgresql://host/database  redis://host  redis+sentinel://host/service  "
    "redis+cluster://host  memory:  null:"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_SQLITE_EXAMPLE = "sqlite:///agent.db, or sqlite:////home/me/agent.db for an absolute path"


class BackendOptions(TypedDict, total=False):
    """Options of one engine, which can also be in the query of its URL; `outlive docs backends` explains them."""

    fsync: Literal["full", "normal"]  # SQLite, file
    accept_loss: bool  # SQLite
    schema: str  # PostgreSQL
    prepared_statements: bool
    pool_size: int  # PostgreSQL, Redis
    max_retries: int | None
    dial_timeout_s: float | None
    read_timeout_s: float | None  # Redis
    write_timeout_s: float | None
    min_idle_conns: int
    prefix: str
    ttl_s: float | None
    refresh_ttl_on_read: bool
    wait_replicas: int
    allow_eviction: bool
    tls: bool
    ssl_ca_certs: str
    ssl_certfile: str
    ssl_keyfile: str
    ssl_cert_reqs: Literal["required", "optional", "none"]
    sentinel_username: str
    sentinel_password: str


def parse_location(where: Location, options: dict[str, Any]) -> tuple[BackendFactory, dict[str, Any]]:
    """Return how to open a backend, and the options of every store that are in its URL.

    Nothing is opened or created.
    """
    if isinstance(where, BackendFactory):
        _refuse_unknown(where.shown.partition(":")[0], options)
        return where, {}
    if type(where).__module__.partition(".")[0] == "redis":
        from outlive.backends.redis.clients import parse_client

        return parse_client(where, options), {}
    if (path := plain_path(where)) is not None:
        _refuse_unknown("sqlite", options, ("fsync", "accept_loss"))
        return _sqlite_at(path, f"sqlite:///{path}", options), {}
    url, merged = take_options(cast(str, where), {}, COMMON)
    common = {name: _from_text(name, value) for name, value in merged.items()}
    scheme = url.partition(":")[0]
    factory = (_SCHEMES.get(scheme) or _installed(scheme))(url, options)
    if not isinstance(factory, BackendFactory):
        raise BadArgument(
            f"{scheme}: its parser must return a BackendFactory, as local_factory does, not {type(factory).__name__}"
        )
    return factory, common


def is_url(where: str) -> bool:
    """Tell whether a store is named by a URL, not by a path; C: is a drive where there are drives."""
    return _SCHEME.match(where) is not None and not os.path.splitdrive(where)[0]


def plain_path(where: object) -> str | None:
    """Return the path of a SQLite file that was given in place of a URL; None when it is a URL."""
    if isinstance(where, os.PathLike):
        where = os.fspath(where)
    elif isinstance(where, str) and is_url(where):
        scheme = where.partition(":")[0]
        if scheme not in _SCHEMES and not _entry_points(scheme):
            shown = hide_secrets(where)[:200]
            raise BadURL(
                f"{shown!r} has no scheme that outlive knows; use one of: {_EXAMPLES}; "
                "that of another package is known once it is installed, or has called register_scheme"
            )
        return None
    if not isinstance(where, str):
        raise BadURL(
            "a store is opened by a URL, a path or a BackendFactory (outlive.authoring.local_factory), "
            f"not by {type(where).__name__}"
        )
    if not where.strip("/") or "\0" in where:
        raise BadURL(f"{where!r:.100} is no path and no URL; use one of: {_EXAMPLES}")
    if os.path.isdir(where):
        raise BadURL(f"{where!r:.200} is a folder; for a store of files in it, write file:{where}")
    return where


def local_path(where: str | os.PathLike[str]) -> str | None:
    """Return where a store on this machine is kept; None for servers and memory."""
    if (path := plain_path(where)) is None:
        scheme, _, rest = cast(str, where).partition("?")[0].partition(":")
        if scheme not in ("sqlite", "file"):
            return None
        path = _path(scheme, unquote(rest), "")
    return None if path == ":memory:" else os.path.abspath(path)


def _from_text(name: str, value: Any) -> Any:
    """Read an option that is in a URL."""
    kind = {"timeout_s": float, "cache_bytes": int}.get(name, str)
    try:
        return kind(value)
    except ValueError:
        raise BadURL(f"option {name!r} must be a number, not {value!r}") from None


def _refuse_unknown(scheme: str, options: dict[str, Any], known: tuple[str, ...] = ()) -> None:
    for name in options:
        if name not in known:
            others = ("key", "on_event", "replication", "retain")
            names = ", ".join(sorted((*COMMON, *others, *known)))
            raise BadURL(f"{scheme}: has no option {name!r}; it has {names}")


# Backends of other packages ----------------------------------------------------------------------


def register_scheme(scheme: str, parse: Parser) -> None:
    """Let `outlive.open` open URLs of a scheme: `register_scheme("mine", parse)`.

    `parse(url, options)` returns a `BackendFactory` without opening anything, and raises BadURL for
    options that it does not have. The options of every store are not in the URL any more. A package
    that declares `parse` as an entry point of the group `outlive.backends` need not call this, and
    the command line finds it too. Raises BadArgument for a scheme that is taken.
    """
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(f"{scheme}:") or scheme != scheme.lower():
        raise BadArgument(f"a scheme is lower-case letters, digits, '+', '.' and '-', not {scheme!r:.100}")
    if not callable(parse):
        raise BadArgument(f"parse must be a function (url, options) -> BackendFactory, not {parse!r:.100}")
    if _SCHEMES.setdefault(scheme, parse) is not parse:
        raise BadArgument(f"the scheme {scheme + ':'!r} is taken; choose another one")


def _entry_points(scheme: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=ENTRY_POINTS, name=scheme))


def _installed(scheme: str) -> Parser:
    """Import the parser of a scheme that another package declares."""
    points = _entry_points(scheme)
    if len({point.value for point in points}) > 1:
        values = ", ".join(sorted(point.value for point in points))
        raise BadURL(
            f"several packages declare the scheme {scheme + ':'!r} ({values}); uninstall all but one"
        )
    try:
        parse = points[0].load()
    except (ImportError, AttributeError) as error:
        raise BadURL(f"{scheme}: its backend {points[0].value} cannot be imported: {error}") from error
    return cast(Parser, parse)


# Stores on this machine --------------------------------------------------------------------------


def local_factory(
    shown: str, make: Callable[[float | None], Local], is_missing: Callable[[], bool] = lambda: False
) -> BackendFactory:
    """Return how to open a backend of this process, sync and async.

    `make(timeout_s)` returns a new handle; `timeout_s` is that of calls without their own.
    `is_missing` tells whether opening would create a store, for `outlive.open(..., create=False)`.
    Opening raises BadArgument if the handle lacks something of `outlive.authoring.Local`.
    """
    if not callable(make):
        raise BadArgument(f"make must be a function (timeout_s) -> local backend, not {make!r:.100}")

    def made(timeout_s: float | None) -> Local:
        local = make(timeout_s)
        check_complete(local)
        return local

    async def asynchronous(timeout_s: float | None) -> Backend:
        from outlive.backends.local.async_local import AsyncLocal, in_thread

        return cast("Backend", AsyncLocal(await in_thread(lambda: made(timeout_s))))

    def sync(timeout_s: float | None) -> Backend:
        return cast("Backend", SyncLocal(made(timeout_s)))

    return BackendFactory(shown, sync, asynchronous, is_missing)


def _parts(url: str, options: dict[str, Any], known: tuple[str, ...] = ()) -> tuple[str, str, dict[str, Any]]:
    """Return the scheme of a local store, what follows it, and its options."""
    url, options = take_options(url, options)
    scheme, _, rest = url.partition(":")
    _refuse_unknown(scheme, options, known)
    return scheme, unquote(rest), options


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


def _memory(url: str, options: dict[str, Any]) -> BackendFactory:
    from outlive.backends.local.memory import MemoryBackend, NullBackend

    scheme, rest, _ = _parts(url, options)
    if rest.strip("/"):
        raise BadURL(f"{scheme}: takes no path; write just {scheme + ':'!r}")
    return local_factory(f"{scheme}:", lambda _: MemoryBackend() if scheme == "memory" else NullBackend())


def _sqlite(url: str, options: dict[str, Any]) -> BackendFactory:
    scheme, rest, options = _parts(url, options, ("fsync", "accept_loss"))
    return _sqlite_at(_path(scheme, rest, _SQLITE_EXAMPLE), url.partition("?")[0], options)


def _sqlite_at(path: str, shown: str, options: dict[str, Any]) -> BackendFactory:
    fsync = _fsync(options)
    accept_loss = check_flag("accept_loss", options.get("accept_loss", False), BadURL, is_text=True)
    is_in_memory = path == ":memory:"

    def make(timeout_s: float | None) -> Local:
        from outlive.backends.sqlite.backend import SQLiteBackend

        where = path if is_in_memory else os.path.abspath(path)
        return SQLiteBackend(where, fsync=fsync, timeout_s=timeout_s, accept_loss=accept_loss)

    return local_factory(shown, make, lambda: not is_in_memory and not _has_database(path))


def _has_database(path: str) -> bool:
    """Tell whether a SQLite file is more than empty: SQLite makes a database of an empty one.

    A new one may be in its log only.
    """
    names = (path, f"{path}-wal")
    return any(os.path.exists(name) and (os.path.isdir(name) or os.path.getsize(name)) for name in names)


def _file(url: str, options: dict[str, Any]) -> BackendFactory:
    scheme, rest, options = _parts(url, options, ("fsync",))
    fsync = _fsync(options)
    path = _path(scheme, rest, "file:///absolute/folder, or file:relative/folder")
    if not system.has_folder_handles:
        raise BadURL(f"file: needs what {system.name} does not have; use {_SQLITE_EXAMPLE}")

    def make(timeout_s: float | None) -> Local:
        from outlive.backends.file.backend import FileBackend

        return FileBackend(os.path.abspath(path), fsync=fsync, timeout_s=timeout_s)

    return local_factory(url.partition("?")[0], make, lambda: not os.path.exists(os.path.join(path, "store")))


def _fsync(options: dict[str, Any]) -> str:
    return check_choice("fsync", options.get("fsync", "full"), ("full", "normal"), BadURL)


# Servers -----------------------------------------------------------------------------------------


def _postgres(url: str, options: dict[str, Any]) -> BackendFactory:
    from outlive.backends.postgres.urls import parse_url

    return parse_url(url, options)


def _redis(url: str, options: dict[str, Any]) -> BackendFactory:
    from outlive.backends.redis.urls import parse_url

    return parse_url(url, options)


_SCHEMES: dict[str, Parser] = {
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
