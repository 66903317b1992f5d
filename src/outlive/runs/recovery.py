"""Finding runs whose process died, and handing each of them to one successor.

First, timers that are due wake their runs. A run can be recovered if it was released, if its lease
has expired, or if its owner has certainly ended on this machine. `recover` claims each of them: of
many processes that try, one succeeds, and the others see the run alive. The report names every run
that was not resumed, with the reason.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, cast

from outlive.arguments import is_async
from outlive.backend import Commit, EntryQuery, EntryRecord, Receipt, ThreadKey, each_entry
from outlive.dataclass import dataclass
from outlive.errors import (
    BadArgument,
    DamagedEntry,
    EntryHeld,
    KeyMissing,
    OutliveError,
    RunBusy,
    RunSuspended,
    StoreClosed,
    StoreUnavailable,
    SyncAsyncMixed,
    ThreadBusy,
)
from outlive.runs.end import delay_run, park_run
from outlive.runs.lease import (
    CANCELLED,
    FAILED,
    PARKED,
    RELEASED,
    RUN,
    RUNNING,
    STATUSES,
    WAITING,
    RunInfo,
    end_dead_attempt,
    unpack_or_tell,
    unreadable,
)
from outlive.runs.outer_run import is_left_to_outer
from outlive.runs.run import AsyncRun
from outlive.runs.sigterm import terminator
from outlive.runs.store_clock import store_now
from outlive.runs.timers import backoff_due, fire_due
from outlive.runtime.runtime import run_now
from outlive.threads.engine import Engine
from outlive.values import matches, moment

Handler = Callable[[AsyncRun], Any]
Handlers = Mapping[str, Handler] | Mapping[str | None, Handler]  # by agent
Policy = Literal["resume", "hold"]
Outcome = Literal["worked", "given_back", "busy", "lost", "skipped"]
_PAGE = 200
_PRIMARY_UNREACHABLE = (
    "the primary store cannot be reached, so a live run cannot be told from a dead one; "
    "pass after_failover=True to resume"
)


SkipCode = Literal[
    "backing_off",
    "finished",
    "inside_run",
    "no_handler",
    "other_code_version",
    "parked",
    "primary_unreachable",
    "start_failed",
    "unreadable",
]


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A run that `recover` did not resume. `code` says why to a program, `message` to a person."""

    run: RunInfo
    code: SkipCode
    message: str

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.id


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that was resumed and whose handler raised, or called `run.fail`.

    `code` is the name of the exception's class, or "failed".
    """

    run: RunInfo
    code: str
    message: str

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.id


@dataclass(slots=True)
class Recovered:
    """What `recover` did."""

    resumed: list[RunInfo] = field(default_factory=list)
    suspended: list[RunInfo] = field(default_factory=list)  # resumed, and waiting again
    failed: list[FailedRun] = field(default_factory=list)
    left: list[RunInfo] = field(default_factory=list)  # resumed, and cancelled or released by its handler
    waiting: list[RunInfo] = field(default_factory=list)  # alive: another process holds it
    skipped: list[SkippedRun] = field(default_factory=list)

    @property
    def _has_ended(self) -> bool:
        """Tell whether a run has left its handler."""
        return bool(self.resumed or self.suspended or self.failed or self.left)


async def find_runs(
    engine: Engine,
    tenant: str,
    *,
    thread: ThreadKey | None = None,
    statuses: Sequence[str] | None = None,
    lapsed: bool | None = None,
) -> AsyncIterator[tuple[ThreadKey, RunInfo]]:
    """Iterate over runs by id. A damaged run comes with `is_readable=False` and hides no other."""
    query = EntryQuery(tenant, RUN, thread=thread, statuses=statuses, lapsed=lapsed, limit=_PAGE)
    async for key, entry in each_entry(engine.backend, query):
        if isinstance(entry, DamagedEntry):
            yield key, _damaged(key, entry)
        else:
            yield key, unpack_or_tell(engine.codec, key, entry)


def _damaged(key: ThreadKey, error: DamagedEntry) -> RunInfo:
    """Return a run of which only the id, thread and status are known."""
    status = error.status if error.status in STATUSES else RUNNING
    return RunInfo(error.key, key.id, status=status, error=unreadable(error), is_readable=False)


async def find_recoverable(
    engine: Engine, tenant: str, live: list[RunInfo] | None = None
) -> AsyncIterator[tuple[ThreadKey, RunInfo]]:
    """Iterate over released and dead runs; append live ones to `live`."""
    async for item in find_runs(engine, tenant, statuses=[RELEASED]):
        yield item
    async for item in find_dead(engine, tenant, live):
        yield item


async def find_dead(
    engine: Engine, tenant: str, live: list[RunInfo] | None = None
) -> AsyncIterator[tuple[ThreadKey, RunInfo]]:
    """Iterate over runs whose lease has expired or whose process has ended; append live ones to `live`."""
    async for item in find_runs(engine, tenant, statuses=[RUNNING], lapsed=True):
        yield item
    async for key, run in find_runs(engine, tenant, statuses=[RUNNING], lapsed=False):
        if run.owner is not None and run.owner.is_gone():
            yield key, run
        elif live is not None:
            live.append(run)


class Pass:
    """What handlers of one recovery or worker do, in tasks and in threads: the runs that they have, and the report."""

    def __init__(self) -> None:
        self.report = Recovered()
        self._live: set[AsyncRun] = set()
        self._is_over = False
        self._lock = threading.Lock()

    def take_report(self) -> Recovered:
        """Return the report, and begin a new one."""
        with self._lock:
            report, self.report = self.report, Recovered()
        return report

    def add(self, section: str, item: RunInfo | FailedRun | SkippedRun) -> None:
        """Add to a section of the report."""
        with self._lock:
            getattr(self.report, section).append(item)

    def begin(self, run: AsyncRun) -> bool:
        """Note that a handler gets a run; False: it is too late, and the run must be released."""
        with self._lock:
            if not self._is_over:
                self._live.add(run)
            return not self._is_over

    def leave(self, run: AsyncRun) -> None:
        """Note that a handler has left its run."""
        with self._lock:
            self._live.discard(run)

    def end(self) -> list[AsyncRun]:
        """Let no other handler begin, and return the runs that handlers still have."""
        with self._lock:
            self._is_over = True
            return list(self._live)


@dataclass(frozen=True, slots=True)
class Offer:
    """A released run that this process is about to claim."""

    info: RunInfo
    run: AsyncRun
    commit: Commit


class Recovery:
    """One pass over the dead runs of a store.

    On an async store, `in_threads` makes the recovery of the same store in the sync mode: a plain
    function is called in a thread of its own, with a sync run, which that thread claims and ends.
    """

    def __init__(
        self,
        engine: Engine,
        resume: Callable[..., AsyncRun],  # of a RunInfo, with options of its start
        handlers: Mapping[str | None, Handler],
        policy: Policy,
        code_version: str | None,
        in_threads: Callable[[Pass], Recovery] | None = None,
        shared: Pass | None = None,
    ) -> None:
        if policy not in ("resume", "hold"):
            raise BadArgument(f'policy must be "resume" or "hold", not {policy!r}')
        if policy == "hold" and code_version is None:
            raise BadArgument(
                'policy="hold" compares runs with the code_version of the handlers: pass it too'
            )
        self._engine = engine
        self._resume = resume
        self._handlers = handlers
        self._policy = policy
        self._code_version = code_version
        self.refuses_all = False  # while a pair of stores has failed over
        self._in_threads = in_threads
        self._pass = shared or Pass()
        self._add = self._pass.add
        self.take_report = self._pass.take_report

    @property
    def report(self) -> Recovered:
        """What was done since the last `take_report`."""
        return self._pass.report

    async def take_all(self, tenant: str, concurrency: int) -> None:
        """Resume the dead runs of a tenant, several at a time."""
        # 1. Timers that are due make their runs claimable.
        if not self.refuses_all:
            await fire_due(self._engine, tenant)
        # 2. List all dead runs first: otherwise a run that this pass resumes is listed again, as a live one.
        dead = [item async for item in find_recoverable(self._engine, tenant, self.report.waiting)]
        if not dead:
            return
        # 3. Resume them. A crash of this process leaves those that it has claimed dead again, and the
        #    others as they were. (Only the main thread can set a signal handler, and handlers may
        #    start runs in other threads.)
        terminator.add(id(self), lambda: None)
        try:
            works = [functools.partial(self.take, key, info) for key, info in dead]
            await self._engine.runtime.each("outlive-recovery", works, min(concurrency, len(dead)))
        except BaseException:
            # Ctrl-C: handlers still work in other threads.
            await self.release_all()
            raise
        finally:
            terminator.discard(id(self))

    async def release_all(self) -> None:
        """Release the runs that handlers work on: the next write of each is refused.

        So another process can resume them.
        """
        for run in self._pass.end():
            with contextlib.suppress(OutliveError):
                if run._engine is self._engine:
                    await run._give_up()
                else:  # of a plain handler, which holds it in a thread
                    await self._engine.runtime.call(functools.partial(_release, run))

    async def take(self, key: ThreadKey, info: RunInfo, *, is_fresh: bool = False) -> Outcome:
        """Claim one run and call its handler; `is_fresh`: it was read a moment ago.

        "lost": another process has the run; "busy": its place is held; "given_back": the handler
        released it; "skipped": the report says why.
        """
        handler = self._handler_of(info)
        if not info.is_readable:
            self._skip(info, "unreadable", str(info.error))
        elif self.refuses_all:
            self._skip(info, "primary_unreachable", _PRIMARY_UNREACHABLE)
        elif handler is None:
            self._skip(info, "no_handler", f"no handler for agent {info.agent!r}")
        elif self.is_other_code(info.code_version):
            self._skip(info, "other_code_version", f"it was started by code version {info.code_version!r}")
        elif info.status == RELEASED and await is_left_to_outer(self._engine, key.tenant, info.outer):
            self._skip(info, "inside_run", f"run {info.outer and info.outer.run!r} continues it")
        elif _failures(info) >= info.max_attempts:
            await self._park(key, info)
        elif info.status == RUNNING and info.backoff_s is not None:
            await self._back_off(key, info)
        else:
            return await self._hand_over(info, handler, is_fresh)
        return "skipped"

    def _handler_of(self, info: RunInfo) -> Handler | None:
        return self._handlers.get(info.agent) or self._handlers.get("*")

    async def offer(self, info: RunInfo, left: EntryRecord | None) -> Offer | None:
        """Return how a released run is claimed, for `work`; None: leave it to `take`.

        `left` is its place, if the caller knows how another run has left it.
        Raises RunBusy, ThreadBusy.
        """
        handler = self._handler_of(info)
        is_taken = info.is_readable and not self.refuses_all and info.outer is None
        if not is_taken or handler is None or not self._is_called_here(handler):
            return None
        if self.is_other_code(info.code_version) or _failures(info) >= info.max_attempts:
            return None
        run = self._resume(info, is_fresh=True)
        try:
            return Offer(info, run, await run._offer(left))
        except (KeyMissing, StoreClosed, StoreUnavailable, RunBusy, ThreadBusy):
            raise
        except Exception:  # noqa: BLE001  # nothing was claimed; `take` reports what is wrong
            return None

    async def work(self, offer: Offer, receipt: Receipt) -> Outcome:
        """Call the handler of a run that was claimed."""
        handler = self._handler_of(offer.info)
        assert handler is not None
        return await self._work(offer.info, offer.run, handler, lambda: offer.run._accept(receipt))

    def _skip(self, info: RunInfo, code: SkipCode, message: str) -> None:
        self._add("skipped", SkippedRun(info, code, message))

    def is_other_code(self, code_version: str | None) -> bool:
        """Tell whether a run of this version of the code is left to other processes."""
        is_held = self._policy == "hold" and None not in (code_version, self._code_version)
        return is_held and code_version != self._code_version

    async def _park(self, key: ThreadKey, info: RunInfo) -> None:
        """Park a run whose process died too often."""
        info.failures = _failures(info)
        end_dead_attempt(info)
        info.error = info.error or f"its process died {info.failures} times"
        # The commit expects the entry as it was listed: a process that claimed the run since wins.
        try:
            await park_run(self._engine, key, info)
        except EntryHeld:
            self._add("waiting", info)
            return
        self._skip(
            info,
            "parked",
            f"parked after {info.failures} failed attempts; store.retry({info.id!r}) resumes it",
        )

    async def _back_off(self, key: ThreadKey, info: RunInfo) -> None:
        """Let a run whose process died wait before its next attempt."""
        info.failures = _failures(info)
        due = backoff_due(info, await store_now(self._engine))
        try:
            await delay_run(self._engine, key, info, "backoff", due)
        except EntryHeld:
            self._add("waiting", info)
            return
        self._skip(
            info, "backing_off", f"its process died; the next attempt is due at {moment(due):%H:%M:%S} UTC"
        )

    async def _hand_over(self, info: RunInfo, handler: Handler, is_fresh: bool) -> Outcome:
        if self._is_called_here(handler):
            run = self._resume(info, is_fresh=is_fresh)
            return await self._work(info, run, handler, run.start)
        # A plain function must not hold up the event loop, with the leases of all other runs.
        assert self._in_threads is not None
        return await self._engine.runtime.call(
            functools.partial(_work_here, self._in_threads, self._pass, info, is_fresh)
        )

    def _is_called_here(self, handler: Handler) -> bool:
        """Tell whether a handler is called where the run is claimed, and not in a thread of its own."""
        return self._in_threads is None or is_async(handler)

    async def _work(
        self, info: RunInfo, run: AsyncRun, handler: Handler, start: Callable[[], Awaitable[object]]
    ) -> Outcome:
        """Claim a run, call its handler, and report what became of it."""
        # 1. Claim it. Of many processes that try, one succeeds.
        try:
            await start()
        except (RunBusy, ThreadBusy) as error:
            self._add("waiting", info)
            return "lost" if isinstance(error, RunBusy) else "busy"
        except (KeyMissing, StoreClosed, StoreUnavailable):
            raise  # the other runs would fail in the same way
        except Exception as error:  # noqa: BLE001  # start() gave this run back; try the others
            self._skip(info, "start_failed", f"it cannot be started: {type(error).__name__}: {error}")
            return "skipped"
        if run.is_finished:
            self._skip(run.info, "finished", f"it ended since it was listed: {run.status}")
            return "skipped"
        # 2. Note it, so that `release_all` finds it. If that has begun already, give the run back.
        if not self._pass.begin(run):
            await run.release()
            return "given_back"
        # 3. Call the handler. A crash in it leaves a dead run, which is recovered again.
        try:
            async with run:
                await self._call(handler, run)
        except Exception as error:  # noqa: BLE001  # the run has recorded it
            self._add("failed", FailedRun(run.info, type(error).__name__, str(error)))
        else:
            self._add_left(run.info)
        finally:
            self._pass.leave(run)
        return "given_back" if run.status == RELEASED and not run._is_suspended else "worked"

    def _add_left(self, run: RunInfo) -> None:
        """Report a run whose handler returned: it may have ended the run itself."""
        is_delayed = run.status == WAITING and run.waits is not None and run.waits.reason == "backoff"
        if is_delayed or run.status in (FAILED, PARKED):
            self._add("failed", FailedRun(run, "failed", str(run.error)))
        elif run.status == WAITING or (run.status == RELEASED and run.waits is not None):
            self._add("suspended", run)  # released: what it waits for came while it parked
        else:
            self._add("left" if run.status in (CANCELLED, RELEASED) else "resumed", run)

    async def _call(self, handler: Handler, run: AsyncRun) -> None:
        with _exits():
            result: Any | Awaitable[Any] = handler(run)
            if is_async(handler):
                result = await result
            elif inspect.isawaitable(result):
                raise _returned_awaitable(run, result)
        if result is not None and run.result is None:
            run.info.result = result


class HandlerExited(Exception):
    """A handler raised what is no Exception, such as SystemExit, and its process does not end: the attempt failed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the handler raised {error!r}")


