"""The sync API of a store. Each method finishes the coroutine of `AsyncStore`, which never suspends here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from outlive.arguments import check_handlers, check_plain
from outlive.runs.budget import Budget
from outlive.runs.lease import RunInfo
from outlive.runs.options import RunOptions, SubmitOptions
from outlive.runtime.runtime import run_now
from outlive.runtime.wrong_mode import SyncContext
from outlive.store import AsyncStore, Progress
from outlive.sync.iterator import each
from outlive.sync.run import Lock, Run
from outlive.sync.thread import Thread
from outlive.sync.worker import Worker
from outlive.threads.thread import S
from outlive.values import StoreSize, ThreadInfo, Verified

if TYPE_CHECKING:  # imported by the first call that needs them
    from outlive.layers.encryption.rotation import Rotated
    from outlive.layers.replication.options import ReplicationStatus, RoleChange
    from outlive.retention.policy import Retain, Swept
    from outlive.runs.attempts import Attempt
    from outlive.runs.questions import QuestionInfo
    from outlive.runs.recovery import Pass, Policy, Recovered, Recovery
    from outlive.runs.response_values import ModelResponse
    from outlive.runs.run import AsyncRun
    from outlive.runs.step_record import StepInfo
    from outlive.runs.stream_entry import StreamChunk
    from outlive.runs.worker_record import WorkerInfo


Handler = Callable[[Run], Any]
Handlers = Mapping[str, Handler] | Mapping[str | None, Handler]  # by agent


class Store(SyncContext):
    """The threads of one tenant. Made by `outlive.open(url)`; safe to share between OS threads."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return repr(self._store).replace("<AsyncStore", "<Store", 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @overload
    def thread(self, id: str, *, namespace: str = "", type: type[S]) -> Thread[S]: ...
    @overload
    def thread(self, id: str, *, namespace: str = "", type: UnionType | None = None) -> Thread[Any]: ...
    def thread(self, id: str, *, namespace: str = "", type: Any = None) -> Thread[Any]:
        """Return a handle on a thread, which need not exist yet: `store.thread("trip", type=State)`.

        `type` registers the type and the classes in its annotations. Such a handle saves only
        states of that type, and type checkers know what it loads.
        """
        return Thread(self._store.thread(id, namespace=namespace, type=type))

    def threads(
        self,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
        order: Literal["id", "updated"] = "id",
    ) -> Iterator[ThreadInfo]:
        """Iterate over threads by id: `for info in store.threads()`.

        order="updated" begins with the thread that changed last. A thread that changes meanwhile is
        not listed again. `after` is where to continue: an id, whether that thread still exists or
        not; with order="updated" the `cursor` of a ThreadInfo. `filter` has keys that the threads'
        own metadata must have with equal values; `limit` is counted after the filter. A prefix is
        for threads by id.
        """
        return each(self._store.threads(prefix=prefix, filter=filter, limit=limit, after=after, order=order))

    def run(self, thread_id: str, **options: Unpack[RunOptions]) -> Run:
        """Return a run on a thread: `with store.run("trip", agent="planner") as run`.

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
        return Run(self._store.run(thread_id, **options))

    def submit(
        self, thread_id: str, *, not_before: dt.datetime | None = None, **options: Unpack[SubmitOptions]
    ) -> RunInfo:
        """Store a run for workers: `store.submit("trip", agent="planner", prompt={"to": "Lisbon"})`.

        One commit stores it, and a worker with a handler for its agent claims it. Of the runs of an
        agent, those with the greatest `priority` come first, then those that were submitted first.
        Runs of one thread and namespace follow each other.

        run_id:      submitted again under this id, nothing changes and the stored run is returned
        not_before:  a datetime with a time zone: its status is "waiting" until then

        The other options are those of `store.run`. Raises RunElsewhere if another thread has a run
        with this id.
        """
        return run_now(self._store.submit(thread_id, not_before=not_before, **options))

    def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        agent: str | None = None,
        thread: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Iterator[RunInfo]:
        """Iterate over the runs of this tenant by id, also those that have ended: `for info in store.runs()`.

        `attributes` compares by equality: a run without such an attribute is left out. A damaged
        run hides no other: it comes with `is_readable=False`, and `error` says why. `agent` and
        `attributes` leave it out.
        """
        return each(self._store.runs(status=status, agent=agent, thread=thread, attributes=attributes))

    def recoverable(self) -> Iterator[RunInfo]:
        """Iterate over runs that are dead but not finished: they were released, their lease has expired, or their process has ended."""
        return each(self._store.recoverable())

    def find_run(self, run_id: str, *, thread: str | None = None) -> RunInfo | None:
        """Return the run with this id, or None. Several threads may have it: `thread` says which, or AmbiguousRun is raised."""
        return run_now(self._store.find_run(run_id, thread=thread))

    def steps(self, run_id: str, *, thread: str | None = None) -> list[StepInfo]:
        """Return the stored steps of a run, in the order in which they began; the run may be alive elsewhere.

        Questions, events, sleeps and waits for runs inside it are among them; `kind` tells what
        each is. Values of types that this process does not know stay packed.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and
        AmbiguousRun.
        """
        return run_now(self._store.steps(run_id, thread=thread))

    def attempts(self, run_id: str, *, thread: str | None = None) -> list[Attempt]:
        """Return the attempts of a run, oldest first: which process, from when until when, and how it ended.

        The last 20 are stored. `thread` is the thread of the run, if several have a run of this id.
        Raises RunMissing and AmbiguousRun.
        """
        return run_now(self._store.attempts(run_id, thread=thread))

    def responses(self, run_id: str, *, thread: str | None = None) -> list[ModelResponse]:
        """Return the stored responses of a run's models, in the order in which the models were named.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and
        AmbiguousRun.
        """
        return run_now(self._store.responses(run_id, thread=thread))

    def follow(
        self,
        run_id: str,
        *,
        after: str | None = None,
        wait: bool = True,
        idle_s: float | None = None,
        thread: str | None = None,
    ) -> Iterator[StreamChunk]:
        """Iterate over what a run emitted, and over what it emits from now on: `for chunk in store.follow(run_id)`.

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
        return each(self._store.follow(run_id, after=after, wait=wait, idle_s=idle_s, thread=thread))

    def retry(
        self,
        run_id: str,
        *,
        thread: str | None = None,
        not_before: dt.datetime | None = None,
        budget: Budget | None = None,
    ) -> Run:
        """Return a run that failed or was cancelled, parked or released, to continue it: `with store.retry(id) as run`.

        With `not_before`, a datetime with a time zone, it is left to `recover` and workers at that
        time: its status is "waiting" until then. Raises RunBusy for a run that is running and
        RunEnded for one that is completed. `budget` replaces the budget of the run.
        """
        return Run(run_now(self._store.retry(run_id, thread=thread, not_before=not_before, budget=budget)))

    def answer(
        self, run_id: str, name: str, value: Any, *, by: str | None = None, thread: str | None = None
    ) -> QuestionInfo:
        """Answer a question of a run, or send it an event: `store.answer(run_id, "refund?", True, by="support")`.

        The first answer counts. It is stored, and a run that waits for it can be claimed by any
        worker, in one commit. No code or type of the agent is needed. An answer that comes before
        its question is kept for it.

        Raises AlreadyAnswered, which tells who answered and when; AnswerRefused if the value does
        not fit the schema of the question; QuestionClosed if it has expired or was withdrawn;
        RunEnded, RunMissing and AmbiguousRun.
        """
        return run_now(self._store.answer(run_id, name, value, by=by, thread=thread))

    def questions(
        self,
        *,
        status: str | None = "open",
        agent: str | None = None,
        older_than_s: float | None = None,
        thread: str | None = None,
        events: bool = False,
    ) -> Iterator[QuestionInfo]:
        """Iterate over the questions of all runs of this tenant: `for question in store.questions()`.

        status:        "open", "answered", "expired", "withdrawn", or None for all
        agent:         of runs of this agent only
        older_than_s:  asked at least that long ago
        events:        also what `run.wait` waits for

        A damaged question hides no other: it comes with `is_readable=False`, and `error` says why.
        Its agent and the time it was asked are unknown, so `agent` and `older_than_s` leave it out.
        """
        return each(
            self._store.questions(
                status=status, agent=agent, older_than_s=older_than_s, thread=thread, events=events
            )
        )

    def park(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """Set a run aside, wherever it is: nothing recovers it until `retry`. A live run is refused at its next write.

        Raises RunEnded when it has ended already.
        """
        return run_now(self._store.park(run_id, thread=thread))

    def cancel(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """End a run, wherever it is. A live run is refused at its next write, and its thread is free at once.

        Raises RunEnded when it has ended already.
        """
        return run_now(self._store.cancel(run_id, thread=thread))

    def lock(
        self, thread_id: str, *, namespace: str = "", timeout_s: float | None = None, lease_s: float = 30.0
    ) -> Lock:
        """Return a lock on a thread: `with store.lock("trip")`. While it is held, no run and no other lock has the thread.

        namespace:  lock only this namespace of the thread
        timeout_s:  how long to wait for it (default: the timeout of the store), then ThreadBusy is raised
        lease_s:    how long after the last sign of life the lock is free again; it is renewed while it is held
        """
        return Lock(self._store.lock(thread_id, namespace=namespace, timeout_s=timeout_s, lease_s=lease_s))

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
    ) -> Worker:
        """Return a worker, which claims submitted, woken and dead runs: `store.worker(handlers).run()`.

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
        wrapped = _with_sync_runs(handlers)
        return Worker(
            self._store.worker(
                wrapped,
                concurrency=concurrency,
                interval_s=interval_s,
                limits=limits,
                limit_tenant=limit_tenant,
                grace_s=grace_s,
                policy=policy,
                code_version=code_version,
                after_failover=after_failover,
                on_report=on_report,
            )
        )

    def workers(self) -> Iterator[WorkerInfo]:
        """Iterate over the living workers of this tenant: `for worker in store.workers()`."""
        return each(self._store.workers())

    def recover(
        self,
        handlers: Handlers,
        *,
        concurrency: int = 8,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
    ) -> Recovered:
        """Resume every dead run: `store.recover({"planner": resume_planner})`.

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
        wrapped = _with_sync_runs(handlers)
        return run_now(
            self._store.recover(
                wrapped,
                concurrency=concurrency,
                policy=policy,
                code_version=code_version,
                after_failover=after_failover,
            )
        )

    def delete(self, id: str) -> bool:
        """Delete a thread in all namespaces; False when it did not exist."""
        return run_now(self._store.delete(id))

    def verify(self, *, progress: Progress | None = None) -> Verified:
        """Check every stored byte of every thread. Problems are reported, not raised.

        `progress(done, total)` is called after each thread; `total` is None where it is not known
        before the end.
        """
        return run_now(self._store.verify(progress=progress))

    def sweep(self, *, dry_run: bool = False, retain: Retain | None = None) -> Swept:
        """Delete what `retain` does not keep (default: as the store was opened), in batches.

        The newest checkpoint of each namespace, what unfinished runs need and open interrupts are
        always kept. With `dry_run` nothing is changed, and the report says what would be deleted.
        Raises SweepBusy while another process sweeps.
        """
        return run_now(self._store.sweep(dry_run=dry_run, retain=retain))

    def start_sweeping(self, retain: Retain | None = None) -> None:
        """Sweep in the background every `retain.every_s` (default: as the store was opened).

        If sweeping is on already, it continues with this rule. Raises BadArgument when nothing says
        how often.
        """
        return run_now(self._store.start_sweeping(retain))

    def stop_sweeping(self) -> None:
        """Stop sweeping in the background; a sweep that is under way ends after its commit."""
        return run_now(self._store.stop_sweeping())

    def rotate(self, *, progress: Progress | None = None) -> Rotated:
        """Encrypt everything of this tenant again with the newest key of the ring, while others use the store.

        What has the newest key already is skipped, so a rotation that was interrupted can be
        repeated. When it returns without `problems` and every process has the new ring, the old
        keys can be deleted.
        """
        return run_now(self._store.rotate(progress=progress))

    def size(self) -> StoreSize:
        """Return how much the store holds for this tenant, without reading what is in its threads."""
        return run_now(self._store.size())

    def copy_to(
        self,
        target: Store,
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
        other = target._store if isinstance(target, Store) else target
        return run_now(self._store.copy_to(other, threads=threads, since=since, progress=progress))

    def import_thread(self, text: str | bytes, *, id: str | None = None) -> Thread[Any]:
        """Make a thread from what `thread.export()` returned, with its own id or another. Raises ThreadNotEmpty."""
        return Thread(run_now(self._store.import_thread(text, id=id)))

    def backup(self, url: str, *, progress: Progress | None = None) -> int:
        """Copy every thread into the store at `url`, with any backend, while others use this one; return how many.

        Repeat it into the same store to bring that up to date; deletions are not repeated.
        """
        return run_now(self._store.backup(url, progress=progress))

    def ping(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """Ask the store, or both stores of a pair, for one small record; return the seconds that each took.

        The key is "store"; of a pair "primary" and "secondary". Nothing is changed, and nothing
        fails over. Raises StoreUnavailable when a store does not answer, also when it is not the
        active one.
        """
        return run_now(self._store.ping(timeout_s=timeout_s))

    def promote(self) -> RoleChange:
        """Make the secondary the active store, for every process that has opened this pair. It can be repeated.

        What the primary has queued is carried over first, if it can be reached. Raises StoreError
        when the secondary cannot take over.
        """
        return run_now(self._store.promote())

    def failback(self) -> RoleChange:
        """Make the primary the active store again, after it has received everything. Raises StoreError when it cannot."""
        return run_now(self._store.failback())

    def replication_status(self) -> ReplicationStatus:
        """Return the state of the pair: the active store, the health of both, the queue and the lag."""
        return run_now(self._store.replication_status())

    def flush(self) -> None:
        """Wait until the saves of all threads that are in the background are stored, then raise what went wrong.

        A failure in one thread does not affect the saves of another. Several are raised as one
        SeveralFailed.
        """
        run_now(self._store.flush())

    def close(self) -> None:
        """Store what is in the background and release everything. A closed store refuses every call; closing twice is fine.

        When a part fails, everything else is stored and released first; several errors are raised
        as one SeveralFailed.
        """
        run_now(self._store.close())

    def _recovery(
        self, handlers: Handlers, policy: Policy, code_version: str | None, shared: Pass
    ) -> Recovery:
        return self._store._recovery(_with_sync_runs(handlers), policy, code_version, shared)


def _with_sync_runs(handlers: Handlers) -> dict[Any, Callable[[AsyncRun], Any]]:
    checked = check_plain(check_handlers(handlers))
    return {agent: _with_sync_run(handler) for agent, handler in checked.items()}


def _with_sync_run(handler: Callable[[Run], Any]) -> Callable[[AsyncRun], Any]:
    return lambda run: handler(Run(run))
