"""The sync io_mode: the same methods with the same arguments, without an event loop."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, Self, TypeVar, overload

from outlive.arguments import check_handlers
from outlive.backend import ThreadKey
from outlive.errors import BadArgument
from outlive.runs.lease import RunInfo
from outlive.runs.lock import AsyncLock
from outlive.runtime.runtime import run_now
from outlive.runtime.wrong_mode import SyncContext, SyncItems
from outlive.store import AsyncStore, Progress
from outlive.threads.engine import Engine
from outlive.threads.thread import AsyncThread, Fencing
from outlive.values import (
    Change,
    Checkpoint,
    CheckpointInfo,
    Interrupt,
    New,
    PendingWrite,
    Pruned,
    Sizes,
    ThreadInfo,
    Verified,
)

if TYPE_CHECKING:
    from outlive.layers.encryption.rotation import Rotated
    from outlive.layers.replication.options import ReplicationStatus, RoleChange
    from outlive.retention.policy import Retain, Swept
    from outlive.runs.recovery import Policy, Recovered
    from outlive.runs.response_values import ModelResponse
    from outlive.runs.run import AsyncRun
    from outlive.runs.steps import StepInfo
    from outlive.runs.worker import AsyncWorker
    from outlive.sync.responses import Responses

P = ParamSpec("P")
T = TypeVar("T")


class _Each(SyncItems[T]):
    """Iterates over what never suspends."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items

    def __next__(self) -> T:
        try:
            return run_now(self._items.__anext__())  # type: ignore[arg-type]
        except StopAsyncIteration:
            raise StopIteration from None