def _work_here(
    in_threads: Callable[[Pass], Recovery], shared: Pass, info: RunInfo, is_fresh: bool
) -> Outcome:
    """Do the work of a plain handler in this thread, which is its own."""
    recovery = in_threads(shared)
    return run_now(recovery._hand_over(info, cast(Handler, recovery._handler_of(info)), is_fresh))


def _release(run: AsyncRun) -> None:
    run_now(run._give_up())


def _returned_awaitable(run: AsyncRun, result: Any) -> SyncAsyncMixed:
    if inspect.iscoroutine(result):
        result.close()  # it has not begun
    return SyncAsyncMixed(
        f"the handler of agent {run.info.agent!r} is a plain function that returned a coroutine, and got a sync run; "
        "write it as `async def`, or as functools.partial of a coroutine function"
    )


@contextlib.contextmanager
def _exits() -> Iterator[None]:
    """Tell a handler that exits from a process that ends: otherwise its run would be released and claimed endlessly."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if _is_suspension(error) or _ends_process(error):
            raise
        raise HandlerExited(error) from error


def _is_suspension(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_suspension, error.exceptions))
    return isinstance(error, RunSuspended)


def _ends_process(error: BaseException) -> bool:
    """Tell whether an exception comes from a signal, which only the main thread gets, or from a cancelled task."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and (isinstance(error, KeyboardInterrupt) or _comes_from_signal(error))
    asyncio = sys.modules.get("asyncio")  # sync stores do not import it
    if asyncio is not None and isinstance(error, asyncio.CancelledError):
        return _is_cancelled(asyncio)
    return isinstance(error, GeneratorExit)


