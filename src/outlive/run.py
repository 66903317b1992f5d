"""A run: work on a thread that is known to be going on, and that another process may take over when this one dies.

Everything that a run writes (checkpoints, steps, its own record) goes through `_commit`, which adds the fence and renews the
leases. One write of a run is under way at a time; each raises the revision of the run's entry, so that one which arrives
late, when a newer one is stored, is refused. Between writes a timer renews the leases of all live runs of a store at once
(`heart.py`).

How a `with` block ends decides what becomes of the run. Cleanly: completed. By an Exception: failed, with its progress kept.
By anything else (a cancelled task, Ctrl-C, sys.exit): interrupted, to be recovered; that is how deployments end processes.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from . import lease
from .backend import Commit, Entry, Receipt, ThreadKey
from .checkpoint import Checkpoint, moment
from .engine import Engine
from .errors import (
    BadArgument,
    EntryHeld,
    LeaseLost,
    OutliveError,
    RunBusy,
    RunEnded,
    Unencodable,
)
from .event import CLAIM, END, LOSS, Event
from .lease import CANCELLED, COMPLETED, FAILED, INTERRUPTED, LOCK, RUN, RUNNING, RunInfo
from .ledger import Ledger
from .owner import Owner
from .responses import AsyncResponses
from .runtime import Ticker
from .thread import AsyncThread
from .throttle import Throttle

_ENDING_S = 5.0  # for the write that ends an interrupted run: its process is about to be killed


class Live(Protocol):
    """Where live runs are renewed."""

    def add(self, run: AsyncRun) -> None: ...
    def discard(self, run: AsyncRun) -> None: ...


class AsyncRun:
    """One run. Made by `store.run(...)`; starts with its `with` block, or by `start()`."""

    def __init__(
        self,
        engine: Engine,
        place: AsyncThread,
        heart: Live,
        info: RunInfo,
        *,
        throttle_s: float = 0,
        retries: bool = False,
        is_bare: bool = False,
    ) -> None:
        self.info = info
        self.thread = place
        self._engine = engine
        self._heart = heart
        self._retries = retries  # a run that has ended is begun again
        self._is_bare = is_bare  # what it works with stores its first checkpoint itself
        self._mutex = engine.runtime.mutex()
        self._fence = self._epoch = self._lock_epoch = self._revision = 0
        self._has_place = False
        self._is_live = False
        self._is_lost = False
        self.thread_ident = engine.runtime.thread_ident()
        self._ledger = Ledger(self)
        self._responses = AsyncResponses(self)
        self._throttle = Throttle(throttle_s)
        self._ticker: Ticker | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} of {self.info.thread!r} {self.status} attempt {self.info.attempt}>"

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def key(self) -> ThreadKey:
        return self.thread._key

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def rank(self) -> tuple[int, int]:
        """The epoch and fence under which this run writes."""
        return self._epoch, self._fence

    @property
    def mutex(self) -> AbstractAsyncContextManager[Any]:
        """Held by whoever writes: one write of a run is under way at a time."""
        return self._mutex

    @property
    def responses(self) -> AsyncResponses:
        """What the models answered that this run asks at the same time."""
        return self._responses

    @property
    def is_started(self) -> bool:
        return self._is_live or self._is_lost or self.info.status != RUNNING

    @property
    def status(self) -> str:
        return self.info.status

    @property
    def result(self) -> Any:
        return self.info.result

    @property
    def is_finished(self) -> bool:
        """Tell whether the run ended before this call: there is nothing left to do, and `result` is what it gave."""
        return self.info.is_finished

    # Beginning

    async def start(self) -> Self:
        """Begin the run, or claim it when it was interrupted. Raises ThreadBusy, RunBusy."""
        stored = await self._stored(RUN, self.id)
        if stored is None:
            self.info.started_at = self._now()
        elif not self._adopt(stored):
            return self
        await self._take(stored)
        await self._ledger.read(is_new=stored is None)
        await self._responses._read(is_new=stored is None)
        self._is_live = True
        self._heart.add(self)
        self._tell(CLAIM)
        if self._throttle.interval_s > 0:
            self._ticker = self._engine.runtime.tick(self._throttle.interval_s, self._flush_when_due)
        return self

    def _now(self) -> dt.datetime:
        return moment(self._engine.runtime.now())

    def _adopt(self, stored: Entry) -> bool:
        """Go on from what is stored; False when the run is finished."""
        self.info = held = lease.unpack_run(self._engine.codec, self.thread._key, stored)
        if self._retries and held.is_finished and held.status != COMPLETED:
            held.attempt, held.error = 0, None
            held.status = INTERRUPTED
        if held.is_finished:
            return False
        held.attempt += 1
        return True

    async def _take(self, stored: Entry | None) -> None:
        """Take the run and its place by one commit."""
        codec, info = self._engine.codec, self.info
        info.owner, info.status = Owner.me(), RUNNING
        was = None if stored is None else lease.unpack_run(codec, self.thread._key, stored)
        is_dead = was is not None and was.owner is not None and was.owner.is_gone()
        run = lease.take_run(codec, info, stored)
        if was is not None and was.status == RUNNING and not is_dead:
            run = replace(run, expect_lapsed=True)
        entries = [run]
        if info.exclusive:
            held = await self._stored(LOCK, info.namespace)
            if not self._is_shared(held):
                entries.append(lease.take_lock(codec, self.id, info.namespace, info.lease_s, held))
        try:
            receipt = await self._begin(tuple(entries), is_new=stored is None)
            held_now = receipt.entries if receipt.existing is None else await self._taken_before(entries)
        except EntryHeld as error:
            raise lease.busy(codec, info.namespace, error) from None
        self._has_place = len(entries) > 1
        if held_now:  # a store that keeps nothing gives no fence
            taken = held_now[0]
            self._fence, self._epoch, self._revision = taken.fence, taken.epoch, taken.revision
            self._lock_epoch = held_now[-1].epoch

    async def _taken_before(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return what is stored of a claim that an earlier attempt has made, whose answer was lost; raise EntryHeld when it is not ours."""
        found: list[Entry] = []
        for entry in entries:
            stored = await self._stored(entry.kind, entry.key)
            if stored is None or (stored.body, stored.status) != (entry.body, entry.status):
                raise EntryHeld(self.thread.id, entry.kind, entry.key, stored)
            found.append(stored)
        return found

    async def _begin(self, entries: tuple[Entry, ...], *, is_new: bool) -> Receipt:
        """Take the run; a new one with a checkpoint, so that a crash in its first step leaves something to go on from."""
        if not is_new or self._is_bare:
            return await self._engine.commit(Commit(self.thread._key, entries=entries))
        draft = self.thread._draft(source="input", run=self.id)
        draft.entries = entries
        state = await self.thread.load()
        return (await self._engine.save_with_receipt(self.thread._key, state, draft))[1]

    def _is_shared(self, held: Entry | None) -> bool:
        """Tell whether the place is the parent's, who lets its children work there."""
        if held is None or self.info.parent is None:
            return False
        return held.status == RUNNING and lease.run_of(self._engine.codec, held) == self.info.parent

    async def _stored(self, kind: str, key: str) -> Entry | None:
        return await lease.find(self._engine, self.thread._key, kind, key)

    # Working

    async def load(self) -> Any:
        """Return the newest state of the thread."""
        return await self.thread.load()

    async def save(
        self,
        state: Any,
        *,
        iteration: int | None = None,
        phase: str | None = None,
        usage: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Checkpoint | None:
        """Save a state as a checkpoint of this run, and what the run says of itself. Options are those of `thread.save`.

        With `throttle_s` it may be stored later, and only if no newer one comes before: None then. The last is always stored.
        """
        async with self._mutex:
            self._check_live()
            self._note(iteration, phase, usage)
            if self._throttle.holds():
                self._throttle.keep(self._engine.codec.pack(state), options)
                return None
            return await self._save(state, options)

    def _note(self, iteration: int | None, phase: str | None, usage: Mapping[str, Any] | None) -> None:
        if iteration is not None:
            self.info.iteration = iteration
        if phase is not None:
            self.info.phase = phase
        if usage is not None:
            self.info.usage = {**self.info.usage, **usage}

    async def _save(self, state: Any, options: Mapping[str, Any]) -> Checkpoint:
        draft = self.thread._draft(**options, run=self.id)
        if self._fence:
            draft.fence = self._token()
            draft.entries = self._renewals(body=lease.pack_run(self._engine.codec, self.info))
        saved: Checkpoint = await self._kept(self.thread._save(state, draft))
        self._throttle.wrote()
        return saved

    async def flush(self) -> None:
        """Store a save that was held back."""
        async with self._mutex:
            await self._flush()

    async def _flush(self) -> None:
        if (kept := self._throttle.kept) is not None:
            await self._save(self._engine.codec.unpack(kept[0]), kept[1])

    async def _flush_when_due(self) -> None:
        if self._is_live and not self._throttle.holds():
            try:
                await self.flush()
            except OutliveError:
                pass  # the next write of the run, or the next tick, tries again; a lost lease is noted

    def step(self, name: str, function: Callable[..., Any] | None = None, *args: Any, **options: Any) -> Any:
        """Do a step once: `await run.step("ask", call_model, prompt)`; on a later attempt its result is given back instead.

        Options: `key` (which of several of this name), `effect=True` (note that it began), `on_unfinished` ("retry", "skip",
        "ask" or a function) for an effect that had begun when its process died; all others go to the function. Without a
        function it is a decorator.
        """
        if function is not None:
            return self._ledger.step(name, function, args, options)

        def decorate(wrapped: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
            @functools.wraps(wrapped)
            async def call(*args: Any, **kwargs: Any) -> Any:
                return await self._ledger.step(name, wrapped, args, {**options, **kwargs})

            return call

        return decorate

    # Ending

    async def complete(self, result: Any = None) -> None:
        """End the run with a result, which is kept."""
        self.info.result = result
        await self._end(COMPLETED)

    async def fail(self, error: BaseException | str) -> None:
        """End the run because of an error; what it saved stays, and `store.retry` goes on from it."""
        self.info.error = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        await self._end(FAILED)

    async def cancel(self) -> None:
        """End the run because somebody said so."""
        await self._end(CANCELLED)

    async def interrupt(self) -> None:
        """Give the run up for another process to recover, at once."""
        await self._end(INTERRUPTED, timeout_s=_ENDING_S)

    async def _end(self, status: str, timeout_s: float | None = None) -> None:
        async with self._mutex:
            self._check_live()
            await self._flush()
            ended_at = None if status == INTERRUPTED else self._now()
            body = lease.pack_run(self._engine.codec, replace(self.info, status=status, ended_at=ended_at))
            self.info.status, self.info.ended_at = status, ended_at
            self._revision += 1
            ended = Entry(
                RUN, self.id, body, status, epoch=self._epoch, fence=self._fence, revision=self._revision
            )
            entries = [ended]
            if self._has_place:  # not removed: one that somebody else holds by now would go
                entries.append(replace(self._lock(None), status="free", lease_s=None))
            self._stop()
            await self._commit(Commit(self.thread._key, entries=tuple(entries), timeout_s=timeout_s))
            self._tell(END)

    def _tell(self, name: str) -> None:
        info = self.info
        self._engine.watched.tell(
            Event(name, info.thread, info.namespace, run=info.id, status=info.status, attempt=info.attempt)
        )

    def _stop(self) -> None:
        self._is_live = False
        self._heart.discard(self)
        if self._ticker is not None:
            self._ticker.stop()

    @property
    def lease_s(self) -> float:
        return self.info.lease_s

    async def give_up(self) -> None:
        """Its store is closed under it."""
        if self._is_live and self._is_mine():
            await self.interrupt()

    async def __aenter__(self) -> Self:
        return self if self._is_live else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_live or not self._is_mine():
            return
        if error is None:
            await self._complete_or_fail()
        elif isinstance(error, LeaseLost):
            self._stop()
        elif isinstance(error, Exception):
            await self.fail(error)
        else:
            await self._engine.runtime.shielded(self.interrupt())

    async def _complete_or_fail(self) -> None:
        try:
            await self.complete(self.info.result)
        except Unencodable as error:  # nothing was written: the run would live on with nobody in it
            self.info.result = None
            await self.fail(error)
            raise

    # Writing

    def _is_mine(self) -> bool:
        """A forked child has its parent's objects, not its runs."""
        return self.info.owner is not None and self.info.owner.pid == os.getpid()

    def _check_live(self) -> None:
        if self._is_live and not self._is_mine():
            raise RunBusy(self.id, None)
        if self._is_lost:
            raise LeaseLost(self.info.thread, RUN, self.id, self._fence, None)
        if not self._is_live:
            raise RunEnded(self.id, self.status)

    def _token(self) -> tuple[str, str, int, int]:
        return (RUN, self.id, self._epoch, self._fence)

    def _renewals(self, body: bytes | None = None) -> tuple[Entry, ...]:
        """Return the entries that renew the leases, of a revision of their own; called under the mutex, by every write."""
        self._revision += 1
        return self._leases(body)

    def _leases(self, body: bytes | None = None) -> tuple[Entry, ...]:
        run = Entry(
            RUN, self.id, body, RUNNING,
            epoch=self._epoch, fence=self._fence, revision=self._revision, lease_s=self.info.lease_s,
        )  # fmt: skip
        return (run, self._lock(None)) if self._has_place else (run,)

    def _lock(self, body: bytes | None) -> Entry:
        return Entry(
            LOCK, self.info.namespace, body, RUNNING,
            epoch=self._lock_epoch, fence=self._fence, revision=self._revision, lease_s=self.info.lease_s,
        )  # fmt: skip

    async def _kept(self, write: Any) -> Any:
        """Do a write; a refusal because of the fence ends this run here."""
        try:
            return await write
        except (LeaseLost, EntryHeld) as error:
            raise self.lose(error) from None

    async def _commit(self, commit: Commit) -> Receipt:
        if not self._fence:
            return await self._engine.commit(commit)
        return await self._kept(self._engine.commit(replace(commit, fence=self._token())))  # type: ignore[no-any-return]

    def lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that another process has taken this run or its place over."""
        if self._is_live:
            self._is_lost = True
            self._stop()
            self._tell(LOSS)
        if isinstance(error, LeaseLost):
            return error
        return LeaseLost(self.info.thread, error.kind, error.key, self._fence, None)

    def is_overtaken(self, error: LeaseLost | EntryHeld) -> bool:
        """Tell whether a renewal was refused only because a newer write of this very run came first."""
        stored = error.stored if isinstance(error, EntryHeld) else None
        return isinstance(stored, Entry) and stored.fence == self._fence

    async def write_entries(self, *entries: Entry) -> Receipt:
        """Store entries of this run durably."""
        async with self._mutex:
            return await self.write_held(*entries)

    async def write_held(self, *entries: Entry) -> Receipt:
        """Store entries of this run durably; the caller holds the mutex."""
        self._check_live()
        return await self._commit(Commit(self.thread._key, entries=(*entries, *self._renewals())))

    def renewal(self) -> Commit:
        """Return the commit that renews the leases and nothing else. It is of no newer revision than the last write."""
        fence = self._token() if self._fence else None
        return Commit(
            self.thread._key, entries=self._leases(), fence=fence, timeout_s=max(1.0, self.lease_s / 3)
        )


def check_run(lease_s: float, throttle_s: float, max_attempts: int) -> None:
    """Refuse what cannot be."""
    if not isinstance(lease_s, int | float) or isinstance(lease_s, bool) or not 0.1 <= lease_s <= 86_400:
        raise BadArgument(f"lease_s must be from 0.1 s to a day, not {lease_s!r}")
    if (
        not isinstance(throttle_s, int | float)
        or isinstance(throttle_s, bool)
        or not 0 <= throttle_s <= 86_400
    ):
        raise BadArgument(f"throttle_s must be from 0 to a day, not {throttle_s!r}")
    if not isinstance(max_attempts, int) or isinstance(max_attempts, bool) or max_attempts < 1:
        raise BadArgument(f"max_attempts must be 1 or more, not {max_attempts!r}")
