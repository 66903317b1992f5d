"""Checks of the installation and of a store, as findings that `outlive doctor` and the inspector show."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from outlive.dataclass import dataclass
from outlive.errors import OutliveError
from outlive.runtime.platform import system
from outlive.runtime.runtime import run_now
from outlive.urls import local_path
from outlive.view.advice import split_advice
from outlive.view.lease_clock import LeaseClock
from outlive.view.runs import Workers
from outlive.view.units import format_count, format_size

if TYPE_CHECKING:
    from outlive.view.opened_store import OpenedStore

_PACKAGES = (
    "ormsgpack", "apsw", "backports.zstd", "click", "rich", "psycopg", "redis", "cryptography",
    "langgraph-checkpoint",
)  # fmt: skip
_NETWORK_FILE_SYSTEMS = (
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "fuse.sshfs", "fuse.s3fs", "lustre", "glusterfs", "network",
)  # fmt: skip
_MAX_SKEW_S = 2.0
_MAX_WAL_BYTES = 256 << 20
_MIN_FREE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `level` is ok, note, warning or problem."""

    check: str
    level: str
    message: str
    fix: str | None = None


# The installation


def check_installation() -> Iterator[Finding]:
    import apsw

    from outlive import __version__

    version = f"{__version__} on Python {platform.python_version()}, {system.name}"
    yield Finding("outlive", "ok", version)
    yield Finding("packages", "ok", ", ".join(_versions()))
    yield sqlite_finding(apsw.sqlite_lib_version())


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            pass


def has_wal_bug(version: str) -> bool:
    """Tell whether this SQLite may lose commits when two processes checkpoint its log at once.

    The bug is in all versions from 3.7.0 to 3.51.2 except 3.50.7 and 3.44.6.
    """
    number = tuple(int(part) for part in version.split(".")[:3])
    if number >= (3, 51, 3) or number < (3, 7, 0):
        return False
    return not any(fixed <= number < (3, fixed[1] + 1) for fixed in ((3, 50, 7), (3, 44, 6)))


def sqlite_finding(version: str) -> Finding:
    if has_wal_bug(version):
        return Finding(
            "sqlite",
            "problem",
            f"{version} has the WAL-reset bug: several processes on one file may damage it",
            "pip install -U apsw, which includes SQLite; the bug is fixed in 3.51.3, 3.50.7 and 3.44.6",
        )
    return Finding("sqlite", "ok", f"{version}, without the WAL-reset bug")


# The store


def check_store(store: OpenedStore, url: str, *, is_alone: bool) -> list[Finding]:
    """Check a store that was opened; `is_alone` when no secondary was given."""
    checks = (_check_role, *_STORE_CHECKS) if is_alone else _STORE_CHECKS
    return [finding for check in checks for finding in _guard(check, store, url)]


def _guard(
    check: Callable[[OpenedStore, str], Iterable[Finding]], store: OpenedStore, url: str
) -> Iterable[Finding]:
    """Run a check; an error becomes a finding and does not prevent the other checks."""
    try:
        return list(check(store, url))
    except OutliveError as error:
        message, advice = split_advice(error)
        name = check.__name__.removeprefix("_check_")
        return [Finding(name, "problem", message, advice or "run outlive verify for details")]


def _check_role(store: OpenedStore, url: str) -> Iterator[Finding]:
    """Report that the store belongs to a pair but was opened alone."""
    from outlive.layers.replication.pair import ROLES

    record = store.pair_record()
    if record is None:
        return
    role = ROLES[record.role]
    if record.ended:
        message = f"this store is an old copy: it was the {role} of a pair that has ended"
        yield Finding("pair", "note", message, "open the other store, which continues alone")
    else:
        message = f"this store is the {role} of a pair, in epoch {record.epoch}, and was opened alone"
        fix = "outlive doctor --store PRIMARY --secondary SECONDARY checks both"
        yield Finding("pair", "note", message, fix)


def _check_clock(store: OpenedStore, url: str) -> Iterator[Finding]:
    clock = LeaseClock.of(store)
    if clock.skew_s is None:
        yield Finding("clock", "ok", "leases use the monotonic clock of this machine")
        return
    start = time.monotonic()
    run_now(store.backend.identity(b""))
    yield Finding("round trip", "ok", f"{(time.monotonic() - start) * 1000:.1f} ms")
    yield skew_finding(clock.skew_s)


def skew_finding(skew_s: float) -> Finding:
    message = f"the server's clock is {abs(skew_s):.2f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) < _MAX_SKEW_S:
        return Finding("clock", "ok", message)
    fix = (
        "run a time service (chrony, systemd-timesyncd) on both machines; leases are safe, because the server "
        "times them, but the ages shown here are wrong"
    )
    return Finding("clock", "warning", message, fix)


