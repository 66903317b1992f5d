"""Runs and locks as the waist keeps them: entries with a lease and a fence.

A run is an entry of kind "run" under its id; the place that it works in (a thread and namespace) is an entry of kind
"lock" under the namespace. Both are taken by one commit, which gives both the same fence: a number that the thread
never gave before. Every write of the run names its fence and renews both leases, in the same commit. Whoever takes the run
or its place over gets a greater fence, and from then on the former owner's writes are refused as a whole.

A lease is timed by the store's clock. A run whose lease has run out may be claimed. So may one whose owner has certainly ended,
which can be known on the owner's own machine (`owner.py`). A claim names the rank of what it saw: of many who try, one succeeds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .backend import ABSENT, NEXT, Entry, ThreadKey
from .checkpoint import moment
from .codec import Codec
from .engine import Engine
from .entry_kind import LOCK as LOCK
from .entry_kind import RUN as RUN
from .entry_kind import STEP as STEP
from .errors import EntryHeld, KeyMissing, OutliveError, RunBusy, ThreadBusy
from .owner import Owner

RUNNING, INTERRUPTED, COMPLETED, FAILED, CANCELLED, PARKED = (
    "running", "interrupted", "completed", "failed", "cancelled", "parked",
)  # fmt: skip
UNFINISHED = (RUNNING, INTERRUPTED)
STATUSES = (RUNNING, INTERRUPTED, COMPLETED, FAILED, CANCELLED, PARKED)


@dataclass(slots=True)
class RunInfo:
    """What the store knows of a run. It stays when the run has ended."""

    id: str
    thread: str
    namespace: str = ""
    status: str = RUNNING
    attempt: int = 1
    max_attempts: int = 5
    agent: str | None = None
    prompt: Any = None
    parent: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    code_version: str | None = None
    iteration: int = 0
    phase: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: Any = None
    exclusive: bool = True
    lease_s: float = 30.0
    owner: Owner | None = None
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    until: int = 0  # end of the lease, by the store's clock
    is_readable: bool = True  # else only its id, thread and status are known, and `error` says why
    _entry: Entry | None = field(default=None, repr=False)

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED


_FIELDS = (
    "namespace", "attempt", "max_attempts", "agent", "prompt", "parent", "attributes", "code_version", "iteration", "phase",
    "usage", "error", "result", "exclusive", "lease_s", "started_at", "ended_at",
)  # fmt: skip


def pack_run(codec: Codec, run: RunInfo) -> bytes:
    """Return the body of a run's entry."""
    said = {name: getattr(run, name) for name in _FIELDS}
    said["owner"] = None if run.owner is None else run.owner.pack()
    return codec.pack(said, f"run {run.id!r}")


def unpack_run(codec: Codec, key: ThreadKey, entry: Entry) -> RunInfo:
    """Return a run as its entry says."""
    said = codec.unpack(entry.body or b"")
    owner = said.pop("owner", None)
    known = {name: value for name, value in said.items() if name in _FIELDS}
    return RunInfo(
        id=entry.key,
        thread=key.id,
        status=entry.status,
        until=entry.until,
        owner=None if owner is None else Owner.unpack(owner),
        _entry=entry,
        **known,
    )


def unpack_or_tell(codec: Codec, key: ThreadKey, entry: Entry) -> RunInfo:
    """Return a run among others, which must not be hidden by one that is damaged or holds what this process does not know."""
    try:
        return unpack_run(codec, key, entry)
    except KeyMissing:
        raise  # it is the key of all of them
    except OutliveError as error:
        return RunInfo(
            entry.key, key.id, status=entry.status, until=entry.until, error=unreadable(error), is_readable=False, _entry=entry
        )  # fmt: skip


def unreadable(error: OutliveError) -> str:
    """Say why only the place of a run can be told."""
    return f"it cannot be read: {error}"


def take_run(codec: Codec, run: RunInfo, stored: Entry | None) -> Entry:
    """Return the entry that makes this process the owner of a run, new or claimed."""
    return Entry(
        RUN,
        run.id,
        pack_run(codec, run),
        RUNNING,
        epoch=stored.epoch if stored is not None else 0,
        fence=NEXT,
        lease_s=run.lease_s,
        expect=ABSENT if stored is None else stored.rank,
    )


def take_lock(
    codec: Codec, run_id: str | None, namespace: str, lease_s: float, stored: Entry | None
) -> Entry:
    """Return the entry that takes a place: one that is free, that has lapsed, or whose holder is gone."""
    body = codec.pack({"run": run_id, "owner": Owner.me().pack()})
    entry = Entry(LOCK, namespace, body, RUNNING, fence=NEXT, lease_s=lease_s, expect_lapsed=True)
    if stored is None:
        return replace(entry, expect=ABSENT)
    entry = replace(entry, epoch=stored.epoch, expect=stored.rank)
    return replace(entry, expect_lapsed=False) if holder_of(codec, stored).is_gone() else entry


async def find(engine: Engine, key: ThreadKey, kind: str, name: str) -> Entry | None:
    """Return the entry of a thread that has this very name."""
    found = await engine.backend.entries(key.tenant, kind, thread=key, prefix=name, limit=1)
    return next((entry for _, entry in found if entry.key == name), None)


def busy(codec: Codec, namespace: str, held: EntryHeld) -> RunBusy | ThreadBusy:
    """Say who was in the way: of a run, or of the place it works in."""
    stored = held.stored
    assert stored is None or isinstance(stored, Entry)
    until = None if stored is None else lapses_at(stored)
    if held.kind != LOCK:
        return RunBusy(held.key, until)
    holder = None if stored is None else run_of(codec, stored)
    return ThreadBusy(held.thread, namespace, holder, until)


def holder_of(codec: Codec, lock: Entry) -> Owner:
    """Return who holds a lock."""
    return Owner.unpack(codec.unpack(lock.body or b"")["owner"])


def run_of(codec: Codec, lock: Entry) -> str | None:
    """Return the run that holds a lock; None when it is held without one."""
    found = codec.unpack(lock.body or b"")["run"]
    return None if found is None else str(found)


def lapses_at(entry: Entry) -> dt.datetime | None:
    """Return when a lease ends, if the clock that times it tells the time of day."""
    is_wall_clock = entry.until > 1_000_000_000_000_000  # microseconds since 1970, not since a boot
    return moment(entry.until) if is_wall_clock else None
