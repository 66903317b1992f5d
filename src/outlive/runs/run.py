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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
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
    CallerError,
    CheckpointExists,
    ChildWaits,
    DelayedSaveFailed,
    EntryHeld,
    LeaseLost,
    OutliveError,
    RunEnded,
    RunForked,
    RunNotStarted,
    RunSuspended,
    StoreBusy,
    StoreClosed,
)
from outlive.events import CLAIM, END, LOSS, QUESTION, STALL, Event
from outlive.runs import attempts, budget, lease, tickets, timers
from outlive.runs.deferred_saves import Deferred, Kept
from outlive.runs.effect_keys import EffectKey
from outlive.runs.lease import (
    CANCELLED,
    COMPLETED,
    FAILED,
    FREE,
    LEFT,
    LOCK,
    PARKED,
    RELEASED,
    RUN,
    RUNNING,
    WAITING,
    RunInfo,
)
from outlive.runs.options import RunOptions
from outlive.runs.outer_run import event_name
from outlive.runs.progress import Progress
from outlive.runs.responses import AsyncResponses
from outlive.runs.start import Holding, Start, StartOptions
from outlive.runs.step_options import StepOptions
from outlive.runs.steps import Ledger
from outlive.runs.store_clock import store_now
from outlive.runs.stream import Stream
from outlive.runs.waiting import MISSING, Outer, Waiting
from outlive.runs.waits import Waits
from outlive.runs.wakes import outer_timer
from outlive.runtime.runtime import Ticker, new_id
from outlive.runtime.wrong_mode import AsyncContext
from outlive.threads.engine import Engine
from outlive.threads.save import Draft
from outlive.threads.save_options import RunSaveOptions
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo, moment

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
        self._used: budget.Usage = {}  # in all attempts
        self._used_by_children: budget.Usage = {}  # since this start
        self._usage_lock = engine.runtime.lock()
        self._ledger = Ledger(self)
        self._waits = Waits(self)
        self._responses = AsyncResponses(self)
        self._stream = Stream(self)
        self._deferred = Deferred(options.throttle_s, options.clock)
        self._ticker: Ticker | None = None
        self._start: Start | None = None  # between `_offer` and `_accept`

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
        if not holding.info.is_finished:
            await self._begin(start, holding)
        return self

    async def _offer(self) -> Commit:
        """Return the commit that claims this run as it was released; `_accept` begins the run after it. Raises ThreadBusy."""
        self._start = Start(self._engine, self.thread, self.info, self._options)
        return await self._start.offer()

    async def _accept(self, receipt: Receipt) -> None:
        """Begin the run that the commit of `_offer` has claimed."""
        start, self._start = self._start, None
        assert start is not None
        holding = start.accept(receipt)
        self.info = holding.info
        await self._begin(start, holding)

    async def _begin(self, start: Start, holding: Holding) -> None:
        self._fence, self._epoch, self._revision = holding.fence, holding.epoch, holding.revision
        self._lock_epoch, self._has_place = holding.lock_epoch, holding.has_place
        self._progress.stored(holding.revision, holding.body)
        self._used, self._used_by_children = self.info.usage, {}
        self._stream.begin(is_new=holding.is_new)
        try:
            await self._ledger.read(is_new=holding.is_new)
            await self._responses._read(is_new=holding.is_new)
            if not holding.is_new:
                await self._waits.read()
                self._ledger.continue_after(self._waits.last_order)
                self._take_more()
        except BaseException:
            # What the run did before cannot be read here; another process may be able to.
            await start.undo(holding)
            raise
        self._has_begun, self._is_suspended = True, False
        self._go_live()
        if not self._options.retries:
            await self._park_if_spent()
        previous = self.info.attempts[-2:-1]
        outcome = previous[0].outcome if previous else None
        self._tell(CLAIM, trace=self.info.trace, previous=outcome)

    def _take_more(self) -> None:
        """Raise the budget as persons have answered: the record may not have it yet."""
        for more in self._waits.answers("budget"):
            if self.info.budget is not None and self.info.budget.asks and more is not None:
                self.info.budget = self.info.budget.raised(more)

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
        try:
            if self.info.budget is not None and not self.info.budget.asks:
                self.info.budget.check(self.id, self.info.usage)
        except BudgetSpent as spent:
            try:
                await self._end_by(spent)
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
            try:
                self._spend(budget.numbers(usage))
            except BudgetSpent as spent:
                await self._ask_for_more(spent, self._check_budget, may_wait=not self._ledger.around())
        return saved

    async def _ask_for_more(
        self, spent: BudgetSpent, check: Callable[[], None], *, may_wait: bool = True
    ) -> None:
        """Ask for a larger budget until a check passes, if the budget says so. Raises BudgetSpent.

        Nothing can wait inside an effect. And a save inside a step must not: the step would be called again, and use
        the same again. Then the next step asks.
        """
        is_spent = True
        while is_spent:
            run: AsyncRun | None = self
            while run is not None and run.id != spent.run:  # the budget of a parent
                run = run._live_parent()
            if run is None or run.info.budget is None or not run.info.budget.asks:
                raise spent
            if not may_wait or self._waits.is_in_effect():
                return
            await run._ask_once(spent, run.info.budget)
            try:
                check()
                is_spent = False
            except BudgetSpent as again:
                spent = again

    async def _ask_once(self, spent: BudgetSpent, limits: budget.Budget) -> None:
        payload = {"limits": limits.limits, "usage": budget.numbers(self.info.usage), "spent": spent.what}
        more = await self._waits.ask_next("budget", payload, limits.schema)
        if more is None:
            raise spent
        self.info.budget = limits.raised(more)

    def _note(
        self, iteration: int | None, phase: str | None, usage: Mapping[str, Any] | None
    ) -> tuple[Any, ...]:
        """Record the progress of the run, and return the progress before. Raises BadArgument, Unencodable."""
        info = self.info
        before = (info.iteration, info.phase, info.completed_phases, self._used)
        added = None if usage is None else self._copied(check_usage(usage))
        budget.check_used(added or {})
        iteration = info.iteration if iteration is None else check_iteration(iteration)
        if phase is not None and check_phase(phase) != info.phase:
            self._enter_phase(phase)
        info.iteration = iteration
        if added is not None:
            self._set_used(budget.add(self._used, added))
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
        self._set_used(used)

    def _set_used(self, used: budget.Usage, by_children: budget.Usage | None = None) -> None:
        with self._usage_lock:  # children may be in other threads
            if by_children:
                self._used_by_children = budget.add(self._used_by_children, by_children)
            self._used = used
            self.info.usage = budget.add(used, self._used_by_children)

    def _spend(self, used: budget.Usage) -> None:
        """Count what was used towards the budgets of this run and of its parents. Raises BudgetSpent."""
        parent = self._live_parent()
        try:
            if self.info.budget is not None:
                self.info.budget.check(self.id, self.info.usage)
        finally:
            if parent is not None:
                parent._set_used(parent._used, used)
                parent._progress.moved()
                parent._spend(used)

    def _check_budget(self) -> None:
        """Raise BudgetSpent if this run or one of its parents has used more than its budget."""
        if self.info.budget is not None:
            self.info.budget.check(self.id, self.info.usage)
        parent = self._live_parent()
        if parent is not None:
            parent._check_budget()

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
        saved: CheckpointInfo = await self._kept(self.thread._save(state, draft))
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
        await self.thread._flush_queue()

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

    async def _suspend(
        self,
        waiting: Waiting,
        entries: Sequence[EntryRecord],
        questions: Sequence[str] = (),
        *,
        is_ready: bool = False,
    ) -> None:
        """Make the run wait: one commit stores why, and frees the place. Raises EntryHeld if an answer came first.

        With `is_ready` it can continue at once, in another call of its handler. A caller that is cancelled meanwhile
        waits for the outcome: the run either waits, or it does not.
        """
        status = RELEASED if is_ready else WAITING
        await self._engine.runtime.shielded(self._suspend_now(status, waiting, entries, questions))

    async def _suspend_now(
        self, status: str, waiting: Waiting, entries: Sequence[EntryRecord], questions: Sequence[str]
    ) -> None:
        async with self._mutex:
            self._check_live()
            now = moment(self._engine.runtime.now())
            tried = attempts.end(self.info.attempts, WAITING, now)
            parked = replace(self.info, status=status, waits=waiting, attempts=tried, step=None)
            parked.outer = self._link() or self.info.outer
            body = lease.pack_run(self._engine, parked)
            await self._flush()
            told = await self._outer_timers(status, parked)
            self._is_suspended = True  # before the run is not live any more, for steps of other branches
            try:
                await self._store_end(status, body, None, [*entries, *told])
            except BaseException:
                self._is_suspended = False
                raise
            for name in ("status", "waits", "outer", "attempts", "step", "updated_at"):
                setattr(self.info, name, getattr(parked, name))
            self._tell_questions(questions)
            self._tell(END, usage=self.info.usage)
        await timers.fire_outer(self._engine, self._key, told)

    async def _outer_timers(self, status: str, info: RunInfo) -> list[EntryRecord]:
        """Return the timer that tells the run around this one, which waits, that this one does not wait any more."""
        if info.outer is None or status == WAITING:
            return []
        now = await store_now(self._engine)
        return [outer_timer(self._engine.codec, self.id, info.outer, now, self._epoch)]

    def _link(self) -> Outer | None:
        """Return the run around this one, which must wait too, and how it learns that this one can continue."""
        outer = self._outer
        if outer is None or outer._engine is not self._engine or not (outer._is_live or outer._is_suspended):
            return None
        return Outer(outer.info.thread, outer.id, event_name(self.info.thread, self.id, *self._rank))

    def _tell_questions(self, names: Sequence[str]) -> None:
        for name in names:
            self._tell(QUESTION, step=name)

    async def _suspend_also(
        self,
        waiting: Waiting | None,
        entries: Sequence[EntryRecord],
        now: int,
        questions: Sequence[str] = (),
    ) -> bool:
        """Add what another branch waits for to a run that is suspended; None: that branch can continue.

        The run does not belong to this process any more, so the commit expects it as this process left it. If it
        was answered or claimed since, the branch asks again when the run is resumed. False: it is not suspended.
        """
        async with self._mutex:
            if not self._is_suspended:
                return False
            if self.info.status == RELEASED:  # because of another branch: this one asks when it is resumed
                return True
            info = self.info
            if waiting is not None:
                info = replace(info, waits=waiting if info.waits is None else info.waits.joined(waiting))
            before = (self._epoch, self._fence, self._revision)
            run = EntryRecord(
                RUN, self.id, lease.pack_run(self._engine, info), info.status,
                epoch=self._epoch, fence=self._fence, revision=self._revision + 1, expect=before,
            )  # fmt: skip
            told: list[EntryRecord] = []
            also: Sequence[EntryRecord] = (run,)
            if waiting is None:
                told = await self._outer_timers(RELEASED, info)
                also = (*self._ticketed(run, info, now), *told)
            try:
                await self._engine.commit(Commit(self._key, entries=(*also, *entries)))
            except EntryHeld as error:
                if error.kind == RUN:
                    return True
                raise
            self._revision += 1
            self.info.waits, self.info.status = info.waits, also[0].status
            self._tell_questions(questions)
        await timers.fire_outer(self._engine, self._key, told)
        return True

    # Ending

    async def complete(self, result: Any = None) -> None:
        """End the run with a result, which is stored. Raises Unencodable or DelayedSaveFailed, and then the run has not ended."""
        self._ledger.check_in_time()
        await self._end(COMPLETED, result=result)

    async def fail(self, error: BaseException | str) -> None:
        """End the run because of an error. What it saved is kept, and `store.retry` continues from it.

        A run with `backoff_s` waits instead, and is tried again, until it is parked after `max_attempts` failures.

        Raises DelayedSaveFailed when saves with durability="async" were lost. The run has ended nevertheless;
        `cancel` and `release` do the same.
        """
        self._ledger.check_in_time()
        self._waits.failed_by(error)
        failures = self.info.failures + 1
        if self.info.backoff_s is None:
            await self._end(FAILED, error=_text(error), failures=failures)
        elif failures >= self.info.max_attempts:
            await self._end(PARKED, error=_text(error), failures=failures)
        else:
            now = await store_now(self._engine)
            due = timers.backoff_due(replace(self.info, failures=failures), now)
            waits = Waiting("backoff", moment(now), moment(due))
            rings = timers.timer(due, self.id, timers.OF_RUN, self._epoch, self._fence)
            await self._end(WAITING, also=(rings,), error=_text(error), failures=failures, waits=waits)

    async def cancel(self) -> None:
        """End the run; nothing recovers it."""
        self._ledger.check_in_time()
        await self._end(CANCELLED)

    async def release(self) -> None:
        """Give the run up, so that another process can recover it at once."""
        self._ledger.check_in_time()
        await self._end(RELEASED, timeout_s=_ENDING_S)

    async def _end(
        self,
        status: str,
        timeout_s: float | None = None,
        also: Sequence[EntryRecord] = (),
        **changes: Any,
    ) -> None:
        """Store what was held back, then the end. When that is refused or fails, the run continues as before."""
        async with self._mutex:
            self._check_live()
            now = moment(self._engine.runtime.now())
            tried = attempts.end(
                self.info.attempts, FAILED if "error" in changes else status, now, changes.get("error")
            )
            changes = {**changes, "attempts": tried, "step": None}
            ended_at = None if status in (RELEASED, WAITING, PARKED) else now
            ended = replace(self.info, status=status, ended_at=ended_at, **changes)
            if status == COMPLETED and ended.phase is not None and ended.phase not in ended.completed_phases:
                ended.completed_phases = [*ended.completed_phases, ended.phase]
            body = lease.pack_run(self._engine, ended)  # before anything is written
            try:
                await self._flush(timeout_s)
            except DelayedSaveFailed:
                if status != COMPLETED:  # those saves are lost, and the run ends anyway
                    await self._flush(timeout_s)  # what was held back waited for them
                    await self._finish(ended, body, timeout_s, changes, also)
                raise
            await self._finish(ended, body, timeout_s, changes, also)

    async def _finish(
        self,
        ended: RunInfo,
        body: bytes,
        timeout_s: float | None,
        changes: Iterable[str],
        also: Sequence[EntryRecord],
    ) -> None:
        told = await self._outer_timers(ended.status, ended)
        for _ in range(_TRIES):
            waits = await self._waits.withdrawals(is_over=ended.status not in (RELEASED, WAITING))
            try:
                await self._store_end(ended.status, body, timeout_s, [*waits, *also, *told])
                break
            except EntryHeld:  # a question of the run was answered in between
                await self._waits.read()
        else:
            raise StoreBusy(
                f"the questions of run {self.id!r} were answered at each attempt to end it; try again"
            )
        for name in ("status", "ended_at", "updated_at", "completed_phases", *changes):
            setattr(self.info, name, getattr(ended, name))
        self._tell(END, usage=ended.usage, error=ended.error if "error" in changes else None)
        if ended.status != RELEASED:  # its process may be about to end: a worker does it then
            await timers.fire_outer(self._engine, self._key, told)

    async def _store_end(
        self, status: str, body: bytes, timeout_s: float | None, waits: Sequence[EntryRecord] = ()
    ) -> None:
        self._revision += 1
        ended = EntryRecord(
            RUN, self.id, body, status, epoch=self._epoch, fence=self._fence, revision=self._revision
        )
        entries = [ended, *waits]
        if status == RELEASED:
            now = self._engine.runtime.now()
            entries = [*self._ticketed(ended, self.info, now), *waits]
        if self._has_place:  # freed, not deleted: another run may hold the thread by now
            place = LEFT if status in (RELEASED, WAITING) else FREE
            entries.append(replace(self._lock(None), status=place, lease_s=None))
        chunks = self._stream.take()
        commit = Commit(self._key, entries=(*entries, *chunks), timeout_s=timeout_s)
        self._stop()  # a renewal that came after the end would be refused
        try:
            await self._commit_end(status, replace(commit, fence=self._as_fence()) if self._fence else commit)
            self._stream.settle(chunks)
        except (LeaseLost, RunEnded):
            raise
        except BaseException:
            self._go_live()  # the caller may try again
            raise

    def _ticketed(self, run: EntryRecord, info: RunInfo, now: int) -> tuple[EntryRecord, EntryRecord]:
        return tickets.released(self._engine.codec, run, tickets.Errand.of(info), now)

    async def _commit_end(self, status: str, commit: Commit) -> None:
        try:
            await self._engine.commit(commit)
            return
        except (LeaseLost, EntryHeld) as error:
            if error.kind == WAIT:  # answered in between: nothing was stored
                raise
            refusal = error
        # It may be stored already, by an earlier call whose outcome was not known.
        stored = await lease.find(self._engine, self._key, RUN, self.id)
        if stored is None or stored.fence != self._fence or stored.status == RUNNING:
            self._is_live = True
            raise self._lose(refusal)
        if stored.status != status:
            self.info.status = stored.status
            raise RunEnded(self.id, stored.status)

    def _tell(self, name: str, **details: Any) -> None:
        if self._engine.events.is_on:
            info = self.info
            fields = {"run": info.id, "status": info.status, "attempt": info.attempt, "agent": info.agent}
            if name in (CLAIM, LOSS):
                fields["usage"] = info.usage
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
            await self._end_by(error)
        finally:
            self._leave()
        return False

    async def _is_outermost(self) -> bool:
        """Return True if this run, which waits, is in the block of no other run; suspend that otherwise.

        Raises RunSuspended of the outer run, or ChildWaits if that is of another store and cannot wait for this one.
        """
        outer = self._outer
        if not self._is_suspended or outer is None or not (outer._is_live or outer._is_suspended):
            return self._is_suspended
        if outer._engine is not self._engine:
            raise ChildWaits(self.id, self.info.waits.names if self.info.waits else (), outer.id) from None
        raise await outer._wait_for(self) from None

    async def _wait_for(self, inner: AsyncRun) -> RunSuspended:
        """Suspend this run because a run in its block waits; return what leaves the block of this one."""
        assert inner.info.outer is not None
        try:
            await self._waits.wait_for_run(inner.id, inner.info.outer.event, inner._place)
        except RunSuspended as suspended:
            return suspended

    async def _end_by(self, error: BaseException | None) -> None:
        """End the run as its block was left."""
        is_lost = isinstance(error, LeaseLost) and (error.kind, error.key) == (RUN, self.id)
        if error is None:
            await self._complete_or_fail()
        elif not is_lost:
            try:
                if (spent := _budget_spent(error)) is not None:
                    await self._end(PARKED, error=_text(spent))
                elif isinstance(error, Exception):
                    await self.fail(error)
                else:
                    await self._engine.runtime.shielded(self.release())
            except RunEnded:
                pass  # by an earlier call that was cut off
            except DelayedSaveFailed as lost:  # the run has ended, and a cancelled task is to stay cancelled
                error.add_note(str(lost))

    def _leave(self) -> None:
        """Stop renewing the lease when the end could not be stored: nothing works on the run any more."""
        if self._is_live:
            self._stop()

    async def _complete_or_fail(self) -> None:
        try:
            await self.complete(self.info.result)
        except (CallerError, DelayedSaveFailed) as error:
            if self._is_live:  # refused, and nothing was written
                self.info.result = None
                await self.fail(error)
            raise

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

    async def _kept(self, write: Any) -> Any:
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
        if not self._fence:
            return await self._engine.commit(commit)
        return await self._kept(self._engine.commit(replace(commit, fence=self._as_fence())))  # type: ignore[no-any-return]

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


def _budget_spent(error: BaseException) -> BudgetSpent | None:
    """Return the BudgetSpent by which a block was left, also as a part of a group, as task groups raise it."""
    if isinstance(error, ExceptionGroup):
        return next(filter(None, map(_budget_spent, error.exceptions)), None)
    return error if isinstance(error, BudgetSpent) else None


def _text(error: BaseException | str) -> str:
    if isinstance(error, str):
        return error
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # its own text is what fails
        return type(error).__name__
