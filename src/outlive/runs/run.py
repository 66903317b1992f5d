"""A run: work on a thread that other processes know of, and that one of them takes over when this process dies.

What it writes, and how it keeps its lease, is in `held_run.py`; how it ends, in `run_end.py`.

How its `with` block is left decides how the run ends. Normally: completed. By an Exception: failed,
with its progress kept. By RunSuspended, of a run that waits: it is waiting already. By anything
else (a cancelled task, Ctrl-C, sys.exit): released, for another process to recover, because that is
how deployments end processes.
"""

from __future__ import annotations

import datetime as dt
import functools
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
from outlive.backend import Commit, EntryRecord, Receipt
from outlive.errors import (
    BudgetSpent,
    ChildWaits,
    RunSuspended,
)
from outlive.events import CLAIM
from outlive.runs import budget
from outlive.runs.effect_keys import EffectKey, effect_key
from outlive.runs.held_run import HeldRun, Live
from outlive.runs.lease import (
    COMPLETED,
    RUNNING,
    RunInfo,
)
from outlive.runs.options import RunOptions
from outlive.runs.responses import AsyncResponses
from outlive.runs.run_end import RunEnd
from outlive.runs.spending import Spending
from outlive.runs.start import Holding, Start, StartOptions
from outlive.runs.step_options import StepOptions
from outlive.runs.steps import Ledger
from outlive.runs.waiting import MISSING
from outlive.runs.waits import Waits
from outlive.runtime.wrong_mode import AsyncContext
from outlive.threads.engine import Engine
from outlive.threads.save_options import RunSaveOptions
from outlive.threads.thread import AsyncThread
from outlive.values import CheckpointInfo

# The runs in whose blocks this task or thread is.
_blocks: ContextVar[tuple[AsyncRun, ...]] = ContextVar("outlive_blocks", default=())


P = ParamSpec("P")
T = TypeVar("T")


