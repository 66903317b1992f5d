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

In the other modes the old primary may have acknowledged what the secondary never saw. Nothing of that is lost unless the primary's
storage is: its notes are there when it comes back, and are merged then. Where both stores went on from the same checkpoint, the
thread has two heads; the one of the later epoch is the head.

Fences: `(epoch, fence)` of a run is unique, since an epoch belongs to one store. A run claimed after a failover outranks its
former owner everywhere, whichever numbers the other store was at.

Leases are timed by the clock of the store that they are in, so a lease that is carried over begins anew there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..backend import NEXT, Backend, Commit, Entry, Receipt, ThreadKey
from ..errors import (
    EpochPassed,
    NotReplicated,
    OutliveError,
    StaleBase,
    StoreClosed,
    StoreError,
)
from ..event import Watched
from ..runtime import Deadline, Runtime, Ticker
from .carrying import IsNamed, replica_of
from .note import NOTE, Items, items_of, note, without_notes
from .pair import PRIMARY, ROLES, SECONDARY, read_side
from .status import Replication, ReplicationStatus, Switched
from .switching import Stores, is_unreachable

_READS = frozenset(
    ("history", "writes", "entries", "threads", "inventory", "fetch", "read", "share", "audit")
)
_TIMELESS = frozenset(("share", "audit"))
_BEAT_S = 0.2  # between looks at what is to be carried over
_SWITCHES = 4  # that one call may live through
_DIRECT_S = 2.0  # for the secondary, when a commit can be queued instead
_LAST_S = 5.0  # for what is still queued when the store is closed


