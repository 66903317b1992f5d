"""Runs and locks as the backend stores them: entries with a lease and a fence.

A run is an entry of kind "run" under its id. The place that it works in, a thread and namespace, is
an entry of kind "lock" under the namespace. One commit takes both and gives both the same fence: a
number that the thread has never used before. Every write of the run names its fence and renews both
leases, in the same commit. A process that takes over the run or its place gets a greater fence.
From then on the store refuses the writes of the former owner as a whole.

The clock of the store times a lease. A run whose lease has expired may be claimed. So may a run
whose owner has certainly ended, which only its own machine can know (`owner.py`). A claim names the
rank of the entry that it read, so of many claims at once exactly one succeeds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from outlive.backend import ABSENT, NEXT, WALL, EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.clock import clock
from outlive.backend.entries import LOCK as LOCK
from outlive.backend.entries import RUN as RUN
from outlive.backend.entries import STEP as STEP
from outlive.dataclass import dataclass
from outlive.errors import (
    BadArgument,
    Corrupt,
    DamagedEntry,
    EntryHeld,
    KeyMissing,
    OutliveError,
    RunBusy,
    ThreadBusy,
    well_formed,
)
from outlive.events import valid_trace
from outlive.format.codec import Codec
from outlive.runs import attempts
from outlive.runs.budget import Budget
from outlive.runs.owner import Owner
from outlive.runs.waiting import Outer, Waiting
from outlive.threads.engine import Engine
from outlive.values import moment

RUNNING, WAITING, RELEASED, COMPLETED, FAILED, CANCELLED, PARKED = (
    "running", "waiting", "released", "completed", "failed", "cancelled", "parked",
)  # fmt: skip
UNFINISHED = (RUNNING, WAITING, RELEASED)
FREE, LEFT = "free", "left"  # of a place: nothing is unfinished there; its last run is
STATUSES = (*UNFINISHED, COMPLETED, FAILED, CANCELLED, PARKED)


@dataclass(slots=True)
class RunInfo:
    """What the store knows about a run. The store keeps it when the run has ended."""

    id: str
    thread: str
    namespace: str = ""
    status: str = RUNNING
    attempt: int = 1
    failures: int = 0  # attempts whose process died, or that raised; a release does not count
    max_attempts: int = 5  # failures until it is parked
    backoff_s: float | None = None  # the pause after the first failure; None: a failure ends the run
    priority: int = 0  # of released runs of an agent, those with the greatest are claimed first
    waits: Waiting | None = None  # why it waits, or waited until it was released
    outer: Outer | None = None  # the run around it, which waits for it
    agent: str | None = None
    prompt: Any = None
    parent: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    code_version: str | None = None
    iteration: int = 0
    phase: str | None = None
    completed_phases: list[str] = field(default_factory=list)  # in the order in which they were left
    usage: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget | None = None
    error: str | None = None
    result: Any = None
    exclusive: bool = True
    shares_place: bool = False  # it shares the place of its parent
    lease_s: float = 30.0
    progress_s: float | None = None  # without progress for that long, its lease is not renewed
    owner: Owner | None = None
    started_at: dt.datetime | None = None
    updated_at: dt.datetime | None = None  # the last write or step; a heartbeat notes those of steps
    step: str | None = None  # the step that it is in, as of the last heartbeat
    ended_at: dt.datetime | None = None
    attempts: tuple[attempts.Attempt, ...] = ()  # the last 20, oldest first
    lease_expires_at: dt.datetime | None = None  # unless it is renewed; None: no lease
    trace: str | None = None  # the W3C trace context of who submitted it, or of its first attempt
    effect_seed: bytes = field(default=b"", repr=False)  # of the keys of its effects
    is_readable: bool = True  # if not: only id, thread and status are known; see `error`
    _entry: EntryRecord | None = field(default=None, repr=False)

    @property
    def is_finished(self) -> bool:
        """Tell whether the run has ended or is parked."""
        return self.status not in UNFINISHED

    @property
    def quiet_s(self) -> float | None:
        """The seconds since the last write, by the clock of this process; None unless the run is running."""
        if self.status != RUNNING or self.updated_at is None:
            return None
        return max(0.0, (dt.datetime.now(dt.UTC) - self.updated_at).total_seconds())


_FIELDS = (
    "namespace", "attempt", "failures", "max_attempts", "backoff_s", "priority", "agent", "prompt", "parent", "attributes", "code_version", "iteration",
    "phase", "completed_phases", "usage", "error", "result", "exclusive", "shares_place", "lease_s", "started_at", "updated_at",
    "ended_at", "step", "progress_s", "trace", "effect_seed",
)  # fmt: skip


def pack_run(engine: Engine, run: RunInfo) -> bytes:
    """Return the body of the entry of a run. Sets its `updated_at` to the current time."""
    run.updated_at = moment(engine.runtime.now())
    fields = {name: getattr(run, name) for name in _FIELDS}
    fields["owner"] = None if run.owner is None else run.owner.pack()
    fields["waits"] = None if run.waits is None else run.waits.pack()
    fields["outer"] = None if run.outer is None else run.outer.pack()
    fields["attempts"] = attempts.pack(run.attempts)
    fields["budget"] = None if run.budget is None else run.budget.pack()
    return engine.codec.pack(fields, f"run {run.id!r}")


def unpack_run(codec: Codec, key: ThreadKey, entry: EntryRecord) -> RunInfo:
    """Return the run that an entry describes."""
    with well_formed(f"run {entry.key!r}", key.id):
        fields = codec.unpack(entry.body or b"")
        seed_of(fields)
        budget = fields.pop("budget", None)
        owner, tried = fields.pop("owner", None), attempts.unpack(fields.pop("attempts", []))
        waits, outer = fields.pop("waits", None), fields.pop("outer", None)
        known = {name: value for name, value in fields.items() if name in _FIELDS}
        known["trace"] = valid_trace(fields.get("trace"))
        return RunInfo(
            id=entry.key,
            thread=key.id,
            status=entry.status,
            lease_expires_at=lapses_at(entry),
            owner=None if owner is None else Owner.unpack(owner),
            waits=None if waits is None else Waiting.unpack(waits),
            outer=None if outer is None else Outer.unpack(outer),
            attempts=tried,
            budget=None if budget is None else Budget.unpack(budget),
            _entry=entry,
            **known,
        )


def seed_of(fields: Any) -> bytes:
    """Return the seed of the effects of a stored run. Raises Corrupt."""
    seed = fields.get("effect_seed", b"")
    if not isinstance(seed, bytes) or len(seed) > 64:
        raise Corrupt("the seed of the effects of a run is damaged")
    return seed


def pack_progress(codec: Codec, body: bytes, run: RunInfo) -> bytes:
    """Return a stored body of a run with its last write, the step that it is in, and its usage."""
    fields = codec.unpack(body, opaque=True)
    return codec.pack({**fields, "updated_at": run.updated_at, "step": run.step, "usage": run.usage})


def end_dead_attempt(run: RunInfo) -> None:
    """Note that the process of the last attempt died or lost contact, if the run is still "running"."""
    if run.status != RUNNING:
        return
    is_gone = run.owner is not None and run.owner.is_gone()
    last = run.updated_at
    if run.lease_expires_at is not None:  # every write and heartbeat renewed the lease
        last = run.lease_expires_at - dt.timedelta(seconds=run.lease_s)
    run.attempts = attempts.end(run.attempts, attempts.DIED if is_gone else attempts.LAPSED, last)
    run.step = None


def unpack_or_tell(codec: Codec, key: ThreadKey, entry: EntryRecord) -> RunInfo:
    """Return one run of a listing, with `is_readable=False` if its entry cannot be read.

    So a damaged run, or one with values of unknown types, does not hide the others.
    """
    try:
        return unpack_run(codec, key, entry)
    except KeyMissing:
        raise  # no other run can be read without this key either
    except OutliveError as error:
        return RunInfo(
            entry.key,
            key.id,
            status=entry.status,
            lease_expires_at=lapses_at(entry),
            error=unreadable(error),
            is_readable=False,
            _entry=entry,
        )


def unreadable(error: OutliveError) -> str:
    """Return the `error` of a run that cannot be read."""
    return f"it cannot be read: {error}"


def take_run(engine: Engine, run: RunInfo, stored: EntryRecord | None) -> EntryRecord:
    """Return the entry that makes this process the owner of a run, new or claimed."""
    # `expect` makes the claim a compare-and-set: an entry that changed since it was read refuses
    # it. `fence=NEXT`: the store chooses a greater fence in the same commit, which fences off the
    # former owner. A crash before the commit changes nothing; a crash after it leaves a run with a
    # lease and a dead owner, which can be claimed again.
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
    """Return the entry of a thread that has exactly this name."""
    entries = await engine.backend.entries(EntryQuery(key.tenant, kind, thread=key, prefix=name, limit=1))
    return next((entry for _, entry in entries if entry.key == name), None)


async def find_all(engine: Engine, tenant: str, id: str) -> list[tuple[ThreadKey, EntryRecord]]:
    """Return the runs of a tenant that have exactly this id, with their threads.

    There is more than one only if they began at the same moment.
    """
    runs: list[tuple[ThreadKey, EntryRecord]] = []
    after: EntryCursor | None = None
    limit = _FEW
    while True:
        try:
            page = await engine.backend.entries(EntryQuery(tenant, RUN, prefix=id, after=after, limit=limit))
        except DamagedEntry as error:
            if error.key == id:
                raise
            # The prefix also matches longer ids. A damaged run with a longer id must not hide this
            # one: entries come in the order of their keys, so read one at a time up to the damaged
            # entry.
            if limit == 1:
                return runs
            limit = 1
            continue
        runs += [(key, entry) for key, entry in page if entry.key == id]
        if len(page) < limit or page[-1][1].key != id:
            return runs
        after = (id, page[-1][0].digest)


_FEW = 4


@dataclass(frozen=True, slots=True)
class Lock:
    """The body of the entry of a place: the run and the process that hold it."""

    run: str | None  # None: a lock without a run
    owner: Owner
    is_shared: bool = False  # runs have joined it, which may live longer than it

    @classmethod
    def unpack(cls, codec: Codec, entry: EntryRecord) -> Lock:
        fields = codec.unpack(entry.body or b"")
        if not isinstance(fields, dict) or not isinstance(fields.get("run"), str | None):
            raise Corrupt(f"the lock of namespace {entry.key!r} is damaged")
        return cls(fields.get("run"), Owner.unpack(fields.get("owner")), bool(fields.get("is_shared", True)))

    def pack(self, codec: Codec) -> bytes:
        return codec.pack({"run": self.run, "owner": self.owner.pack(), "is_shared": self.is_shared})


def check_protects(holder: str, owner: Engine, held: ThreadKey, engine: Engine, thread: ThreadKey) -> None:
    """Raise BadArgument unless a run or lock on the thread `held` protects writes to `thread` in `engine`."""
    if engine.namer.key != owner.namer.key:  # every store and tenant has a key of its own
        raise BadArgument(
            f"this {holder} on thread {held.id!r} belongs to another store or tenant: it protects nothing here"
        )
    if thread.digest != held.digest:
        raise BadArgument(f"this {holder} is on thread {held.id!r}: it protects nothing of {thread.id!r}")


def busy(codec: Codec, namespace: str, refusal: EntryHeld) -> RunBusy | ThreadBusy:
    """Return the error that names who holds the run, or the place that it works in."""
    stored = refusal.stored
    assert stored is None or isinstance(stored, EntryRecord)
    if refusal.kind != LOCK:
        return run_busy(codec, refusal.key, stored)
    if stored is None:
        return ThreadBusy(refusal.thread, namespace, None, None)
    return thread_busy(codec, refusal.thread, namespace, stored)


def run_busy(codec: Codec, id: str, stored: EntryRecord | None) -> RunBusy:
    """Return the error that names who owns a run."""
    if stored is None:
        return RunBusy(id, None)
    owner = _owner_of(codec, stored)
    return RunBusy(id, lapses_at(stored), None if owner is None else str(owner), is_mine=owner == Owner.me())


def thread_busy(codec: Codec, thread: str, namespace: str, lock: EntryRecord) -> ThreadBusy:
    """Return the error that names who holds a place."""
    holder = Lock.unpack(codec, lock)
    return ThreadBusy(thread, namespace, holder.run, lapses_at(lock), str(holder.owner))


def _owner_of(codec: Codec, run: EntryRecord) -> Owner | None:
    try:
        return Owner.unpack(codec.unpack(run.body or b"", opaque=True)["owner"])
    except (OutliveError, TypeError, KeyError):
        return None  # the entry cannot be read, but the run is busy all the same


def lapses_at(entry: EntryRecord) -> dt.datetime | None:
    """Return the time at which a lease ends unless it is renewed.

    None: there is no lease, or one of an earlier boot of this machine.
    """
    if not entry.until or entry.clock == WALL:  # a released run: since when it is ready
        return None
    if is_time_of_day(entry):
        return moment(entry.until)
    # A local store times leases by a clock that counts since the boot: convert what is left of it.
    local_clock = clock()
    if entry.clock != local_clock.id:
        return None
    return moment(local_clock.now + entry.until - local_clock.lease)


def is_time_of_day(entry: EntryRecord) -> bool:
    """Tell whether a wall clock times a lease, not a clock that counts since the boot."""
    return entry.until > 1_000_000_000_000_000  # microseconds since 1970; no boot is that long ago