class AsyncStepDecorator(Protocol):
    """Turns a function, sync or async, into a step that is awaited."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class AsyncRun(HeldRun, AsyncContext):
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
        self, engine: Engine, thread: AsyncThread, heart: Live, info: RunInfo, options: StartOptions
    ) -> None:
        super().__init__(engine, thread, heart, info, options)
        self._outer: AsyncRun | None = None  # in whose block it started
        self._code_position: list[Any] = []  # where in the code of the outer run: see `_enter_outer`
        self._inside: list[AsyncRun] = []  # that started in the block of this one
        self._ledger = Ledger(self)
        self._waits = Waits(self)
        self._spending = Spending(self)
        self._end = RunEnd(self)
        self._responses = AsyncResponses(self)
        self._start: Start | None = None  # between `_offer` and `_accept`

    def __repr__(self) -> str:
        status = f"{self.status} attempt {self.info.attempt}" if self._is_started else "not started"
        return f"<{type(self).__name__} {self.id!r} of {self.info.thread!r} {status}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.info.id

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
        elif holding.info.status == COMPLETED and (self._outer is not None or self._options.is_child):
            # The code of the run around it comes here again: what this one did is returned, not
            # repeated.
            await self._ledger.read(is_new=False)
            await self._waits.read()
            self._is_replayed = True
        return self

    async def _offer(self, left: EntryRecord | None) -> Commit:
        """Return the commit that claims this run as it was released; `_accept` begins the run after it. Raises ThreadBusy.

        `left` is its place, if the caller knows how another run has left it.
        """
        self._start = Start(self._engine, self.thread, self.info, self._options)
        return await self._start.offer(left)

    async def _accept(self, receipt: Receipt) -> None:
        """Begin the run that the commit of `_offer` has claimed."""
        start, self._start = self._start, None
        assert start is not None
        holding = start.accept(receipt)
        self.info = holding.info
        await self._begin(start, holding)

    async def _begin(self, start: Start, holding: Holding) -> None:
        """Read what the run did, and renew its lease from now on. If that cannot be read, give the run back."""
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
        outcome = previous[0].outcome if previous else None
        self._tell(CLAIM, trace=self.info.trace, previous=outcome)

    def _enter_outer(self) -> StartOptions:
        """Note in the block of which run this one starts, and return how: it may continue a run that waited there."""
        self._outer = next(
            (
                run
                for run in reversed(_blocks.get())
                if (run._is_live or run._is_replayed) and run is not self
            ),
            None,
        )
        outer = self._outer
        if outer is None or outer._engine is not self._engine:
            return self._options
        # The code of the outer run comes to the same positions in every attempt. So the position
        # tells which of the runs that it has waited for is this one: thread, namespace, agent, and
        # how often.
        position = [self.info.thread, self.info.namespace, self.info.agent]
        self._code_position = [*position, outer._ledger.count(repr(position))]
        outer._inside.append(self)
        known = outer._waits.runs_inside()
        here = [(id, is_recent) for id, (at, is_recent) in known.items() if at == self._code_position]
        inner, is_recent = here[-1] if here else (None, False)
        if self._options.is_child:
            inner, is_recent = self.id, known.get(self.id, ([], False))[1]
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

        The other options are those of `thread.save`, without `run` and `fence`. With "exit", and
        within `throttle_s` of the last save, the state is held back: the call returns None, and the
        state is stored unless a newer save replaces it. A call that raises leaves the run as it
        was. But BudgetSpent is raised after the save, if its usage crosses the budget of the run or
        of its parent.
        """
        self._ledger.check_in_time()
        if self._is_replayed:
            return None
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

    async def flush(self) -> None:
        """Store a save that was held back and what was emitted, and wait for saves in the background."""
        self._ledger.check_in_time()
        await self._flush_all()

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

        Its result is stored, and a later attempt of the run gets it back without a call. All
        further arguments go to the function. For options, leave the function out:
        `await run.step("pay", effect=True)(charge)(42)`, or as a decorator,
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

        Any value that a state may hold, up to 1 MiB. It is stored with the next save, step or end
        of the run, or after a fifth of a second, or when 64 KiB wait; `run.flush()` stores it at
        once. A crash loses what is not stored. A run keeps the newest 16 MiB of its chunks.
        `store.follow(run.id)` reads them.

        Raises Unencodable, BadArgument for a chunk that is too large, and LeaseLost.
        """
        self._ledger.check_in_time()
        await self._stream.emit(chunk)

    def child(self, thread_id: str, **options: Unpack[RunOptions]) -> AsyncRun:
        """Return a run inside this one: `async with run.child("notes", agent="writer") as child`.

        The options are those of `store.run`; its parent is this run. A child that waits makes this
        run wait too.

        Without `run_id` and `new=True` it is the same run whenever the code of this run comes here
        again, told apart by thread, namespace, agent, prompt and order: one that was completed has
        its result and does nothing again, any other continues from its last step.
        """
        store: Any = self.thread._store
        child: AsyncRun = store.run(thread_id, **{**options, "parent": self.id})
        if child._options.continues:
            self._check_live()
            child.info.id = self._child_id(child.info)
            child._options = replace(child._options, continues=False, is_child=True)
        return child

    def _child_id(self, child: RunInfo) -> str:
        """Return the id of a child, which no other run has: the seed of this run is random."""
        prompt = self._engine.codec.pack(child.prompt, "prompt of a child").hex()
        place = repr([child.thread, child.namespace, child.agent, prompt])
        return effect_key(self.info.effect_seed, "\nchild", f"{place}{self._ledger.count(place)}")

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

        Without an answer the run waits, for days if need be: it gives up its process and its place,
        and the block ends here without an error, with `run.status == "waiting"`.
        `store.answer(run.id, name, value)` makes it claimable; the process that resumes it gets the
        answer from the same call.

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

        `questions` maps names to payloads, or to `outlive.Question(payload, schema)`. After
        `timeout_s`, missing answers are `default`, or Unanswered is raised.
        """
        self._ledger.check_in_time()
        return await self._waits.ask_all(questions, timeout_s, default)

    async def ask_any(
        self, questions: Mapping[str, Any], *, timeout_s: float | None = None, default: Any = MISSING
    ) -> tuple[str | None, Any]:
        """Ask several questions at once and return the name and the value of the first answer.

        The other questions are withdrawn. After `timeout_s` it returns `(None, default)`, or raises
        Unanswered.
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

        A sleep of at most 5 seconds keeps the process; after a crash only the rest of it is slept.
        For a longer one the run waits, as in `ask`, until a worker or `recover` finds its timer
        due. `key` tells sleeps of parallel branches apart.
        """
        self._ledger.check_in_time()
        await self._waits.sleep(seconds, until, key)

    # Ending

    async def complete(self, result: Any = None) -> None:
        """End the run with a result, which is stored. Raises Unencodable or DelayedSaveFailed, and then the run has not ended."""
        self._ledger.check_in_time()
        if not self._is_replayed:
            await self._end.complete(result)

    async def fail(self, error: BaseException | str) -> None:
        """End the run because of an error. What it saved is kept, and `store.retry` continues from it.

        A run with `backoff_s` waits instead, and is tried again, until it is parked after
        `max_attempts` failures.

        Raises DelayedSaveFailed when saves with durability="async" were lost. The run has ended
        nevertheless; `cancel` and `release` do the same.
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

    async def _give_up(self) -> None:
        """Release the run because its store is being closed, or its process ends."""
        if await self._is_held():
            try:
                await self.release()
            except RunSuspended:
                pass  # in between: it waits, and is free already
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
        if not await self._is_held():
            return await self._suspend_outer() if _is_suspension(error, self.id) else False
        try:
            await self._end.leave_by(error)
        except RunSuspended:
            pass  # by another branch, in between
        finally:
            self._leave()
        return False

    async def _is_held(self) -> bool:
        """Tell whether this process holds the run.

        Another branch may be suspending or ending it at this moment. If that is refused, the run is
        still held.
        """
        if self._has_begun and not self._is_live and self._is_mine():
            await self._engine.runtime.shielded(self._wait_for_write())
        return self._is_live and self._is_mine()

    async def _wait_for_write(self) -> None:
        """Wait for the write that is under way."""
        async with self._mutex:
            pass

    async def _suspend_outer(self) -> bool:
        """Suspend the run around this one, if this one waits. Return True if it waits and there is none: its block just ends.

        Raises RunSuspended of the outer run, or ChildWaits if that is of another store and cannot
        wait for this one.
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
            await self._waits.wait_for_run(inner.id, inner.info.outer.event, inner._code_position)
        except RunSuspended as suspended:
            return suspended


def _is_suspension(error: BaseException | None, run: str) -> bool:
    """Tell whether a block was left only because its run waits."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_suspension(part, run) for part in error.exceptions)
    return isinstance(error, RunSuspended) and error.run == run
