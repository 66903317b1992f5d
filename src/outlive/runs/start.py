"""Starting a run, or claiming one whose process died: one commit takes its record and its place.

The id of a run is unique in a tenant, but no commit spans threads. So a new run with an id chosen
by the caller searches all threads for that id before its commit and again after it. Of two runs
that start at the same moment in two threads, at least one sees the other after its own commit. A
run that sees another takes back its start, so at most one of them continues.

A new run without an id continues what an earlier run of its place has left unfinished, if that did
the same: for the same agent and parent, with the same prompt. The entry of the place names its last
run and tells by its status whether that is finished, so nothing is searched. With `new=True` the
commit that starts the run cancels the unfinished one instead.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from outlive.backend import Commit, EntryRecord, Fence, Receipt, Removal, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import EntryHeld, LeaseLost, OutliveError, RunBusy, RunElsewhere, ThreadBusy
from outlive.runs import attempts, lease, tickets, timers
from outlive.runs.budget import Budget
from outlive.runs.effect_keys import new_seed
from outlive.runs.end import superseded
from outlive.runs.lease import (
    COMPLETED,
    FAILED,
    FREE,
    LEFT,
    LOCK,
    RELEASED,
    RUN,
    RUNNING,
    UNFINISHED,
    RunInfo,
)
from outlive.runs.owner import Owner
from outlive.runs.thread_lock import TRIES, Claim, Place
from outlive.threads.engine import Engine
from outlive.threads.save import Save
from outlive.threads.thread import AsyncThread
from outlive.values import micros, moment

_GIVE_BACK_S = 5.0  # limit of the write that gives a run back, while an error waits to be raised


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a run works; not part of its record."""

    throttle_s: float = 0
    clock: Callable[[], float] | None = None  # of the throttle, in seconds
    durability: str = "sync"
    retries: bool = False  # a run that has ended starts again
    is_bare: bool = False  # an adapter stores the first checkpoint itself
    is_named: bool = False  # the caller chose its id: another thread may have it
    is_child: bool = False  # of `run.child`, which always gives it the same id
    is_fresh: bool = False  # its record was read a moment ago: the commit expects it unchanged
    continues: bool = False  # an unfinished run of this place, of the same agent
    supersedes: bool = False  # it is cancelled instead
    budget: Budget | None = None  # replaces that of the record
    outer: str | None = None  # the run in whose block it starts
    inner: str | None = None  # the run that the outer one has waited for at this place of its code
    inner_is_recent: bool = False  # in this very attempt: it is not begun again if it has ended meanwhile
    others: frozenset[str] = frozenset()  # those that it has waited for at other places


@dataclass(frozen=True, slots=True)
class Holding:
    """A run that this process holds, or that has ended already."""

    info: RunInfo
    is_new: bool  # nothing was done before
    fence: int = 0  # 0: the run has ended, or the store keeps nothing
    epoch: int = 0
    revision: int = 0
    lock_epoch: int = 0
    has_place: bool = False
    before: EntryRecord | None = None  # the record that was claimed; None: the run is new
    body: bytes | None = None  # of the record as this start stored it


@dataclass(frozen=True, slots=True)
class _SentClaim:
    """What the commit of a claim sends."""

    stored: EntryRecord | None  # the record as it was seen
    entries: tuple[EntryRecord, ...]  # that of the run first, then that of its place
    claim: Claim


