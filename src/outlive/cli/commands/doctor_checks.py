"""What `doctor` looks at. A finding says what is so, and, when something is wrong, the sentence that mends it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import TYPE_CHECKING, Any

from outlive.cli.commands.doctor_durability import durability
from outlive.cli.commands.doctor_finding import Finding, lowest, pragma
from outlive.cli.commands.doctor_schema import schema
from outlive.cli.context import Call
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.lookup import side_of
from outlive.cli.output.advice import mended, parted
from outlive.cli.output.units import counted, size
from outlive.cli.stores import opening
from outlive.errors import KeyMissing, NewerFormat, OutliveError, WrongKey

if TYPE_CHECKING:
    from outlive.sync.facades import Store

_PACKAGES = (
    "ormsgpack",
    "apsw",
    "backports.zstd",
    "click",
    "rich",
    "psycopg",
    "redis",
    "cryptography",
    "langgraph-checkpoint",
)
_REMOTE = frozenset(
    (
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "fuse.sshfs",
        "fuse.s3fs",
        "lustre",
        "glusterfs",
    )
)
_SKEW_S = 2.0
_BIG_WAL = 256 << 20
_LITTLE_SPACE = 512 << 20


# The installation ---------------------------------------------------------------------------------------------


def examine_installation() -> Iterator[Finding]:
    from outlive import __version__

    yield Finding(
        "outlive", "ok", f"{__version__} on Python {platform.python_version()}, {platform.system()}"
    )
    yield Finding("packages", "ok", ", ".join(_versions()))
    yield sqlite_finding(_sqlite_version())


def _versions() -> Iterator[str]:
    for name in _PACKAGES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            pass


def _sqlite_version() -> str:
    import apsw

    return apsw.sqlite_lib_version()


def has_wal_bug(version: str) -> bool:
    """Tell whether a SQLite may lose commits when two processes checkpoint its log at once.

    It was in all versions from 3.7.0 to 3.51.2; the fix is also in 3.50.7 and 3.44.6.
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
            "pip install -U apsw: it brings a SQLite of its own; 3.51.3, 3.50.7 and 3.44.6 are mended",
        )
    return Finding("sqlite", "ok", f"{version}, without the WAL-reset bug")


# The store ----------------------------------------------------------------------------------------------------


def examine_store(call: Call, url: str) -> list[Finding]:
    """Look at a store; one that cannot be opened is the finding."""
    found = list(_pair(call, url))
    opening()  # importing is not what is timed
    began = time.monotonic()
    try:
        with call.open() as store:
            took_ms = (time.monotonic() - began) * 1000
            found.append(Finding("store", "ok", f"{call.shown_store} opened in {took_ms:.0f} ms"))
            if call.secondary is None:
                found += _guarded(_role, store, url)
            for look in (schema, _clock, durability, _disk, _sizes, _runs):
                found += _guarded(look, store, url)
            return found
    except NewerFormat as error:
        return [*found, Finding("store", "problem", str(error), "pip install -U outlive")]
    except (KeyMissing, WrongKey) as error:
        return [*found, Finding("keys", "problem", *parted(error))]
    except OutliveError as error:
        said, mend = parted(error)
        return [*found, Finding("store", "problem", said, mend or _reach(url))]


def _pair(call: Call, url: str) -> Iterator[Finding]:
    if call.secondary is None:
        return
    from outlive.cli.pair_state import is_well, look, told

    try:
        seen = look(url, call.options())
    except OutliveError as error:
        yield Finding("pair", "problem", mended(error), "check both URLs")
        return
    said, mend = told(seen)
    yield Finding("pair", "ok" if is_well(seen) else "warning", said, mend)


def _role(store: Store, url: str) -> Iterator[Finding]:
    """A store of a pair that is looked at by itself."""
    from outlive.layers.replication.pair import ROLES

    side = side_of(store)
    if side is not None and side.ended:
        said = f"this store is an old copy: the pair whose {ROLES[side.role]} it was has ended"
        yield Finding("pair", "note", said, "open the other store, which goes on alone")
    elif side is not None:
        said = f"this store is the {ROLES[side.role]} of a pair, in epoch {side.epoch}, and was opened alone"
        yield Finding(
            "pair", "note", said, "outlive doctor --store PRIMARY --secondary SECONDARY looks at both"
        )


def _guarded(look: Any, store: Store, url: str) -> Iterable[Finding]:
    try:
        return list(look(store, url))
    except OutliveError as error:
        said, mend = parted(error)
        return [Finding(look.__name__.strip("_"), "problem", said, mend or "outlive verify tells more")]


