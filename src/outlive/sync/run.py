"""The sync API of runs and locks. Each method finishes the coroutine of the async one, which never suspends here."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from outlive.backend import Fence, ThreadKey
from outlive.errors import BadArgument
from outlive.runs.effect_keys import EffectKey
from outlive.runs.lease import RunInfo
from outlive.runs.lock import AsyncLock
from outlive.runs.options import RunOptions
from outlive.runs.waiting import MISSING
from outlive.runtime.runtime import run_now
from outlive.runtime.wrong_mode import SyncContext
from outlive.sync.thread import Thread
from outlive.threads.engine import Engine
from outlive.threads.save_options import RunSaveOptions
from outlive.values import CheckpointInfo

if TYPE_CHECKING:  # imported by the first run
    from outlive.runs.run import AsyncRun
    from outlive.sync.responses import Responses

P = ParamSpec("P")
T = TypeVar("T")


class StepDecorator(Protocol):
    """Turns a function into a step."""

    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


def _blocking(name: str, function: Callable[P, T]) -> Callable[P, T]:
    if inspect.iscoroutinefunction(function):
        raise BadArgument(f"step {name!r} is a coroutine function; use outlive.open_async for those")
    return function


class Run(SyncContext):
    """One run. Made by `store.run(...)`; starts with its `with` block, or by `start()`.

    How the block is left decides how the run ends:

        with store.run("trip", agent="planner") as run:
            plan = run.step("plan", make_plan)
            run.save({"plan": plan})
            run.complete(plan)

    normally              completed, with the result None unless `complete` gave one
    by an Exception       failed; what it saved is kept, and `store.retry` continues from it
    by anything else      released (a cancelled task, Ctrl-C, sys.exit): another process recovers it,
                          because that is how deployments end processes

    A process that dies leaves it running, and it is recovered when its lease has expired.
    """

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
        """The status: "running", "waiting", "released", "completed", "failed", "cancelled" or "parked"."""
        return self._run.status

    @property
    def result(self) -> Any:
        """The result of the run, once it is completed."""
        return self._run.result

    @property
    def is_finished(self) -> bool:
        """Tell whether the run had ended before: there is nothing left to do, and `result` is its result."""
        return self._run.is_finished

    @property
    def thread(self) -> Thread[Any]:
        """The thread that the run works on."""
        return Thread(self._run.thread)

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence | None:
        return self._run._fence_of(engine, thread)

    @property
    def responses(self) -> Responses:
        """The responses of the models that this run asks at the same time."""
        from outlive.sync.responses import Responses

        return Responses(self._run.responses)

    def start(self) -> Self:
        """Begin the run, or claim it when its process died; `with store.run(...) as run` does that.

        Raises ThreadBusy, RunBusy, RunElsewhere.
        """
        run_now(self._run.start())
        return self

    def load(self) -> Any:
        """Return the newest state of the thread, or None."""
        return run_now(self._run.load())

    def save(
        self,
        state: Any,
        *,
        iteration: int | None = None,
        phase: str | None = None,
        usage: Mapping[str, Any] | None = None,
        **options: Unpack[RunSaveOptions],
    ) -> CheckpointInfo | None:
        """Save a state as a checkpoint of this run, and record its progress: `run.save(state, phase="draft")`.

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
        return run_now(self._run.save(state, iteration=iteration, phase=phase, usage=usage, **options))

    def flush(self) -> None:
        """Store a save that was held back and what was emitted, and wait for saves in the background."""
        run_now(self._run.flush())

    @overload
    def step(self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
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
    ) -> StepDecorator: ...
    def step(
        self, name: str, function: Callable[..., Any] | None = None, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once: `answer = run.step("ask", call_model, prompt)`.

        Its result is stored, and a later attempt of the run gets it back without a call. All
        further arguments go to the function. For options, leave the function out:
        `run.step("pay", effect=True)(charge)(42)`, or as a decorator,
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
            return run_now(self._run.step(name, _blocking(name, function), *args, **kwargs))
        step: Any = self._run.step(name, **kwargs)

        def decorate(wrapped: Callable[..., Any]) -> Callable[..., Any]:
            call = step(_blocking(name, wrapped))
            return functools.wraps(wrapped)(lambda *args, **kwargs: run_now(call(*args, **kwargs)))

        return decorate

    @property
    def effect_key(self) -> EffectKey:
        """The key of the effect that the caller is in: the same in every call of this step, and of no other.

        Read it inside the function of a step with `effect=True`. Raises NoEffect elsewhere.
        """
        return self._run.effect_key

    def alive(self) -> None:
        """Tell that the run makes progress, during a long call: with `progress_s` its lease is renewed only then.

        Stores nothing. Raises LeaseLost if this process knows that it has lost the run.
        """
        self._run.alive()

    def emit(self, chunk: Any) -> None:
        """Emit a piece of output for clients that follow the run: `run.emit({"text": "Lis"})`.

        Any value that a state may hold, up to 1 MiB. It is stored with the next save, step or end
        of the run, or after a fifth of a second, or when 64 KiB wait; `run.flush()` stores it at
        once. A crash loses what is not stored. A run keeps the newest 16 MiB of its chunks.
        `store.follow(run.id)` reads them.

        Raises Unencodable, BadArgument for a chunk that is too large, and LeaseLost.
        """
        run_now(self._run.emit(chunk))

    def child(self, thread_id: str, **options: Unpack[RunOptions]) -> Run:
        """Return a run inside this one: `with run.child("notes", agent="writer") as child`.

        The options are those of `store.run`; its parent is this run. A child that waits makes this
        run wait too.

        Without `run_id` and `new=True` it is the same run whenever the code of this run comes here
        again, told apart by thread, namespace, agent, prompt and order: one that was completed has
        its result and does nothing again, any other continues from its last step.
        """
        return Run(self._run.child(thread_id, **options))

    @overload
    def ask(
        self, name: str, payload: Any = None, *, schema: type[T], timeout_s: float | None = None
    ) -> T: ...
    @overload
    def ask(
        self,
        name: str,
        payload: Any = None,
        *,
        schema: Any = None,
        timeout_s: float | None = None,
        default: Any = MISSING,
    ) -> Any: ...
    def ask(
        self,
        name: str,
        payload: Any = None,
        *,
        schema: Any = None,
        timeout_s: float | None = None,
        default: Any = MISSING,
    ) -> Any:
        """Ask a person or another program, and return the answer: `ok = run.ask("refund?", {"eur": 40})`.

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
        return run_now(self._run.ask(name, payload, schema=schema, timeout_s=timeout_s, default=default))

    def ask_all(
        self, questions: Mapping[str, Any], *, timeout_s: float | None = None, default: Any = MISSING
    ) -> dict[str, Any]:
        """Ask several questions at once and return all answers by name; the run waits until it has all of them.

        `questions` maps names to payloads, or to `outlive.Question(payload, schema)`. After
        `timeout_s`, missing answers are `default`, or Unanswered is raised.
        """
        return run_now(self._run.ask_all(questions, timeout_s=timeout_s, default=default))

    def ask_any(
        self, questions: Mapping[str, Any], *, timeout_s: float | None = None, default: Any = MISSING
    ) -> tuple[str | None, Any]:
        """Ask several questions at once and return the name and the value of the first answer.

        The other questions are withdrawn. After `timeout_s` it returns `(None, default)`, or raises
        Unanswered.
        """
        return run_now(self._run.ask_any(questions, timeout_s=timeout_s, default=default))

    def wait(self, name: str, *, timeout_s: float | None = None, default: Any = MISSING) -> Any:
        """Wait for an event and return its value: whatever `store.answer(run.id, name, value)` brings, or brought before.

        Like `ask`, without a question: `store.questions()` does not list it.
        """
        return run_now(self._run.wait(name, timeout_s=timeout_s, default=default))

    def sleep(
        self, seconds: float | None = None, *, until: dt.datetime | None = None, key: str | None = None
    ) -> None:
        """Sleep for some seconds, or until a moment by the clock of the store, across restarts and deployments.

        A sleep of at most 5 seconds keeps the process; after a crash only the rest of it is slept.
        For a longer one the run waits, as in `ask`, until a worker or `recover` finds its timer
        due. `key` tells sleeps of parallel branches apart.
        """
        run_now(self._run.sleep(seconds, until=until, key=key))

    def complete(self, result: Any = None) -> None:
        """End the run with a result, which is stored. Raises Unencodable or DelayedSaveFailed, and then the run has not ended."""
        run_now(self._run.complete(result))

    def fail(self, error: BaseException | str) -> None:
        """End the run because of an error. What it saved is kept, and `store.retry` continues from it.

        A run with `backoff_s` waits instead, and is tried again, until it is parked after
        `max_attempts` failures.

        Raises DelayedSaveFailed when saves with durability="async" were lost. The run has ended
        nevertheless; `cancel` and `release` do the same.
        """
        run_now(self._run.fail(error))

    def cancel(self) -> None:
        """End the run; nothing recovers it."""
        run_now(self._run.cancel())

    def release(self) -> None:
        """Give the run up, so that another process can recover it at once."""
        run_now(self._run.release())

    def __enter__(self) -> Self:
        run_now(self._run.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return run_now(self._run.__aexit__(kind, error, trace))


class Lock(SyncContext):
    """A lock on a thread and namespace. Made by `store.lock(id)`; held inside its `with` block."""

    def __init__(self, lock: AsyncLock) -> None:
        self._lock = lock

    def __repr__(self) -> str:
        return repr(self._lock).replace("<AsyncLock", "<Lock", 1)

    @property
    def is_held(self) -> bool:
        """Tell whether this lock is held, as far as this process knows."""
        return self._lock.is_held

    @property
    def fence(self) -> int | None:
        """The number of this holder, greater than that of every holder before; None before the lock was first held.

        Pass the lock itself to what it protects: `thread.save(state, fence=lock)`.
        """
        return self._lock.fence

    def _fence_of(self, engine: Engine, thread: ThreadKey) -> Fence:
        return self._lock._fence_of(engine, thread)

    def acquire(self) -> Self:
        """Wait until the lock is free, and take it. Raises ThreadBusy when the time is up."""
        run_now(self._lock.acquire())
        return self

    def release(self) -> None:
        """Release the lock; nothing happens when another process has taken it over."""
        run_now(self._lock.release())

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