class Start:
    """The start of one run."""

    def __init__(self, engine: Engine, thread: AsyncThread, info: RunInfo, options: StartOptions) -> None:
        self._engine = engine
        self._thread = thread
        self._key = thread._key
        self._info = info
        self._options = options
        self._checkpoint: str | None = None  # the id of the one that this start stored
        self._is_attempt = True  # not the same one again, after a wait
        self._is_untried = True  # no attempt has begun before
        self._leftovers: tuple[EntryRecord, ...] = ()  # its ticket or timer, which the claim removes
        self._due: int | None = None  # of that timer
        self._replaced: str | None = None  # the unfinished run that this one replaces
        self._is_continued = False  # an earlier run of the place, which has another id
        self._sent: _SentClaim | None = None

    async def take(self) -> Holding:
        """Take the run and its place. Raises RunBusy, ThreadBusy, RunElsewhere."""
        # 1. Look for the run: a new one, one to resume, or one that has ended.
        stored = await self._find()
        self._is_continued = stored is not None and stored.key != self._info.id
        if stored is None:
            self._freeze()
            if self._options.supersedes and (unfinished := await self._unfinished()) is not None:
                self._replaced = unfinished.key
        elif not self._adopt(stored):
            return Holding(self._info, is_new=False)
        # 2. Only an expired lease frees a run whose owner may be alive. The store checks that in
        #    the commit, by its own clock.
        is_held = self._is_held(stored)
        self._begin_attempt(Owner.me())
        refusal: EntryHeld | LeaseLost | None = None
        for _ in range(TRIES):
            # 3. Take record and place in one commit. A crash before it changes nothing. A crash
            #    after it leaves both to a dead owner, and recovery claims them together.
            claim = await self._claim(None if refusal is not None else stored)
            try:
                holding = await self._commit(stored, claim, is_held)
            except (EntryHeld, LeaseLost) as error:
                # Nothing was stored. A refusal by another owner is final if the place was read just
                # before. It is not if `_claim` only assumed that the place is free, or if the
                # holder of a shared place renewed its entry since that was read.
                is_assumed = refusal is None and _is_first(stored)
                is_outdated = claim is not None and claim.is_shared and error.kind == LOCK
                refusal = error
                if _is_held(error) and not self._is_superseded(error) and not is_assumed and not is_outdated:
                    break
                continue  # the parent ended, or another run joined a free place: look again
            # 4. Check that the id is still unique. A crash before this check may leave two runs with
            #    it: calls with this id raise AmbiguousRun then.
            if stored is None and self._options.is_named:
                await self._check_again(holding)
            return holding
        assert refusal is not None
        raise self._busy(refusal)

    async def offer(self, left: EntryRecord | None) -> Commit:
        """Return the commit that claims a run as it was released. Raises ThreadBusy.

        `left` is its place, if the caller knows how another run has left it. If the commit is
        refused, nothing has changed, and another process may have the run.
        """
        stored = self._info._entry
        assert stored is not None
        self._adopt(stored)
        self._begin_attempt(Owner.me())
        claim = self._claim_left(left) or await self._claim(stored) or Claim()
        self._sent = _SentClaim(stored, self._taken(stored, claim, is_held=False), claim)
        return Commit(self._key, entries=self._sent.entries, fence=claim.fence)

    def accept(self, receipt: Receipt) -> Holding:
        """Return what this process holds after the commit of `offer` was done."""
        assert self._sent is not None
        return self._holding(self._sent, receipt.entries)

    def _begin_attempt(self, owner: Owner) -> None:
        info = self._info
        info.owner, info.status, info.step, info.ended_at = owner, RUNNING, None, None
        info.effect_seed = info.effect_seed or new_seed()
        if info.trace is None:
            info.trace = self._engine.events.begin_trace(info.thread, info.id, info.agent)
        info.budget = self._options.budget or info.budget
        if info.outer is not None and info.outer.run == self._options.outer:
            info.outer = None  # it does not wait any more
        now = moment(self._engine.runtime.now())
        info.started_at = info.started_at or now
        info.attempts = attempts.begin(info.attempts, info.attempt, owner, now)

    def _freeze(self) -> None:
        """Copy what the caller may change later: every write of the run stores it.

        Raises Unencodable.
        """
        info, codec = self._info, self._engine.codec
        info.attempts = ()
        for name in ("prompt", "attributes"):
            packed = codec.pack(getattr(info, name), f"run {info.id!r}.{name}")
            try:
                setattr(info, name, codec.unpack(packed))
            except OutliveError:
                pass  # a type that this process can store but not yet read

    def _adopt(self, stored: EntryRecord) -> bool:
        """Continue from the stored record; return False if the run has ended."""
        if self._info._entry is not stored:
            self._info = lease.unpack_run(self._engine.codec, self._key, stored)
        info = self._info
        self._is_untried = False
        if info.is_finished and self._begins_again(info.status):
            info.failures, info.error, info.waits, info.status = 0, None, None, RELEASED
        elif info.is_finished:
            return False
        else:
            self._is_untried = info.attempt == 0
        lease.end_dead_attempt(info)
        timer_removed = timers.run_timer_removed(info)
        # The claim removes the ticket or timer by which the run was found, in the same commit.
        self._leftovers = (*tickets.removed(stored, info), *timer_removed)
        self._due = micros(info.waits.until) if timer_removed and info.waits and info.waits.until else None
        # A run that waited for an answer continues the attempt that asked.
        self._is_attempt = info.status == RUNNING or info.waits is None or not info.waits.is_pause
        info.attempt += self._is_attempt
        info.failures += info.status == RUNNING  # nothing ended it: its process died or lost contact
        info.waits = info.error = None  # the error is that of an attempt, which keeps it
        if info.failures >= info.max_attempts and not self._options.retries:
            _warn_of_failures(info)
        return True

    def _begins_again(self, status: str) -> bool:
        """Tell whether a run that has ended continues, as after `store.retry`: a child does when its parent comes to it again.

        But one that was cancelled or parked while its parent waited for it has ended: its parent is
        told so.
        """
        if status == COMPLETED:
            return False
        is_tried = self._options.is_child and (status == FAILED or not self._options.inner_is_recent)
        return self._options.retries or is_tried

    def _is_held(self, stored: EntryRecord | None) -> bool:
        """Tell whether the run is free only when its lease has expired."""
        if stored is None or stored.status != RUNNING:
            return False
        return self._info.owner is None or not self._info.owner.is_gone()

    async def _claim(self, stored: EntryRecord | None) -> Claim | None:
        """Return how the run gets its place; None if it needs none. Raises ThreadBusy, RunBusy."""
        info = self._info
        if not info.exclusive:
            return None
        place = Place(self._engine, self._key, info.namespace)
        if _is_first(stored) and info.parent is None:
            return place.claim_first(info.id, info.lease_s)
        return await place.claim(info.id, info.parent, info.lease_s)

    def _claim_left(self, left: EntryRecord | None) -> Claim | None:
        info = self._info
        if left is None or not info.exclusive or info.parent is not None:
            return None
        return Place(self._engine, self._key, info.namespace).claim_left(info.id, left, info.lease_s)

    async def _commit(self, stored: EntryRecord | None, claim: Claim | None, is_held: bool) -> Holding:
        claim = claim or Claim()
        entries = (*self._taken(stored, claim, is_held=is_held), *await self._supersede())
        receipt = await self._begin(entries, claim.fence, is_new=stored is None)
        taken = receipt.entries if receipt.existing is None else await self._taken_before(entries)
        return self._holding(_SentClaim(stored, entries, claim), taken)

    def _taken(self, stored: EntryRecord | None, claim: Claim, *, is_held: bool) -> tuple[EntryRecord, ...]:
        """Return the entries that make this process the owner of the run and its place."""
        self._info.shares_place = claim.is_shared
        run = replace(lease.take_run(self._engine, self._info, stored), expect_lapsed=is_held)
        return (run, *claim.entries, *self._leftovers)

    def _holding(self, sent: _SentClaim, taken: Sequence[EntryRecord]) -> Holding:
        claim, body = sent.claim, sent.entries[0].body
        is_alone = bool(claim.entries) and not claim.is_shared
        if not taken:  # the null store gives no fence
            return Holding(self._info, self._is_untried, has_place=is_alone, before=sent.stored, body=body)
        run_entry, lock_entry = taken[0], taken[len(claim.entries)]
        return Holding(
            self._info,
            self._is_untried,
            run_entry.fence,
            run_entry.epoch,
            run_entry.revision,
            lock_entry.epoch,
            is_alone,
            sent.stored,
            body,
        )

    async def _begin(self, entries: tuple[EntryRecord, ...], fence: Fence | None, *, is_new: bool) -> Receipt:
        """Store the entries, and for a new run a checkpoint.

        So a crash in the first step leaves a checkpoint to resume from.
        """
        if not is_new or self._options.is_bare or self._options.durability == "exit":
            return await self._engine.commit(Commit(self._key, entries=entries, fence=fence))
        draft = self._thread._draft(source="input", run=self._info.id)
        draft.entries, draft.fence = entries, fence
        state = await self._thread.load()
        await Save(self._engine, self._key, state, draft).run(emits=False)  # the claim is told
        assert draft.receipt is not None
        self._checkpoint = draft.id
        return draft.receipt

    async def _taken_before(self, entries: Sequence[EntryRecord]) -> list[EntryRecord]:
        """Return the entries of a claim that was stored although its answer was lost.

        Raises EntryHeld if the stored entries are not those of this claim.
        """
        taken: list[EntryRecord] = []
        for entry in entries:
            if entry.gone:
                continue
            stored = await lease.find(self._engine, self._key, entry.kind, entry.key)
            if stored is None or (stored.body, stored.status) != (entry.body, entry.status):
                raise EntryHeld(self._key.id, entry.kind, entry.key, stored)
            taken.append(stored)
        return taken

    def _busy(self, error: EntryHeld | LeaseLost) -> RunBusy | ThreadBusy:
        """Return the error that names who was faster."""
        if isinstance(error, LeaseLost):
            return ThreadBusy(self._key.id, self._info.namespace, self._info.parent, None)
        if self._is_continued and error.kind == RUN:  # the caller did not ask for this run
            held = lease.run_busy(self._engine.codec, error.key, _entry_of(error))
            return ThreadBusy(
                self._key.id, self._info.namespace, error.key, held.lease_expires_at, held.owner
            )
        return lease.busy(self._engine.codec, self._info.namespace, error)

    # What an earlier run has left unfinished

    async def _unfinished(self) -> EntryRecord | None:
        """Return the last run of this place, if it is of the same agent and has not ended."""
        info = self._info
        place = await lease.find(self._engine, self._key, LOCK, info.namespace)
        if not info.exclusive or place is None or place.status == FREE:
            return None
        last = lease.Lock.unpack(self._engine.codec, place).run
        stored = (
            None
            if last is None or last in self._options.others
            else await lease.find(self._engine, self._key, RUN, last)
        )
        if stored is None or stored.status not in UNFINISHED:
            return None
        run = lease.unpack_or_tell(self._engine.codec, self._key, stored)
        is_same = (run.agent, run.parent, run.namespace) == (info.agent, info.parent, info.namespace)
        return stored if run.is_readable and is_same else None

    async def _inner(self) -> EntryRecord | None:
        """Return the run that the outer run has waited for here, unless it failed or ended in an earlier attempt."""
        id = self._options.inner
        stored = None if id is None else await lease.find(self._engine, self._key, RUN, id)
        if stored is None or stored.status in UNFINISHED:
            return stored
        return stored if self._options.inner_is_recent and stored.status != FAILED else None

    def _is_same(self, stored: EntryRecord) -> bool:
        """Tell whether a run has the prompt of this one, or this one has none."""
        if self._info.prompt is None:
            return True
        codec = self._engine.codec
        prompt = lease.unpack_run(codec, self._key, stored).prompt
        return codec.pack(self._info.prompt, f"run {self._info.id!r}.prompt") == codec.pack(prompt)

    async def _supersede(self) -> list[EntryRecord]:
        """Return the entries that cancel the unfinished run that this one replaces."""
        if self._replaced is None:
            return []
        stored = await lease.find(self._engine, self._key, RUN, self._replaced)
        if stored is None or stored.status not in UNFINISHED:
            return []
        return await superseded(self._engine, self._key, stored, self._info.id)

    def _is_superseded(self, error: EntryHeld | LeaseLost) -> bool:
        """Tell whether the run to be replaced has changed: look again."""
        return error.kind == RUN and error.key == self._replaced

    # The id is unique in the tenant

    async def _find(self) -> EntryRecord | None:
        """Return the stored entry of the run in this thread.

        Raises RunElsewhere if the run is new and another thread has its id.
        """
        if self._options.is_fresh:
            return self._info._entry
        if self._options.continues:
            stored = await self._inner() or await self._unfinished()
            return stored if stored is not None and self._is_same(stored) else None
        if not self._options.is_named:
            return await lease.find(self._engine, self._key, RUN, self._info.id)
        entries = dict(await self._find_all())
        if entries and self._key not in entries:
            raise RunElsewhere(self._info.id, [key.id for key in entries])
        return entries.get(self._key)

    async def _find_all(self) -> list[tuple[ThreadKey, EntryRecord]]:
        return await lease.find_all(self._engine, self._key.tenant, self._info.id)

    async def _check_again(self, holding: Holding) -> None:
        """Take back the start if another thread has a run with this id by now, or may have one."""
        try:
            others = [key.id for key, _ in await self._find_all() if key != self._key]
        except BaseException:
            await self.undo(holding)
            raise
        if others:
            await self._take_back(holding)
            raise RunElsewhere(self._info.id, others)

    async def _take_back(self, holding: Holding) -> None:
        """Remove the record of a new run and the checkpoint that came with it.

        Other checkpoints with this run id belong to earlier runs and stay.
        """
        info = self._info
        deletion = EntryRecord(RUN, info.id, epoch=holding.epoch, fence=holding.fence, gone=True)
        removal = (
            None if self._checkpoint is None else Removal(checkpoints=((info.namespace, self._checkpoint),))
        )
        await self._give_back(holding, deletion, removal)
        self._engine.cache.drop(self._key.digest)

    # Giving back

    async def undo(self, holding: Holding) -> None:
        """Leave the run as it was before this start, which failed.

        Raises nothing: the caller has an error to raise. If this write fails too, the lease
        expires.
        """
        if not holding.fence:
            return
        write = self._take_back(holding) if holding.before is None else self._restore(holding, holding.before)
        with contextlib.suppress(Exception):
            await self._engine.runtime.shielded(write)

    async def _restore(self, holding: Holding, before: EntryRecord) -> None:
        if before.status == RUNNING:  # its process died, and that failure stays counted
            await self.release(holding)
        else:
            timer = [] if self._due is None else [self._timer(holding, self._due)]
            await self._give_back(holding, self._ended(holding, before.body, before.status), also=timer)

    def _timer(self, holding: Holding, due: int) -> EntryRecord:
        return timers.timer(due, self._info.id, timers.OF_RUN, holding.epoch, holding.fence)

    async def release(self, holding: Holding) -> None:
        """Leave the run to recovery. Nothing was tried, so this does not count as an attempt."""
        info = self._info
        info.attempt, info.attempts = info.attempt - self._is_attempt, info.attempts[:-1]
        await self._give_back(holding, self._ended(holding, lease.pack_run(self._engine, info), RELEASED))

    def _ended(self, holding: Holding, body: bytes | None, status: str) -> EntryRecord:
        return EntryRecord(
            RUN, self._info.id, body, status,
            epoch=holding.epoch, fence=holding.fence, revision=holding.revision + 1,
        )  # fmt: skip

    async def _give_back(
        self,
        holding: Holding,
        run: EntryRecord,
        removal: Removal | None = None,
        also: Sequence[EntryRecord] = (),
    ) -> None:
        """Write the new record of the run and free its place, in one commit.

        The fence makes the store refuse it if another process owns the run by now.
        """
        entries = [run, *also]
        if run.status == RELEASED:
            now = self._engine.runtime.now()
            entries = [*tickets.released(self._engine.codec, run, tickets.Errand.of(self._info), now)]
        if holding.has_place:
            place = LEFT if run.status in UNFINISHED else FREE
            free = EntryRecord(
                LOCK, self._info.namespace, None, place, epoch=holding.lock_epoch, fence=holding.fence
            )
            entries.append(replace(free, revision=holding.revision + 1))
        fence = Fence(RUN, self._info.id, holding.epoch, holding.fence)
        await self._engine.commit(
            Commit(self._key, entries=tuple(entries), removal=removal, fence=fence, timeout_s=_GIVE_BACK_S)
        )


def _is_first(stored: EntryRecord | None) -> bool:
    """Tell whether a run was stored by the first commit of its thread: most likely nothing has held a place there."""
    return stored is not None and stored.rank == (0, 1, 0)


def _is_held(error: EntryHeld | LeaseLost) -> bool:
    """Tell whether another owner is the cause. (A lost fence was that of the parent.)"""
    if isinstance(error, LeaseLost):
        return False
    stored = error.stored
    return error.kind == RUN or not isinstance(stored, EntryRecord) or stored.status == RUNNING


def _warn_of_failures(run: RunInfo) -> None:
    """Tell a script that is run again and again: only recovery parks a run that keeps killing its process."""
    warnings.warn(
        f"run {run.id!r} has failed {run.failures} times, and max_attempts is {run.max_attempts}: it continues because "
        f"it was started again; store.run(..., new=True) starts another run, store.cancel({run.id!r}) ends this one",
        stacklevel=2,
    )


def _entry_of(error: EntryHeld) -> EntryRecord | None:
    return error.stored if isinstance(error.stored, EntryRecord) else None
