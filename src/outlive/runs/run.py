"""A run: work on a thread that other processes know of, and that one of them takes over when this process dies.

All writes of a run (checkpoints, steps, its own record) have its fence and renew its leases. Only one
write is under way at a time. Each raises the revision of the run's entry, so a write that arrives after a
newer one is refused. Between writes one timer renews the leases of all live runs of a store
(`renewal.py`).

How its `with` block is left decides how the run ends. Normally: completed. By an Exception: failed, with
its progress kept. By RunSuspended, of a run that waits: it is waiting already. By anything else (a cancelled task, Ctrl-C, sys.exit): released, for another process to
recover, because that is how deployments end processes.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from outlive.arguments import (
    check_iteration,
    check_options,
    check_phase,
    check_run_durability,
    check_usage,
)
from outlive.backend import Commit, EntryRecord, Fence, Receipt, ThreadKey
from outlive.backend.entries import WAIT
from outlive.errors import (
    BadArgument,
    BudgetSpent,
    CheckpointExists,
    ChildWaits,
    EntryHeld,
    LeaseLost,
    OutliveError,
    RunEnded,
    RunForked,
    RunNotStarted,
    RunSuspended,
    StoreClosed,
)
from outlive.events import CLAIM, LOSS, STALL, Event
from outlive.runs import budget, lease
from outlive.runs.deferred_saves import Deferred, Kept
from outlive.runs.effect_keys import EffectKey
from outlive.runs.lease import (
    CANCELLED,
    LOCK,
    PARKED,
    RUN,
    RUNNING,
    RunInfo,
)
from outlive.runs.options import RunOptions
from outlive.runs.progress import Progress
from outlive.runs.responses import AsyncResponses
from outlive.runs.run_end import RunEnd
from outlive.runs.spending import Spending
from outlive.runs.start import Start, StartOptions
from outlive.runs.step_options import StepOptions
from outlive.runs.steps import Ledger
from outlive.runs.stream import Stream
from outlive.runs.waiting import MISSING
from outlive.runs.waits import Waits
from outlive.runtime.runtime import Ticker, new_id
from outlive.runtime.wrong_mode import AsyncContext
from outlive.threads.engine import Draft, Engine
from outlive.threads.save_options import RunSaveOptions
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo

_TRIES = 20
# The runs in whose blocks this task or thread is.
_blocks: ContextVar[tuple[AsyncRun, ...]] = ContextVar("outlive_blocks", default=())
_ENDING_S = 5.0  # for the write that releases a run: its process is about to be killed


P = ParamSpec("P")
T = TypeVar("T")


class AsyncStepDecorator(Protocol):
    """Turns a function, sync or async, into a step that is awaited."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class Live(Protocol):
    """Where live runs are renewed."""

    @property
    def is_closed(self) -> bool: ...
    def add(self, run: AsyncRun) -> None: ...
    def discard(self, run: AsyncRun) -> None: ...
    def find(self, run_id: str) -> Any:
        """Return the live run with this id, if this store has it."""
        ...