def _reach(url: str) -> str:
    if url.startswith(("postgres", "redis")):
        return "check host, port, user and database in the URL, and that the server is running and lets this machine in"
    return "check the path and its permissions; outlive demo makes a store to look at"


def _clock(store: Store, url: str) -> Iterator[Finding]:
    clock = LeaseClock.of(store)
    if clock.skew_s is None or clock.trip_s is None:
        yield Finding("clock", "ok", "leases are timed by a clock of this machine that nobody can set")
        return
    yield Finding("round trip", "ok", f"{clock.trip_s * 1000:.1f} ms")
    yield skew_finding(clock.skew_s)


def skew_finding(skew_s: float) -> Finding:
    said = f"the server's clock is {abs(skew_s):.2f} s {'ahead' if skew_s > 0 else 'behind'}"
    if abs(skew_s) < _SKEW_S:
        return Finding("clock", "ok", said)
    mend = "start a time service (chrony, systemd-timesyncd) on both; leases are safe, they are timed by the server, but ages shown here are off"
    return Finding("clock", "warning", said, mend)


def _disk(store: Store, url: str) -> Iterator[Finding]:
    from outlive.cli.stores import local_path

    path = local_path(url)
    if path is None:
        return
    kind = _file_system(path)
    if kind in _REMOTE:
        said = f"{path} is on a {kind} file system, whose locks and fsync cannot be relied on"
        yield Finding(
            "disk",
            "problem",
            said,
            "keep it on a local disk, or use postgresql: or redis: for several machines",
        )
    free = os.statvfs(path)
    free_bytes = free.f_bavail * free.f_frsize
    said = f"{size(free_bytes)} free on {kind or 'its file system'}"
    if free_bytes < _LITTLE_SPACE:
        yield Finding(
            "space",
            "warning",
            said,
            "free some; outlive stats tells which threads are large, outlive prune makes them smaller",
        )
    else:
        yield Finding("space", "ok", said)
    yield from _log(path)


def _log(path: str) -> Iterator[Finding]:
    """A log that is never moved into the file: some reader stands in the way."""
    if os.path.isfile(f"{path}-wal"):
        log_bytes = os.path.getsize(f"{path}-wal")
        if log_bytes > _BIG_WAL:
            mend = "find the process that keeps a read transaction open on the file (lsof), and end it; then outlive ls moves the log into the file"
            yield Finding("log", "warning", f"{path}-wal has grown to {size(log_bytes)}", mend)


def _file_system(path: str) -> str:
    """Return the type of the file system that holds a path, by the longest mount point above it."""
    best = ("", "")
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as file:
            for line in file:
                _, point, kind, *_ = line.split(" ")
                point = point.encode().decode("unicode_escape")
                if f"{os.path.realpath(path)}/".startswith(f"{point.rstrip('/')}/"):
                    best = max(best, (point, kind), key=lambda one: len(one[0]))
    except (OSError, ValueError):
        return ""
    return best[1]


def _sizes(store: Store, url: str) -> Iterator[Finding]:
    threads = checkpoints = stored = 0
    for info in store.threads():
        threads, checkpoints, stored = threads + 1, checkpoints + info.checkpoints, stored + info.stored_bytes
    backend = lowest(store)
    said = f"{counted(threads, 'thread')}, {counted(checkpoints, 'checkpoint')}, {size(stored)}"
    if backend.name == "sqlite":
        pages, unused, page = (
            pragma(backend, name) for name in ("page_count", "freelist_count", "page_size")
        )
        said += f"; the file has {size(pages * page)}, of which {size(unused * page)} are unused"
    yield Finding("sizes", "ok", said)


def _runs(store: Store, url: str) -> Iterator[Finding]:
    clock, counts = LeaseClock.of(store), dict[str, int]()
    for run in store.runs(status=["running", "released", "parked", "failed"]):
        standing = clock.standing(run)
        counts[standing] = counts.get(standing, 0) + 1
    said = (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none that is not finished"
    )
    if counts.get("dead") or counts.get("released"):
        mend = "outlive recover --handlers MODULE:NAME goes on with them; outlive cancel RUN ends one"
        yield Finding("runs", "warning", f"{said}: dead and released ones wait to be recovered", mend)
    elif counts.get("parked"):
        mend = "outlive run RUN tells what happened; outlive retry RUN goes on with it, outlive cancel RUN ends it"
        yield Finding("runs", "warning", f"{said}: parked ones wait for a person", mend)
    else:
        yield Finding("runs", "ok", said)
