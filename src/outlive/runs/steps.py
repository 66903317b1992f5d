"""The steps of a run: a step that was done is not done again.

A step is an entry of kind "step" under (run, name, key). When its function has returned, one
durable write stores the value. Later attempts of the run return that value and do not call the
function. The entry has a digest of the arguments: a call with other arguments raises StepMismatch.
The revision of the entry is its position in the order in which the steps began. The same write says
in which attempt of the run the function was called, from when until when, how often before, and
what went wrong then.

A step with `effect=True` is also stored before it begins. So a crash in the middle of a side effect
is known afterwards, and `on_unfinished` decides instead of a silent repetition. The same holds for
an effect that ran out of time (`timeout_s`). Its function gets a key that is the same in every call
(`effect_keys.py`).

With `retries=` a function that raises is called again. Each failed call is stored, so a later
attempt of the run knows of it; its own retries count from zero.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Protocol

import ormsgpack

from outlive.backend import EntryQuery, EntryRecord, Receipt, ThreadKey
from outlive.backend.paging import all_entries
from outlive.errors import (
    AmbiguousStep,
    BadArgument,
    BudgetSpent,
    RunEnded,
    StepMismatch,
    StepTimeout,
    StepUnfinished,
    Unencodable,
    well_formed,
)
from outlive.events import STEP_BEGIN, STEP_END
from outlive.runs.effect_keys import (
    EffectKey,
    check_needs_no_key,
    current_key,
    effect_key,
    inside_effect,
    with_key,
)
from outlive.runs.lease import STEP, RunInfo
from outlive.runs.progress import Progress
from outlive.runs.step_options import DEFAULTS, StepOptions, check_policy
from outlive.runs.step_record import DONE, RAISED, STARTED, StepInfo
from outlive.runs.wait_entry import unpack_known
from outlive.runs.writing_run import WritingRun
from outlive.threads.engine import Engine

MAX_RESULT = 16 << 20  # bytes
_INTERRUPTED = "interrupted"
_SUSPENDING_S = 0.01  # between looks whether another branch has suspended the run
_PAGE = 500
# The steps inside which this task or thread is: (id of the ledger, name, key).
_around: ContextVar[tuple[tuple[int, str, str], ...]] = ContextVar("outlive_steps", default=())


def _hashed(arguments: bytes) -> bytes:
    return hashlib.blake2b(arguments, digest_size=8, person=b"outlive.step").digest()


_DIGEST_OF_NONE = _hashed(ormsgpack.packb([[], {}]))  # most functions of steps have no arguments


class _Limited:
    """A call of a function that has a time limit."""

    __slots__ = ("late", "ledger")

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.late: tuple[str, str, str, float] | None = None  # once it is out of time: what StepTimeout tells


# The calls with a time limit inside which this task or thread is, also when the time is up.
_limited: ContextVar[tuple[_Limited, ...]] = ContextVar("outlive_limited_calls", default=())


class Budgeted(Protocol):
    """What the run of a ledger may use."""

    def check(self) -> None: ...
    async def ask_for_more(self, spent: BudgetSpent, check: Callable[[], None]) -> None: ...


class Writer(WritingRun, Protocol):
    """The run that a ledger belongs to."""

    info: RunInfo
    _progress: Progress

    @property
    def _spending(self) -> Budgeted: ...
    @property
    def _is_replayed(self) -> bool: ...
    def _check_live(self) -> None: ...
    def _tell(self, name: str, **details: Any) -> None: ...
    async def _write_entries(self, *entries: EntryRecord) -> Receipt: ...


class Ledger:
    """The steps of one run: read once at its start, then kept up to date."""

    def __init__(self, run: Writer) -> None:
        self._run = run
        self._steps: dict[tuple[str, str], StepInfo] = {}
        self._counts: dict[tuple[str, str], int] = {}  # by name, and by the step around it
        self._order: dict[tuple[str, str], int] = {}  # the position in the order of beginning, from 1
        self._begun = 0
        self._in_flight: dict[tuple[str, str], None] = {}  # in the order in which they began
        self._suspending = 0  # branches that suspend the run: a step may not begin meanwhile
        self._new: set[tuple[str, str]] = set()  # of those in flight, the ones that the budget has to count
        self._lock = run._engine.runtime.lock()  # steps may begin in many threads at once

    async def read(self, *, is_new: bool) -> None:
        """Read what earlier attempts did."""
        if is_new:
            return
        run = self._run
        for number, step in await read_steps(run._engine, run._key, run.id, run.info.effect_seed):
            self._steps[step.name, step.key] = step
            self._order[step.name, step.key] = number
            self._begun = max(self._begun, number)

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions | None = None,
    ) -> Any:
        """Return the value of a step, from the ledger or by calling the function.

        `key` tells steps with one name apart. Without keys they are numbered in the order in which
        they begin, so a step needs a key while another with its name is running. If this process
        has lost or ended the run, the function is not called.
        """
        self.check_in_time()
        self._run._check_live()
        options = options or DEFAULTS
        while (ledger_key := self._enter(name, options.key)) is None:
            await self._run._engine.runtime.sleep(_SUSPENDING_S)
            self._run._check_live()
        around = _around.set((*_around.get(), (id(self), *ledger_key)))
        self._run._progress.moved()
        try:
            return await self._do(ledger_key, function, args, kwargs, options)
        finally:
            _around.reset(around)
            with self._lock:
                del self._in_flight[ledger_key]
                self._new.discard(ledger_key)
                self._run.info.step = next(reversed(self._in_flight))[0] if self._in_flight else None

    # What waits of this run need

    def number(self, name: str, key: str) -> int:
        """Return the position of a wait in the order in which steps and waits began."""
        with self._lock:
            if (name, key) not in self._order:
                self._begun += 1
                self._order[name, key] = self._begun
            return self._order[name, key]

    def count(self, name: str) -> str:
        """Return which of those with this name begins now, in the order in which they begin."""
        with self._lock:
            return self._count(f"\n{name}")  # no step has such a name

    def continue_after(self, number: int) -> None:
        """Number what begins from now on after this one."""
        self._begun = max(self._begun, number)

    @contextlib.contextmanager
    def occupied(self, name: str) -> Iterator[None]:
        """Let other branches know that this one sleeps, and continues soon."""
        ledger_key = (name, "?sleep")
        with self._lock:
            self._in_flight[ledger_key] = None
        try:
            with self._run._progress.pausing():
                yield
        finally:
            with self._lock:
                self._in_flight.pop(ledger_key, None)

    def around(self) -> frozenset[tuple[int, str, str]]:
        """Return the steps that the caller is in, of all runs."""
        return frozenset(_around.get())

    def is_busy_outside(self, steps: frozenset[tuple[int, str, str]]) -> bool:
        """Tell whether steps of this run other than these are in flight."""
        with self._lock:
            return self._has_others(steps)

    @contextlib.contextmanager
    def suspending(self, steps: frozenset[tuple[int, str, str]]) -> Iterator[bool]:
        """Let no step begin while the run is suspended; yield False if one other than these has begun.

        Otherwise the function of a step could be called, and its result be refused.
        """
        with self._lock:
            may_suspend = not self._has_others(steps)
            self._suspending += may_suspend
        try:
            yield may_suspend
        finally:
            with self._lock:
                self._suspending -= may_suspend

    def _has_others(self, steps: frozenset[tuple[int, str, str]]) -> bool:
        return any((id(self), *ledger_key) not in steps for ledger_key in self._in_flight)

    async def _do(
        self,
        ledger_key: tuple[str, str],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """Return the value of a step that has been entered."""
        # 1. A stored result is returned, if it is for the same arguments.
        digest = self._digest(args, kwargs)
        known = self._steps.get(ledger_key)
        if known is None and self._run._is_replayed:
            raise RunEnded(self._run.id, self._run.info.status)
        if (
            known is not None
            and known.arguments is not None
            and digest is not None
            and known.arguments != digest
        ):
            raise StepMismatch(self._run.id, *ledger_key)
        if known is not None and known.status == DONE:
            return known.value
        # 2. A side effect that had begun when its process died: the policy of the caller decides.
        if known is not None and known.status == STARTED and options.effect:
            settled, value = await self._settle(known, options.on_unfinished)
            if settled:
                await self._write(known, DONE, value)
                return value
        # 3. Call the function, if need be more than once. A crash before its result is stored leaves no
        #    trace of an ordinary step, which the next attempt calls again; an effect stays "started".
        try:
            self._check_budget(ledger_key, is_new=known is None)
        except BudgetSpent as spent:
            check = functools.partial(self._check_budget, ledger_key, is_new=known is None)
            await self._run._spending.ask_for_more(spent, check)
        if not options.effect:
            check_needs_no_key(ledger_key[0], function, args, kwargs)
        call: Callable[[], Any] = functools.partial(function, *args, **kwargs)
        if options is DEFAULTS:
            return await self._call(self._begin(ledger_key, digest, known, None), call, options)
        key = effect_key(self._run.info.effect_seed, *ledger_key) if options.effect else None
        if key is not None:
            call = functools.partial(function, *args, **with_key(function, args, kwargs, key))
        return await self._try(self._begin(ledger_key, digest, known, key), call, options)

    def _enter(self, name: str, key: str | None) -> tuple[str, str] | None:
        """Return the name and key of the step, and note that it is running; None while the run is suspended."""
        if not isinstance(name, str) or not name or "\n" in name or len(name) > 200:
            raise BadArgument(
                f"the name of a step must be one line of 1 to 200 characters, not {name!r:.100}"
            )
        if key is not None and (not isinstance(key, str) or "\n" in key or len(key) > 500):
            raise BadArgument(
                f"the key of a step must be one line of at most 500 characters, not {key!r:.100}"
            )
        with self._lock:
            if self._suspending:
                return None
            if key is None and any(running == name for running, _ in self._in_flight):
                raise AmbiguousStep(self._run.id, name)
            ledger_key = (name, f"#{self._count(name)}" if key is None else f"={key}")
            if ledger_key in self._in_flight:
                raise AmbiguousStep(self._run.id, name)
            self._in_flight[ledger_key] = None
            self._run.info.step = name
            if ledger_key not in self._order:
                self._begun += 1
                self._order[ledger_key] = self._begun
        return ledger_key

    def _count(self, name: str) -> str:
        """Return a number for a name, and where it counts; called under the lock.

        What a step contains is counted in that step alone: a later attempt that returns the step
        from the ledger does not come to it, and what follows must have the same number all the
        same.
        """
        step = next((step for step in reversed(_around.get()) if step[0] == id(self)), None)
        place = "" if step is None else f"@{_short_digest(chr(10).join(step[1:]))}"
        self._counts[name, place] = self._counts.get((name, place), 0) + 1
        return f"{self._counts[name, place]}{place}"

    def _check_budget(self, ledger_key: tuple[str, str], *, is_new: bool) -> None:
        """Count a step towards the budget before it is called, as others may begin meanwhile. Raises BudgetSpent."""
        self._run._spending.check()
        budget = self._run.info.budget
        if not is_new or budget is None:
            return
        with self._lock:
            begun = sum(other not in self._steps for other in self._new)
            budget.check_step(self._run.id, len(self._steps) + begun)
            self._new.add(ledger_key)

    def _digest(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | None:
        """Return a digest of the arguments; None if they cannot be stored, such as clients."""
        if not args and not kwargs:
            return _DIGEST_OF_NONE
        try:
            packed = self._run._engine.codec.pack(_ordered([list(args), kwargs]))
        except (Unencodable, RecursionError):
            return None
        return _hashed(packed)

    def _begin(
        self, ledger_key: tuple[str, str], digest: bytes | None, known: StepInfo | None, key: EffectKey | None
    ) -> StepInfo:
        attempt, now = self._run.info.attempt, self._run._engine.runtime.now()
        if known is not None:
            return known.again(digest, attempt, now, key)
        return StepInfo(*ledger_key, STARTED, digest, attempt=attempt, effect_key=key, _began=now)

    async def _try(self, step: StepInfo, call: Callable[[], Any], options: StepOptions) -> Any:
        """Call the function of a step until it returns, as often as the options say."""
        failures = 0
        while True:
            # Note that the side effect begins. The write has the fence of the run: if another
            # process owns the run, it is refused and nothing is called. A crash from here on until
            # the outcome is stored leaves the step "started".
            if options.effect:
                await self._write(step, STARTED)
            try:
                return await self._call(step, call, options)
            except options.retry_on:
                # Without an error in the step, it is a write that failed, not the function.
                if failures == options.retries or step.error is None:
                    raise
            failures += 1
            runtime = self._run._engine.runtime
            with self._run._progress.pausing():
                await runtime.sleep(options.pause_s(failures))
            self._run._check_live()
            step = step.again(step.arguments, step.attempt, runtime.now(), step.effect_key)

    async def _call(self, step: StepInfo, call: Callable[[], Any], options: StepOptions) -> Any:
        if self._run._engine.events.is_on:
            self._tell(STEP_BEGIN, step, STARTED)
        try:
            if options is DEFAULTS:
                value = call()
                value = await value if inspect.isawaitable(value) else value
            else:
                value = await self._value(step, call, options)
        except Exception as error:
            # An effect that ran out of time may have happened: that is for `on_unfinished` to say.
            is_open = options.effect and isinstance(error, StepTimeout)
            await self._write(step, STARTED if is_open else RAISED, error=f"{type(error).__name__}: {error}")
            raise
        except BaseException:
            self._tell(STEP_END, step, _INTERRUPTED)  # nothing is stored: the next attempt calls it again
            raise
        await self._write(step, DONE, value)
        return value

    async def _value(self, step: StepInfo, call: Callable[[], Any], options: StepOptions) -> Any:
        key = step.effect_key
        with contextlib.nullcontext() if key is None else inside_effect(self, EffectKey(key)):
            if options.timeout_s is None:
                value = call()
                return await value if inspect.isawaitable(value) else value
            limited = _Limited(self)
            token = _limited.set((*_limited.get(), limited))
            try:
                is_done, value = await self._run._engine.runtime.call_within(options.timeout_s, call)
            finally:
                _limited.reset(token)
        if not is_done:
            limited.late = (self._run.id, step.name, step.key, options.timeout_s)
            raise StepTimeout(*limited.late)
        return value

    def check_in_time(self) -> None:
        """Raise StepTimeout in what is left of a step that ran out of time: the run continues without it."""
        for call in _limited.get():
            if call.ledger is self and call.late is not None:
                raise StepTimeout(*call.late)

    def effect_key(self) -> EffectKey:
        """Return the key of the effect that the caller is in. Raises NoEffect."""
        return current_key(self, self._run.id)

    def _tell(self, name: str, step: StepInfo, status: str) -> None:
        duration_s = max(0, step._ended - step._began) / 1e6
        fields = {"step": step.name, "key": step.key, "status": status}
        self._run._tell(name, **fields, error=step.error, duration_s=duration_s)

    async def _settle(self, step: StepInfo, policy: Any) -> tuple[bool, Any]:
        """Decide about a step that had begun when its process died: (it has a value, the value)."""
        if callable(policy):
            policy = policy(step)
            if inspect.isawaitable(policy):
                policy = await policy
        check_policy(policy)
        if policy == "retry":
            return False, None
        if policy == "skip":
            return True, None
        if policy == "ask":
            raise StepUnfinished(self._run.id, step.name, step.key, step.error)
        return True, policy[1]

    async def _write(self, step: StepInfo, status: str, value: Any = None, error: str | None = None) -> None:
        """Store the outcome of a step. If that fails, the step is as it was."""
        ended = 0 if status == STARTED and error is None else self._run._engine.runtime.now()
        try:
            await self._put(step, status, value, error, ended)
        except BaseException:
            if ended:
                self._tell(STEP_END, step, _INTERRUPTED)  # its outcome is not stored
            raise
        if ended and self._run._engine.events.is_on:
            self._tell(STEP_END, step, status if error is None else RAISED)

    async def _put(self, step: StepInfo, status: str, value: Any, error: str | None, ended: int) -> None:
        codec, run = self._run._engine.codec, self._run
        where = f"step {step.name!r}"
        body = codec.pack(step.pack(value, error, ended), where)
        if len(body) > MAX_RESULT:
            raise BadArgument(
                f"{where} returned {len(body):,} bytes, and a step can store at most {MAX_RESULT:,}; "
                "save them in the state instead"
            )
        ledger_key = (step.name, step.key)
        entry = EntryRecord(
            STEP,
            f"{run.id}\n{step.name}\n{step.key}",
            body,
            status,
            epoch=run._rank[0],
            fence=run._rank[1],
            revision=self._order[ledger_key],
        )
        await run._write_entries(entry)
        step.status, step.value, step.error, step._ended = status, value, error, ended
        self._steps[ledger_key] = step


def _short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _ordered(value: Any) -> Any:
    """Return an argument with the entries of its dicts in one order, since equal dicts are equal arguments."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind([_ordered(item) for item in value])
    if kind is dict:
        is_sortable = all(type(key) is str for key in value)
        names = sorted(value) if is_sortable else sorted(value, key=repr)
        return {name: _ordered(value[name]) for name in names}
    return value


async def read_steps(
    engine: Engine, key: ThreadKey, run_id: str, seed: bytes, *, opaque: bool = False
) -> list[tuple[int, StepInfo]]:
    """Return the stored steps of a run with their numbers, in the order in which they began.

    With `opaque`, results of types that this process does not know stay packed.
    """
    query = EntryQuery(key.tenant, STEP, thread=key, prefix=f"{run_id}\n", limit=_PAGE)
    steps: list[tuple[int, StepInfo]] = []
    for _, entry in await all_entries(engine.backend, query):
        with well_formed(f"step {entry.key!r}", key.id):
            name, step_key = entry.key[len(run_id) + 1 :].split("\n", 1)
            # An id may contain a line break: then the prefix also matches steps of other runs.
            if "\n" not in step_key:
                fields = (
                    unpack_known(engine.codec, entry.body)
                    if opaque
                    else engine.codec.unpack(entry.body or b"")
                )
                steps.append((entry.revision, StepInfo.unpack(name, step_key, entry.status, fields, seed)))
    return sorted(steps, key=lambda numbered: numbered[0])
