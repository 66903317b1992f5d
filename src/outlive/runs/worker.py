"""A worker: claims runs from the queue, fires timers and recovers dead runs, until it is stopped.

One loop looks and hands out; `concurrency` hands work, threads of a sync store or tasks of an async
one. The loop never claims more runs than it has free hands, so that nothing waits in a worker while
another is idle. It looks

- when work was stored (`Backend.watch`): notified by PostgreSQL and Redis, and otherwise noticed by
  polling,
- when a hand becomes free,
- when the next timer is due, or a busy place or agent may be tried again,
- every `interval_s`, with jitter, for dead runs, and for what a watch has missed.

A watch waits in a thread or task of its own and rings the bell of the loop. The loop takes a new
bell before it looks, so what is stored during a look rings the next one.

`stop()` and `drain()` end the loop. `drain()`, also by SIGTERM, gives back the runs that have not
ended after `grace_s`: a task is cancelled, which releases its run. A thread cannot be ended, so its
run is released under it, and the next write of the thread is refused.
"""

from __future__ import annotations

import contextlib
import functools
import random
import time
from collections.abc import Callable
from typing import Protocol

from outlive.backend import ThreadKey, Watch
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, OutliveError, StoreClosed, StoreError
from outlive.runs.claims import Claimed, Claims
from outlive.runs.lease import RunInfo
from outlive.runs.queue import Queue
from outlive.runs.recovery import Recovered, Recovery, find_dead
from outlive.runs.sigterm import terminator
from outlive.runs.slots import Slots
from outlive.runs.store_clock import store_now
from outlive.runs.timers import fire_due
from outlive.runs.waiting_tickets import Place
from outlive.runs.worker_record import WorkerRecord, remove_dead
from outlive.runtime.runtime import Deadline, Hand, warn_of_failure
from outlive.threads.engine import Engine