def _comes_from_signal(error: BaseException) -> bool:
    """Tell whether a signal handler of this program raised an exception: its frame is in the traceback."""
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {_code_of(handler) for handler in handlers if callable(handler)} - {None}
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code in codes for frame, _ in frames)


def _code_of(function: Any) -> object:
    """Return the code of a function, a method, a partial or an object that can be called."""
    function = getattr(function, "func", function)
    function = getattr(function, "__func__", function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def _is_cancelled(asyncio: Any) -> bool:
    """Tell whether the task that calls was cancelled, and not only something that it waited for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return False
    return task is not None and task.cancelling() > 0


def _failures(dead: RunInfo) -> int:
    """Return how many attempts failed, including the last one if its process died."""
    return dead.failures + (dead.status == RUNNING)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs a listing shows."""

    agent: str | None
    attributes: Mapping[str, Any]

    def takes(self, run: RunInfo) -> bool:
        if self.agent is not None and run.agent != self.agent:
            return False
        return matches(run.attributes, self.attributes)


def check_statuses(status: str | Sequence[str] | None) -> list[str] | None:
    """Return a list of known statuses."""
    if status is None:
        return None
    if not isinstance(status, str | Iterable):
        raise BadArgument(f"status must be a status or a list of them, not {status!r:.100}")
    wanted = [status] if isinstance(status, str) else list(status)
    for name in wanted:
        if name not in STATUSES:
            raise BadArgument(f"status must be one of {', '.join(STATUSES)}, not {name!r}")
    return wanted
