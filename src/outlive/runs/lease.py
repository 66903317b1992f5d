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
from dataclasses import dataclass, field
from typing import Any

from outlive.backend import ABSENT, NEXT, EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import LOCK as LOCK
from outlive.backend.entries import RUN as RUN
from outlive.backend.entries import STEP as STEP
from outlive.errors import (
    Corrupt,
    DamagedEntry,
    EntryHeld,
    KeyMissing,
    OutliveError,
    RunBusy,
    ThreadBusy,
    well_formed,
)
from outlive.format.codec import Codec
from outlive.runs.owner import Owner
from outlive.threads.engine import Engine
from outlive.values import moment

RUNNING, RELEASED, COMPLETED, FAILED, CANCELLED, PARKED = (
    "running", "released", "completed", "failed", "cancelled", "parked",
)  # fmt: skip
UNFINISHED = (RUNNING, RELEASED)
STATUSES = (RUNNING, RELEASED, COMPLETED, FAILED, CANCELLED, PARKED)


@dataclass(slots=True)
class RunInfo:
    """What the store knows of a run. It stays when the run has ended."""

    id: str
    thread: str
    namespace: str = ""
    status: str = RUNNING
    attempt: int = 1
    failures: int = 0  # attempts whose process died, or that raised; an orderly interruption is none
    max_attempts: int = 5  # failures until it is parked
    agent: str | None = None
    prompt: Any = None
    parent: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    code_version: str | None = None
    iteration: int = 0
    phase: str | None = None
    completed_phases: list[str] = field(default_factory=list)  # in the order in which they were left
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: Any = None
    exclusive: bool = True
    shares_place: bool = False  # it works in the place of its parent
    lease_s: float = 30.0
    owner: Owner | None = None
    started_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None  # when this record was written: at the start, by a save, at the end
    ended_at: dt.datetime | None = None
    lease_expires_at: dt.datetime | None = None  # unless it is renewed; None: it has no lease
    is_readable: bool = True  # else only its id, thread and status are known, and `error` says why
    _entry: EntryRecord | None = field(default=None, repr=False)

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED


_FIELDS = (
    "namespace", "attempt", "failures", "max_attempts", "agent", "prompt", "parent", "attributes", "code_version", "iteration",
    "phase", "completed_phases", "usage", "error", "result", "exclusive", "shares_place", "lease_s", "started_at", "updated_at",
    "ended_at",
)  # fmt: skip


def pack_run(engine: Engine, run: RunInfo) -> bytes:
    """Return the body of a run's entry, as of now."""
    run.updated_at = moment(engine.runtime.now())
    said = {name: getattr(run, name) for name in _FIELDS}
    said["owner"] = None if run.owner is None else run.owner.pack()
    return engine.codec.pack(said, f"run {run.id!r}")


def unpack_run(codec: Codec, key: ThreadKey, entry: EntryRecord) -> RunInfo:
    """Return a run as its entry says."""
    with well_formed(f"run {entry.key!r}", key.id):
        said = codec.unpack(entry.body or b"")
        owner = said.pop("owner", None)
        known = {name: value for name, value in said.items() if name in _FIELDS}
        return RunInfo(
            id=entry.key,
            thread=key.id,
            status=entry.status,
            lease_expires_at=lapses_at(entry),
            owner=None if owner is None else Owner.unpack(owner),
            _entry=entry,
            **known,
        )


def unpack_or_tell(codec: Codec, key: ThreadKey, entry: EntryRecord) -> RunInfo:
    """Return a run among others, which must not be hidden by one that is damaged or holds what this process does not know."""
    try:
        return unpack_run(codec, key, entry)
    except KeyMissing:
        raise  # it is the key of all of them
    except OutliveError as error:
        return RunInfo(
            entry.key, key.id, status=entry.status, lease_expires_at=lapses_at(entry), error=unreadable(error), is_readable=False, _entry=entry
        )  # fmt: skip


def unreadable(error: OutliveError) -> str:
    """Say why only the place of a run can be told."""
    return f"it cannot be read: {error}"