_LONGEST_S = 60.0  # between looks while the store cannot be reached
_FULL_S = 0.25  # between looks while an agent has no free slot
_GATHER_S = 0.01  # that a busy worker waits for more free hands, to claim runs for all of them together
_PACE_S = 0.02  # between two claims while fewer runs are queued than hands are free: more of them arrive
_TIMERS_S = 0.1  # from a wake to a look at the timers
_WATCH_S = 0.25  # the longest wait of a watch: so long may `run()` take to return
_GIVE_BACK_S = 5.0  # for tasks that were cancelled to end


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works."""

    concurrency: int
    interval_s: float
    grace_s: float


class LeaseHolders(Protocol):
    """Where leases are renewed."""

    def add(self, run: WorkerRecord) -> None: ...
    def discard(self, run: WorkerRecord) -> None: ...


class AsyncWorker:
    """Made by `store.worker(handlers)`. `run()` returns after `stop()` or `drain()`, or when its task is cancelled."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        recovery: Recovery,
        queue: Queue,
        slots: Slots,
        record: WorkerRecord,
        heart: LeaseHolders,
        options: WorkerOptions,
        refuses: Callable[[], bool],
        on_report: Callable[[Recovered], None] | None,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._recovery = recovery
        self._queue = queue
        self._slots = slots
        self._record = record
        self._heart = heart
        self._options = options
        self._refuses = refuses
        self._on_report = on_report
        self._bell = engine.runtime.bell()
        self._idle = engine.runtime.bell()  # rings when no hand is busy
        self._jobs: set[_Job] = set()
        record.count_busy = lambda: len(self._jobs)
        self._places: set[Place] = set()
        self._claims = Claims(engine, recovery, queue, slots, options.interval_s)
        self._dead: list[tuple[ThreadKey, RunInfo]] = []  # the next one last
        self._dead_at = 0.0  # when to look for dead runs again
        self._claim_at = 0.0  # when to look at the queue again
        self._timer_at: float | None = None  # when the next timer is due
        self._failures = 0
        self._is_ending = self._is_over = False
        self._give_back_at: float | None = None  # set by drain()

    def __repr__(self) -> str:
        state = "ending" if self._is_ending else f"{self.busy} of {self._options.concurrency} hands busy"
        return f"<{type(self).__name__} {self.id} {state}>"

    @property
    def id(self) -> str:
        """The id of this worker, as `store.workers()` shows it."""
        return self._record.id

    @property
    def busy(self) -> int:
        """The number of runs that it works on."""
        return len(self._jobs)

    async def run(self) -> None:
        """Work until `stop()` or `drain()` is called. While the store cannot be reached, the pauses grow.

        In the main thread, SIGTERM drains it, unless the program has a signal handler of its own.
        """
        terminator.add_drain(id(self), self.drain)
        watching = self._engine.runtime.spawn("outlive-watch", self._watch)
        try:
            await self._loop()
            await self._finish()
        except BaseException:  # Ctrl-C, or the task is cancelled
            self._is_ending = True
            await self._engine.runtime.shielded(self._give_back())
            raise
        finally:
            self._is_over = True
            self._heart.discard(self._record)
            terminator.discard(id(self))
            await self._engine.runtime.shielded(self._record.remove())
            self._report()
            await watching.wait()

    def stop(self) -> None:
        """Make `run()` return after the runs that it is working on. From any thread."""
        self._is_ending = True
        self._bell.set()

    def drain(self, grace_s: float | None = None) -> None:
        """Claim no more runs, and make `run()` return: after `grace_s` the runs that have not ended are given back.

        Without `grace_s`, that of the worker. From any thread, and from a signal handler.
        """
        self._give_back_at = time.monotonic() + (self._options.grace_s if grace_s is None else grace_s)
        self.stop()

    # Looking

    async def _watch(self) -> None:
        watch: Watch | None = None
        try:
            while not self._is_over:
                try:
                    watch = watch or await self._engine.backend.watch(self._tenant)
                    is_woken = await watch.wait(_WATCH_S)
                except StoreClosed:
                    break
                except OutliveError:  # the loop meets the same error, and waits longer
                    await self._engine.runtime.sleep(_WATCH_S)
                    continue
                if is_woken:
                    self._queue.is_stale = True
                    # It may be a timer. Those are read a moment later, once for many submitted
                    # runs.
                    self._look_at_timers_at(time.monotonic() + _TIMERS_S)
                    self._bell.set()
        finally:
            if watch is not None:
                await watch.close()

    async def _loop(self) -> None:
        while not self._is_ending:
            self._bell = self._engine.runtime.bell()
            self._report_ended()
            if self._is_ending:  # by stop(), which rang the bell before
                break
            try:
                await self._look()
            except StoreError:
                self._failures += 1
            await self._bell.wait(self._pause_s())
            await self._gather()

    async def _gather(self) -> None:
        """Wait while hands become free, but for those of long runs: one claim serves them all."""
        busy = self._options.concurrency
        while 0 < self.busy < busy:
            busy = self.busy
            await self._idle.wait(_GATHER_S)

    async def _look(self) -> None:
        """Hand out what there is to do, as far as hands are free."""
        self._recovery.refuses_all = self._refuses()
        self._claims.full.clear()
        # A run that was answered does not wait for the search for dead runs; only the first search
        # comes before all else, because it stores the record of this worker.
        if self._dead_at:
            await self._fill_hands()
        now = time.monotonic()
        if now >= self._dead_at or self._is_timer_due(now):
            await self._look_around(is_due=now >= self._dead_at)
            self._claims.full.clear()
            await self._fill_hands()
        self._failures = 0

    async def _look_around(self, *, is_due: bool) -> None:
        """Fire timers; if it `is_due`, find dead runs."""
        if not self._recovery.refuses_all:
            with contextlib.suppress(Corrupt):  # a damaged timer must not stop the queue; `verify` reports it
                await self._fire_timers()
        if is_due:
            with contextlib.suppress(Corrupt):
                await self._find_dead()
            self._queue.is_stale = True  # a watch may have missed something
            self._dead_at = time.monotonic() + self._options.interval_s * random.uniform(0.8, 1.2)

    async def _fill_hands(self) -> None:
        while self.busy < self._options.concurrency and not self._is_ending:
            if not await self._hand_out():
                break
            await self._gather()  # runs without work have ended by now

    def _is_timer_due(self, now: float) -> bool:
        return self._timer_at is not None and now >= self._timer_at

    async def _fire_timers(self) -> None:
        self._timer_at = None  # before the listing: what is stored during it sets it again
        fired = await fire_due(self._engine, self._tenant)
        if fired.next_at is not None:
            left_s = (fired.next_at - await store_now(self._engine)) / 1e6
            self._look_at_timers_at(time.monotonic() + max(0.0, left_s))
        if fired.count:
            self._queue.is_stale = True

    def _look_at_timers_at(self, at: float) -> None:
        self._timer_at = at if self._timer_at is None else min(self._timer_at, at)

    async def _find_dead(self) -> None:
        self._report()
        await self._record.store()
        self._heart.add(self._record)
        await remove_dead(self._engine, self._tenant)
        found = find_dead(self._engine, self._tenant, self._recovery.report.waiting)
        self._dead = [item async for item in found][::-1]

    def _report_ended(self) -> None:
        """Report the runs that have left their handlers, if there are any."""
        if self._recovery.report._has_ended:
            self._report()

    def _report(self) -> None:
        report = self._recovery.take_report()
        if self._on_report is not None:
            try:
                self._on_report(report)
            except Exception as error:  # noqa: BLE001  # whatever it does wrong, the worker continues
                warn_of_failure("on_report of a worker", error)

    def _pause_s(self) -> float:
        """Return how long to wait for the bell."""
        if self._failures:
            pause_s = self._options.interval_s * 2.0 ** min(self._failures, 30)
            return min(_LONGEST_S, pause_s) * random.uniform(0.8, 1.2)
        now = time.monotonic()
        moments = [self._dead_at - now]
        if self.busy < self._options.concurrency:
            if self._claims.full:
                moments.append(_FULL_S * random.uniform(0.5, 1.0))
            if (next_s := self._queue.next_s()) is not None:
                moments.append(next_s)
        if self._timer_at is not None:
            moments.append(self._timer_at - now)
        return max(0.001, min(moments))

    # Handing out

    async def _hand_out(self) -> bool:
        """Give free hands something to do; False: there is nothing now."""
        if await self._hand_out_dead():
            return True
        if self._recovery.refuses_all:
            return False
        if (pause_s := self._claim_at - time.monotonic()) > 0:
            await self._engine.runtime.sleep(pause_s)
        free = self._options.concurrency - self.busy
        # If this task is cancelled meanwhile, the runs are with their hands, which give them back.
        count = await self._engine.runtime.shielded(self._claims.claim(self._places, free, self._start))
        if 0 < count < free:
            self._claim_at = time.monotonic() + _PACE_S
        return count > 0

    async def _hand_out_dead(self) -> bool:
        for at in reversed(range(len(self._dead))):
            key, info = self._dead[at]
            slots = await self._claims.take_slots(info.agent)
            if slots is None:
                continue
            del self._dead[at]
            take = functools.partial(self._recovery.take, key, info)
            self._start(Claimed(take, _place(key, info), slots))
            return True
        return False

    def _start(self, claimed: Claimed) -> None:
        # If the place is in use, the store refuses the claim, and the other hand has noted the
        # place.
        job = _Job(None if claimed.place in self._places else claimed.place)
        if not self._jobs:
            self._idle = self._engine.runtime.bell()
        self._jobs.add(job)
        if job.place is not None:
            self._places.add(job.place)

        async def working() -> None:
            try:
                with contextlib.suppress(StoreError):  # the loop meets the same error, and waits longer
                    await claimed.work()
            finally:
                await self._engine.runtime.shielded(self._slots.free(claimed.slots))
                self._end(job)

        job.hand = self._engine.runtime.hand("outlive-worker", working)

    def _end(self, job: _Job) -> None:
        if job.place is not None:
            self._places.discard(job.place)
        self._jobs.discard(job)
        if not self._jobs:
            self._idle.set()
        self._bell.set()

    # Ending

    async def _finish(self) -> None:
        """Wait for the runs that are worked on; give back those that a drain does not wait for."""
        self._record.is_draining = True
        with contextlib.suppress(StoreError):
            await self._record.store()
        while self._jobs:
            self._bell = self._engine.runtime.bell()
            self._report_ended()
            left_s = _LONGEST_S if self._give_back_at is None else self._give_back_at - time.monotonic()
            if left_s <= 0:
                await self._give_back()
                return
            if self._jobs:  # else the last one rang the bell before
                await self._bell.wait(left_s)

    async def _give_back(self) -> None:
        """Release the runs that are worked on. Tasks end by that; threads are not waited for."""
        hands = [job.hand for job in list(self._jobs) if job.hand is not None]
        tasks = [hand for hand in hands if hand.cancel()]
        deadline = Deadline(_GIVE_BACK_S)
        for task in tasks:
            await task.wait(deadline.remaining_s())
        await self._recovery.release_all()


class _Job:
    """What a hand does."""

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.hand: Hand | None = None


def _place(key: ThreadKey, run: RunInfo) -> Place | None:
    return (key.digest, run.namespace) if run.exclusive and run.parent is None else None
