"""A store: the threads and runs of one tenant at one URL.

`AsyncStore` is a facade. It is long because each of its methods is documented here; the work is
done by the modules that they call.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, Unpack, overload

from outlive.arguments import (
    check_agent,
    check_attributes,
    check_count,
    check_filter,
    check_flag,
    check_handlers,
    check_id,
    check_limit,
    check_namespace,
    check_options,
    check_order,
    check_priority,
    check_run,
    check_run_durability,
    check_seconds,
    check_text,
    check_timeout,
    check_worker,
    is_async,
    optional_id,
    thread_cursor,
)
from outlive.backend import EntryRecord, ThreadKey, ThreadQuery
from outlive.dataclass import dataclass
from outlive.errors import (
    AmbiguousRun,
    BadArgument,
    Corrupt,
    KeyMissing,
    NoSecondary,
    RunMissing,
    SeveralFailed,
    StoreClosed,
    raise_all,
    well_formed,
)
from outlive.runs.budget import Budget, check_budget
from outlive.runs.lease import (
    CANCELLED,
    PARKED,
    RUN,
    RunInfo,
    find,
    find_all,
    seed_of,
    unpack_or_tell,
    unpack_run,
)
from outlive.runs.lock import AsyncLock
from outlive.runs.options import RunOptions, SubmitOptions
from outlive.runs.renewal import LeaseRenewer
from outlive.runtime.runtime import new_id
from outlive.runtime.wrong_mode import AsyncContext, async_items
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine
from outlive.threads.listing import Threads, choose_threads
from outlive.threads.thread import AsyncThread, S
from outlive.threads.write_behind import SaveQueue
from outlive.values import StoreSize, ThreadInfo, Verified, micros

if TYPE_CHECKING:  # imported by the first call that needs them
    from outlive.layers.encryption.rotation import Rotated
    from outlive.layers.replication.layer import Replicate
    from outlive.layers.replication.options import ReplicationStatus, RoleChange
    from outlive.retention.policy import Retain, Swept
    from outlive.retention.sweeper import Sweeper
    from outlive.runs.attempts import Attempt
    from outlive.runs.questions import QuestionInfo
    from outlive.runs.recovery import Handlers, Pass, Policy, Recovered, Recovery
    from outlive.runs.response_values import ModelResponse
    from outlive.runs.run import AsyncRun
    from outlive.runs.step_record import StepInfo
    from outlive.runs.stream_entry import StreamChunk
    from outlive.runs.worker import AsyncWorker
    from outlive.runs.worker_record import WorkerInfo

Progress = Callable[[int, int | None], None]  # (done, total if known)
Opener = Callable[[str, str], Awaitable["AsyncStore"]]  # (url, tenant) → another store of the same mode


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for every call of a store unless the call says otherwise."""

    url: str
    tenant: str = ""
    durability: str = "sync"
    timeout_s: float | None = 30.0