@dataclass(slots=True)
class _Sent:
    """A commit on its way: as it was given, as it was sent, what it changes, and the key of its note."""

    given: Commit
    commit: Commit
    items: Items
    key: str = ""
    before: Commit | None = None  # its note, when that goes first
    done: tuple[str, ...] = ()  # notes that it takes off the queue


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
        watched: Watched | None = None,
    ) -> None:
        self.name = f"{primary.name}+{secondary.name}"
        self.stores = Stores(
            primary,
            secondary,
            tenant=tenant,
            runtime=runtime,
            watched=watched or Watched(),
            timeout_s=timeout_s,
        )
        self._options = options
        self._naming = naming
        self._runtime = runtime
        self._timeout_s = timeout_s
        self._is_closed = False
        self._begin()

    def _begin(self) -> None:
        """At the start, and in a forked child: the parent goes on with what it has queued."""
        self._pid = os.getpid()
        self._mine = os.urandom(4).hex()
        self._count = 0
        self._lock = threading.Lock()
        self._done: dict[ThreadKey, list[str]] = {}  # notes that the other store has, to be taken off
        self._left: set[str] = set()  # keys of notes that the other store has not got yet
        self._is_dirty = True  # something may be queued
        self._in_step = True  # the other store answers, so that commits go there directly
        self._checked_at = 0
        self._busy = self._runtime.mutex()
        self._ticker: Ticker | None = None

    def __repr__(self) -> str:
        return f"<Replicate {self.name} active={ROLES[self.stores.epoch % 2]} epoch={self.stores.epoch}>"

    # The store itself

    async def identity(self, offered: bytes) -> bytes:
        """Open the pair and return the naming key, which both stores have."""
        key = await self.stores.join(offered, may_promote=self._options.auto_failover)
        self.stores.is_named = self._naming(key)
        self._keep_ticking()
        return key

    def _keep_ticking(self) -> None:
        if self._pid != os.getpid():
            self._begin()
            self.stores.after_fork()
        if self._ticker is None and not self._is_closed:
            self._ticker = self._runtime.tick(min(_BEAT_S, self._options.health_check_interval_s), self.beat)

    async def close(self) -> None:
        """Carry over what is queued, or say what is left; then close both stores."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._ticker is not None:
            self._ticker.stop()
        try:
            async with self._busy:
                await self._drain_at_last()
        finally:
            for backend in self.stores.both:
                await backend.close()

    async def _drain_at_last(self) -> None:
        stores = self.stores
        stores.patience_s = min(stores.patience_s, _LAST_S)
        try:
            await self._flush_done()
            if stores.health[1 - stores.epoch % 2].is_healthy:
                with contextlib.suppress(OutliveError):  # what is left is counted
                    await stores.drain(stores.epoch % 2, mine=self._mine)
            count, size, lag_s = await stores.queued(stores.epoch % 2, set())
        except OutliveError as error:
            self._warn(f"it could not be told how much: {error}")
            return
        if count:
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
        deadline = self._deadline(kwargs.get("timeout_s"))
        epoch = self.stores.epoch
        for _ in range(_SWITCHES):
            epoch = self.stores.epoch
            if name not in _TIMELESS:
                kwargs["timeout_s"] = self._share(deadline)
            try:
                return await getattr(self.stores.active, name)(*args, **kwargs)
            except StoreError as error:
                if not await self._has_switched(error, epoch):
                    raise
        raise EpochPassed("", epoch, self.stores.epoch)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _share(self, deadline: Deadline) -> float | None:
        """Return how long the active store has: half of it when there is another one to go to."""
        left_s = deadline.remaining_s()
        return left_s / 2 if left_s is not None and self._may_fail_over() else left_s

    # Committing

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]:
        """Do each commit in the active store, and as the mode says in the other one."""
        if self._is_closed:
            return [StoreClosed() for _ in commits]
        self._keep_ticking()
        deadline = self._deadline(
            min((one.timeout_s for one in commits if one.timeout_s is not None), default=None)
        )
        waiting = list(range(len(commits)))
        results: list[Receipt | OutliveError] = [StoreClosed()] * len(commits)
        for _ in range(_SWITCHES):
            epoch = self.stores.epoch
            answers = await self._commit([commits[at] for at in waiting], epoch, deadline)
            for at, answer in zip(waiting, answers, strict=True):
                results[at] = answer
            waiting = [at for at in waiting if _asks_for_switch(commits[at], results[at])]
            if not waiting or not await self._has_switched(results[waiting[0]], epoch):
                break
        return results

    async def _commit(
        self, commits: Sequence[Commit], epoch: int, deadline: Deadline
    ) -> list[Receipt | OutliveError]:
        if not self._options.is_enabled:
            return await self.stores.active.commit_all(commits)
        active = self.stores.both[epoch % 2]
        sent = [self._noted(one, epoch, deadline) for one in commits]
        try:
            if firsts := [one.before for one in sent if one.before is not None]:
                await active.commit_all(firsts)
            results = await active.commit_all([one.commit for one in sent])
            await self._settle(sent, results, epoch, deadline)
        except BaseException as error:  # whether something is queued is not known
            self._is_dirty = True
            if isinstance(error, OutliveError):
                return [error for _ in commits]
            raise
        finally:
            self.stores.in_flight.difference_update(one.key for one in sent)
        for one, result in zip(sent, results, strict=True):
            if not isinstance(result, Receipt):
                self._give_back(one)
        return [
            without_notes(one.given, result) if isinstance(result, Receipt) else result
            for one, result in zip(sent, results, strict=True)
        ]

    def _noted(self, given: Commit, epoch: int, deadline: Deadline) -> _Sent:
        """Return a commit with a note of what it changes, in the epoch that we are in."""
        items = items_of(given)
        share_s = self._share(deadline)
        if not items:  # a renewed lease, or chunks that nobody names yet
            return _Sent(given, replace(given, timeout_s=share_s), items)
        key = self._new_key()
        self.stores.in_flight.add(key)
        removal = None if given.removal is None else replace(given.removal, buries=True)
        if removal is not None and not (
            removal.everything or given.checkpoints or given.entries or given.writes
        ):
            # A deletion that others may overtake must stay one: its note goes first.
            before = Commit(given.thread, entries=(note(key, items),), timeout_s=share_s)
            return _Sent(given, replace(given, removal=removal, timeout_s=share_s), items, key, before)
        with self._lock:
            done = tuple(self._done.pop(given.thread, ())) if epoch % 2 == PRIMARY else ()
        entries = (
            *(_in_epoch(entry, epoch) for entry in given.entries),
            note(key, items),
            *(Entry(NOTE, name, gone=True) for name in done),
        )
        believed = epoch if given.epoch is None else given.epoch
        commit = replace(given, entries=entries, removal=removal, epoch=believed, timeout_s=share_s)
        return _Sent(given, commit, items, key, done=done)

    def _new_key(self) -> str:
        with self._lock:
            self._count += 1
            return f"{self._runtime.now():016x}{self._mine}{self._count:08x}"

    def _give_back(self, sent: _Sent) -> None:
        if sent.done:
            with self._lock:
                self._done.setdefault(sent.given.thread, []).extend(sent.done)

    async def _settle(
        self, sent: list[_Sent], results: list[Receipt | OutliveError], epoch: int, deadline: Deadline
    ) -> None:
        """See to it that what was decided is where it has to be before it is acknowledged."""
        stored = [at for at, result in enumerate(results) if isinstance(result, Receipt) and sent[at].items]
        self._is_dirty = self._is_dirty or any(isinstance(result, StoreError) for result in results)
        if not stored:
            return
        if (
            self._options.mode == "sync"
            and epoch % 2 == PRIMARY
            and (self._options.is_strict or self._in_step)
        ):
            await self._replicate(sent, stored, results, epoch, deadline)
            return
        with self._lock:
            self._left.update(sent[at].key for at in stored)
        self._is_dirty = True
        if epoch % 2 == SECONDARY:
            await self._check_epoch(stored, results, epoch, deadline)

    async def _check_epoch(
        self, stored: list[int], results: list[Receipt | OutliveError], epoch: int, deadline: Deadline
    ) -> None:
        """While the secondary is active: whatever it has stored counts only if it was not told of a failback before."""
        try:
            backend = self.stores.both[SECONDARY]
            side = await read_side(backend, self.stores.tenant, deadline.remaining_s())
        except StoreError as error:
            failure: OutliveError = error
        else:
            if side is not None and side.epoch == epoch:
                return
            failure = EpochPassed("", epoch, side.epoch if side is not None else epoch + 1)
        for at in stored:
            results[at] = failure

    async def _replicate(
        self,
        sent: list[_Sent],
        stored: list[int],
        results: list[Receipt | OutliveError],
        epoch: int,
        deadline: Deadline,
    ) -> None:
        """Merge what was decided into the secondary, directly."""
        left_s = deadline.remaining_s()
        if not self._options.is_strict:
            left_s = _DIRECT_S if left_s is None else min(_DIRECT_S, left_s)
        replicas: dict[int, Commit] = {}
        for at in stored:
            receipt = results[at]
            assert isinstance(receipt, Receipt)
            replica = None if receipt.existing else replica_of(sent[at].given, receipt, max(epoch, sent[at].given.epoch or 0))
            if replica is not None:
                replica.timeout_s = left_s
                replicas[at] = replica
        answers = await self._send(list(replicas.values()))
        found: dict[int, object] = dict(zip(replicas, answers, strict=True))
        for at in stored:
            answer = found.get(at)
            if answer is None or isinstance(answer, StaleBase):
                answer = await self._carry(sent[at], epoch)
            if isinstance(answer, OutliveError):
                self._was_refused(sent[at], at, answer, results)
            else:
                with self._lock:
                    self._done.setdefault(sent[at].given.thread, []).append(sent[at].key)

    async def _send(self, replicas: list[Commit]) -> Sequence[Receipt | OutliveError]:
        if not replicas:
            return []
        try:
            await self.stores.meet(SECONDARY)
            return await self.stores.both[SECONDARY].commit_all(replicas)
        except OutliveError as error:
            return [error for _ in replicas]

    async def _carry(self, sent: _Sent, epoch: int) -> OutliveError | None:
        try:
            await self.stores.meet(SECONDARY)
            await self.stores.carrier(PRIMARY).carry(sent.given.thread, sent.items, epoch)
        except OutliveError as error:
            return error
        return None

    def _was_refused(
        self, sent: _Sent, at: int, error: OutliveError, results: list[Receipt | OutliveError]
    ) -> None:
        if isinstance(error, EpochPassed):
            results[at] = error
            return
        self.stores.note_health(SECONDARY, error)
        self._is_dirty = True
        if self._options.is_strict:
            ids = [draft.id for draft in sent.given.checkpoints]
            results[at] = failure = NotReplicated(sent.given.thread.id, ids[0] if ids else "", 0, 1)
            failure.__cause__ = error
        else:
            self._in_step = False

    # Changing places

    def _may_fail_over(self) -> bool:
        options, stores = self._options, self.stores
        return (
            options.is_enabled
            and options.auto_failover
            and not stores.is_failed_over
            and stores.automatic < options.max_failover_attempts
        )

    async def _has_switched(self, error: object, epoch: int) -> bool:
        """Tell whether the pair is in another epoch than a failed call thought: by somebody else, or by us now."""
        stores = self.stores
        if stores.epoch != epoch:
            return True
        if not self._options.is_enabled or not (isinstance(error, EpochPassed) or is_unreachable(error)):
            return False
        try:
            if await stores.refresh():
                return True
            if isinstance(error, EpochPassed):
                return await stores.rise(error.current)
            if stores.health[epoch % 2].is_healthy or not self._may_fail_over():
                return False
            await stores.promote(automatic=True)
        except OutliveError as failure:
            stores.last_error = str(failure)
            return stores.epoch != epoch
        return True

    async def promote(self) -> Switched:
        """Make the secondary active."""
        return await self.stores.promote()

    async def failback(self) -> Switched:
        """Make the primary active again, after it got everything."""
        await self._flush_done()
        return await self.stores.failback()

    # In the background

    async def beat(self) -> None:
        """Take off the queue what is done, carry over what is not, and look after both stores when it is time."""
        if self._is_closed or self._pid != os.getpid():
            return
        async with self._busy:
            if self._is_closed:
                return
            try:
                await self._beat()
            except Exception as error:  # noqa: BLE001  # nobody waits for this; the status tells
                self.stores.last_error = f"{type(error).__name__}: {error}"

    async def _beat(self) -> None:
        stores, options = self.stores, self._options
        now = self._runtime.now()
        is_due = now - self._checked_at >= options.health_check_interval_s * 1e6
        if is_due:
            self._checked_at = now
            await self._look_after()
        if not options.is_enabled:
            return
        await self._flush_done()
        other = stores.health[1 - stores.epoch % 2]
        if self._is_dirty and (other.is_healthy or is_due):
            await self._catch_up(None if is_due else self._mine)

    async def _catch_up(self, mine: str | None) -> None:
        stores = self.stores
        source = stores.epoch % 2
        self._is_dirty = False
        with self._lock:
            queued = set(self._left)
        try:
            if not stores.is_whole:
                await stores.copy_all(source)
            await stores.drain(source, mine=mine)
        except BaseException:
            self._is_dirty = True
            raise
        self._in_step = True
        with self._lock:
            self._left -= queued
        if stores.is_failed_over and stores.health[PRIMARY].is_healthy:
            await stores.drain(PRIMARY)  # what it had queued when it was left

    async def _flush_done(self) -> None:
        with self._lock:
            done, self._done = self._done, {}
        try:
            await self.stores.forget(PRIMARY, done.items())
        except OutliveError:
            with self._lock:
                for key, names in done.items():
                    self._done.setdefault(key, []).extend(names)

    async def _look_after(self) -> None:
        """See how both stores are; fail over or back when that is to happen by itself."""
        stores, options = self.stores, self._options
        was_down = not stores.health[1 - stores.epoch % 2].is_healthy
        await stores.refresh()
        self._is_dirty = self._is_dirty or was_down
        primary = stores.health[PRIMARY]
        stable_us = self._runtime.now() - primary.since
        if not primary.is_healthy:
            if self._may_fail_over() and stores.health[SECONDARY].is_healthy:
                await stores.promote(automatic=True)
        elif stable_us >= options.failback_delay_s * 1e6:
            if not stores.is_failed_over:
                stores.automatic = 0
            elif options.auto_failover and options.is_enabled:
                await self.failback()

    # Status

    @property
    def is_failed_over(self) -> bool:
        return self.stores.is_failed_over

    async def status(self) -> ReplicationStatus:
        """Return how the pair is now."""
        stores, options = self.stores, self._options
        if options.is_enabled:
            await stores.refresh()
        with self._lock:
            done = {name for names in self._done.values() for name in names}
            left = len(self._left)
        healthy = [role for role in (PRIMARY, SECONDARY) if stores.health[role].is_healthy]
        counts = [await stores.queued(role, done) for role in healthy]
        is_left = not stores.health[PRIMARY].is_healthy
        return ReplicationStatus(
            mode=options.mode,
            on_secondary_down=options.on_secondary_down,
            is_enabled=options.is_enabled,
            active=ROLES[stores.epoch % 2],
            is_failed_over=stores.is_failed_over,
            epoch=stores.epoch,
            failovers=stores.failovers,
            primary_healthy=stores.health[PRIMARY].is_healthy,
            secondary_healthy=stores.health[SECONDARY].is_healthy,
            is_whole=stores.is_whole,
            queued=sum(one[0] for one in counts),
            queued_bytes=sum(one[1] for one in counts),
            lag_s=max((one[2] for one in counts), default=0.0),
            unreachable=left if is_left else 0,
            last_error=stores.last_error,
        )


def _in_epoch(entry: Entry, epoch: int) -> Entry:
    """A fence is given in the epoch that we are in: whatever was given before is outranked."""
    return replace(entry, epoch=max(entry.epoch, epoch)) if entry.fence == NEXT else entry


def _asks_for_switch(commit: Commit, result: object) -> bool:
    return is_unreachable(result) or (isinstance(result, EpochPassed) and commit.epoch is None)