def each(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over what never suspends."""
    return _Each(items)


class Thread:
    """The history of one thread, in one namespace. Made by `store.thread(id)`; costs nothing until used."""

    def __init__(self, thread: AsyncThread) -> None:
        self._thread = thread

    @property
    def id(self) -> str:
        """The id of the thread."""
        return self._thread.id

    @property
    def namespace(self) -> str:
        """The namespace of this handle; "" is the root."""
        return self._thread.namespace

    def __repr__(self) -> str:
        return repr(self._thread).replace("<AsyncThread", "<Thread", 1)

    def save(
        self,
        state: Any,
        *,
        id: str | None = None,
        parent: str | None = None,
        expect: str | New | None = None,
        step: int | None = None,
        source: str = "loop",
        metadata: Mapping[str, Any] | None = None,
        next_nodes: Sequence[str] = (),
        completed_tasks: Sequence[str] = (),
        interrupts: Sequence[Interrupt] = (),
        run: str | None = None,
        writes: Sequence[tuple[str, str, Any] | PendingWrite] = (),
        replace: bool = False,
        fence: Fencing | None = None,
        durability: str | None = None,
        timeout_s: float | None = None,
    ) -> CheckpointInfo:
        return run_now(
            self._thread.save(
                state,
                id=id,
                parent=parent,
                expect=expect,
                step=step,
                source=source,
                metadata=metadata,
                next_nodes=next_nodes,
                completed_tasks=completed_tasks,
                interrupts=interrupts,
                run=run,
                writes=writes,
                replace=replace,
                fence=fence,
                durability=durability,
                timeout_s=timeout_s,
            )
        )

    def load(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> Any:
        return run_now(self._thread.load(id, at=at, timeout_s=timeout_s))

    def checkpoint(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> Checkpoint | None:
        return run_now(self._thread.checkpoint(id, at=at, timeout_s=timeout_s))

    def exists(self, id: str | None = None) -> bool:
        return run_now(self._thread.exists(id))

    @overload
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | None = None,
        all_namespaces: bool = False,
        states: Literal[False] = False,
    ) -> Iterator[CheckpointInfo]: ...
    @overload
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | None = None,
        all_namespaces: bool = False,
        states: Literal[True],
    ) -> Iterator[Checkpoint]: ...
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | None = None,
        all_namespaces: bool = False,
        states: bool = False,
    ) -> Iterator[CheckpointInfo] | Iterator[Checkpoint]:
        return each(
            self._thread.history(
                limit=limit,
                before=before,
                filter=filter,
                run=run,
                all_namespaces=all_namespaces,
                states=states,  # type: ignore[call-overload]
            )
        )

    def lineage(self, id: str | None = None) -> list[CheckpointInfo]:
        return run_now(self._thread.lineage(id))

    def tips(self) -> list[CheckpointInfo]:
        return run_now(self._thread.tips())

    def diff(self, old: str, new: str | None = None) -> list[Change]:
        return run_now(self._thread.diff(old, new))

    def write(
        self,
        task: str,
        writes: Sequence[tuple[str, Any]],
        *,
        checkpoint: str | None = None,
        path: str = "",
        fence: Fencing | None = None,
        timeout_s: float | None = None,
    ) -> None:
        run_now(
            self._thread.write(
                task, writes, checkpoint=checkpoint, path=path, fence=fence, timeout_s=timeout_s
            )
        )

    def writes(self, checkpoint: str | None = None) -> tuple[PendingWrite, ...]:
        return run_now(self._thread.writes(checkpoint))

    def interrupts(self, checkpoint: str | None = None) -> tuple[Interrupt, ...]:
        return run_now(self._thread.interrupts(checkpoint))

    def resume(
        self, interrupt: str, value: Any, *, checkpoint: str | None = None, fence: Fencing | None = None
    ) -> None:
        run_now(self._thread.resume(interrupt, value, checkpoint=checkpoint, fence=fence))

    def fork(self, id: str, *, at: str | None = None) -> Thread:
        return Thread(run_now(self._thread.fork(id, at=at)))

    def copy(self, id: str) -> Thread:
        return Thread(run_now(self._thread.copy(id)))

    def export(self) -> str:
        return run_now(self._thread.export())

    def info(self) -> ThreadInfo | None:
        return run_now(self._thread.info())

    def metadata(self) -> dict[str, Any]:
        return run_now(self._thread.metadata())

    def set_metadata(
        self, metadata: Mapping[str, Any], *, replace: bool = False, fence: Fencing | None = None
    ) -> dict[str, Any]:
        return run_now(self._thread.set_metadata(metadata, replace=replace, fence=fence))

    def delete(self, *, erase: bool = False) -> bool:
        return run_now(self._thread.delete(erase=erase))

    def delete_checkpoints(
        self,
        ids: str | CheckpointInfo | Iterable[str | CheckpointInfo | tuple[str, str]] = (),
        *,
        run: str | None = None,
        erase: bool = False,
        all_namespaces: bool = False,
    ) -> Pruned:
        return run_now(
            self._thread.delete_checkpoints(ids, run=run, erase=erase, all_namespaces=all_namespaces)
        )

    def prune(
        self,
        *,
        keep_last: int,
        keep_lineage: bool = False,
        erase: bool = False,
        dry_run: bool = False,
        all_namespaces: bool = True,
    ) -> Pruned:
        return run_now(
            self._thread.prune(
                keep_last=keep_last,
                keep_lineage=keep_lineage,
                erase=erase,
                dry_run=dry_run,
                all_namespaces=all_namespaces,
            )
        )

    def verify(self) -> Verified:
        return run_now(self._thread.verify())

    def size(self) -> Sizes:
        return run_now(self._thread.size())

    def flush(self) -> None:
        run_now(self._thread.flush())


class StepDecorator(Protocol):
    """Turns a function into a step."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


def _blocking(name: str, function: Callable[P, T]) -> Callable[P, T]:
    if inspect.iscoroutinefunction(function):
        raise BadArgument(f"step {name!r} is a coroutine function; use outlive.open_async for those")
    return function


class Run(SyncContext):
    """One run. Made by `store.run(...)`; starts with its `with` block, or by `start()`."""

    def __init__(self, run: AsyncRun) -> None:
        self._run = run

    def __repr__(self) -> str:
        return repr(self._run).replace("<AsyncRun", "<Run", 1)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._run.id

    @property
    def info(self) -> RunInfo:
        """Everything that the store records of the run."""
        return self._run.info

    @property
    def status(self) -> str:
        """How the run is: "running", "released", "completed", "failed", "cancelled" or "parked"."""
        return self._run.status

    @property
    def result(self) -> Any:
        """What the run ended with, once it is completed."""
        return self._run.result

    @property
    def is_finished(self) -> bool:
        """Tell whether the run had ended before: there is nothing left to do, and `result` is what it ended with."""
        return self._run.is_finished

    @property
    def thread(self) -> Thread:
        """The thread that the run works on."""
        return Thread(self._run.thread)

    @property
    def responses(self) -> Responses:
        """The responses of the models that this run asks at the same time."""
        from outlive.sync.responses import Responses

        return Responses(self._run.responses)

    def start(self) -> Self:
        """Begin the run, or claim it when its process died. `with store.run(...) as run` does that. Raises ThreadBusy, RunBusy, RunElsewhere."""
        run_now(self._run.start())
        return self

    def load(self) -> Any:
        """Return the newest state of the thread."""
        return run_now(self._run.load())

    def save(
        self,
        state: Any,
        *,
        iteration: int | None = None,
        phase: str | None = None,
        usage: Mapping[str, Any] | None = None,
        durability: str | None = None,
        **options: Any,
    ) -> CheckpointInfo | None:
        """Save a state as a checkpoint of this run, and record its progress. Further options are those of `thread.save`.

        `durability` (default: that of the run) says when it is stored: "sync", before this returns; "async", in the background;
        "exit", when the run ends. With "exit", and within `throttle_s` of the last save, the state is held back: the call returns
        None, and it is stored unless a newer save replaces it. A call that raises leaves the run as it was.
        """
        return run_now(
            self._run.save(
                state, iteration=iteration, phase=phase, usage=usage, durability=durability, **options
            )
        )

    def flush(self) -> None:
        """Store a save that was held back, and wait for those in the background."""
        run_now(self._run.flush())

    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(
        self, name: str, /, *, key: str | None = None, effect: bool = False, on_unfinished: Any = "retry"
    ) -> StepDecorator: ...
    def step(
        self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once: `answer = run.step("ask", call_model, prompt)`.

        Its result is stored, and a later attempt of the run gets it back without a call. All further arguments go to the
        function. For options, leave the function out: `run.step("pay", effect=True)(charge)(42)`, or as a decorator,
        `@run.step("ask", key="a")`.

        key:            which of several steps of this name; without it they are counted in the order in which they begin
        effect:         store that the step begins, so that a crash in the middle of a side effect is noticed
        on_unfinished:  what to do about such a step: "retry", "skip", "ask" (raise StepUnfinished), ("value", x), or a
                        function of a `StepInfo` that returns one of these
        """
        if function is not None:
            return run_now(self._run.step(name, _blocking(name, function), *args, **kwargs))
        step: Any = self._run.step(name, **kwargs)

        def decorate(wrapped: Callable[..., Any]) -> Callable[..., Any]:
            call = step(_blocking(name, wrapped))
            return functools.wraps(wrapped)(lambda *args, **kwargs: run_now(call(*args, **kwargs)))

        return decorate

    def complete(self, result: Any = None) -> None:
        """End the run with a result, which is stored. Raises Unencodable, and then the run has not ended."""
        run_now(self._run.complete(result))

    def fail(self, error: BaseException | str) -> None:
        """End the run because of an error. What it saved is kept, and `store.retry` continues from it."""
        run_now(self._run.fail(error))

    def cancel(self) -> None:
        """End the run; nobody recovers it."""
        run_now(self._run.cancel())

    def release(self) -> None:
        """Give the run up, so that another process can recover it at once."""
        run_now(self._run.release())

    def __enter__(self) -> Self:
        run_now(self._run.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run_now(self._run.__aexit__(kind, error, trace))


class Lock(SyncContext):
    """A lock on a thread and namespace. Made by `store.lock(id)`; held inside its `with` block."""

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock

    @property
    def is_held(self) -> bool:
        """Tell whether this lock is held, as far as this process knows."""
        return self._lock.is_held

    @property
    def fence(self) -> int | None:
        """The number of this holder, greater than those of all holders before; None while it is not held."""
        return self._lock.fence

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> tuple[str, str, int, int]:
        return self._lock._fence_of(engine, thread)

    def acquire(self) -> Self:
        """Wait until the lock is free, and take it. Raises ThreadBusy when the time is up."""
        run_now(self._lock.acquire())
        return self

    def release(self) -> None:
        """Give the lock back."""
        run_now(self._lock.release())

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Worker:
    """Made by `store.worker(handlers)`. `run()` returns after `stop()`, which another thread calls."""

    def __init__(self, worker: AsyncWorker) -> None:
        self._worker = worker

    def run(self) -> None:
        """Recover dead runs, wait, and repeat, until `stop()` is called. While the store cannot be reached, the pauses grow."""
        run_now(self._worker.run())

    def stop(self) -> None:
        """Make `run()` return after the runs that it is resuming. Another thread, or a handler, calls this."""
        self._worker.stop()


class Store(SyncContext):
    """The threads of one tenant. Made by `outlive.open(url)`; safe for any number of threads."""

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

    def thread(self, id: str, *, namespace: str = "", type: type | None = None) -> Thread:
        return Thread(self._store.thread(id, namespace=namespace, type=type))

    def threads(
        self,
        *,
        prefix: str = "",
        filter: Mapping[str, Any] | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Iterator[ThreadInfo]:
        return each(self._store.threads(prefix=prefix, filter=filter, limit=limit, after=after))

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
    ) -> Run:
        return Run(
            self._store.run(
                thread_id,
                namespace=namespace,
                run_id=run_id,
                agent=agent,
                prompt=prompt,
                parent=parent,
                attributes=attributes,
                code_version=code_version,
                lease_s=lease_s,
                throttle_s=throttle_s,
                clock=clock,
                durability=durability,
                max_attempts=max_attempts,
                exclusive=exclusive,
            )
        )

    def runs(
        self,
        *,
        status: str | Sequence[str] | None = None,
        agent: str | None = None,
        thread: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> Iterator[RunInfo]:
        return each(self._store.runs(status=status, agent=agent, thread=thread, attributes=attributes))

    def recoverable(self) -> Iterator[RunInfo]:
        return each(self._store.recoverable())

    def find_run(self, run_id: str, *, thread: str | None = None) -> RunInfo | None:
        return run_now(self._store.find_run(run_id, thread=thread))

    def steps(self, run_id: str, *, thread: str | None = None) -> list[StepInfo]:
        """Return the stored steps of a run, in the order in which they began; the run may be alive elsewhere.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and AmbiguousRun.
        """
        return run_now(self._store.steps(run_id, thread=thread))

    def responses(self, run_id: str, *, thread: str | None = None) -> list[ModelResponse]:
        """Return the stored responses of a run's models, in the order in which the models were named.

        `thread` is the thread of the run, if several have a run of this id. Raises RunMissing and AmbiguousRun.
        """
        return run_now(self._store.responses(run_id, thread=thread))

    def retry(self, run_id: str, *, thread: str | None = None) -> Run:
        return Run(run_now(self._store.retry(run_id, thread=thread)))

    def park(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        return run_now(self._store.park(run_id, thread=thread))

    def cancel(self, run_id: str, *, thread: str | None = None) -> RunInfo:
        return run_now(self._store.cancel(run_id, thread=thread))

    def lock(
        self, thread_id: str, *, namespace: str = "", timeout_s: float | None = None, lease_s: float = 30.0
    ) -> Lock:
        return Lock(self._store.lock(thread_id, namespace=namespace, timeout_s=timeout_s, lease_s=lease_s))

    def worker(
        self,
        handlers: Mapping[str | None, Callable[[Run], Any]],
        *,
        concurrency: int = 8,
        interval_s: float = 5.0,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
        on_report: Callable[[Recovered], None] | None = None,
    ) -> Worker:
        wrapped = {agent: _on_sync_run(handler) for agent, handler in check_handlers(handlers).items()}
        return Worker(
            self._store.worker(
                wrapped,
                concurrency=concurrency,
                interval_s=interval_s,
                policy=policy,
                code_version=code_version,
                after_failover=after_failover,
                on_report=on_report,
            )
        )

    def recover(
        self,
        handlers: Mapping[str | None, Callable[[Run], Any]],
        *,
        concurrency: int = 8,
        policy: Policy = "resume",
        code_version: str | None = None,
        after_failover: bool = False,
    ) -> Recovered:
        """Resume every dead run: `store.recover({"planner": resume_planner})`.

        handlers:        maps an agent, or "*" for all others, to a function that is called with its run
        concurrency:     how many runs are resumed at a time, each in a thread; with 1, or a single run, in the calling thread
        policy:          "hold" leaves runs alone that another `code_version` has started
        after_failover:  resume although a pair of stores has failed over, when a run that still works with the primary cannot be
                         told from a dead one; otherwise all are skipped

        The report says what was resumed, what failed, what is alive elsewhere, and what was skipped and why. Ctrl-C releases the
        runs that are being resumed.
        """
        wrapped = {agent: _on_sync_run(handler) for agent, handler in check_handlers(handlers).items()}
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
        return run_now(self._store.delete(id))

    def verify(self, *, progress: Progress | None = None) -> Verified:
        return run_now(self._store.verify(progress=progress))

    def sweep(self, *, dry_run: bool = False, retain: Retain | None = None) -> Swept:
        return run_now(self._store.sweep(dry_run=dry_run, retain=retain))

    def start_sweeping(self, retain: Retain | None = None) -> None:
        return run_now(self._store.start_sweeping(retain))

    def stop_sweeping(self) -> None:
        return run_now(self._store.stop_sweeping())

    def rotate(self, *, progress: Progress | None = None) -> Rotated:
        return run_now(self._store.rotate(progress=progress))

    def size(self) -> Sizes:
        return run_now(self._store.size())

    def copy_to(
        self,
        target: Store,
        *,
        threads: Iterable[str] | None = None,
        since: dt.datetime | None = None,
        progress: Progress | None = None,
    ) -> int:
        other = target._store if isinstance(target, Store) else target
        return run_now(self._store.copy_to(other, threads=threads, since=since, progress=progress))

    def import_thread(self, text: str | bytes, *, id: str | None = None) -> Thread:
        return Thread(run_now(self._store.import_thread(text, id=id)))

    def backup(self, url: str, *, progress: Progress | None = None) -> int:
        return run_now(self._store.backup(url, progress=progress))

    def ping(self, *, timeout_s: float | None = None) -> dict[str, float]:
        return run_now(self._store.ping(timeout_s=timeout_s))

    def promote(self) -> RoleChange:
        return run_now(self._store.promote())

    def failback(self) -> RoleChange:
        return run_now(self._store.failback())

    def replication_status(self) -> ReplicationStatus:
        return run_now(self._store.replication_status())

    def flush(self) -> None:
        run_now(self._store.flush())

    def close(self) -> None:
        run_now(self._store.close())


# The words of the one implementation serve sync and async.
for _sync, _async in ((Thread, AsyncThread), (Store, AsyncStore)):
    for _name, _method in vars(_sync).items():
        if callable(_method) and not _name.startswith("_"):
            _method.__doc__ = getattr(_async, _name).__doc__


def _on_sync_run(handler: Callable[[Run], Any]) -> Callable[[AsyncRun], Any]:
    return lambda run: handler(Run(run))
