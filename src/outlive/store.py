"""A store: the threads of one tenant behind one URL."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from outlive.arguments import (
    check_attributes,
    check_count,
    check_durability,
    check_filter,
    check_handlers,
    check_id,
    check_limit,
    check_namespace,
    check_run,
    check_run_durability,
    check_text,
    check_timeout,
    optional_id,
)
from outlive.backend import EntryRecord, ThreadKey, ThreadQuery
from outlive.backend.entries import COPIED
from outlive.errors import (
    AmbiguousRun,
    BadArgument,
    Corrupt,
    KeyMissing,
    NotReplicatedStore,
    RunMissing,
    SeveralFailed,
    StoreClosed,
    StoreError,
    raise_all,
)
from outlive.runs.lease import CANCELLED, PARKED, RUN, RunInfo, find, find_all, unpack_or_tell, unpack_run
from outlive.runs.lock import AsyncLock
from outlive.runs.renewal import LeaseRenewer
from outlive.runtime.runtime import new_id
from outlive.runtime.wrong_mode import AsyncContext, async_items
from outlive.threads import copy as copying
from outlive.threads import export
from outlive.threads import verify as verifying
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine
from outlive.threads.listing import Threads
from outlive.threads.thread import AsyncThread
from outlive.threads.write_behind import Delayed
from outlive.values import Problem, Sizes, ThreadInfo, Verified, micros

if TYPE_CHECKING:  # what runs, pairs, keys and sweeps need is imported by the first call that is about them
    from outlive.layers.encryption.rotation import Rotated
    from outlive.layers.replication.layer import Replicate
    from outlive.layers.replication.options import ReplicationStatus, RoleChange
    from outlive.retention.policy import Retain, Swept
    from outlive.retention.sweeper import Sweeper
    from outlive.runs.recovery import Handler, Policy, Recovered
    from outlive.runs.response_values import ModelResponse
    from outlive.runs.run import AsyncRun
    from outlive.runs.steps import StepInfo
    from outlive.runs.worker import AsyncWorker

Progress = Callable[[int, int | None], None]  # (done, total if known)
Opener = Callable[[str, str], Awaitable["AsyncStore"]]  # (url, tenant) → another store of the same mode


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for every call of a store unless the call says otherwise."""

    url: str
    tenant: str = ""
    durability: str = "sync"
    timeout_s: float | None = 30.0


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
        self._queues: dict[bytes, Delayed] = {}
        self._delayed_bases = Cache(engine.cache.limit_bytes)
        self._is_closed = False
        self._sync_sibling: Callable[[], AsyncStore] | None = (
            None  # opens what this store has in the sync mode
        )
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

    def thread(self, id: str, *, namespace: str = "", type: type | None = None) -> AsyncThread:
        """Return a handle on a thread, which need not exist yet.

        `type` registers the classes that it annotates; this handle then saves only states of that type.
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
    ) -> AsyncIterator[ThreadInfo]:
        """Iterate over threads by id; `after` is an id to go on behind, whether it still exists or not.

        `filter` has keys that the threads' own metadata must have with equal values; `limit` counts what passes.
        """
        return Threads(
            self._engine,
            self._settings.tenant,
            prefix=check_text("prefix", prefix),
            filter=check_filter(filter),
            limit=check_limit(limit),
            after=None if after is None else check_text("after", after),
        )

    # Runs

    def run(
        self,
        thread_id: str,
        *,
        namespace: str = "",
        run_id: str | None = None,
        agent: str | None = None,
        prompt: Any = None,
        parent: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        code_version: str | None = None,
        lease_s: float = 30.0,
        throttle_s: float = 0,
        clock: Callable[[], float] | None = None,
        durability: str = "sync",
        max_attempts: int = 5,
        exclusive: bool = True,
    ) -> AsyncRun:
        """Return a run on a thread: `async with store.run("t", agent="planner") as run`.

        With the id of a run that was interrupted it goes on with that; with one that has ended, `run.is_finished` is true and
        `run.result` is what it gave. `durability` says when its saves are stored (see `run.save`), `clock` by what `throttle_s` is
        measured (default: time.monotonic). Raises ThreadBusy, RunBusy and RunElsewhere when it starts.
        """
        check_run(lease_s, throttle_s, max_attempts, clock)
        if check_run_durability(durability) == "exit" and throttle_s > 0:
            raise BadArgument('durability="exit" stores nothing before the run ends: leave out throttle_s')
        info = RunInfo(
            id=new_id() if run_id is None else check_id("run_id", run_id),
            thread=thread_id,
            namespace=check_namespace(namespace),
            max_attempts=max_attempts,
            agent=None if agent is None else check_text("agent", agent),
            prompt=prompt,
            parent=optional_id("parent", parent),
            attributes=check_attributes(attributes),
            code_version=None if code_version is None else check_text("code_version", code_version),
            exclusive=exclusive,
            lease_s=float(lease_s),
        )
        return self._run(
            info, throttle_s=throttle_s, clock=clock, durability=durability, is_named=run_id is not None
        )

    def _run(self, info: RunInfo, **options: Any) -> AsyncRun:
        from outlive.runs.run import AsyncRun
        from outlive.runs.start import RunOptions

        place = self.thread(info.thread, namespace=info.namespace)
        return AsyncRun(self._engine, place, self._heart, info, RunOptions(**options))

    async def find_run(self, run_id: str, *, thread: str | None = None) -> RunInfo | None:
        """Return the run of this id, or None. `thread` says which of several; without it they raise AmbiguousRun."""
        found = await self._find_run(run_id, thread)
        return None if found is None else unpack_or_tell(self._engine.codec, *found)

    async def retry(self, run_id: str, *, thread: str | None = None) -> AsyncRun:
        """Return a run that failed, was cancelled, parked or interrupted, to go on with: `async with await store.retry(id) as run`."""
        key, entry = await self._the_run(run_id, thread)
        return self._run(unpack_run(self._engine.codec, key, entry), retries=True)

    async def _give_back(self, run_id: str, thread: str) -> RunInfo:
        """Make a run a candidate for recovery, unless it is completed, without reading what it did. Raises RunBusy, ThreadBusy."""
        from outlive.runs.start import RunOptions, Start

        key, entry = await self._the_run(run_id, thread)
        info = unpack_run(self._engine.codec, key, entry)
        place = self.thread(info.thread, namespace=info.namespace)
        start = Start(self._engine, place, info, RunOptions(retries=True))
        held = await start.take()
        if not held.info.is_finished:
            await start.release(held)
        return held.info

    async def park(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """Set a run aside, wherever it is: nobody recovers it until `retry`. A live one is refused with its next write.

        Raises RunEnded when it has ended already.
        """
        return await self._end(run_id, thread, PARKED)

    async def cancel(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        """End a run, wherever it is. A live one is refused with its next write, and its place is free at once.

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
        found = await find_all(self._engine, self._settings.tenant, run_id)
        if len(found) > 1:
            raise AmbiguousRun(run_id, [key.id for key, _ in found])
        return found[0] if found else None

    async def _the_run(self, run_id: str, thread: str | None) -> tuple[ThreadKey, EntryRecord]:
        found = await self._find_run(run_id, thread)
        if found is None:
            raise RunMissing(run_id)
        return found

    def lock(
        self, thread_id: str, *, namespace: str = "", timeout_s: float | None = None, lease_s: float = 30.0
    ) -> AsyncLock:
        """Return a lock on a thread: while it is held, no run and no other lock has that place."""
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
        handlers: Mapping[str | None, Handler],
        *,
        concurrency: int = 8,
        interval_s: float = 5.0,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
        on_report: Callable[[Recovered], None] | None = None,
    ) -> AsyncWorker:
        """Return a loop that recovers dead runs until it is stopped: `await store.worker(handlers).run()`. Options are those of `recover`."""
        from outlive.runs.worker import AsyncWorker

        check_handlers(handlers)
        check_count("concurrency", concurrency, 1)
        runtime = self._engine.runtime
        return AsyncWorker(
            runtime,
            lambda: self.recover(
                handlers,
                concurrency=concurrency,
                policy=policy,
                code_version=code_version,
                after_failover=after_failover,
            ),
            check_timeout(interval_s, "interval_s"),
            on_report,
        )

    @async_items
    async def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        agent: str | None = None,
        thread: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RunInfo]:
        """Iterate over the runs of this tenant by id, also those that have ended.

        `attributes` compares by equality: a run that has no such attribute is left out.
        """
        from outlive.runs.recovery import RunFilter, check_statuses, find_runs

        wanted = RunFilter(agent, check_attributes(attributes))
        place = None if thread is None else self._key(thread)
        async for _, run in find_runs(
            self._engine, self._settings.tenant, thread=place, statuses=check_statuses(status)
        ):
            if wanted.takes(run):
                yield run

    @async_items
    async def recoverable(self) -> AsyncIterator[RunInfo]:
        """Iterate over runs that are dead and not finished: their lease has run out, or their process is gone."""
        from outlive.runs.recovery import find_recoverable

        async for _, run in find_recoverable(self._engine, self._settings.tenant):
            yield run

    async def recover(
        self,
        handlers: Mapping[str | None, Handler],
        *,
        concurrency: int = 8,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
    ) -> Recovered:
        """Resume every dead run: `await store.recover({"planner": resume_planner})`.

        handlers:        maps an agent, or "*" for all others, to a function that is called with its run
        concurrency:     how many runs are resumed at a time; each belongs to exactly one process and one handler
        policy:          "hold" leaves runs alone that another `code_version` has started
        after_failover:  resume although a pair of stores has failed over, when a run that still works with the primary cannot be
                         told from a dead one; otherwise all are skipped

        The report says what was resumed, what failed, what is alive elsewhere, and what was skipped and why.
        """
        from outlive.runs.recovery import Recovery

        recovery = Recovery(self._engine, self._run, check_handlers(handlers), policy, code_version)
        if self._pair is not None and self._pair.is_failed_over and not after_failover:
            recovery.refuses_all = True
        await recovery.take_all(self._settings.tenant, check_count("concurrency", concurrency, 1))
        return recovery.report

    async def delete(self, id: str) -> bool:
        """Delete a thread with everything of it; False when there was none."""
        return await self.thread(id).delete()

    async def verify(self, *, progress: Progress | None = None) -> Verified:
        """Check every stored byte of every thread; problems are listed, not raised."""
        await self.flush()
        try:
            problems = [Problem.of(error) for error in await self._engine.backend.audit(None)]
        except StoreError as error:
            return Verified(0, 0, 0, (Problem.of(error),))
        threads = checkpoints = chunks = 0
        listed: set[str] = set()
        async for key in self._keys(problems):
            listed.add(key.id)
            found = await verifying.verify_thread(self._engine, key)
            threads, checkpoints, chunks = threads + 1, checkpoints + found.checkpoints, chunks + found.chunks
            problems += found.problems
            if progress is not None:
                progress(threads, None)
        problems += await verifying.verify_unlisted(self._engine, self._settings.tenant, listed)
        return Verified(threads, checkpoints, chunks, tuple(dict.fromkeys(problems)))

    async def _keys(self, problems: list[Problem]) -> AsyncIterator[ThreadKey]:
        """List threads as far as the listing itself is whole."""
        damaged: list[Corrupt] = []
        pages = Threads(self._engine, self._settings.tenant, heads=False, damaged=damaged)
        while True:
            try:
                row = await pages.next_row()
            except StoreError as error:
                problems.append(Problem.of(error))
                break
            if row is None:
                break
            yield self._key(row.id)
        problems += map(Problem.of, damaged)

    async def sweep(self, *, dry_run: bool = False, retain: Retain | None = None) -> Swept:
        """Take away what is older or more than `retain` keeps (default: as the store was opened), batch by batch.

        Kept in any case: the newest checkpoint of each namespace, what a run that is not finished needs, and open interrupts. With `dry_run`
        nothing is changed, and the report says what would go. Raises SweepBusy while another process sweeps.
        """
        from outlive.retention.policy import Retain

        if retain is not None and not isinstance(retain, Retain):
            raise BadArgument(f"retain must be an outlive.Retain(...), not {retain!r:.100}")
        await self.flush()
        if self._sweeper is None:
            self._sweeper = self._new_sweeper(None)
        return await self._sweeper.sweep(retain or self._sweeper.retain, dry_run=dry_run)

    async def start_sweeping(self, retain: Retain | None = None) -> None:
        """Sweep in the background every `retain.every_s` (default: as the store was opened), as retain= does when a store is opened.

        While it sweeps already, it goes on, with this rule from now on. Raises BadArgument when nothing says how often.
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
        """Stop the sweeps in the background; one that is under way ends after its commit. `sweep` and `start_sweeping` still work."""
        if self._sweeper is not None:
            await self._sweeper.stop()

    def _new_sweeper(self, retain: Retain | None) -> Sweeper:
        from outlive.retention.sweeper import Sweeper

        return Sweeper(self._engine, self._settings.tenant, self._heart, retain)

    async def rotate(self, *, progress: Progress | None = None) -> Rotated:
        """Seal everything of this tenant anew under the newest key of the ring, while others go on.

        What is sealed under it already stays; so a rotation that was cut off goes on when it is repeated. When it has returned without
        `problems`, and every process has the new ring, the old keys can go.
        """
        from outlive.layers.encryption.layer import Encrypted
        from outlive.layers.encryption.rotation import rotate

        backend = self._engine.backend
        if not isinstance(backend, Encrypted):
            raise BadArgument("this store is not encrypted; open it with key=outlive.KeyRing({id: key})")
        await self.flush()
        sides = (backend.inner,) if self._pair is None else self._pair.stores.both
        return await rotate(sides, backend.ring, self._settings.tenant, progress)

    async def size(self) -> Sizes:
        """Return what the store holds of this tenant."""
        await self.flush()
        threads = checkpoints = stored = states = 0
        async for info in self.threads():
            one = await self.thread(info.id).size()
            threads, checkpoints = threads + 1, checkpoints + one.checkpoints
            stored, states = stored + one.stored_bytes, states + one.state_bytes
        return Sizes(threads, checkpoints, stored, states)

    async def copy_to(
        self,
        target: AsyncStore,
        *,
        threads: Iterable[str] | None = None,
        since: dt.datetime | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Copy threads into another store, all of them or those with these ids; return how many were looked at.

        Can be repeated, also after it was cut off: what is there stays, what is new is added and read back. `since` leaves out
        threads that did not change since a moment. Others may go on saving. Runs come along, with their steps and
        responses; what was deleted here stays there. A thread that is damaged raises Corrupt when all others are copied.
        """
        self._check_target(target)
        await self.flush()
        damaged: list[Corrupt] = []
        ids = await self._chosen(threads, None if since is None else micros(since), damaged)
        for done, id in enumerate(ids, 1):
            rows = await self._engine.backend.threads(
                ThreadQuery(self._settings.tenant, only=id, heads=False)
            )
            for row in rows:  # else it was deleted meanwhile
                try:
                    await copying.into_store(self._engine, target._engine, self._key(id), row)
                except Corrupt as error:
                    damaged.append(error)
            if progress is not None:
                progress(done, len(ids))
        if threads is None and since is None:
            for kind in COPIED:
                await copying.entries_into_store(
                    self._engine, target._engine, self._settings.tenant, kind, set(ids)
                )
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
            raise KeyMissing(None)  # what it holds cannot be seen, and would be left out

    async def _chosen(
        self, threads: Iterable[str] | None, since: int | None, damaged: list[Corrupt]
    ) -> list[str]:
        """Return the ids of the threads to be copied, as far as they can be read."""
        if isinstance(threads, str) or not isinstance(threads, Iterable | None):
            raise BadArgument(f"threads must be a list of ids; for one thread write [{threads!r:.100}]")
        wanted = None if threads is None else {check_id("thread id", id) for id in threads}
        broken: list[Corrupt] = []
        pages = Threads(self._engine, self._settings.tenant, heads=False, damaged=broken)
        found, missing = [], set(wanted or ())
        while (row := await pages.next_row()) is not None:
            missing.discard(row.id)
            if (wanted is None or row.id in wanted) and (since is None or row.updated_at >= since):
                found.append(row.id)
        damaged += [error for error in broken if wanted is None or error.thread in wanted]
        if missing := missing - {error.thread for error in broken}:
            raise BadArgument(
                f"there is no thread {min(missing)!r}; store.threads() lists those that there are"
            )
        return found

    async def import_thread(self, text: str | bytes, *, id: str | None = None) -> AsyncThread:
        """Make a thread of what `thread.export()` returned, under its own id or another. Raises ThreadNotEmpty."""
        document = export.parse(text)
        thread = self.thread(export.id_of(document) if id is None else id)
        await export.import_thread(self._engine, thread._key, document)
        return thread

    async def backup(self, url: str, *, progress: Progress | None = None) -> int:
        """Copy every thread into the store at `url`, while others go on; return how many.

        Any backend will do. Repeating it into the same store brings it up to date; deletions are not repeated.
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
            raise NotReplicatedStore
        return self._pair

    async def ping(self, *, timeout_s: float | None = None) -> dict[str, float]:
        """Ask the store, or both stores of a pair, for one small record; return the seconds that each took.

        The key is "store"; of a pair "primary" and "secondary". Nothing is changed, and the stores of a pair do not change places. Raises
        StoreUnavailable when a store does not answer, also when it is the one that is not active.
        """
        timeout_s = self._timeout(timeout_s)
        if self._pair is not None:
            return await self._pair.ping(timeout_s)
        from outlive.layers.replication.pair import ping

        return await ping({"store": self._engine.backend}, self._settings.tenant, timeout_s)

    async def promote(self) -> RoleChange:
        """Make the secondary the active store, for every process that has opened this pair. Repeating it is fine.

        What the primary has queued is carried over first, if it can be reached. Raises StoreError when the secondary cannot take over.
        """
        await self.flush()
        return await self._replicated().promote()

    async def failback(self) -> RoleChange:
        """Make the primary the active store again, after it got everything; raises StoreError when it cannot take over."""
        await self.flush()
        return await self._replicated().failback()

    async def replication_status(self) -> ReplicationStatus:
        """Return how the two stores are: which is active, the health of both, what is queued, how far the other one is behind."""
        return await self._replicated().status()

    async def flush(self) -> None:
        """Wait until the delayed saves of all threads are stored, then raise what went wrong.

        A failure in one thread does not touch the saves of another. Several failures are raised as one SeveralFailed.
        """
        await _each_of([queue.flush for queue in list(self._queues.values())])

    async def close(self) -> None:
        """Store what is delayed and release everything. A closed store refuses every call; closing twice is fine.

        Whatever fails, everything else is stored and released first; several errors are raised as one SeveralFailed.
        """
        if self._is_closed:
            return
        self._engine.runtime.check_loop()  # before anything is stopped: a refused close leaves the store open
        parts = [self._heart.close, *[queue.flush for queue in list(self._queues.values())]]
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

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and AmbiguousRun.
        """
        from outlive.runs.steps import read_steps

        key, _ = await self._the_run(run_id, thread)
        return [step for _, step in await read_steps(self._engine, key, run_id)]

    async def responses(self, run_id: str, *, thread: str | None = None) -> list[ModelResponse]:
        """Return the stored responses of a run's models, in the order in which the models were named.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and AmbiguousRun.
        """
        from outlive.runs.responses import read_responses

        key, _ = await self._the_run(run_id, thread)
        return await read_responses(self._engine, key, run_id)

    # What a thread asks of its store

    def _key(self, id: str) -> ThreadKey:
        return ThreadKey.of(self._settings.tenant, check_id("thread id", id))

    def _timeout(self, timeout_s: float | None) -> float | None:
        """Return how long a call may take."""
        if timeout_s is None:
            return self._settings.timeout_s
        return check_timeout(timeout_s)

    def _is_delayed(self, durability: str | None) -> bool:
        """Tell whether a save need not wait for the store."""
        chosen = self._settings.durability if durability is None else check_durability(durability)
        return chosen == "async"

    def _delayed(self, key: ThreadKey) -> Delayed:
        """Return the queue of a thread's delayed saves."""
        if key.digest not in self._queues:
            self._queues.setdefault(key.digest, Delayed(self._engine, key, self._delayed_bases))
        return self._queues[key.digest]

    async def _touch(self, key: ThreadKey) -> None:
        """Note that a thread was read."""
        if self._sweeper is not None:
            await self._sweeper.touch(key)

    async def _settle(self, key: ThreadKey) -> None:
        """Let the delayed saves of a thread go first."""
        queue = self._queues.get(key.digest)
        if queue is not None:
            await queue.flush()


async def _each_of(parts: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do every part, whether another one fails or not; raise the errors of all when they are done."""
    errors: list[Exception] = []
    for part in parts:
        try:
            await part()
        except SeveralFailed as several:
            errors += several.exceptions
        except Exception as error:  # noqa: BLE001  # raised when the others are done
            errors.append(error)
    raise_all(errors)