class PlainMode(Protocol):
    """A store in the sync mode, as far as plain handlers of an async store need it."""

    def _recovery(
        self, handlers: Mapping[Any, Any], policy: Policy, code_version: str | None, shared: Pass
    ) -> Recovery: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class AsyncStore(AsyncContext):
    """The threads of one tenant. Made by `outlive.open_async(url)`; safe for any number of tasks."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        opener: Opener | None = None,
        retain: Retain | None = None,
        pair: Replicate | None = None,
    ) -> None:
        self._engine = engine
        self._pair = pair
        self._settings = settings
        self._opener = opener
        self._durability = settings.durability
        self._queues: dict[bytes, SaveQueue] = {}
        self._delayed_bases = Cache(engine.cache.limit_bytes)
        self._is_closed = False
        # Opens the same store in the sync mode; and makes the sync API of such a store.
        self._sync_sibling: Callable[[], AsyncStore] | None = None
        self._sync_api: Callable[[AsyncStore], PlainMode] | None = None
        self._plain: PlainMode | None = None  # the store of plain handlers, once there is one
        self._plain_lock = threading.Lock()
        self._heart = LeaseRenewer(engine)
        self._sweeper: Sweeper | None = None if retain is None else self._new_sweeper(retain)

    def __repr__(self) -> str:
        tenant = f" tenant={self._settings.tenant!r}" if self._settings.tenant else ""
        closed = " closed" if self._is_closed else ""
        return f"<{type(self).__name__} {self._settings.url}{tenant}{closed}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @overload
    def thread(self, id: str, *, namespace: str = "", type: type[S]) -> AsyncThread[S]: ...
    @overload
    def thread(self, id: str, *, namespace: str = "", type: UnionType | None = None) -> AsyncThread[Any]: ...
    def thread(self, id: str, *, namespace: str = "", type: Any = None) -> AsyncThread[Any]:
        """Return a handle on a thread, which need not exist yet: `store.thread("trip", type=State)`.

        `type` registers the type and the classes in its annotations. Such a handle saves only
        states of that type, and type checkers know what it loads.
        """
        if type is not None:
            self._engine.codec.registry.add_annotated(type)
        return AsyncThread(self, self._engine, self._key(id), check_namespace(namespace), type)

    def threads(
        self,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
        order: Literal["id", "updated"] = "id",
    ) -> AsyncIterator[ThreadInfo]:
        """Iterate over threads by id: `async for info in store.threads()`.

        order="updated" begins with the thread that changed last. A thread that changes meanwhile is
        not listed again. `after` is where to continue: an id, whether that thread still exists or
        not; with order="updated" the `cursor` of a ThreadInfo. `filter` has keys that the threads'
        own metadata must have with equal values; `limit` is counted after the filter. A prefix is
        for threads by id.
        """
        newest = check_order(order, prefix) == "updated"
        place = None if after is None else check_text("after", after)
        return Threads(
            self._engine,
            self._settings.tenant,
            prefix=check_text("prefix", prefix),
            filter=check_filter(filter),
            limit=check_limit(limit),
            after=None if newest else place,
            newest=newest,
            before=thread_cursor(place) if newest and place is not None else None,
        )

    # Runs

    def run(self, thread_id: str, **options: Unpack[RunOptions]) -> AsyncRun:
        """Return a run on a thread: `async with store.run("trip", agent="planner") as run`.

        Executed again after its process was killed, it continues the run: the same id, the next
        attempt. So it does with a run of this thread, namespace, agent and prompt that was
        released, or that waits.

        run_id:        the id of the run (default: that of the unfinished run, or a new one). With the id of a run
                       that has ended, `run.is_finished` is true and `run.result` is its result.
        new:           do not continue an unfinished run: cancel it, and start another one
        namespace:     the namespace of the thread that it works in; each can have a run of its own
        agent:         which handler of a worker or `store.recover` resumes it
        prompt:        any value, stored with the run: what its handler needs to start again
        attributes:    stored with the run, for `store.runs(attributes=...)`
        parent:        the run that started this one
        code_version:  what `recover(policy="hold")` compares
        lease_s:       how long after the last sign of life the run counts as dead (default: 30)
        progress_s:    without progress for that long, the lease is not renewed any more: another process can
                       take the run over. A write, a step and `run.alive()` are progress (default: no limit)
        throttle_s:    store at most one save in this time (default: every save)
        clock:         measures `throttle_s` (default: time.monotonic)
        durability:    when its saves are stored: "sync" (default), "async" or "exit"; see `run.save`
        max_attempts:  `recover` parks the run after that many failed attempts (default: 5)
        backoff_s:     after a failure or a crash, wait this long before the next attempt, doubled each time
                       (default: None, a failure ends the run and a crash is recovered at once)
        priority:      0 to 999; of released runs of an agent, workers claim those with the greatest first
        budget:        what the run may use, an `outlive.Budget`; when that is spent, the run is parked (default: the
                       budget that it had, or none)
        exclusive:     hold the thread, so that no other run has it at the same time (default: True)

        Raises ThreadBusy, RunBusy and RunElsewhere when it starts.
        """
        check_options("store.run", options, RunOptions.__optional_keys__)
        clock, throttle_s = options.get("clock"), options.get("throttle_s", 0)
        durability = check_run_durability(options.get("durability", "sync"))
        info = self._new_info(thread_id, options, throttle_s, clock)
        if durability == "exit" and throttle_s > 0:
            raise BadArgument('durability="exit" stores nothing before the run ends: leave out throttle_s')
        is_named, is_new = options.get("run_id") is not None, check_flag("new", options.get("new", False))
        if is_named and is_new:
            raise BadArgument("new=True starts a run with an id of its own: leave out run_id")
        return self._run(
            info,
            throttle_s=throttle_s,
            clock=clock,
            durability=durability,
            is_named=is_named,
            continues=not is_named and not is_new,
            supersedes=is_new,
            budget=check_budget(options.get("budget")),
        )

    def _new_info(
        self, thread_id: str, options: SubmitOptions, throttle_s: float = 0, clock: Any = None
    ) -> RunInfo:
        run_id, agent, code_version = options.get("run_id"), options.get("agent"), options.get("code_version")
        lease_s, max_attempts = options.get("lease_s", 30.0), options.get("max_attempts", 5)
        check_run(lease_s, throttle_s, max_attempts, clock)
        backoff_s, progress_s = options.get("backoff_s"), options.get("progress_s")
        return RunInfo(
            id=new_id() if run_id is None else check_id("run_id", run_id),
            thread=thread_id,
            namespace=check_namespace(options.get("namespace", "")),
            max_attempts=max_attempts,
            backoff_s=None if backoff_s is None else check_seconds("backoff_s", backoff_s),
            priority=check_priority(options.get("priority", 0)),
            agent=None if agent is None else check_agent(agent),
            prompt=options.get("prompt"),
            parent=optional_id("parent", options.get("parent")),
            attributes=check_attributes(options.get("attributes")),
            code_version=None if code_version is None else check_text("code_version", code_version),
            exclusive=options.get("exclusive", True),
            lease_s=float(lease_s),
            progress_s=None if progress_s is None else check_timeout(progress_s, "progress_s"),
            budget=check_budget(options.get("budget")),
        )

    async def submit(
        self, thread_id: str, *, not_before: dt.datetime | None = None, **options: Unpack[SubmitOptions]
    ) -> RunInfo:
        """Store a run for workers: `await store.submit("trip", agent="planner", prompt={"to": "Lisbon"})`.

        One commit stores it, and a worker with a handler for its agent claims it. Of the runs of an
        agent, those with the greatest `priority` come first, then those that were submitted first.
        Runs of one thread and namespace follow each other.

        run_id:      submitted again under this id, nothing changes and the stored run is returned
        not_before:  a datetime with a time zone: its status is "waiting" until then

        The other options are those of `store.run`. Raises RunElsewhere if another thread has a run
        with this id.
        """
        from outlive.runs.submit import submit

        check_options("store.submit", options, SubmitOptions.__optional_keys__ | {"not_before"})
        info = self._new_info(thread_id, options)
        due = None if not_before is None else micros(not_before)
        is_named = options.get("run_id") is not None
        return await submit(self._engine, self._key(thread_id), info, due=due, is_named=is_named)

    def _run(self, info: RunInfo, **options: Any) -> AsyncRun:
        from outlive.runs.run import AsyncRun
        from outlive.runs.start import StartOptions

        place = self.thread(info.thread, namespace=info.namespace)
        return AsyncRun(self._engine, place, self._heart, info, StartOptions(**options))

    async def find_run(self, run_id: str, *, thread: str | None = None) -> RunInfo | None:
        """Return the run with this id, or None. Several threads may have it: `thread` says which, or AmbiguousRun is raised."""
        stored = await self._find_run(run_id, thread)
        return None if stored is None else unpack_or_tell(self._engine.codec, *stored)

    async def retry(
        self,
        run_id: str,
        *,
        thread: str | None = None,
        not_before: dt.datetime | None = None,
        budget: Budget | None = None,
    ) -> AsyncRun:
        """Return a run that failed or was cancelled, parked or released, to continue it: `async with await store.retry(id) as run`.

        With `not_before`, a datetime with a time zone, it is left to `recover` and workers at that
        time: its status is "waiting" until then. Raises RunBusy for a run that is running and
        RunEnded for one that is completed. `budget` replaces the budget of the run.
        """
        key, entry = await self._the_run(run_id, thread)
        info = unpack_run(self._engine.codec, key, entry)
        if not_before is not None:
            from outlive.runs.end import retry_at

            await retry_at(self._engine, key, info, micros(not_before))
        return self._run(info, retries=True, budget=check_budget(budget))

    # Questions

    async def answer(
        self, run_id: str, name: str, value: Any, *, by: str | None = None, thread: str | None = None
    ) -> QuestionInfo:
        """Answer a question of a run, or send it an event: `await store.answer(run_id, "refund?", True, by="support")`.

        The first answer counts. It is stored, and a run that waits for it can be claimed by any
        worker, in one commit. No code or type of the agent is needed. An answer that comes before
        its question is kept for it.

        Raises AlreadyAnswered, which tells who answered and when; AnswerRefused if the value does
        not fit the schema of the question; QuestionClosed if it has expired or was withdrawn;
        RunEnded, RunMissing and AmbiguousRun.
        """
        from outlive.runs.questions import answer

        key, _ = await self._the_run(run_id, thread)
        giver = None if by is None else check_text("by", by)
        return await answer(self._engine, key, run_id, name, value, giver)

    @async_items
    async def questions(
        self,
        *,
        status: str | None = "open",
        agent: str | None = None,
        older_than_s: float | None = None,
        thread: str | None = None,
        events: bool = False,
    ) -> AsyncIterator[QuestionInfo]:
        """Iterate over the questions of all runs of this tenant: `async for question in store.questions()`.

        status:        "open", "answered", "expired", "withdrawn", or None for all
        agent:         of runs of this agent only
        older_than_s:  asked at least that long ago
        events:        also what `run.wait` waits for

        A damaged question hides no other: it comes with `is_readable=False`, and `error` says why.
        Its agent and the time it was asked are unknown, so `agent` and `older_than_s` leave it out.
        """
        from outlive.runs.questions import check_status, find_questions
        from outlive.runs.store_clock import store_now

        place = None if thread is None else self._key(thread)
        agent = None if agent is None else check_text("agent", agent)
        latest = None
        if older_than_s is not None:
            age_s = check_seconds("older_than_s", older_than_s, 0)
            latest = await store_now(self._engine) - int(age_s * 1e6)  # questions have its time
        async for question in find_questions(
            self._engine, self._settings.tenant, status=check_status(status), thread=place, events=events
        ):
            if agent is not None and question.agent != agent:
                continue
            if latest is None or (question.asked_at is not None and micros(question.asked_at) <= latest):
                yield question

    async def _give_back(self, run_id: str, thread: str) -> RunInfo:
        """Make a run a candidate for recovery, unless it is completed, without reading what it did. Raises RunBusy, ThreadBusy."""
        from outlive.runs.start import Start, StartOptions

        key, entry = await self._the_run(run_id, thread)
        info = unpack_run(self._engine.codec, key, entry)
        place = self.thread(info.thread, namespace=info.namespace)
        start = Start(self._engine, place, info, StartOptions(retries=True))
        holding = await start.take()
        if not holding.info.is_finished:
            await start.release(holding)
        return holding.info

    async def park(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """Set a run aside, wherever it is: nothing recovers it until `retry`. A live run is refused at its next write.

        Raises RunEnded when it has ended already.
        """
        return await self._end(run_id, thread, PARKED)

    async def cancel(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """End a run, wherever it is. A live run is refused at its next write, and its thread is free at once.

        Raises RunEnded when it has ended already.
        """
        return await self._end(run_id, thread, CANCELLED)

    async def _end(self, run_id: str, thread: str | None, status: str) -> RunInfo:
        from outlive.runs.end import end_run

        key, _ = await self._the_run(run_id, thread)
        return await end_run(self._engine, key, run_id, status)

    async def _find_run(self, run_id: str, thread: str | None) -> tuple[ThreadKey, EntryRecord] | None:
        """Return a run by its id. Raises AmbiguousRun: never one of several in silence."""
        check_id("run_id", run_id)
        if thread is not None:
            key = self._key(thread)
            entry = await find(self._engine, key, RUN, run_id)
            return None if entry is None else (key, entry)
        entries = await find_all(self._engine, self._settings.tenant, run_id)
        if len(entries) > 1:
            raise AmbiguousRun(run_id, [key.id for key, _ in entries])
        return entries[0] if entries else None

    async def _the_run(self, run_id: str, thread: str | None) -> tuple[ThreadKey, EntryRecord]:
        stored = await self._find_run(run_id, thread)
        if stored is None:
            raise RunMissing(run_id)
        return stored

    def lock(
        self, thread_id: str, *, namespace: str = "", timeout_s: float | None = None, lease_s: float = 30.0
    ) -> AsyncLock:
        """Return a lock on a thread: `async with store.lock("trip")`. While it is held, no run and no other lock has the thread.

        namespace:  lock only this namespace of the thread
        timeout_s:  how long to wait for it (default: the timeout of the store), then ThreadBusy is raised
        lease_s:    how long after the last sign of life the lock is free again; it is renewed while it is held
        """
        check_run(lease_s, 0, 1)
        return AsyncLock(
            self._engine,
            self._key(thread_id),
            check_namespace(namespace),
            self._heart,
            timeout_s=self._timeout(timeout_s),
            lease_s=float(lease_s),
        )

    def worker(
        self,
        handlers: Handlers,
        *,
        concurrency: int = 8,
        interval_s: float = 5.0,
        limits: Mapping[str | None, int] | None = None,
        limit_tenant: int | None = None,
        grace_s: float = 20.0,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
        on_report: Callable[[Recovered], None] | None = None,
    ) -> AsyncWorker:
        """Return a worker, which claims submitted, woken and dead runs: `await store.worker(handlers).run()`.

        handlers:      maps an agent, or "*" for all others, to a function that is called with its run. An async
                       store calls a plain function in a thread, with a sync run.
        concurrency:   how many runs it works on at a time
        interval_s:    how often it looks for dead runs; submitted and woken runs are noticed at once
        limits:        how many runs of an agent all workers of this store together work on: `{"planner": 2}`
        limit_tenant:  the same for all agents together
        grace_s:       after SIGTERM or `drain()`, how long it waits for its runs before it gives them back
        on_report:     gets a report of what was done since the last one: when runs have left their handlers, and
                       every `interval_s`

        The other options are those of `recover`. Workers should agree on limits: each keeps to its
        own.
        """
        from outlive.runs.queue import Queue
        from outlive.runs.slots import Slots, check_limits
        from outlive.runs.worker import AsyncWorker, WorkerOptions
        from outlive.runs.worker_record import WorkerRecord

        engine, tenant = self._engine, self._settings.tenant
        checked = check_handlers(handlers)
        recovery = self._recovery(checked, policy, code_version)
        checked_limits = check_limits(limits, limit_tenant)
        check_worker(checked, checked_limits)
        capacity = check_count("concurrency", concurrency, 1)
        options = WorkerOptions(
            capacity, check_timeout(interval_s, "interval_s"), check_seconds("grace_s", grace_s, 0)
        )
        fields = {
            "agents": list(checked), "code_version": code_version, "policy": policy, "capacity": capacity,
        }  # fmt: skip
        return AsyncWorker(
            engine,
            tenant,
            recovery,
            Queue(engine, tenant, checked, recovery.is_other_code),
            Slots(engine, tenant, self._heart, checked_limits),
            WorkerRecord(engine, tenant, fields),
            self._heart,
            options,
            lambda: self._pair is not None and self._pair.is_failed_over and not after_failover,
            on_report,
        )

    @async_items
    async def workers(self) -> AsyncIterator[WorkerInfo]:
        """Iterate over the living workers of this tenant: `async for worker in store.workers()`."""
        from outlive.runs.worker_record import find_workers

        async for worker in find_workers(self._engine, self._settings.tenant):
            yield worker

    @async_items
    async def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        agent: str | None = None,
        thread: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RunInfo]:
        """Iterate over the runs of this tenant by id, also those that have ended: `async for info in store.runs()`.

        `attributes` compares by equality: a run without such an attribute is left out. A damaged
        run hides no other: it comes with `is_readable=False`, and `error` says why. `agent` and
        `attributes` leave it out.
        """
        from outlive.runs.recovery import RunFilter, check_statuses, find_runs

        wanted = RunFilter(
            None if agent is None else check_text("agent", agent), check_attributes(attributes)
        )
        place = None if thread is None else self._key(thread)
        async for _, run in find_runs(
            self._engine, self._settings.tenant, thread=place, statuses=check_statuses(status)
        ):
            if wanted.takes(run):
                yield run

    @async_items
    async def recoverable(self) -> AsyncIterator[RunInfo]:
        """Iterate over runs that are dead but not finished: they were released, their lease has expired, or their process has ended."""
        from outlive.runs.recovery import find_recoverable

        async for _, run in find_recoverable(self._engine, self._settings.tenant):
            yield run

    async def recover(
        self,
        handlers: Handlers,
        *,
        concurrency: int = 8,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
    ) -> Recovered:
        """Resume every dead run: `await store.recover({"planner": resume_planner})`.

        handlers:        maps an agent to a function that is called with its run; None is for runs without an agent,
                         "*" for all others. An async store calls a plain function in a thread, with a sync run.
        concurrency:     how many runs are resumed at a time; each belongs to exactly one process and one handler.
                         A sync store resumes each in a thread, or with 1 in the calling thread.
        policy:          "resume" (default), or "hold": skip runs that another `code_version` has started
        after_failover:  resume although a pair of stores has failed over. Runs that still work with the primary
                         cannot be told from dead ones then, and all are skipped by default.

        The report says what was resumed, what failed, what is alive elsewhere, and what was skipped
        and why. Ctrl-C or a cancelled task releases the runs that are being resumed.
        """
        recovery = self._recovery(check_handlers(handlers), policy, code_version)
        if self._pair is not None and self._pair.is_failed_over and not after_failover:
            recovery.refuses_all = True
        await recovery.take_all(self._settings.tenant, check_count("concurrency", concurrency, 1))
        return recovery.report

    def _recovery(
        self,
        handlers: Mapping[Any, Any],
        policy: Policy,
        code_version: str | None,
        shared: Pass | None = None,
    ) -> Recovery:
        from outlive.runs.recovery import Recovery

        def in_threads(shared: Pass) -> Recovery:
            plain = {agent: handler for agent, handler in handlers.items() if not is_async(handler)}
            return self._plain_mode()._recovery(plain, policy, code_version, shared)

        is_sync = self._sync_sibling is None
        threads = None if is_sync else in_threads
        return Recovery(self._engine, self._run, handlers, policy, code_version, threads, shared)

    def _plain_mode(self) -> PlainMode:
        """Return this store in the sync mode, opened once, for plain handlers in threads."""
        with self._plain_lock:
            if self._is_closed:
                raise StoreClosed
            if self._plain is None:
                assert self._sync_sibling is not None
                assert self._sync_api is not None
                self._plain = self._sync_api(self._sync_sibling())
            return self._plain

    async def delete(self, id: str) -> bool:
        """Delete a thread in all namespaces; False when it did not exist."""
        return await self.thread(id).delete()

    async def verify(self, *, progress: Progress | None = None) -> Verified:
        """Check every stored byte of every thread. Problems are reported, not raised.

        `progress(done, total)` is called after each thread; `total` is None where it is not known
        before the end.
        """
        from outlive.threads.verify import verify_store

        await self.flush()
        return await verify_store(self._engine, self._settings.tenant, progress)

    async def sweep(self, *, dry_run: bool = False, retain: Retain | None = None) -> Swept:
        """Delete what `retain` does not keep (default: as the store was opened), in batches.

        The newest checkpoint of each namespace, what unfinished runs need and open interrupts are
        always kept. With `dry_run` nothing is changed, and the report says what would be deleted.
        Raises SweepBusy while another process sweeps.
        """
        from outlive.retention.policy import Retain

        if retain is not None and not isinstance(retain, Retain):
            raise BadArgument(f"retain must be an outlive.Retain(...), not {retain!r:.100}")
        await self.flush()
        if self._sweeper is None:
            self._sweeper = self._new_sweeper(None)
        return await self._sweeper.sweep(retain or self._sweeper.retain, dry_run=dry_run)

    async def start_sweeping(self, retain: Retain | None = None) -> None:
        """Sweep in the background every `retain.every_s` (default: as the store was opened).

        If sweeping is on already, it continues with this rule. Raises BadArgument when nothing says
        how often.
        """
        from outlive.retention.policy import Retain

        if retain is not None and not isinstance(retain, Retain):
            raise BadArgument(f"retain must be an outlive.Retain(...), not {retain!r:.100}")
        if self._is_closed:
            raise StoreClosed
        if self._sweeper is None:
            self._sweeper = self._new_sweeper(None)
        await self._sweeper.start(retain or self._sweeper.retain)

    async def stop_sweeping(self) -> None:
        """Stop sweeping in the background; a sweep that is under way ends after its commit."""
        if self._sweeper is not None:
            await self._sweeper.stop()

    def _new_sweeper(self, retain: Retain | None) -> Sweeper:
        from outlive.retention.sweeper import Sweeper

        return Sweeper(self._engine, self._settings.tenant, self._heart, retain)

    async def rotate(self, *, progress: Progress | None = None) -> Rotated:
        """Encrypt everything of this tenant again with the newest key of the ring, while others use the store.

        What has the newest key already is skipped, so a rotation that was interrupted can be
        repeated. When it returns without `problems` and every process has the new ring, the old
        keys can be deleted.
        """
        from outlive.layers.encryption.layer import Encrypted
        from outlive.layers.encryption.rotation import rotate

        backend = self._engine.backend
        if not isinstance(backend, Encrypted):
            raise BadArgument("this store is not encrypted; open it with key=outlive.KeyRing({id: key})")
        await self.flush()
        sides = (backend.inner,) if self._pair is None else self._pair.stores.both
        return await rotate(sides, backend.ring, self._settings.tenant, progress)

    async def size(self) -> StoreSize:
        """Return how much the store holds for this tenant, without reading what is in its threads."""
        await self.flush()
        totals = await self._engine.backend.totals(self._settings.tenant)
        return StoreSize(totals.threads, totals.checkpoints, totals.stored)

    async def copy_to(
        self,
        target: AsyncStore,
        *,
        threads: Iterable[str] | None = None,
        since: dt.datetime | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Copy threads into another store, all of them or those with these ids; return how many were checked.

        It can be repeated, also after it was interrupted: what exists there is kept, what is new is
        added and read back. `since` skips threads that did not change since a moment. Others may
        save meanwhile. Runs are copied with their steps and responses; deletions are not repeated
        there. When a thread is damaged, Corrupt is raised after all others are copied.
        """
        from outlive.threads.copy import into_store

        self._check_target(target)
        await self.flush()
        damaged: list[Corrupt] = []
        if isinstance(threads, str) or not isinstance(threads, Iterable | None):
            raise BadArgument(f"threads must be a list of ids; for one thread write [{threads!r:.100}]")
        wanted = None if threads is None else {check_id("thread id", id) for id in threads}
        moment = None if since is None else micros(since)
        ids = await choose_threads(self._engine, self._settings.tenant, wanted, moment, damaged)
        for done, id in enumerate(ids, 1):
            rows = await self._engine.backend.threads(
                ThreadQuery(self._settings.tenant, only=id, heads=False)
            )
            for row in rows:  # else it was deleted meanwhile
                try:
                    await into_store(self._engine, target._engine, self._key(id), row)
                except Corrupt as error:
                    damaged.append(error)
            if progress is not None:
                progress(done, len(ids))
        if damaged:
            for other in damaged[1:]:
                damaged[0].add_note(str(other))
            raise damaged[0]
        return len(ids)

    def _check_target(self, target: object) -> None:
        from outlive.layers.encryption.layer import Encrypted

        if not isinstance(target, AsyncStore) or type(target._engine.runtime) is not type(
            self._engine.runtime
        ):
            raise BadArgument(
                f"copy_to takes a store that is open, by outlive.open or open_async as this one, not {target!r:.100}; "
                "backup takes a URL"
            )
        backend = self._engine.backend
        if target._engine.backend is backend:
            raise BadArgument("a store cannot be copied into itself")
        if target._settings.tenant != self._settings.tenant:
            raise BadArgument("source and target must be opened with the same tenant")
        if isinstance(backend, Encrypted) and not backend.has_key:
            raise KeyMissing(None)  # without the key nothing could be read, and everything would be left out

    async def import_thread(self, text: str | bytes, *, id: str | None = None) -> AsyncThread[Any]:
        """Make a thread from what `thread.export()` returned, with its own id or another. Raises ThreadNotEmpty."""
        from outlive.threads import export

        document = export.parse(text)
        thread = self.thread(export.id_of(document) if id is None else id)
        await export.import_thread(self._engine, thread._key, document)
        return thread

    async def backup(self, url: str, *, progress: Progress | None = None) -> int:
        """Copy every thread into the store at `url`, with any backend, while others use this one; return how many.

        Repeat it into the same store to bring that up to date; deletions are not repeated.
        """
        if self._opener is None:
            raise BadArgument("this store was not opened by a URL; open the target yourself and use copy_to")
        target = await self._opener(url, self._settings.tenant)
        try:
            return await self.copy_to(target, progress=progress)
        finally:
            await target.close()

    # Two stores

    def _replicated(self) -> Replicate:
        if self._pair is None:
            raise NoSecondary
        return self._pair

    async def ping(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """Ask the store, or both stores of a pair, for one small record; return the seconds that each took.

        The key is "store"; of a pair "primary" and "secondary". Nothing is changed, and nothing
        fails over. Raises StoreUnavailable when a store does not answer, also when it is not the
        active one.
        """
        timeout_s = self._timeout(timeout_s)
        if self._pair is not None:
            return await self._pair.ping(timeout_s)
        from outlive.backend.ping import ping

        return await ping({"store": self._engine.backend}, self._settings.tenant, timeout_s)

    async def promote(self) -> RoleChange:
        """Make the secondary the active store, for every process that has opened this pair. It can be repeated.

        What the primary has queued is carried over first, if it can be reached. Raises StoreError
        when the secondary cannot take over.
        """
        await self.flush()
        return await self._replicated().promote()

    async def failback(self) -> RoleChange:
        """Make the primary the active store again, after it has received everything. Raises StoreError when it cannot."""
        await self.flush()
        return await self._replicated().failback()

    async def replication_status(self) -> ReplicationStatus:
        """Return the state of the pair: the active store, the health of both, the queue and the lag."""
        return await self._replicated().status()

    async def flush(self) -> None:
        """Wait until the saves of all threads that are in the background are stored, then raise what went wrong.

        A failure in one thread does not affect the saves of another. Several are raised as one
        SeveralFailed.
        """
        parts = [queue.flush for queue in list(self._queues.values())]
        await _each_of([*parts, *self._in_plain_mode("flush")])

    def _in_plain_mode(self, name: str) -> list[Callable[[], Awaitable[None]]]:
        """Return a call for the store of plain handlers too, if there is one."""
        plain = self._plain
        return [] if plain is None else [lambda: self._engine.runtime.call(getattr(plain, name))]

    async def close(self) -> None:
        """Store what is in the background and release everything. A closed store refuses every call; closing twice is fine.

        When a part fails, everything else is stored and released first; several errors are raised
        as one SeveralFailed.
        """
        if self._is_closed:
            return
        self._engine.runtime.check_loop()  # before anything is stopped: a refused close leaves the store open
        parts = [self._heart.close, *self._in_plain_mode("close")]
        parts += [queue.flush for queue in list(self._queues.values())]
        if self._sweeper is not None:
            parts.insert(0, self._sweeper.close)
        try:
            await _each_of(parts)
        finally:
            self._is_closed = True
            await self._engine.backend.close()

    # What a run did

    async def steps(self, run_id: str, *, thread: str | None = None) -> list[StepInfo]:
        """Return the stored steps of a run, in the order in which they began; the run may be alive elsewhere.

        Questions, events, sleeps and waits for runs inside it are among them; `kind` tells what
        each is. Values of types that this process does not know stay packed.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and
        AmbiguousRun.
        """
        from outlive.runs.questions import read_wait_steps
        from outlive.runs.steps import read_steps
        from outlive.runs.wait_entry import unpack_known

        key, entry = await self._the_run(run_id, thread)
        with well_formed(f"run {run_id!r}", key.id):
            seed = seed_of(unpack_known(self._engine.codec, entry.body))
        steps = await read_steps(self._engine, key, run_id, seed, opaque=True)
        steps += await read_wait_steps(self._engine, key, run_id)
        return [step for _, step in sorted(steps, key=lambda numbered: numbered[0])]

    async def attempts(self, run_id: str, *, thread: str | None = None) -> list[Attempt]:
        """Return the attempts of a run, oldest first: which process, from when until when, and how it ended.

        The last 20 are stored. `thread` is the thread of the run, if several have a run of this id.
        Raises RunMissing and AmbiguousRun.
        """
        stored = await self._the_run(run_id, thread)
        return list(unpack_run(self._engine.codec, *stored).attempts)

    async def responses(self, run_id: str, *, thread: str | None = None) -> list[ModelResponse]:
        """Return the stored responses of a run's models, in the order in which the models were named.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and
        AmbiguousRun.
        """
        from outlive.runs.responses import read_responses

        key, _ = await self._the_run(run_id, thread)
        return await read_responses(self._engine, key, run_id)

    @async_items
    async def follow(
        self,
        run_id: str,
        *,
        after: str | None = None,
        wait: bool = True,
        idle_s: float | None = None,
        thread: str | None = None,
    ) -> AsyncIterator[StreamChunk]:
        """Iterate over what a run emitted, and over what it emits from now on: `async for chunk in store.follow(run_id)`.

        It ends when the run has ended and everything was delivered. While the run waits, or nothing
        works on it, it waits too. After a disconnect, pass the `cursor` of the last chunk as
        `after`: it continues after that one, from any process, also after a failover.

        after:   the cursor to continue after (default: from the oldest chunk that is kept)
        wait:    False: only what is stored now
        idle_s:  end when nothing came for so long (default: wait)
        thread:  the thread of the run, if several have a run of this id

        A chunk has its `attempt`: a later attempt may repeat what an earlier one emitted. Raises
        RunMissing, AmbiguousRun, BadArgument for a cursor that is none, and StoreError when the
        store cannot be reached.
        """
        from outlive.runs.follow import follow
        from outlive.runs.stream_entry import Position

        position = None if after is None else Position.of(after)
        quiet_s = None if idle_s is None else check_seconds("idle_s", idle_s, 0)
        key, _ = await self._the_run(run_id, thread)
        async for chunk in follow(
            self._engine, key, run_id, position, wait=check_flag("wait", wait), idle_s=quiet_s
        ):
            yield chunk

    # What a thread asks of its store

    def _key(self, id: str) -> ThreadKey:
        return ThreadKey.of(self._settings.tenant, check_id("thread id", id))

    def _timeout(self, timeout_s: float | None) -> float | None:
        """Return how long a call may take."""
        if timeout_s is None:
            return self._settings.timeout_s
        return check_timeout(timeout_s)

    def _delayed(self, key: ThreadKey) -> SaveQueue:
        """Return the queue of a thread's delayed saves."""
        if key.digest not in self._queues:
            self._queues.setdefault(key.digest, SaveQueue(self._engine, key, self._delayed_bases))
        return self._queues[key.digest]

    async def _touch(self, key: ThreadKey) -> None:
        """Note that a thread was read."""
        if self._sweeper is not None:
            await self._sweeper.touch(key)

    @contextlib.asynccontextmanager
    async def _deleting(self, key: ThreadKey) -> AsyncIterator[None]:
        """Wake the runs that wait for a run of a thread when that is deleted."""
        from outlive.runs.outer_run import before_deletion
        from outlive.runs.timers import tell_outer

        outers = await before_deletion(self._engine, key)
        yield
        for outer in outers:
            await tell_outer(self._engine, key.tenant, outer)

    async def _flush_queue(self, key: ThreadKey) -> None:
        """Wait for the delayed saves of a thread."""
        queue = self._queues.get(key.digest)
        if queue is not None:
            await queue.flush()


async def _each_of(parts: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Call every part, also after one has failed; raise all errors at the end."""
    errors: list[Exception] = []
    for part in parts:
        try:
            await part()
        except SeveralFailed as several:
            errors += several.exceptions
        except Exception as error:  # noqa: BLE001  # raised when the others are done
            errors.append(error)
    raise_all(errors)
