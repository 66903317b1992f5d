"""What `doctor` says of how safely saves are kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlive.cli.commands.doctor_finding import Finding, ask_postgres, ask_redis, lowest, pragma

if TYPE_CHECKING:
    from outlive.sync.facades import Store


def durability(store: Store, url: str) -> Iterator[Finding]:
    backend = lowest(store)
    look = {
        "sqlite": _sqlite_durability,
        "file": _file_durability,
        "postgresql": _postgres_durability,
        "redis": _redis_durability,
    }
    if backend.name in look:
        yield from look[backend.name](backend)
    else:
        mend = "use sqlite:, file:, postgresql: or redis: for what must outlive the process"
        yield Finding("durability", "warning", f"{backend.name}: keeps nothing when the process ends", mend)


def _sqlite_durability(backend: Any) -> Iterator[Finding]:
    journal, level = pragma(backend, "journal_mode"), pragma(backend, "synchronous")
    said = f"journal_mode={journal}, synchronous={('off', 'normal', 'full', 'extra')[level]}"
    if level >= 2:
        yield Finding("durability", "ok", f"{said}: a saved checkpoint survives a power cut")
    else:
        yield Finding(
            "durability",
            "warning",
            f"{said}: a power cut may lose the last saves",
            "open without fsync=normal, here and in the programs that save",
        )


def _file_durability(backend: Any) -> Iterator[Finding]:
    if backend._is_full:
        yield Finding("durability", "ok", "fsync for every save: a saved checkpoint survives a power cut")
    else:
        said = "fsync=normal: a power cut may lose the last saves"
        yield Finding(
            "durability", "warning", said, "open without fsync=normal, here and in the programs that save"
        )


def _postgres_durability(backend: Any) -> Iterator[Finding]:
    settings = {
        name: ask_postgres(backend, f"show {name}")
        for name in ("fsync", "synchronous_commit", "full_page_writes")
    }
    said = ", ".join(f"{name}={value}" for name, value in settings.items())
    off = [name for name, value in settings.items() if value == "off"]
    if off:
        where = (
            "in postgresql.conf, or for the role" if off == ["synchronous_commit"] else "in postgresql.conf"
        )
        mend = f"set {' and '.join(f'{name} = on' for name in off)} {where}, and reload the server"
        yield Finding("durability", "warning", f"{said}: a crash of the server may lose saves", mend)
    else:
        yield Finding("durability", "ok", said)


def _redis_durability(backend: Any) -> Iterator[Finding]:
    settings = {name: _config(backend, name) for name in ("appendonly", "appendfsync", "maxmemory-policy")}
    said = ", ".join(f"{name}={value}" for name, value in settings.items() if value is not None)
    if settings["appendonly"] is None:
        yield Finding("durability", "note", "the server does not tell its settings (CONFIG is not allowed)")
    elif settings["appendonly"] != "yes":
        mend = (
            "CONFIG SET appendonly yes, and CONFIG REWRITE; docs/guarantees.md tells what each setting loses"
        )
        yield Finding(
            "durability", "warning", f"{said}: a crash of the server loses all since its last snapshot", mend
        )
    elif settings["appendfsync"] != "always":
        yield Finding("durability", "note", f"{said}: a crash of the server loses about a second")
    else:
        yield Finding("durability", "ok", said)


def _config(backend: Any, name: str) -> str | None:
    reply = ask_redis(backend, "CONFIG", "GET", name)
    return reply[1].decode() if isinstance(reply, list) and len(reply) == 2 else None
