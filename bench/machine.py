"""What a run was measured on."""

from __future__ import annotations

import ctypes
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import apsw

import servers

_PACKAGES = (
    "outlive",
    "ormsgpack",
    "apsw",
    "backports.zstd",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "aiosqlite",
    "langgraph-checkpoint-postgres",
    "psycopg",
    "psycopg-pool",
    "redis",
    "dbos",
)


def describe(folder: Path) -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GB, {platform.system()}, {filesystem(folder)}"
    )


def load() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 1)


def versions() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    found = [f"{name} {number}" for name in _PACKAGES if (number := _version(name))]
    return ", ".join([python, *found, f"SQLite {apsw.sqlite_lib_version()}", *servers.versions()])


def filesystem(folder: Path) -> str:
    """Name the kind of file system: on one in memory an fsync costs nothing, and the figures mean little."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    above = [(len(at), kind) for at, kind in mounts if folder.resolve().is_relative_to(at)]
    return max(above, default=(0, "unknown file system"))[1]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def keep_memory() -> None:
    """Let malloc keep what is freed: otherwise a lane pays, or not, for what another lane gave back to the system."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 256 << 20)


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
