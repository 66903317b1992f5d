"""From a postgresql:// URL to a backend, sync or async."""

from __future__ import annotations

from typing import Any

from outlive.backend import Backend
from outlive.backends.server.sockets import Wait, wait_blocking, wait_suspended
from outlive.backends.server.urls import BackendFactory, Options, hide_secrets, take_options
from outlive.errors import BadURL, ExtraMissing
from outlive.runtime.runtime import Deadline

OPTIONS = ("schema", "pool_size", "max_retries", "dial_timeout_s", "prepared_statements")
# An agent may think for minutes between two saves: a connection that a firewall dropped meanwhile
# should be known dead.
_DEFAULTS = {
    "application_name": "outlive",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_EXAMPLE = "postgresql://user:password@host:5432/database"


def parse_url(url: str, options: dict[str, Any]) -> BackendFactory:
    """Return a backend factory for a URL, without connecting. libpq gets all other parameters."""
    scheme = url.partition(":")[0]
    url, options = take_options(url, options, OPTIONS)
    for name in options:
        if name not in OPTIONS:
            raise BadURL(f"{scheme}: has no option {name!r}; it has {', '.join(OPTIONS)}")
    settings = Options(scheme, options)
    schema = _schema(settings)
    pool_size = settings.count("pool_size", 10, least=1) or 1
    max_retries = settings.count("max_retries", None)
    dial_timeout_s = settings.seconds("dial_timeout_s", 5.0) or 5.0
    prepares = settings.switch("prepared_statements", True)
    try:
        from outlive.backends.postgres.backend import PostgresBackend, first_statements
        from outlive.backends.postgres.connection import Connection, connect, split_hosts
        from outlive.backends.postgres.groups import BlockingGroups, Groups, SuspendingGroups
        from outlive.backends.postgres.pool import BlockingPool, Connect, Pool, SuspendingPool
    except ImportError as error:
        raise ExtraMissing("postgresql://", "postgres") from error
    parameters = _parameters(url)
    hosts, secrets = split_hosts(parameters), _secrets(parameters)
    printable_url = hide_secrets(url)
    statements = first_statements(schema) if prepares else ()

    def connector(wait: Wait) -> Connect:
        async def dial(deadline: Deadline) -> Connection:
            limit = Deadline(min(dial_timeout_s * len(hosts), deadline.remaining_s()))
            connection = await connect(hosts, wait, limit, prepares=prepares, secrets=secrets)
            await connection.prepare_all(statements, deadline)
            return connection

        return dial

    def backend(pool: Pool, groups: Groups, timeout_s: float | None) -> Backend:
        return PostgresBackend(
            pool, groups, schema=schema, where=printable_url, max_retries=max_retries, timeout_s=timeout_s
        )

    def sync(timeout_s: float | None) -> Backend:
        return backend(BlockingPool(connector(wait_blocking), pool_size), BlockingGroups(), timeout_s)

    async def asynchronous(timeout_s: float | None) -> Backend:
        return backend(SuspendingPool(connector(wait_suspended), pool_size), SuspendingGroups(), timeout_s)

    return BackendFactory(printable_url, sync, asynchronous)


def _schema(settings: Options) -> str:
    schema = settings.word("schema", "outlive")
    if not schema or len(schema.encode(errors="replace")) > 63 or not schema.isprintable() or "$" in schema:
        raise BadURL(
            f"schema must be a name of 1 to 63 bytes without $ or control characters, not {schema!r:.100}"
        )
    return schema


def _parameters(url: str) -> dict[str, Any]:
    from psycopg import ProgrammingError, conninfo

    if url.startswith("postgres:"):
        url = "postgresql" + url[len("postgres") :]
    if "@" in url.partition("://")[2].partition("/")[2].partition("?")[0]:
        raise BadURL(f"{_EXAMPLE}: a '/' or '@' inside the password is written %2F or %40")
    try:
        parameters = conninfo.conninfo_to_dict(url)
    except (ProgrammingError, UnicodeError) as error:
        reason = hide_secrets(str(error).strip())
        # libpq quotes what it does not understand, which may be the password.
        if "@" in reason or '"' in reason:
            reason = reason.partition('"')[0].strip(' :"')
        raise BadURL(f"libpq does not understand the URL ({reason}); write {_EXAMPLE}") from None
    if not str(parameters.get("port") or "0").replace(",", "").isdigit():
        raise BadURL(f"the port must be a number; write {_EXAMPLE}, with %3A for a ':' inside the password")
    return {**_DEFAULTS, **parameters, "client_encoding": "utf8"}


def _secrets(parameters: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(parameters[name]) for name in ("password", "sslpassword") if parameters.get(name))