def _check_disk(store: OpenedStore, url: str) -> Iterator[Finding]:
    path = local_path(url)
    if path is None:
        return
    kind = system.file_system(path)
    if kind in _NETWORK_FILE_SYSTEMS:
        message = f"{path} is on a {kind} file system, whose locks and fsync are not reliable"
        fix = "move it to a local disk, or use postgresql: or redis: for several machines"
        yield Finding("disk", "problem", message, fix)
    free_bytes = shutil.disk_usage(path).free
    message = f"{format_size(free_bytes)} free on {kind or 'its file system'}"
    if free_bytes < _MIN_FREE_BYTES:
        fix = "free some space; outlive stats lists the largest threads, outlive prune shrinks them"
        yield Finding("space", "warning", message, fix)
    else:
        yield Finding("space", "ok", message)
    if os.path.isfile(f"{path}-wal") and (size := os.path.getsize(f"{path}-wal")) > _MAX_WAL_BYTES:
        fix = "end the process that keeps a read transaction open on the file (find it with lsof), then run outlive ls"
        yield Finding("log", "warning", f"{path}-wal has grown to {format_size(size)}", fix)


def _check_sizes(store: OpenedStore, url: str) -> Iterator[Finding]:
    total = store.size()
    message = f"{format_count(total.threads, 'thread')}, {format_count(total.checkpoints, 'checkpoint')}, "
    message += format_size(total.stored_bytes)
    facts = store.facts()
    if "file_bytes" in facts:
        size, unused = format_size(facts["file_bytes"]), format_size(facts["unused_bytes"])
        message += f"; the file has {size}, {unused} of it unused"
    yield Finding("sizes", "ok", message)


def _check_runs(store: OpenedStore, url: str) -> Iterator[Finding]:
    clock, workers, counts, is_left = LeaseClock.of(store), Workers(store), dict[str, int](), False
    for run in store.runs(status=["running", "waiting", "released", "parked", "failed"]):
        standing = clock.standing(run)
        counts[standing] = counts.get(standing, 0) + 1
        is_left = is_left or (standing in ("dead", "released") and not workers.can_claim(run))
    message = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "no unfinished runs"
    if is_left:
        fix = "outlive recover --handlers MODULE:NAME resumes them, as does outlive worker; outlive cancel RUN cancels one"
        yield Finding("runs", "warning", f"{message}: dead and released runs wait for recovery", fix)
    elif counts.get("parked"):
        fix = "outlive runs show RUN shows the error; outlive retry RUN resumes it, outlive cancel RUN cancels it"
        yield Finding("runs", "warning", f"{message}: parked runs need a decision", fix)
    else:
        yield Finding("runs", "ok", message)


# What the backend says of itself


def _check_schema(store: OpenedStore, url: str) -> Iterator[Finding]:
    """Report the version of the stored format; a store with a newer one was not opened."""
    facts = store.facts()
    if "format" in facts:
        message = f"version {facts['format']}, this outlive writes {facts['format_written']}"
        if "lease_clock" not in facts:  # a server
            message += f"; {facts['location']}, {facts['engine']}"
        yield Finding("schema", "ok", message)


def _check_durability(store: OpenedStore, url: str) -> Iterator[Finding]:
    facts = store.facts()
    checks = {
        "sqlite": _local_durability,
        "file": _local_durability,
        "postgresql": _postgres_durability,
        "redis": _redis_durability,
    }
    if facts["backend"] in checks:
        settings = facts["settings"]
        message = ", ".join(f"{name}={value}" for name, value in settings.items())
        yield checks[facts["backend"]](settings, message)
    else:
        message = f"{facts['backend']}: everything is lost when the process ends"
        fix = "use sqlite:, file:, postgresql: or redis: to keep data"
        yield Finding("durability", "warning", message, fix)


def _local_durability(settings: dict[str, str], message: str) -> Finding:
    if settings.get("synchronous", settings.get("fsync")) in ("full", "extra"):
        return Finding("durability", "ok", f"{message}: a saved checkpoint survives a power cut")
    fix = "open without fsync=normal, here and in the programs that save"
    return Finding("durability", "warning", f"{message}: a power cut may lose the last saves", fix)


def _postgres_durability(settings: dict[str, str], message: str) -> Finding:
    off = [name for name, value in settings.items() if value == "off"]
    if not off:
        return Finding("durability", "ok", message)
    where = "in postgresql.conf" + (", or for the role" if off == ["synchronous_commit"] else "")
    fix = f"set {' and '.join(f'{name} = on' for name in off)} {where}, and reload the server"
    return Finding("durability", "warning", f"{message}: a crash of the server may lose saves", fix)


def _redis_durability(settings: dict[str, str], message: str) -> Finding:
    if "appendonly" not in settings:
        return Finding("durability", "note", "unknown, because the server does not permit CONFIG")
    if settings["appendonly"] != "yes":
        fix = "CONFIG SET appendonly yes, and CONFIG REWRITE; outlive docs guarantees says what each setting loses"
        message += ": a crash of the server loses everything since its last snapshot"
        return Finding("durability", "warning", message, fix)
    if settings.get("appendfsync") != "always":
        return Finding("durability", "note", f"{message}: a crash of the server loses about a second")
    return Finding("durability", "ok", message)


_STORE_CHECKS = (_check_schema, _check_clock, _check_durability, _check_disk, _check_sizes, _check_runs)