def take_run(engine: Engine, run: RunInfo, stored: EntryRecord | None) -> EntryRecord:
    """Return the entry that makes this process the owner of a run, new or claimed."""
    return EntryRecord(
        RUN,
        run.id,
        pack_run(engine, run),
        RUNNING,
        epoch=stored.epoch if stored is not None else 0,
        fence=NEXT,
        lease_s=run.lease_s,
        expect=ABSENT if stored is None else stored.rank,
    )


async def find(engine: Engine, key: ThreadKey, kind: str, name: str) -> EntryRecord | None:
    """Return the entry of a thread that has this very name."""
    found = await engine.backend.entries(EntryQuery(key.tenant, kind, thread=key, prefix=name, limit=1))
    return next((entry for _, entry in found if entry.key == name), None)


async def find_all(engine: Engine, tenant: str, id: str) -> list[tuple[ThreadKey, EntryRecord]]:
    """Return the runs of a tenant that have this very id, by thread; more than one only if they began at the same moment."""
    found: list[tuple[ThreadKey, EntryRecord]] = []
    after: EntryCursor | None = None
    limit = _FEW
    while True:
        try:
            page = await engine.backend.entries(EntryQuery(tenant, RUN, prefix=id, after=after, limit=limit))
        except DamagedEntry as error:
            if error.key == id:
                raise
            if limit == 1:
                return found  # a run whose id goes on after this one is no reason to refuse it
            limit = 1
            continue
        found += [(key, entry) for key, entry in page if entry.key == id]
        if len(page) < limit or page[-1][1].key != id:
            return found
        after = (id, page[-1][0].digest)


_FEW = 4


@dataclass(frozen=True, slots=True)
class Lock:
    """What the entry of a place says: who took it."""

    run: str | None  # None: it is held without a run
    owner: Owner

    @classmethod
    def unpack(cls, codec: Codec, entry: EntryRecord) -> Lock:
        said = codec.unpack(entry.body or b"")
        if not isinstance(said, dict) or not isinstance(said.get("run"), str | None):
            raise Corrupt(f"the lock of namespace {entry.key!r} is damaged")
        return cls(said.get("run"), Owner.unpack(said.get("owner")))

    def pack(self, codec: Codec) -> bytes:
        return codec.pack({"run": self.run, "owner": self.owner.pack()})


def busy(codec: Codec, namespace: str, held: EntryHeld) -> RunBusy | ThreadBusy:
    """Say who was in the way: of a run, or of the place it works in."""
    stored = held.stored
    assert stored is None or isinstance(stored, EntryRecord)
    if held.kind != LOCK:
        return run_busy(codec, held.key, stored)
    if stored is None:
        return ThreadBusy(held.thread, namespace, None, None)
    return thread_busy(codec, held.thread, namespace, stored)


def run_busy(codec: Codec, id: str, stored: EntryRecord | None) -> RunBusy:
    """Say who has a run, by its entry."""
    if stored is None:
        return RunBusy(id, None)
    owner = _owner_of(codec, stored)
    return RunBusy(id, lapses_at(stored), None if owner is None else str(owner), is_mine=owner == Owner.me())


def thread_busy(codec: Codec, thread: str, namespace: str, lock: EntryRecord) -> ThreadBusy:
    """Say who holds a place, by its entry."""
    held = Lock.unpack(codec, lock)
    return ThreadBusy(thread, namespace, held.run, lapses_at(lock), str(held.owner))


def _owner_of(codec: Codec, run: EntryRecord) -> Owner | None:
    try:
        return Owner.unpack(codec.unpack(run.body or b"", opaque=True)["owner"])
    except (OutliveError, TypeError, KeyError):
        return None  # it cannot be read: that it is held is true all the same


def lapses_at(entry: EntryRecord) -> dt.datetime | None:
    """Return when a lease ends unless it is renewed, as a time of day; None when it has none, or one of a former boot."""
    if not entry.until:
        return None
    if is_time_of_day(entry):
        return moment(entry.until)
    from outlive.backends.local.memory import clock  # of this machine: it tells how much is left

    here = clock()
    return moment(here.now + entry.until - here.lease) if entry.clock == here.id else None


def is_time_of_day(entry: EntryRecord) -> bool:
    """Tell whether a lease is timed by the wall clock of a server, not by a clock that counts since a boot."""
    return entry.until > 1_000_000_000_000_000  # microseconds: since 1970, not since a boot
