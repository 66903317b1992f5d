"""What `doctor` says of how records are laid out, and of the server that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlive.cli.commands.doctor_finding import Finding, ask_postgres, ask_redis, lowest, pragma
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.sync.facades import Store


def schema(store: Store, url: str) -> Iterator[Finding]:
    """Tell which version of the layout a store has; one that is too new was not opened."""
    backend = lowest(store)
    looks = {"sqlite": _of_sqlite, "postgresql": _of_postgres, "redis": _of_redis, "file": _of_file}
    if backend.name in looks:
        yield Finding("schema", "ok", looks[backend.name](backend))


def _of_sqlite(backend: Any) -> str:
    from outlive.backends.sqlite.connection import SCHEMA_VERSION

    return f"version {pragma(backend, 'user_version')}, this outlive writes {SCHEMA_VERSION}"


def _of_postgres(backend: Any) -> str:
    from outlive.backends.postgres.statements import VERSION

    return f"version {VERSION} in schema {backend._schema}, PostgreSQL {ask_postgres(backend, 'show server_version')}"


def _of_redis(backend: Any) -> str:
    from outlive.backends.redis.identity import FORMAT

    format, prefix = run_now(backend.store_identity.format()), backend.session.prefix
    said = (ask_redis(backend, "INFO", "server") or b"").decode()
    told = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    kind = "Valkey" if "valkey_version" in told else "Redis"
    version = told.get("valkey_version") or told.get("redis_version") or "that does not tell its version"
    return f"version {format} under prefix {prefix!r}, this outlive writes {FORMAT}; {kind} {version}"


def _of_file(backend: Any) -> str:
    from outlive.backends.file.log import FORMAT
    from outlive.backends.file.store_file import read_format

    return f"version {read_format(backend._disk)}, this outlive writes {FORMAT}"
