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
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from . import lease
from .backend import Commit, Entry, Receipt, ThreadKey
from .checkpoint import Checkpoint
from .engine import Engine
from .errors import BadArgument, EntryHeld, LeaseLost, RunBusy, RunEnded, ThreadBusy, Unencodable
from .lease import CANCELLED, COMPLETED, FAILED, INTERRUPTED, LOCK, RUN, RUNNING, RunInfo
from .ledger import Ledger
from .owner import Owner
from .responses import AsyncResponses
from .thread import AsyncThread

_ENDING_S = 5.0  # for the write that ends an interrupted run: its process is about to be killed


class Live(Protocol):
    """Where live runs are renewed."""

    def add(self, run: AsyncRun) -> None: ...
    def discard(self, run: AsyncRun) -> None: ...


class AsyncRun:
    """One run. Made by `store.run(...)`; starts with its `with` block, or by `start()`."""

    def __init__(
        self, engine: Engine, place: AsyncThread, heart: Live, info: RunInfo, now: Callable[[], dt.datetime]
    ) -> None:
        self.info = info
        self.thread = place
        self._engine = engine
        self._heart = heart
        self._now = now
        self._mutex = engine.runtime.mutex()
        self._fence = self._epoch = self._lock_epoch = self._revision = 0
        self._is_live = False
        self._is_lost = False
        self._ledger = Ledger(self)
        self._responses = AsyncResponses(self)

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
        return self

    def _adopt(self, stored: Entry) -> bool:
        """Go on from what is stored; False when the run is finished."""
        held = lease.unpack_run(self._engine.codec, self.thread._key, stored)
        if not held.is_finished:
            held.attempt += 1
        self.info = held
        return not held.is_finished

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
            entries.append(lease.take_lock(codec, self.id, info.namespace, info.lease_s, held))
        try:
            receipt = await self._engine.commit(Commit(self.thread._key, entries=tuple(entries)))
        except EntryHeld as error:
            raise self._busy(error) from None
        taken = receipt.entries[0]
        self._fence, self._epoch, self._revision = taken.fence, taken.epoch, taken.revision
        self._lock_epoch = receipt.entries[-1].epoch
        self._is_live = True
        self._heart.add(self)
        await self._ledger.read(is_new=stored is None)
        await self._responses._read(is_new=stored is None)

    def _busy(self, held: EntryHeld) -> RunBusy | ThreadBusy:
        stored = held.stored
        assert stored is None or isinstance(stored, Entry)
        until = None if stored is None else lease.lapses_at(stored)
        if held.kind == LOCK:
            codec = self._engine.codec
            holder = None if stored is None else lease.run_of(codec, stored)
            return ThreadBusy(self.info.thread, self.info.namespace, holder, until)
        return RunBusy(self.id, until)

    async def _stored(self, kind: str, key: str) -> Entry | None:
        thread = self.thread._key
        found = await self._engine.backend.entries(thread.tenant, kind, thread=thread, prefix=key, limit=1)
        return next((entry for _, entry in found if entry.key == key), None)

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
    ) -> Checkpoint:
        """Save a state as a checkpoint of this run, and what the run says of itself. Options are those of `thread.save`."""
        async with self._mutex:
            self._check_live()
            if iteration is not None:
                self.info.iteration = iteration
            if phase is not None:
                self.info.phase = phase
            if usage is not None:
                self.info.usage = {**self.info.usage, **usage}
            says = iteration is not None or phase is not None or usage is not None
            draft = self.thread._draft(**options, run=self.id)
            draft.fence = self._token()
            draft.entries = self._renewals(
                body=lease.pack_run(self._engine.codec, self.info) if says else None
            )
            return await self._kept(self.thread._save(state, draft))  # type: ignore[no-any-return]

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Do a step once. See `Ledger.step`."""
        return await self._ledger.step(name, function, args, options)

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
            ended_at = None if status == INTERRUPTED else self._now()
            body = lease.pack_run(self._engine.codec, replace(self.info, status=status, ended_at=ended_at))
            self.info.status, self.info.ended_at = status, ended_at
            self._revision += 1
            ended = Entry(
                RUN, self.id, body, status, epoch=self._epoch, fence=self._fence, revision=self._revision
            )
            entries = [ended]
            if self.info.exclusive:  # not removed: one that somebody else holds by now would go
                entries.append(replace(self._lock(None), status="free", lease_s=None))
            self._stop()
            await self._commit(Commit(self.thread._key, entries=tuple(entries), timeout_s=timeout_s))

    def _stop(self) -> None:
        self._is_live = False
        self._heart.discard(self)

    async def __aenter__(self) -> Self:
        return self if self._is_live else await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_live:
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

    def _check_live(self) -> None:
        if self._is_lost:
            raise LeaseLost(self.info.thread, RUN, self.id, self._fence, None)
        if not self._is_live:
            raise RunEnded(self.id, self.status)

    def _token(self) -> tuple[str, str, int, int]:
        return (RUN, self.id, self._epoch, self._fence)

    def _renewals(self, body: bytes | None = None) -> tuple[Entry, ...]:
        """Return the entries that renew the leases; called under the mutex, by every write."""
        self._revision += 1
        run = Entry(
            RUN, self.id, body, RUNNING,
            epoch=self._epoch, fence=self._fence, revision=self._revision, lease_s=self.info.lease_s,
        )  # fmt: skip
        return (run, self._lock(None)) if self.info.exclusive else (run,)

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
        return await self._kept(self._engine.commit(replace(commit, fence=self._token())))  # type: ignore[no-any-return]

    def lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        """Note that another process has taken this run or its place over."""
        self._is_lost = True
        self._stop()
        if isinstance(error, LeaseLost):
            return error
        return LeaseLost(self.info.thread, error.kind, error.key, self._fence, None)

    async def write_entries(self, *entries: Entry) -> Receipt:
        """Store entries of this run durably."""
        async with self._mutex:
            return await self.write_held(*entries)

    async def write_held(self, *entries: Entry) -> Receipt:
        """Store entries of this run durably; the caller holds the mutex."""
        self._check_live()
        return await self._commit(Commit(self.thread._key, entries=(*entries, *self._renewals())))

    def renewal(self) -> Commit:
        """Return the commit that renews the leases and nothing else."""
        return Commit(self.thread._key, entries=self._renewals(), fence=self._token())


def check_run(lease_s: float, max_attempts: int) -> None:
    """Refuse what cannot be."""
    if not isinstance(lease_s, int | float) or isinstance(lease_s, bool) or not 0.1 <= lease_s <= 86_400:
        raise BadArgument(f"lease_s must be from 0.1 s to a day, not {lease_s!r}")
    if not isinstance(max_attempts, int) or isinstance(max_attempts, bool) or max_attempts < 1:
        raise BadArgument(f"max_attempts must be 1 or more, not {max_attempts!r}")
