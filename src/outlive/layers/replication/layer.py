"""Replicate: one store made of two, of which either may fail.

Theory of operation. At any moment one of the two stores is *active*; it alone decides commits and answers reads, and the
other one gets what the active one has decided. Which one is active follows from the *epoch*: the primary in an even one,
the secondary in an odd one (`pair.py`). Nothing is ever decided by reading the store that is not active.

Every commit carries a *note* of what it changes (`note.py`), an entry in the same commit. So the active store itself
is the queue of what the other one has yet to get: it survives the process, and there is no moment at which a commit is
stored and not queued. A note is taken off when the other store has what it names. What is brought over is *merged*, by
rules that are commutative, associative and idempotent (rule 7 of the waist); it may come late, twice or in another
order (`carrying.py`). What was deleted leaves tombstones, so that it does not come back.

    sync, on_secondary_down="fail"    decided, then merged into the other store, then acknowledged
    sync, on_secondary_down="queue"   the same while the other store answers; when it does not, acknowledged and queued
    async                             decided, acknowledged; queued, and carried over in the background

*What makes the first one safe without a witness.* A promotion raises the epoch in the secondary. A commit of an older
epoch is merged there `strictly`: a thread that has gone on in a later epoch refuses it, and it is not acknowledged. So whatever
was acknowledged in an epoch was in the secondary before anybody went on from there. On the way back the secondary is told first:
while it is active, a commit is acknowledged only if the pair's record in that very store, read after it, still says the
same epoch. So what was acknowledged before the record changed is carried over before the primary opens.

*What makes a refusal safe.* A call that finds the stores changing places is repeated, and may have been stored by then. Whatever may be stored
makes the answer OutcomeUnknown, unless it is found (`doubt.py`). In strict mode a refusal of the repetition is definite all the same: the thread is
moved to the new epoch before it refuses (`sealing.py`), from then on it takes nothing of an earlier epoch, and what only the store that was left has is
withdrawn from it (`withdrawal.py`). The paths on which a commit is stored and not acknowledged, and what ends each of them:

    primary stored it, secondary unreachable      NotReplicated; merged when the thread has not moved on, else withdrawn
    primary stored it, thread moved on            repeated in the secondary; the orphan is withdrawn when the primary is reached
    primary gave no answer                        the same, also when the request arrives late: the note is part of the commit
    secondary stored it, failback announced       repeated in the primary; carried over before that opens, else withdrawn
    secondary stored it, its record unreadable    OutcomeUnknown; repeated if the pair has changed places
    a deletion, a pending write                   never refused; merged in any case
    a claim                                       asks for the epoch first; an entry is withdrawn like a checkpoint

In the other modes the old primary may have acknowledged what the secondary never saw. Nothing of that is lost unless the primary's
storage is: its notes are there when it comes back, and are merged then. Where both stores went on from the same checkpoint, the
thread has two heads; the one of the later epoch is the head.

Fences: `(epoch, fence)` of a run is unique, since an epoch belongs to one store. A run claimed after a failover outranks its
former owner everywhere, whichever numbers the other store was at.

Leases are timed by the clock of the store that they are in, so a lease that is carried over begins anew there.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

from outlive.backend import (
    Backend,
    Commit,
    EntryQuery,
    HistoryQuery,
    Page,
    ReadResult,
    Receipt,
    ThreadKey,
    ThreadQuery,
)
from outlive.errors import (
    BadArgument,
    EpochPassed,
    OutcomeUnknown,
    OutliveError,
    StoreClosed,
    StoreError,
    StoreUnavailable,
)
from outlive.events import EventSink
from outlive.layers.encryption.naming_key import KEYS, NAMING
from outlive.layers.replication.background import Upkeep
from outlive.layers.replication.commit import Committing, Result
from outlive.layers.replication.doubt import CHANGING, Doubt, Doubts
from outlive.layers.replication.health import is_unreachable
from outlive.layers.replication.join import Joining
from outlive.layers.replication.options import Replication, ReplicationStatus, RoleChange
from outlive.layers.replication.pair import PRIMARY, ROLES, SECONDARY, ActiveStoreLost, read_pair_record
from outlive.layers.replication.ping import ping
from outlive.layers.replication.queue import Queue
from outlive.layers.replication.stores import Stores
from outlive.layers.replication.switch import Switching
from outlive.layers.replication.transfer import IsNamed
from outlive.runtime.runtime import Deadline, Runtime, Ticker

_READS = frozenset(
    ("history", "states", "writes", "entries", "threads", "inventory", "fetch", "read", "share", "audit")
)
_POSITIONS = {"writes": 2, "inventory": 1, "fetch": 2}  # arguments before the timeout
_TIMELESS = frozenset(("share", "audit"))
_BEAT_S = 0.2  # between looks at what is to be carried over
_SWITCHES = 4  # that one call may live through
_QUESTION = 3 / 4  # of what is left of a call, for asking both stores where the pair is
_LEAST_S = 0.05  # in which a call can be tried again
_LAST_S = 5.0  # for what is still queued when the store is closed


class Replicate:
    """A backend over two backends."""

    def __init__(
        self,
        primary: Backend,
        secondary: Backend,
        options: Replication,
        *,
        runtime: Runtime,
        naming: Callable[[bytes], IsNamed],
        tenant: str = "",
        timeout_s: float | None = 30.0,
        watched: EventSink | None = None,
    ) -> None:
        self.name = f"{primary.name}+{secondary.name}"
        self.stores = Stores(
            primary,
            secondary,
            tenant=tenant,
            runtime=runtime,
            watched=watched or EventSink(),
            timeout_s=timeout_s,
        )
        self._options = options
        self._naming = naming
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._is_closed = False
        self._is_joined = False
        self._ticker: Ticker | None = None
        self._queue = Queue(runtime)
        self._switching = Switching(self.stores, self._queue)
        self._upkeep = Upkeep(self.stores, self._switching, self._queue, options, runtime)
        self._committing = Committing(self.stores, self._switching, self._queue, options)
        self._doubts = Doubts(self._queue, is_strict=options.is_strict)

    def __repr__(self) -> str:
        return f"<Replicate {self.name} active={ROLES[self.stores.epoch % 2]} epoch={self.stores.epoch}>"

    # The store itself

    async def identity(self, offered: bytes) -> bytes:
        """Open the pair and return the naming key, which both stores have."""
        key = await Joining(self.stores, self._switching, self._options).join(offered)
        if not key:
            return key
        self.stores.is_named = self._naming(key)
        self._is_joined = True
        self._keep_beating()
        return key

    def _keep_beating(self) -> None:
        if self._queue.has_forked():
            self._switching.after_fork()
            self._upkeep.after_fork()
            self._doubts.after_fork()
            self._ticker = None  # its thread stayed with the parent
        if self._ticker is None and not self._is_closed:
            interval_s = min(_BEAT_S, self._options.health_check_interval_s)
            self._ticker = self._runtime.tick(interval_s, self._upkeep.beat)

    async def close(self) -> None:
        """Carry over what is queued, or say what is left; then close both stores."""
        if self._is_closed:
            return
        self._is_closed = self._upkeep.is_over = True
        if self._ticker is not None:
            self._ticker.stop()
        try:
            async with self._upkeep.busy:
                if self._options.enabled and self._is_joined:
                    await self._drain_at_last()
        finally:
            for backend in self.stores.both:
                await backend.close()

    async def _drain_at_last(self) -> None:
        stores = self.stores
        is_healthy = stores.health[1 - stores.epoch % 2].is_healthy
        stores.patience_s = stores.carry_s = min(stores.patience_s, _LAST_S if is_healthy else 1.0)
        try:
            await self._upkeep.flush()
            with contextlib.suppress(OutliveError):  # what is left is counted
                await stores.drain(stores.epoch % 2, self._queue, mine=self._queue.mine)
            count, size, lag_s = await stores.backlog(stores.epoch % 2).count(mine=self._queue.mine)
        except OutliveError as error:
            self._warn(f"it could not be told how much: {error}")
            return
        if not stores.is_whole:
            self._warn("it does not have everything that it is to have")
        elif count:
            self._warn(f"{count} commits, {size:,} bytes, the oldest {lag_s:.0f} s old")

    def _warn(self, what: str) -> None:
        active, other = (ROLES[side] for side in (self.stores.epoch % 2, 1 - self.stores.epoch % 2))
        warnings.warn(
            f"what is queued for the {other} stays in the {active} and goes on when the pair is opened again: {what}",
            stacklevel=2,
        )

    # Reading

    def __getattr__(self, name: str) -> Any:
        if name not in _READS:
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._read(name, args, kwargs)

        self.__dict__[name] = call
        return call

    async def _read(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ask the active store; when it cannot be reached, the one that is active then."""
        if self._is_closed:
            raise StoreClosed
        if len(args) > _POSITIONS.get(name, len(args)):  # the timeout may stand among them
            args, kwargs["timeout_s"] = args[:-1], args[-1]
        deadline = self._deadline(kwargs.get("timeout_s"))
        is_last = False
        for _ in range(_SWITCHES):
            epoch = self.stores.epoch
            if name not in _TIMELESS:
                kwargs["timeout_s"] = deadline.remaining_s() if is_last else self._share(deadline)
            try:
                found = await getattr(self._asked(epoch, args), name)(*args, **kwargs)
                if _is_absent(args, found):
                    await self._check_absence(epoch, deadline)
            except (StoreError, EpochPassed) as error:
                if await self._has_switched(error, epoch, deadline):
                    continue
                if isinstance(error, EpochPassed):
                    raise StoreUnavailable(f"{CHANGING}; try again") from None
                if is_last or not self._has_time(error, deadline):
                    raise
                is_last = True  # it is slow, and there: it gets the other half
            else:
                return found
        raise StoreUnavailable(f"{CHANGING}; try again")

    def _asked(self, epoch: int, args: tuple[Any, ...]) -> Backend:
        """Return the store to ask: the active one. But a pair can be opened with its keys while that does not answer: both have these."""
        query = args[0]
        is_naming = isinstance(query, EntryQuery) and (query.tenant, query.kind) == (KEYS.tenant, NAMING)
        is_left_out = is_naming and not self.stores.health[epoch % 2].is_healthy
        return self.stores.both[1 - epoch % 2 if is_left_out else epoch % 2]

    async def _check_absence(self, epoch: int, deadline: Deadline) -> None:
        """That something is not there counts only in a store that has not lost all it had."""
        backend = self.stores.both[epoch % 2]
        side = await read_pair_record(backend, self.stores.tenant, deadline.remaining_s())
        if side is None or side.epoch != epoch:
            raise EpochPassed("", epoch, epoch if side is None else side.epoch)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _share(self, deadline: Deadline) -> float | None:
        """Return how long the active store has: half of it when there is another one to go to."""
        left_s = deadline.remaining_s()
        return left_s / 2 if left_s is not None and self._upkeep.may_fail_over() else left_s

    def _has_time(self, error: object, deadline: Deadline) -> bool:
        """Tell whether a store that did not answer in its share of the time can be asked again."""
        left_s = deadline.remaining_s()
        return (
            is_unreachable(error)
            and self._upkeep.may_fail_over()
            and left_s is not None
            and left_s > _LEAST_S
        )

    # Committing

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do each commit in the active store, and as the mode says in the other one."""
        if self._is_closed:
            return [StoreClosed() for _ in commits]
        self._keep_beating()
        times = [one.timeout_s for one in commits if one.timeout_s is not None]
        deadline = self._deadline(min(times, default=None))
        doubts = [self._doubts.of(one) for one in commits]
        results: list[Result] = [StoreClosed()] * len(commits)
        epoch = await self._attempt(commits, results, doubts, deadline)
        return [
            self._doubts.settle(one, result, doubt, epoch)
            for one, result, doubt in zip(commits, results, doubts, strict=True)
        ]

    async def _attempt(
        self, commits: Sequence[Commit], results: list[Result], doubts: list[Doubt], deadline: Deadline
    ) -> int:
        """Do commits where the pair is now, and again when it changes places; return the epoch of the last attempt.

        `results` gets the last answer to each commit, `doubts` every epoch in which it may have been stored.
        """
        waiting, is_last, epoch = list(range(len(commits))), False, self.stores.epoch
        for _ in range(_SWITCHES):
            epoch = self.stores.epoch
            share_s = deadline.remaining_s() if is_last else self._share(deadline)
            answers = await self._committing.commit(
                [commits[at] for at in waiting],
                epoch,
                share_s,
                deadline,
                [doubts[at].has_others(epoch) for at in waiting],
            )
            for at, answer in zip(waiting, answers, strict=True):
                results[at] = answer
                doubts[at].note(answer, epoch)
            waiting = [at for at in waiting if _asks_for_switch(commits[at], results[at])]
            if not waiting:
                break
            try:
                has_switched = await self._has_switched(results[waiting[0]], epoch, deadline)
            except ActiveStoreLost as error:
                for at in waiting:
                    results[at] = error
                break
            if not has_switched:
                if is_last or not self._has_time(results[waiting[0]], deadline):
                    break
                is_last = True
        return epoch

    async def confirm(self, thread: ThreadKey | None) -> None:
        """Make sure that what was removed from a thread, or from any, is where it has to be; raise NotReplicated."""
        try:
            for key in [thread] if thread is not None else await self._queued_threads():
                await self._committing.confirm(key, self.stores.epoch)
        except EpochPassed:
            await self._switching.refresh()
            raise OutcomeUnknown("" if thread is None else thread.id, "", None, CHANGING) from None

    async def _queued_threads(self) -> list[ThreadKey]:
        """Return the threads of which the secondary has yet to get something, where that delays an acknowledgement."""
        if not (self._options.enabled and self._options.is_strict):
            return []
        notes = self.stores.backlog(PRIMARY).notes()
        return list(dict.fromkeys([key async for key, _ in notes]))

    # Changing places

    async def _has_switched(self, error: object, epoch: int, deadline: Deadline) -> bool:
        """Tell whether the pair is in another epoch than a failed call thought: by somebody else, or by us now."""
        stores = self.stores
        if stores.epoch != epoch:
            return True
        if not self._options.enabled or not (isinstance(error, EpochPassed) or is_unreachable(error)):
            return False
        try:
            if await self._switching.refresh(deadline.left_s() * _QUESTION):
                return True
            if isinstance(error, EpochPassed) and not stores.is_announced:
                return await self._switching.raise_epoch(error.current)
            if stores.health[PRIMARY].is_healthy or not self._upkeep.may_fail_over():
                return False
            if isinstance(error, EpochPassed):
                # This call has not asked the primary before. Right after a failback a slow answer must not undo it.
                if await self._switching.refresh(deadline.left_s() * _QUESTION):
                    return True
                if stores.health[PRIMARY].is_healthy:
                    return False
            await self._switching.promote(automatic=True)
        except ActiveStoreLost:
            raise
        except OutliveError as failure:
            stores.last_error = str(failure)
            return stores.epoch != epoch
        return True

    async def ping(self, timeout_s: float | None) -> dict[str, float]:
        """Ask both stores whether they answer; return the seconds that each took."""
        if self._is_closed:
            raise StoreClosed
        named = dict(zip(ROLES, self.stores.both, strict=True))
        return await ping(named, self.stores.tenant, self._timeout_s if timeout_s is None else timeout_s)

    @property
    def is_failed_over(self) -> bool:
        return self.stores.is_failed_over

    async def promote(self) -> RoleChange:
        """Make the secondary active."""
        self._check_enabled()
        await self._upkeep.flush()
        return await self._switching.promote()

    async def failback(self) -> RoleChange:
        """Make the primary active again, after it got everything."""
        self._check_enabled()
        await self._upkeep.flush()
        left = [self._queue.left_in(role) for role in (PRIMARY, SECONDARY)]
        switched = await self._switching.failback()
        for role, keys in enumerate(left):
            self._queue.has_carried(role, keys)
        return switched

    def _check_enabled(self) -> None:
        if not self._options.enabled:
            raise BadArgument(
                "replication is switched off, so one store is left behind; open the pair with Replication(..., enabled=True) first"
            )

    async def status(self) -> ReplicationStatus:
        """Return how the pair is now."""
        return await self._upkeep.status()


def _is_absent(args: tuple[Any, ...], found: object) -> bool:
    """Tell whether a store may have lost what it was asked for. That a thread is there says nothing: the pair notes in it what it did."""
    if isinstance(found, ReadResult):
        return found.record is None
    query = args[0]
    if isinstance(query, HistoryQuery):
        records = found.records if isinstance(found, Page) else cast(Any, found)[1]
        return not records and query.before is None
    if isinstance(query, EntryQuery):
        return not found and query.after is None and query.thread is None
    return isinstance(query, ThreadQuery) and not found and query.after is None


def _asks_for_switch(commit: Commit, result: object) -> bool:
    return is_unreachable(result) or (isinstance(result, EpochPassed) and commit.epoch is None)
