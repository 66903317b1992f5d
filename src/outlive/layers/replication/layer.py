"""Replicate: one store made of two, of which either may fail.

Theory of operation. At any moment one of the two stores is *active*; it alone decides commits and
answers reads. The other one, the *standby*, gets what the active one has decided. Which one is
active follows from the *epoch*: the primary in an even one, the secondary in an odd one
(`pair.py`). Nothing is ever decided by reading the standby.

Every commit has an *outbox entry* of what it changes (`outbox_entry.py`), in the same commit. So
the active store itself is the queue of what the standby has yet to get: it survives the process,
and there is no moment at which a commit is stored and not queued. The entry is removed when the
standby has what it names. What is transferred is *merged*, by rules that are commutative,
associative and idempotent (rule 7 of the backend protocol); it may come late, twice or in another
order (`transfer.py`). What was deleted leaves tombstones, so that it does not come back.

    sync, on_secondary_down="fail"    decided, then merged into the standby, then acknowledged
    sync, on_secondary_down="queue"   the same while the standby answers, else acknowledged, queued
    async                             decided, acknowledged, queued; transferred in the background

*What makes the first one safe without a witness.* A promotion raises the epoch in the secondary. A
commit of an older epoch is merged there `strictly`: a thread that was saved in a later epoch
refuses it, and it is not acknowledged. So all that was acknowledged in an epoch was in the
secondary before anything was saved on top of it there. On the way back the secondary is told first:
while it is active, a commit is acknowledged only if the pair's record in that very store, read
after it, still has the same epoch. So what was acknowledged before the record changed is
transferred before the primary is active.

*What makes a refusal safe.* A call that finds the stores changing roles is repeated, and may have
been stored by then. When it may be stored, the answer is OutcomeUnknown, unless it is found
(`doubt.py`). In strict mode a refusal of the repetition is definite all the same: the thread moves
to the new epoch before it refuses (`thread_epoch.py`), takes nothing of an earlier epoch from then
on, and what only the store that was left has is withdrawn from it (`withdrawal.py`). The paths on
which a commit is stored and not acknowledged, and what ends each of them:

    primary stored it, secondary unreachable      NotReplicated; merged unless the thread has moved
                                                  on, else withdrawn
    primary stored it, thread moved on            repeated in the secondary; the orphan is withdrawn
                                                  when the primary is reached
    primary gave no answer                        the same, also when the request arrives late: the
                                                  entry is part of the commit
    secondary stored it, failback announced       repeated in the primary; transferred before that
                                                  is active, else withdrawn
    secondary stored it, its record unreadable    OutcomeUnknown; repeated if roles have changed
    a deletion, a pending write                   never refused; merged in any case
    a claim                                       asks for the epoch first; an entry is withdrawn like
                                                  a checkpoint

In the other modes the old primary may have acknowledged what the secondary never saw. Nothing of
that is lost unless the primary's storage is: its outbox entries are there when it comes back, and
are merged then. Where both stores continued from the same checkpoint, the thread has two tips; the
one of the later epoch is the head.

Fences: `(epoch, fence)` of a run is unique, since an epoch belongs to one store. A run claimed
after a failover outranks its former owner everywhere, whichever numbers the other store was at.

Leases are timed by the clock of the store that they are in, so a lease that is transferred begins
again there.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

from outlive.backend import (
    NAMING_THREAD,
    Backend,
    Commit,
    EntryQuery,
    HistoryQuery,
    Page,
    ReadResult,
    Receipt,
    Reservation,
    ThreadKey,
    ThreadQuery,
    Totals,
    Unreserved,
    shortest_timeout,
)
from outlive.backend.entries import NAMING, RUN
from outlive.backend.ping import ping
from outlive.dataclass import dataclass
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
from outlive.layers.replication.background import Upkeep
from outlive.layers.replication.backlog import Outbox
from outlive.layers.replication.commit import Committer, Result
from outlive.layers.replication.doubt import CHANGING, Doubt, Doubts
from outlive.layers.replication.join import Join
from outlive.layers.replication.options import Replication, ReplicationStatus, RoleChange
from outlive.layers.replication.pair import (
    PRIMARY,
    ROLES,
    SECONDARY,
    ActiveStoreLost,
    active_role,
    read_pair_record,
    standby_role,
)
from outlive.layers.replication.stores import Stores, is_unreachable
from outlive.layers.replication.switch import RoleSwitch
from outlive.layers.replication.transfer import IsNamed
from outlive.layers.replication.watch import PairWatch
from outlive.runtime.runtime import Deadline, Runtime, Ticker

_READS = frozenset(
    (
        "history",
        "states",
        "writes",
        "entries",
        "threads",
        "totals",
        "inventory",
        "fetch",
        "read",
        "share",
        "audit",
    )
)
_TIMELESS = frozenset(("share", "audit"))
_BEAT_S = 0.2  # between looks at what is queued
_SWITCHES = 4  # that one call may live through
_QUESTION = 3 / 4  # of what is left of a call, for asking both stores where the pair is
_LEAST_S = 0.05  # in which a call can be tried again
_PAUSE_S = 0.01  # before a call that found the stores changing roles is tried again
_CHANGE_S = 30.0  # in which a change of roles must end, for a call without a timeout
_LAST_S = 5.0  # for what is still queued when the store is closed


@dataclass(slots=True)
class _Attempts:
    """The attempts of one call, which live through changes of roles."""

    deadline: Deadline
    change: Deadline  # for changes of roles; it ends also if the call has no timeout
    switches: int = 0
    pause_s: float = _PAUSE_S
    is_last: bool = False  # the store has all the time that is left


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
        events: EventSink | None = None,
    ) -> None:
        self.name = f"{primary.name}+{secondary.name}"
        self.stores = Stores(
            primary,
            secondary,
            tenant=tenant,
            runtime=runtime,
            events=events or EventSink(),
            timeout_s=timeout_s,
        )
        self._options = options
        self._naming = naming
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._is_closed = False
        self._is_joined = False
        self._ticker: Ticker | None = None
        self._outbox = Outbox(runtime)
        self._switch = RoleSwitch(self.stores, self._outbox)
        self._upkeep = Upkeep(self.stores, self._switch, self._outbox, options, runtime)
        self._committer = Committer(self.stores, self._switch, self._outbox, options)
        self._doubts = Doubts(self._outbox, is_strict=options.is_strict)

    def __repr__(self) -> str:
        return f"<Replicate {self.name} active={ROLES[self.stores.active_role]} epoch={self.stores.epoch}>"

    # The store itself

    async def identity(self, offered: bytes) -> bytes:
        """Open the pair and return the naming key, which both stores have."""
        key = await Join(self.stores, self._switch, self._options).run(offered)
        if not key:
            return key
        self.stores.is_named = self._naming(key)
        self._is_joined = True
        self._keep_beating()
        return key

    def _keep_beating(self) -> None:
        if self._outbox.has_forked():
            self._switch.after_fork()
            self._upkeep.after_fork()
            self._doubts.after_fork()
            self._ticker = None  # its thread stayed with the parent
        if self._ticker is None and not self._is_closed:
            interval_s = min(_BEAT_S, self._options.health_check_interval_s)
            self._ticker = self._runtime.tick("outlive-replication", interval_s, self._upkeep.beat)

    async def close(self) -> None:
        """Transfer what is queued, or warn of what is left; then close both stores."""
        if self._is_closed:
            return
        self._is_closed = self._upkeep.is_closed = True
        if self._ticker is not None:
            self._ticker.stop()
        try:
            async with self._upkeep.busy:
                if self._options.enabled and self._is_joined:
                    await self._drain_before_close()
        finally:
            for backend in self.stores.both:
                await backend.close()

    async def _drain_before_close(self) -> None:
        stores = self.stores
        is_healthy = stores.health[stores.standby_role].is_healthy
        stores.patience_s = stores.transfer_s = min(stores.patience_s, _LAST_S if is_healthy else 1.0)
        try:
            await self._upkeep.flush()
            with contextlib.suppress(OutliveError):  # what is left is counted
                await stores.drain(stores.active_role, self._outbox, process=self._outbox.process)
            backlog = stores.backlog(stores.active_role)
            count, size, lag_s = await backlog.count(process=self._outbox.process)
        except OutliveError as error:
            self._warn(f"how much could not be counted: {error}")
            return
        if not stores.is_caught_up:
            self._warn("it does not have everything yet")
        elif count:
            self._warn(f"{count} commits, {size:,} bytes, the oldest {lag_s:.0f} s old")

    def _warn(self, reason: str) -> None:
        active, standby = ROLES[self.stores.active_role], ROLES[self.stores.standby_role]
        warnings.warn(
            f"what is queued for the {standby} stays in the {active} until the pair is opened again: {reason}",
            stacklevel=2,
        )

    # Reading

    async def facts(self) -> dict[str, object]:
        """Return the facts of the active store."""
        return await self.stores.active.facts()

    async def watch(self, tenant: str) -> PairWatch:
        """Watch the store that is active, whichever that is."""
        watch = PairWatch(self.stores, tenant)
        await watch.follow()
        return watch

    async def reserve(self) -> Reservation:
        """Reserve nothing: a commit to both stores is more than one transaction."""
        return Unreserved(cast(Backend, self))

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
        attempts = self._attempts(kwargs.get("timeout_s"))
        while True:
            epoch = self.stores.epoch
            if name not in _TIMELESS:
                kwargs["timeout_s"] = self._share(attempts)
            try:
                answer = await getattr(self._asked(epoch, args), name)(*args, **kwargs)
                if _is_absent(args, answer):
                    await self._check_absence(epoch, attempts.deadline)
            except (StoreError, EpochPassed) as error:
                if await self._may_repeat(error, epoch, attempts):
                    continue
                if isinstance(error, EpochPassed):
                    raise StoreUnavailable(f"{CHANGING}; try again") from None
                raise
            else:
                return answer

    def _asked(self, epoch: int, args: tuple[Any, ...]) -> Backend:
        """Return the store to ask: the active one. Only the naming key, which both have, is read
        from the other while that is down.
        """
        query = args[0]
        is_naming = isinstance(query, EntryQuery) and (query.thread, query.kind) == (NAMING_THREAD, NAMING)
        is_down = not self.stores.health[active_role(epoch)].is_healthy
        return self.stores.both[standby_role(epoch) if is_naming and is_down else active_role(epoch)]

    async def _check_absence(self, epoch: int, deadline: Deadline) -> None:
        """Believe that something is not there only from a store that has not lost its data."""
        active = self.stores.active_in(epoch)
        record = await read_pair_record(active, self.stores.tenant, deadline.as_timeout_s())
        if record is None or record.epoch != epoch:
            raise EpochPassed("", epoch, epoch if record is None else record.epoch)

    # Repeating a call

    def _attempts(self, timeout_s: float | None) -> _Attempts:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        return _Attempts(Deadline(timeout_s), Deadline(_CHANGE_S if timeout_s is None else timeout_s))

    def _share(self, attempts: _Attempts) -> float | None:
        """Return how long the active store has: half of it when the other could be asked next."""
        left_s = attempts.deadline.as_timeout_s()
        has_rest = attempts.is_last or left_s is None or not self._upkeep.may_fail_over()
        return left_s if has_rest or left_s is None else left_s / 2

    async def _may_repeat(self, error: object, epoch: int, attempts: _Attempts) -> bool:
        """Tell whether to make a failed call again: the stores have changed roles, or are doing so,
        or the active one was slow.
        """
        if await self._has_switched(error, epoch, attempts.deadline):
            attempts.switches += 1
            return attempts.switches < _SWITCHES
        if isinstance(error, EpochPassed):
            # Another process has not finished what it began, or a store has got its record back in
            # the same epoch.
            return self._options.enabled and await self._pause(attempts)
        if attempts.is_last or not self._has_time(error, attempts.deadline):
            return False
        attempts.is_last = True  # it is slow, and there: it gets the other half
        return True

    async def _pause(self, attempts: _Attempts) -> bool:
        """Wait for a change of roles, twice as long each time; tell whether time is left."""
        left_s = attempts.change.remaining_s()
        if left_s <= _LEAST_S:
            return False
        await self._runtime.sleep(min(attempts.pause_s, left_s / 2))
        attempts.pause_s = min(2 * attempts.pause_s, _BEAT_S)
        return True

    def _has_time(self, error: object, deadline: Deadline) -> bool:
        """Tell whether a store that did not answer in its share of the time can be asked again."""
        left_s = deadline.as_timeout_s()
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
        attempts = self._attempts(shortest_timeout(commits))
        doubts = [self._doubts.of(commit) for commit in commits]
        results: list[Result] = [StoreClosed()] * len(commits)
        epoch = await self._attempt(commits, results, doubts, attempts)
        return [
            self._doubts.answer(commit, result, doubt, epoch)
            for commit, result, doubt in zip(commits, results, doubts, strict=True)
        ]

    async def _attempt(
        self, commits: Sequence[Commit], results: list[Result], doubts: list[Doubt], attempts: _Attempts
    ) -> int:
        """Do commits, again when the pair changes roles; return the epoch of the last attempt.

        `results` gets the last answer to each commit, `doubts` every epoch in which it may have
        been stored.
        """
        waiting = list(range(len(commits)))
        while True:
            epoch = self.stores.epoch
            answers = await self._committer.commit(
                [commits[at] for at in waiting],
                epoch,
                self._share(attempts),
                attempts.deadline,
                [doubts[at].has_others(epoch) for at in waiting],
            )
            for at, answer in zip(waiting, answers, strict=True):
                results[at] = answer
                doubts[at].add(answer, epoch)
            waiting = [at for at in waiting if _asks_for_switch(commits[at], results[at])]
            if not waiting:
                return epoch
            try:
                if not await self._may_repeat(results[waiting[0]], epoch, attempts):
                    return epoch
            except ActiveStoreLost as error:
                for at in waiting:
                    results[at] = error
                return epoch

    async def confirm_deletion(self, thread: ThreadKey | None) -> None:
        """Make sure that removals, of one thread or of all, are replicated; raise NotReplicated."""
        try:
            for key in [thread] if thread is not None else await self._queued_threads():
                await self._committer.confirm(key, self.stores.epoch)
        except EpochPassed:
            await self._switch.refresh()
            raise OutcomeUnknown("" if thread is None else thread.id, "", None, CHANGING) from None

    async def _queued_threads(self) -> list[ThreadKey]:
        """Return the threads of which the secondary has yet to get something, in strict mode."""
        if not (self._options.enabled and self._options.is_strict):
            return []
        pages = self.stores.backlog(PRIMARY).pages()
        return list(dict.fromkeys([key async for page in pages for key, _ in page]))

    # Changing roles

    async def _has_switched(self, error: object, epoch: int, deadline: Deadline) -> bool:
        """Tell whether the pair is in another epoch than a failed call thought: by another process,
        or by us now.
        """
        stores = self.stores
        if stores.epoch != epoch:
            return True
        if not self._options.enabled or not (isinstance(error, EpochPassed) or is_unreachable(error)):
            return False
        try:
            if await self._switch.refresh(deadline.remaining_s() * _QUESTION):
                return True
            if isinstance(error, EpochPassed) and not stores.is_announced:
                return await self._switch.raise_epoch(error.current)
            if stores.health[PRIMARY].is_healthy or not self._upkeep.may_fail_over():
                return False
            if isinstance(error, EpochPassed):
                # This call has not asked the primary before. Right after a failback a slow answer
                # must not undo it.
                if await self._switch.refresh(deadline.remaining_s() * _QUESTION):
                    return True
                if stores.health[PRIMARY].is_healthy:
                    return False
            await self._switch.promote(automatic=True)
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
        return await self._switch.promote()

    async def failback(self) -> RoleChange:
        """Make the primary active again, after it got everything."""
        self._check_enabled()
        await self._upkeep.flush()
        queued = [self._outbox.queued_in(role) for role in (PRIMARY, SECONDARY)]
        change = await self._switch.failback()
        for role, keys in enumerate(queued):
            self._outbox.mark_transferred(role, keys)
        return change

    def _check_enabled(self) -> None:
        if not self._options.enabled:
            raise BadArgument(
                "replication is switched off, so one store misses what is saved; open the pair with Replication(..., enabled=True) first"
            )

    async def status(self) -> ReplicationStatus:
        """Return the state of the pair now."""
        return await self._upkeep.status()


def _is_absent(args: tuple[Any, ...], answer: object) -> bool:
    """Tell whether a store may have lost what it was asked for. That a thread is there says
    nothing: it may have outbox entries only.
    """
    if isinstance(answer, ReadResult):
        return answer.record is None
    if isinstance(answer, Totals):
        return not answer.threads
    query = args[0]
    if isinstance(query, HistoryQuery):
        records = answer.records if isinstance(answer, Page) else cast(Any, answer)[1]
        return not records and query.before is None
    if isinstance(query, EntryQuery):
        is_whole = query.thread is None or query.kind == RUN  # a thread without steps is usual
        return not answer and query.after is None and is_whole
    return isinstance(query, ThreadQuery) and not answer and query.after is None


def _asks_for_switch(commit: Commit, result: object) -> bool:
    return is_unreachable(result) or (isinstance(result, EpochPassed) and commit.epoch is None)