class AsyncRun(AsyncContext):
    """One run. Made by `store.run(...)`; starts with its `with` block, or by `start()`.

    How the block is left decides how the run ends:

        async with store.run("trip", agent="planner") as run:
            plan = await run.step("plan", make_plan)
            await run.save({"plan": plan})
            await run.complete(plan)

    normally              completed, with the result None unless `complete` gave one
    by an Exception       failed; what it saved is kept, and `store.retry` continues from it
    by anything else      released (a cancelled task, Ctrl-C, sys.exit): another process recovers it,
                          because that is how deployments end processes

    A process that dies leaves it running, and it is recovered when its lease has expired.
    """

    def __init__(
        self, engine: Engine, place: AsyncThread, heart: Live, info: RunInfo, options: StartOptions
    ) -> None:
        self.info = info
        self.thread = place
        self._engine = engine
        self._heart = heart
        self._options = options
        self._mutex = engine.runtime.mutex()
        self._fence = self._epoch = self._lock_epoch = self._revision = 0
        self._has_place = False
        self._has_begun = False
        self._is_live = False
        self._is_lost = False
        self._lost_as: str | None = None  # cancelled or parked from outside
        self._is_suspended = False  # by this process: it waits, and nothing is left to do here
        self._outer: AsyncRun | None = None  # in whose block it started
        self._place: list[Any] = []  # where in the code of the outer run
        self._inside: list[AsyncRun] = []  # that started in the block of this one
        self._thread_ident = engine.runtime.thread_ident()
        self._progress = Progress()
        self._was_stalled = False
        self._ledger = Ledger(self)
        self._waits = Waits(self)
        self._spending = Spending(self)
        self._end = RunEnd(self)
        self._responses = AsyncResponses(self)
        self._stream = Stream(self)
        self._deferred = Deferred(options.throttle_s, options.clock)
        self._ticker: Ticker | None = None

    def __repr__(self) -> str:
        status = f"{self.status} attempt {self.info.attempt}" if self._is_started else "not started"
        return f"<{type(self).__name__} {self.id!r} of {self.info.thread!r} {status}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.info.id

    @property
    def _key(self) -> ThreadKey:
        return self.thread._key

    @property
    def _rank(self) -> tuple[int, int]:
        """The epoch and fence under which this run writes."""
        return self._epoch, self._fence

    @property
    def _branches(self) -> Ledger:
        return self._ledger

    @property
    def responses(self) -> AsyncResponses:
        """The responses of the models that this run asks at the same time."""
        return self._responses

    @property
    def _is_started(self) -> bool:
        return self._is_live or self._is_lost or self.info.status != RUNNING

    @property
    def status(self) -> str:
        """The status: "running", "waiting", "released", "completed", "failed", "cancelled" or "parked"."""
        return self.info.status

    @property
    def result(self) -> Any:
        """The result of the run, once it is completed."""
        return self.info.result

    @property
    def is_finished(self) -> bool:
        """Tell whether the run had ended before: there is nothing left to do, and `result` is its result."""
        return self.info.is_finished

    # Beginning

    async def start(self) -> Self:
        """Begin the run, or claim it when its process died; `async with store.run(...) as run` does that.

        Raises ThreadBusy, RunBusy, RunElsewhere.
        """
        start = Start(self._engine, self.thread, self.info, self._enter_outer())
        holding = await self._engine.runtime.shielded(start.take(), start.undo)
        self.info = holding.info
        if holding.info.is_finished:
            return self
        self._fence, self._epoch, self._revision = holding.fence, holding.epoch, holding.revision
        self._lock_epoch, self._has_place = holding.lock_epoch, holding.has_place
        self._progress.stored(holding.revision, holding.body)
        self._stream.begin(is_new=holding.is_new)
        try:
            await self._ledger.read(is_new=holding.is_new)
            await self._responses._read(is_new=holding.is_new)
            if not holding.is_new:
                await self._waits.read()
                self._ledger.continue_after(self._waits.last_order)
        except BaseException:
            # What the run did before cannot be read here; another process may be able to.
            await start.undo(holding)
            raise
        self._spending.begin()
        self._has_begun, self._is_suspended = True, False
        self._go_live()
        if not self._options.retries:
            await self._park_if_spent()
        previous = self.info.attempts[-2:-1]
        self._tell(CLAIM, trace=self.info.trace, previous=previous[0].outcome if previous else None)
        return self

    def _enter_outer(self) -> StartOptions:
        """Note in the block of which run this one starts, and return how: it may continue a run that waited there."""
        self._outer = next((run for run in reversed(_blocks.get()) if run._is_live and run is not self), None)
        outer = self._outer
        if outer is None or outer._engine is not self._engine:
            return self._options
        place = [self.info.thread, self.info.namespace, self.info.agent]
        self._place = [*place, outer._ledger.count(repr(place))]
        outer._inside.append(self)
        known = outer._waits.runs_inside()
        here = [(id, is_recent) for id, (at, is_recent) in known.items() if at == self._place]
        inner, is_recent = here[-1] if here else (None, False)
        return replace(
            self._options,
            outer=outer.id,
            inner=inner,
            inner_is_recent=is_recent,
            others=frozenset(known).difference(id for id, _ in here),
        )

    def _runs_inside(self) -> list[AsyncRun]:
        return [run for run in self._inside if run._is_live]

    async def _park_if_spent(self) -> None:
        """Park a run that has used more than its budget: the process that crossed it died before it did so."""
        if self.info.budget is None or self.info.budget.asks:
            return
        try:
            self._spending.check_own()
        except BudgetSpent as spent:
            try:
                await self._end.leave_by(spent)
            finally:
                self._leave()
            raise

    def _go_live(self) -> None:
        self._is_live = True
        self._heart.add(self)
        if self._options.throttle_s > 0:
            self._ticker = self._engine.runtime.tick(
                "outlive-throttled-save", self._options.throttle_s, self._flush_when_due
            )

    # Working

    async def load(self) -> Any:
        """Return the newest state of the thread, or None."""
        return await self.thread.load()

    async def save(
        self,
        state: Any,
        *,
        iteration: int | None = None,
        phase: str | None = None,
        usage: Mapping[str, Any] | None = None,
        **options: Unpack[RunSaveOptions],
    ) -> CheckpointInfo | None:
        """Save a state as a checkpoint of this run, and record its progress: `await run.save(state, phase="draft")`.

        iteration, phase:         the progress, shown by `run.info`
        usage:                    what was used since the last save, such as {"cost_usd": 0.02, "tokens": 900}: numbers are
                                  added to what the run and its children have used, other values replace what was there
        durability:               when it is stored (default: that of the run): "sync", before this returns;
                                  "async", in the background; "exit", when the run ends

        The other options are those of `thread.save`, without `run` and `fence`. With "exit", and within `throttle_s`
        of the last save, the state is held back: the call returns None, and the state is stored unless a newer save
        replaces it. A call that raises leaves the run as it was. But BudgetSpent is raised after the save, if its usage
        crosses the budget of the run or of its parent.
        """
        self._ledger.check_in_time()
        check_options("run.save", options, RunSaveOptions.__optional_keys__)
        durability = options.get("durability")
        chosen = None if durability is None else check_run_durability(durability)
        async with self._mutex:
            self._check_live()
            draft = self.thread._draft(**options, run=self.id)
            before = self._note(iteration, phase, usage)
            try:
                saved = await self._save_as(chosen, state, draft, is_named=options.get("id") is not None)
            except BaseException:
                self._note_again(before)
                raise
        if usage is not None:
            await self._spending.spend(budget.numbers(usage))
        return saved

    def _note(
        self, iteration: int | None, phase: str | None, usage: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Record the progress of the run, and return the progress before. Raises BadArgument, Unencodable."""
        info = self.info
        before = (info.iteration, info.phase, info.completed_phases, self._spending.used)
        added = None if usage is None else self._copied(check_usage(usage))
        budget.check_used(added or {})
        iteration = info.iteration if iteration is None else check_iteration(iteration)
        if phase is not None and check_phase(phase) != info.phase:
            self._enter_phase(phase)
        info.iteration = iteration
        if added is not None:
            self._spending.set_used(budget.add(self._spending.used, added))
        return before

    def _copied(self, usage: dict[str, Any]) -> Any:
        """Return a copy that the caller cannot change: it is stored again by every later write."""
        codec = self._engine.codec
        return codec.unpack(codec.pack(usage, f"run {self.id!r}.usage"))

    def _enter_phase(self, phase: str | None) -> None:
        """Leave the phase that the run is in, which is completed by that. One that is entered again is not completed any more."""
        info = self.info
        left = [info.phase] if info.phase is not None and info.phase not in info.completed_phases else []
        info.completed_phases = [name for name in [*info.completed_phases, *left] if name != phase]
        info.phase = info.phase if phase is None else phase

    def _note_again(self, before: tuple[Any, ...]) -> None:
        self.info.iteration, self.info.phase, self.info.completed_phases, used = before
        self._spending.set_used(used)

    def _live_parent(self) -> Any:
        return None if self.info.parent is None else self._heart.find(self.info.parent)

    async def _save_as(
        self, chosen: str | None, state: Any, draft: Draft, *, is_named: bool
    ) -> CheckpointInfo | None:
        durability = chosen or self._options.durability
        if durability != "sync" and draft.expect is not None:
            raise BadArgument('expect= needs an answer from the store: use durability="sync" for this save')
        if durability == "async":
            return await self._save_later(state, draft)
        waits = durability == "exit" or (chosen is None and self._deferred.is_too_soon())
        if waits and draft.expect is None:
            kept = Kept.of(self._engine.codec, state, draft)
            if not is_named or draft.replace or not await self._is_taken(draft):
                self._deferred.keep(kept, until_end=durability == "exit")
                self._progress.moved()
                return None
        return await self._store(state, draft)

    async def _is_taken(self, draft: Draft) -> bool:
        """Tell whether the thread has a checkpoint of this id: then the store has to say whether it is the same."""
        reading = await self._engine.backend.read(
            self._key, draft.namespace, draft.id, chunks=False, timeout_s=draft.timeout_s
        )
        return reading.record is not None

    async def _save_later(self, state: Any, draft: Draft) -> CheckpointInfo:
        """Queue a save. It renews nothing: what the run writes meanwhile is newer."""
        if self._fence:
            draft.fence = self._as_fence()
        queued = await self.thread._store._delayed(self._key).save(state, draft)
        self._progress.moved()
        self._deferred.stored()
        return queued

    async def _store(self, state: Any, draft: Draft) -> CheckpointInfo:
        body, chunks = None, self._stream.take()
        if self._fence:
            draft.fence = self._as_fence()
            body = lease.pack_run(self._engine, self.info)
            draft.entries = (*self._renewals(body), *chunks)
        saved: CheckpointInfo = await self._or_lose(self.thread._save(state, draft))
        if not draft.is_repeated:
            self._stream.settle(chunks)
        self._progress.stored(self._revision, body)
        self._deferred.stored()
        return saved

    async def flush(self) -> None:
        """Store a save that was held back and what was emitted, and wait for saves in the background."""
        self._ledger.check_in_time()
        async with self._mutex:
            self._check_live()
            await self._flush()
            await self._stream.flush_held()

    async def _flush(self, timeout_s: float | None = None) -> None:
        kept = self._deferred.kept
        if kept is not None:
            try:
                await self._store(kept.state(), kept.draft(timeout_s))
            except CheckpointExists:  # another save took its id meanwhile: store the state under a new one
                await self._store(kept.state(), replace(kept.draft(timeout_s), id=new_id()))
        await self.thread._settled()

    async def _flush_when_due(self) -> None:
        if self._is_live and self._deferred.is_due():
            try:
                await self.flush()
            except OutliveError:
                pass  # the next write of the run, or the next tick, tries again; a lost lease is noted

    @overload
    def step(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        /,
        *,
        key: str | None = None,
        effect: bool = False,
        on_unfinished: Any = "retry",
        retries: int = 0,
        backoff_s: float = 1.0,
        retry_on: type[Exception] | tuple[type[Exception], ...] = Exception,
        timeout_s: float | None = None,
    ) -> AsyncStepDecorator: ...
    def step(
        self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once: `answer = await run.step("ask", call_model, prompt)`.

        Its result is stored, and a later attempt of the run gets it back without a call. All further arguments go to the
        function. For options, leave the function out: `await run.step("pay", effect=True)(charge)(42)`, or as a decorator,
        `@run.step("ask", key="a")`.

        key:            which of several steps of this name; without it they are counted in the order in which they begin
        effect:         store that the step begins, so that a crash in the middle of a side effect is noticed; the
                        function gets a key for it, as `run.effect_key` and in a parameter annotated `outlive.EffectKey`
        on_unfinished:  what to do about such a step: "retry", "skip", "ask" (raise StepUnfinished), ("value", x), or a
                        function of a `StepInfo` that returns one of these
        retries:        how often the function is called again in this attempt after an exception of `retry_on`
        backoff_s:      how long to wait before that; twice as long each time, at most a minute, at random up to a third less
        timeout_s:      raise StepTimeout if the function takes longer. A coroutine is cancelled; any other function runs in
                        a thread of its own, which nothing can stop: it continues alone, and its result is dropped
        """
        if function is not None:
            return self._ledger.step(name, function, args, kwargs)
        options = StepOptions.of(name, kwargs)

        def decorate(wrapped: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
            @functools.wraps(wrapped)
            async def call(*args: Any, **kwargs: Any) -> Any:
                return await self._ledger.step(name, wrapped, args, kwargs, options)

            return call

        return decorate

    @property
    def effect_key(self) -> EffectKey:
        """The key of the effect that the caller is in: the same in every call of this step, and of no other.

        Read it inside the function of a step with `effect=True`. Raises NoEffect elsewhere.
        """
        return self._ledger.effect_key()

    def alive(self) -> None:
        """Tell that the run makes progress, during a long call: with `progress_s` its lease is renewed only then.

        Stores nothing. Raises LeaseLost if this process knows that it has lost the run.
        """
        self._check_live()
        self._progress.moved()

    async def emit(self, chunk: Any) -> None:
        """Emit a piece of output for clients that follow the run: `await run.emit({"text": "Lis"})`.

        Any value that a state may hold, up to 1 MiB. It is stored with the next save, step or end of the run, or
        after a fifth of a second, or when 64 KiB wait; `run.flush()` stores it at once. A crash loses what is not
        stored. A run keeps the newest 16 MiB of its chunks. `store.follow(run.id)` reads them.

        Raises Unencodable, BadArgument for a chunk that is too large, and LeaseLost.
        """
        self._ledger.check_in_time()
        await self._stream.emit(chunk)

    def child(self, thread_id: str, **options: Unpack[RunOptions]) -> AsyncRun:
        """Return a run inside this one: `async with run.child("notes", agent="writer") as child`.

        The options are those of `store.run`; its parent is this run. A child that waits makes this run wait too.
        """
        store: Any = self.thread._store
        child: AsyncRun = store.run(thread_id, **{**options, "parent": self.id})
        return child

    # Waiting

    @overload
    async def ask(
        self, name: str, payload: Any = None, *, schema: type[T], timeout_s: float | None = None
    ) -> T: ...
    @overload
    async def ask(
        self,
        name: str,
        payload: Any = None,
        *,
        schema: Any = None,
        timeout_s: float | None = None,
        default: Any = MISSING,
    ) -> Any: ...
    async def ask(
        self,
        name: str,
        payload: Any = None,
        *,
        schema: Any = None,
        timeout_s: float | None = None,
        default: Any = MISSING,
    ) -> Any:
        """Ask a person or another program, and return the answer: `ok = await run.ask("refund?", {"eur": 40})`.

        Without an answer the run waits, for days if need be: it gives up its process and its place, and the block
        ends here without an error, with `run.status == "waiting"`. `store.answer(run.id, name, value)` makes it
        claimable; the process that resumes it gets the answer from the same call.

        name:       unique in the run; the same question asked again has the same answer
        payload:    what is asked, for `store.questions()`
        schema:     what an answer must look like: a JSON Schema, a pydantic model, a dataclass or a type such as
                    `bool`; of a model or dataclass an instance is returned
        timeout_s:  how long to wait at most; then `default` is returned, or Unanswered is raised

        Raises QuestionChanged if the run asked something else under this name.
        """
        self._ledger.check_in_time()
        return await self._waits.ask(name, payload, schema, timeout_s, default)

    async def ask_all(
        self, questions: Mapping[str, Any], *, timeout_s: float | None = None, default: Any = MISSING
    ) -> dict[str, Any]:
        """Ask several questions at once and return all answers by name; the run waits until it has all of them.

        `questions` maps names to payloads, or to `outlive.Question(payload, schema)`. After `timeout_s`, missing
        answers are `default`, or Unanswered is raised.
        """
        self._ledger.check_in_time()
        return await self._waits.ask_all(questions, timeout_s, default)

    async def ask_any(
        self, questions: Mapping[str, Any], *, timeout_s: float | None = None, default: Any = MISSING
    ) -> tuple[str | None, Any]:
        """Ask several questions at once and return the name and the value of the first answer.

        The other questions are withdrawn. After `timeout_s` it returns `(None, default)`, or raises Unanswered.
        """
        self._ledger.check_in_time()
        return await self._waits.ask_any(questions, timeout_s, default)

    async def wait(self, name: str, *, timeout_s: float | None = None, default: Any = MISSING) -> Any:
        """Wait for an event and return its value: whatever `store.answer(run.id, name, value)` brings, or brought before.

        Like `ask`, without a question: `store.questions()` does not list it.
        """
        self._ledger.check_in_time()
        return await self._waits.wait(name, timeout_s, default)

    async def sleep(
        self, seconds: float | None = None, *, until: dt.datetime | None = None, key: str | None = None
    ) -> None:
        """Sleep for some seconds, or until a moment by the clock of the store, across restarts and deployments.

        A sleep of at most 5 seconds keeps the process; after a crash only the rest of it is slept. For a longer one
        the run waits, as in `ask`, until a worker or `recover` finds its timer due. `key` tells sleeps of parallel
        branches apart.
        """
        self._ledger.check_in_time()
        await self._waits.sleep(seconds, until, key)

    # Ending

    async def complete(self, result: Any = None) -> None:
        """End the run with a result, which is stored. Raises Unencodable or DelayedSaveFailed, and then the run has not ended."""
        self._ledger.check_in_time()
        await self._end.complete(result)

    async def fail(self, error: BaseException | str) -> None:
        """End the run because of an error. What it saved is kept, and `store.retry` continues from it.

        A run with `backoff_s` waits instead, and is tried again, until it is parked after `max_attempts` failures.

        Raises DelayedSaveFailed when saves with durability="async" were lost. The run has ended nevertheless;
        `cancel` and `release` do the same.
        """
        self._ledger.check_in_time()
        await self._end.fail(error)

    async def cancel(self) -> None:
        """End the run; nothing recovers it."""
        self._ledger.check_in_time()
        await self._end.cancel()

    async def release(self) -> None:
        """Give the run up, so that another process can recover it at once."""
        self._ledger.check_in_time()
        await self._end.release()

    def _tell(self, name: str, **details: Any) -> None:
        if self._engine.events.is_on:
            info = self.info
            fields = {"run": info.id, "status": info.status, "attempt": info.attempt, "agent": info.agent}
            self._engine.events.emit(Event(name, info.thread, info.namespace, **{**fields, **details}))

    def _stop(self) -> None:
        self._is_live = False
        self._heart.discard(self)
        self._stream.stop()
        if self._ticker is not None:
            self._ticker.stop()

    @property
    def _lease_s(self) -> float:
        return self.info.lease_s

    async def _give_up(self) -> None:
        """Release the run because its store is being closed."""
        if self._is_live and self._is_mine():
            try:
                await self.release()
            finally:
                self._leave()

    async def __aenter__(self) -> Self:
        if not self._is_live:
            await self.start()
        _blocks.set((*_blocks.get(), self))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        _blocks.set(tuple(run for run in _blocks.get() if run is not self))
        for run in self._inside:
            if self._is_live and _is_suspension(error, run.id):
                error = await self._wait_for(run)
        if not self._is_live or not self._is_mine():
            return await self._is_outermost() if _is_suspension(error, self.id) else False
        try:
            await self._end.leave_by(error)
        finally:
            self._leave()
        return False

    async def _is_outermost(self) -> bool:
        """Return True if this run, which waits, is in the block of no other run; suspend that otherwise.

        Raises RunSuspended of the outer run, or ChildWaits if that is of another store and cannot wait for this one.
        """
        outer = self._waiting_outer()
        if not self._is_suspended or outer is None:
            return self._is_suspended
        if outer._engine is not self._engine:
            raise ChildWaits(self.id, self.info.waits.names if self.info.waits else (), outer.id) from None
        raise await outer._wait_for(self) from None

    def _waiting_outer(self) -> AsyncRun | None:
        """Return the run around this one if it must wait for this one: it is live, or waits already."""
        outer = self._outer
        return outer if outer is not None and (outer._is_live or outer._is_suspended) else None

    async def _wait_for(self, inner: AsyncRun) -> RunSuspended:
        """Suspend this run because a run in its block waits; return what leaves the block of this one."""
        assert inner.info.outer is not None
        try:
            await self._waits.wait_for_run(inner.id, inner.info.outer.event, inner._place)
        except RunSuspended as suspended:
            return suspended

    def _leave(self) -> None:
        """Stop renewing the lease when the end could not be stored: nothing works on the run any more."""
        if self._is_live:
            self._stop()

    # Writing

    def _is_mine(self) -> bool:
        """Tell whether this process owns the run: a forked child has its parent's objects, not its runs."""
        return self.info.owner is not None and self.info.owner.pid == os.getpid()

    def _check_live(self) -> None:
        """Raise unless this process holds the run, as far as it knows."""
        if self._is_live and not self._is_mine():
            raise RunForked(self.id, str(self.info.owner))
        if self._is_lost:
            raise LeaseLost(self.info.thread, RUN, self.id, self._fence, None, self._lost_as)
        if self._is_live:
            return
        if self._heart.is_closed:
            raise StoreClosed
        if self._is_suspended:
            raise RunSuspended(self.id, () if self.info.waits is None else self.info.waits.names)
        if self.info.status == RUNNING and not self._has_begun:
            raise RunNotStarted(self.id)
        raise RunEnded(
            self.id, "not running in this process any more" if self.info.status == RUNNING else self.status
        )

    def _as_fence(self) -> Fence:
        return Fence(RUN, self.id, self._epoch, self._fence)

    def _renewals(self, body: bytes | None = None) -> tuple[EntryRecord, ...]:
        """Return the entries that renew the leases, of a revision of their own; called under the mutex, by every write."""
        self._revision += 1
        return self._leases(body)

    def _leases(self, body: bytes | None = None, revision: int | None = None) -> tuple[EntryRecord, ...]:
        run = EntryRecord(
            RUN, self.id, body, RUNNING, epoch=self._epoch, fence=self._fence,
            revision=self._revision if revision is None else revision, lease_s=self.info.lease_s,
        )  # fmt: skip
        return (run, self._lock(None)) if self._has_place else (run,)

    def _lock(self, body: bytes | None) -> EntryRecord:
        return EntryRecord(
            LOCK, self.info.namespace, body, RUNNING,
            epoch=self._lock_epoch, fence=self._fence, revision=self._revision, lease_s=self.info.lease_s,
        )  # fmt: skip

    async def _or_lose(self, write: Any) -> Any:
        """Do a write; a refusal because of the fence ends this run here."""
        try:
            return await write
        except (LeaseLost, EntryHeld) as error:
            if error.kind == WAIT:  # another process answered: the run is still ours
                raise
            raise await self._lose_and_tell(error) from None

    async def _lose_and_tell(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that this run is lost, and return an error that says why if it was cancelled or parked."""
        lost = self._lose(error)
        with contextlib.suppress(OutliveError):
            stored = await lease.find(self._engine, self._key, RUN, self.id)
            if stored is not None and stored.status in (CANCELLED, PARKED):
                self._lost_as = stored.status
                return LeaseLost(lost.thread, RUN, self.id, self._fence, lost.current, stored.status)
        return lost

    async def _commit(self, commit: Commit) -> Receipt:
        return await self._or_lose(self._engine.commit(self._fenced(commit)))  # type: ignore[no-any-return]

    def _fenced(self, commit: Commit) -> Commit:
        """Return a commit that is refused once another process has this run. (The null store gives no fence.)"""
        return replace(commit, fence=self._as_fence()) if self._fence else commit

    def _is_stalled(self) -> bool:
        limit_s = self.info.progress_s
        is_stalled = limit_s is not None and self._progress.quiet_s() > limit_s
        if is_stalled and not self._was_stalled:
            self._tell(STALL, step=self.info.step, duration_s=self._progress.quiet_s())
        self._was_stalled = is_stalled
        return is_stalled

    def _renewed(self, is_stored: bool) -> None:
        if not is_stored:
            self._progress.tell_again()

    def _lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that another process has taken this run or its place over."""
        if self._is_live:
            self._is_lost = True
            self._stop()
            self._tell(LOSS)
        if isinstance(error, LeaseLost):
            return error
        return LeaseLost(self.info.thread, error.kind, error.key, self._fence, None)

    def _is_overtaken(self, error: LeaseLost | EntryHeld) -> bool:
        """Tell whether a renewal was refused only because a newer write of this very run came first."""
        stored = error.stored if isinstance(error, EntryHeld) else None
        return isinstance(stored, EntryRecord) and stored.fence == self._fence

    async def _write_entries(self, *entries: EntryRecord) -> Receipt:
        """Store entries of this run durably."""
        async with self._mutex:
            return await self._write_held(*entries)

    async def _write_held(self, *entries: EntryRecord) -> Receipt:
        """Store entries of this run durably; the caller holds the mutex."""
        self._check_live()
        chunks = self._stream.take()
        receipt = await self._commit(Commit(self._key, entries=(*entries, *chunks, *self._renewals())))
        self._stream.settle(chunks)
        self._progress.wrote(self._revision)
        return receipt

    def _renewal(self) -> Commit:
        """Return the commit that renews the leases, with the progress if it has news. It is of no newer revision than the last write."""
        fence = self._as_fence() if self._fence else None
        revision = self._revision
        body = self._progress.take_news(self._engine.codec, self.info, revision)
        return Commit(
            self._key,
            entries=self._leases(body, revision),
            fence=fence,
            timeout_s=max(1.0, self.info.lease_s / 3),
        )


def _is_suspension(error: BaseException | None, run: str) -> bool:
    """Tell whether a block was left only because its run waits."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_suspension(part, run) for part in error.exceptions)
    return isinstance(error, RunSuspended) and error.run == run
