"""Every error that outlive raises, in one list: one root, two branches.

`CallerError`: the call cannot succeed as it is. Change the program; or, for a `Conflict`, another
process was faster or holds what the call needs, and it may succeed later.
`StoreError`: the store could not do it, or its data is damaged. A retry may help.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Self


class OutliveError(Exception):
    """The base class of all errors of outlive.

    `advice` says in one sentence what to do at a command line, or is None; `summary` what went
    wrong, without advice.
    """

    advice: str | None = None
    _summary: str | None = None

    @property
    def summary(self) -> str:
        """What went wrong, without what a program can do about it."""
        return str(self) if self._summary is None else self._summary

    def with_advice(self, advice: str | None, summary: str | None = None) -> Self:
        """Set what the command line says about this error."""
        self.advice, self._summary = advice, summary
        return self


def _take_over(run: str) -> str:
    return f"wait for it, or stop it: outlive park {_argument(run)}"


def _argument(id: str) -> str:
    """Return an id as an argument for a shell."""
    return f"-- {shlex.quote(id)}" if id.startswith("-") else shlex.quote(id)


_GIVE_KEY = "pass the key file with --key-file PATH, or the keys in OUTLIVE_KEYS"


class CallerError(OutliveError):
    """The call itself cannot succeed: change the call."""


class Conflict(CallerError):
    """Another process was faster, or holds what the call needs: read again or wait, then decide."""


class StoreError(OutliveError):
    """The store could not do it now, or what it has stored is damaged."""


# Errors of the caller -----------------------------------------------------------------------------


class BadURL(CallerError):
    """The URL of a store, or an option given with it, is not valid."""


class BadArgument(CallerError, ValueError):
    """An argument has the wrong type or is out of range."""


class SyncAsyncMixed(CallerError, TypeError):
    """A sync store is used as an async one, or the other way round."""


class ExtraMissing(CallerError, ImportError):
    """An optional dependency is not installed.

    `extra` is the extra of outlive that installs it, or "" if none does.
    """

    def __init__(self, what: str, extra: str, *, package: str = "") -> None:
        needs = package or f"an optional part of outlive: pip install 'outlive[{extra}]'"
        super().__init__(f"{what} needs {needs}" + (f": pip install {package}" if package else ""))
        self.extra = extra


class StoreClosed(CallerError):
    """The store was closed before this call."""

    def __init__(self) -> None:
        super().__init__("this store is closed; open it again with outlive.open(url)")


class WrongLoop(CallerError, RuntimeError):
    """An async store is in use in another event loop."""

    def __init__(self) -> None:
        super().__init__(
            "this store is in use in another event loop, and an async store works in one loop at a time; "
            "open one in each loop: async with outlive.open_async(url) as store"
        )


class Unencodable(CallerError, TypeError):
    """A value in the state cannot be stored exactly; `path` says where it is, and `source` who wrote it."""

    def __init__(self, path: str, reason: str, source: str = "") -> None:
        super().__init__(f"{path}: {reason}" + (f" ({source})" if source else ""))
        self.path = path
        self.reason = reason
        self.source = source


class UnknownTag(CallerError):
    """A stored value has a tag that is not registered in this process."""

    def __init__(self, tag: str, version: int, advice: str | None = None) -> None:
        advice = advice or f"call outlive.register(YourType, tag={tag!r}, version={version}) before loading"
        super().__init__(
            f"the state has a value with tag {tag!r} (version {version}), which this process has not registered; "
            f"{advice}"
        )
        self.tag = tag
        self.version = version


class NeedsUpgrade(CallerError):
    """A stored value has a version for which no upgrade is registered."""

    def __init__(self, tag: str, stored: int, registered: int) -> None:
        super().__init__(
            f"a stored {tag!r} has version {stored}, but this program registered version {registered} without "
            f"an upgrade; pass upgrade={{{stored}: function}} to outlive.register"
        )
        self.tag = tag
        self.stored = stored
        self.registered = registered


class TypeChanged(CallerError):
    """A registered type no longer fits the values that are stored under its tag."""

    def __init__(self, tag: str, version: int, reason: str) -> None:
        super().__init__(
            f"a stored {tag!r} (version {version}) cannot be built: {reason}; "
            f"register the changed type with a higher version= and upgrade={{{version}: function}}"
        )
        self.tag = tag
        self.version = version


class CheckpointExists(CallerError):
    """A checkpoint with this id and other content is stored already."""

    def __init__(self, thread: str, checkpoint: str) -> None:
        super().__init__(
            f"thread {thread!r} already has a checkpoint {checkpoint!r} with other content; "
            "use a new id, or replace=True to overwrite it"
        )
        self.thread = thread
        self.checkpoint = checkpoint


class CheckpointMissing(CallerError, LookupError):
    """The thread does not have the checkpoint that the call needs."""

    def __init__(self, thread: str, checkpoint: str | None, advice: str = "") -> None:
        which = "no checkpoint yet" if checkpoint is None else f"no checkpoint {checkpoint!r}"
        default = "save a state first" if checkpoint is None else "thread.history() lists its checkpoints"
        super().__init__(f"thread {thread!r} has {which}; {advice or default}")
        self.thread = thread
        self.checkpoint = checkpoint


class ThreadNotEmpty(CallerError):
    """A fork, copy or import needs an empty thread, and this one has checkpoints or metadata.

    `what` is "checkpoints" or "metadata".
    """

    def __init__(self, thread: str, what: str = "checkpoints") -> None:
        super().__init__(
            f"thread {thread!r} already has {what}; choose another id, or delete the thread first"
        )
        self.thread = thread
        self.what = what


class HeadMoved(Conflict):
    """Compare-and-set failed: another writer saved first, so nothing was stored."""

    def __init__(self, thread: str, namespace: str, expected: str | None, head: str | None) -> None:
        where = f" namespace {namespace!r}" if namespace else ""
        problem = f"the head of thread {thread!r}{where} is {head!r}, not {expected!r}"
        if expected is None:
            problem = f"the head of thread {thread!r}{where} is {head!r}, and the call expects no checkpoint"
        elif head is None:
            problem = f"thread {thread!r}{where} has no checkpoint, and the call expects {expected!r}"
        super().__init__(f"{problem}, so nothing was stored; load the thread and decide again")
        self.thread = thread
        self.namespace = namespace
        self.expected = expected
        self.head = head


class MetadataMoved(Conflict):
    """Another writer changed the metadata of the thread during this call. outlive retries first."""

    def __init__(self, thread: str) -> None:
        super().__init__(f"other writers keep changing the metadata of thread {thread!r}; try again")
        self.thread = thread


class LeaseLost(CallerError):
    """The run or lock no longer owns its lease: another one has it, or it was given back."""

    def __init__(
        self, thread: str, kind: str, key: str, fence: int, current: int | None, status: str | None = None
    ) -> None:
        newer = "" if current is None else f" (its fence is {current} now)"
        reason = (
            f"it was {status}; stop working on it"
            if status is not None
            else "it was given back or has ended; take it again before you write"
            if fence == current
            else f"another process has taken it over{newer}; stop working on this {kind}"
        )
        super().__init__(f"{kind} {key!r} on thread {thread!r} has lost its lease (fence {fence}): {reason}")
        self.thread = thread
        self.kind = kind
        self.key = key
        self.fence = fence
        self.current = current
        self.status = status  # "cancelled" or "parked", if that is why


class EntryHeld(Conflict):
    """Another process owns the entry, or has changed it; `stored` is the entry as it is now."""

    def __init__(self, thread: str, kind: str, key: str, stored: object) -> None:
        super().__init__(
            f"another process owns {kind} {key!r} of thread {thread!r}, or has changed it; read it again"
        )
        self.thread = thread
        self.kind = kind
        self.key = key
        self.stored = stored


class ThreadBusy(Conflict):
    """Another run or a lock holds the thread, or this namespace of it.

    `holder` is the run (None: a lock) and `owner` its process. `lease_expires_at` is the moment at
    which its lease ends unless it is renewed.
    """

    def __init__(
        self,
        thread: str,
        namespace: str,
        holder: str | None,
        lease_expires_at: dt.datetime | None,
        owner: str | None = None,
    ) -> None:
        who = ("a lock" if holder is None else f"run {holder!r}") + ("" if owner is None else f" in {owner}")
        where = f" namespace {namespace!r}" if namespace else ""
        problem = f"thread {thread!r}{where} is held by {who}{_lease_text(lease_expires_at)}"
        super().__init__(f"{problem}; wait for it, or use exclusive=False")
        if holder is not None:
            self.with_advice(_take_over(holder), problem)
        self.thread = thread
        self.namespace = namespace
        self.holder = holder
        self.owner = owner
        self.lease_expires_at = lease_expires_at


def _lease_text(expires_at: dt.datetime | None) -> str:
    return "" if expires_at is None else f" (its lease ends at {expires_at:%H:%M:%S} UTC unless renewed)"


class SweepBusy(ThreadBusy):
    """Another process sweeps this store, or this tenant of it."""

    def __init__(self, thread: str, lease_expires_at: dt.datetime | None, owner: str | None = None) -> None:
        super().__init__(thread, "", None, lease_expires_at, owner)
        who = "another process" if owner is None else f"another process ({owner})"
        when = _lease_text(lease_expires_at)
        self.args = (f"{who} is sweeping already{when}; wait until it has finished",)


class RunBusy(Conflict):
    """The run is alive, or another process has just claimed it.

    `owner` is its process, `lease_expires_at` the moment at which its lease ends unless it is
    renewed.
    """

    def __init__(
        self,
        run: str,
        lease_expires_at: dt.datetime | None,
        owner: str | None = None,
        *,
        is_mine: bool = False,
    ) -> None:
        where = "this process" if is_mine else owner or "another process"
        advice = "use the Run object that started it, or end that first" if is_mine else "wait for it"
        problem = f"run {run!r} is alive in {where}{_lease_text(lease_expires_at)}"
        super().__init__(f"{problem}; {advice}")
        self.with_advice(_take_over(run), problem)
        self.run = run
        self.owner = owner
        self.lease_expires_at = lease_expires_at


class RunForked(RunBusy):
    """The run belongs to the process that this one was forked from."""

    def __init__(self, run: str, owner: str) -> None:
        super().__init__(run, None, owner)
        self.args = (
            f"run {run!r} belongs to {owner}, from which this process was forked; start another run here",
        )
        self.with_advice(None)


class RunNotStarted(BadArgument):
    """The run has not started: neither a `with` block nor `start()` began it."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run!r} has not started: use it in a `with` block, or call its start() first")
        self.run = run


class RunMissing(CallerError, LookupError):
    """No run has this id."""

    def __init__(self, run: str) -> None:
        super().__init__(f"no run with id {run!r}; see store.runs() for all runs")
        self.run = run


class RunElsewhere(CallerError):
    """Another thread has a run with this id, and a new run needs an id of its own in its tenant.

    `threads` are the ids of the threads that have such a run.
    """

    def __init__(self, run: str, threads: Iterable[str]) -> None:
        self.run = run
        self.threads = tuple(sorted(threads))
        super().__init__(
            f"run {run!r} already exists in {_threads(self.threads)}; use another id, or that thread"
        )


class AmbiguousRun(CallerError):
    """Several threads have a run with this id, because copies bring their runs along.

    `copy_to` and `backup` can merge stores that used one id twice. `threads` are the ids of the
    threads.
    """

    def __init__(self, run: str, threads: Iterable[str]) -> None:
        self.run = run
        self.threads = tuple(sorted(threads))
        problem = f"{_threads(self.threads)} have a run {run!r} each"
        super().__init__(f"{problem}: say which with thread=")
        self.with_advice("choose one: --thread THREAD", problem)


def _threads(ids: tuple[str, ...]) -> str:
    names = ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
    return f"thread {names}" if len(ids) == 1 else f"threads {names}"


class RunEnded(CallerError):
    """The run has ended: it can neither save nor take a step."""

    def __init__(self, run: str, status: str) -> None:
        can_retry = status not in ("completed", "deleted")
        retry = f", or resume it with store.retry({run!r})" if can_retry else ""
        super().__init__(f"run {run!r} is {status}: start a new run{retry}")
        advice = f"outlive retry {_argument(run)} resumes it" if can_retry else "nothing is left to do"
        self.with_advice(advice, f"run '{run}' is {status}")
        self.run = run
        self.status = status


class AmbiguousStep(CallerError):
    """Two steps with one name run at once: without keys, a crash would mix up their results."""

    def __init__(self, run: str, name: str) -> None:
        super().__init__(f"a step {name!r} of run {run!r} is already running; give each of them its own key=")
        self.run = run
        self.name = name


class StepMismatch(CallerError):
    """A step was called with other arguments than those of its stored result."""

    def __init__(self, run: str, name: str, key: str) -> None:
        super().__init__(
            f"step {name!r} ({key}) of run {run!r} has a stored result for other arguments: "
            "the code or its input has changed; give the new call its own key="
        )
        self.run = run
        self.name = name
        self.key = key


class StepUnfinished(CallerError):
    """A step with a side effect had begun and did not finish, and the policy is to ask."""

    def __init__(self, run: str, name: str, key: str, error: str | None = None) -> None:
        reason = "its process died or was interrupted" if error is None else error
        super().__init__(
            f"step {name!r} ({key}) of run {run!r} had begun and did not finish ({reason:.300}), so its effect may "
            'have happened; find out, then pass on_unfinished="retry", "skip" or ("value", x)'
        )
        self.run = run
        self.name = name
        self.key = key


class QuestionChanged(CallerError):
    """A question was asked under a name that an earlier, different question of the run has."""

    def __init__(self, run: str, name: str) -> None:
        super().__init__(
            f"run {run!r} asked {name!r} before, with another payload or schema: the answer to that does not "
            "answer this; give the changed question another name"
        )
        self.run = run
        self.name = name


class AlreadyAnswered(Conflict):
    """The question has an answer, and the first one counts. `by` gave it, `at` that moment."""

    def __init__(self, run: str, name: str, by: str | None, at: dt.datetime | None) -> None:
        who = "" if by is None else f" by {by!r}"
        when = "" if at is None else f" at {at:%Y-%m-%d %H:%M:%S} UTC"
        problem = f"{name!r} of run {run!r} was answered{who}{when}"
        super().__init__(f"{problem}, and the first answer counts; nothing was changed")
        self.with_advice("nothing is left to do", problem)
        self.run = run
        self.name = name
        self.by = by
        self.at = at


class AnswerRefused(CallerError):
    """The answer does not fit its question. `path` says which part of it, `reason` why."""

    def __init__(self, run: str, name: str, path: str, reason: str) -> None:
        problem = f"{name!r} of run {run!r} does not take this answer: {path}: {reason}"
        super().__init__(f"{problem}; nothing was changed, and the run still waits")
        self.with_advice(None, problem)
        self.run = run
        self.name = name
        self.path = path
        self.reason = reason


class QuestionClosed(Conflict):
    """The question takes no answer any more: its deadline has passed, or the run withdrew it."""

    def __init__(self, run: str, name: str, status: str) -> None:
        why = "its deadline has passed" if status == "expired" else "the run does not wait for it any more"
        super().__init__(f"{name!r} of run {run!r} is {status}: {why}; see store.questions() for open ones")
        self.with_advice(
            "outlive questions lists what is open", f"{name!r} of run {run!r} is {status}: {why}"
        )
        self.run = run
        self.name = name
        self.status = status


class Unanswered(CallerError):
    """The deadline of a question or event passed without an answer, and there is no default."""

    def __init__(self, run: str, names: Iterable[str]) -> None:
        self.run = run
        self.names = tuple(names)
        super().__init__(
            f"nobody answered {', '.join(map(repr, self.names))} of run {run!r} in time; "
            "catch this, or pass default="
        )


class RunSuspended(BaseException):
    """The run waits: this unwinds its block, which ends here without an error.

    It is no Exception, so that `except Exception` in an agent does not stop it. Let it pass.
    """

    def __init__(self, run: str, names: Iterable[str] = ()) -> None:
        self.run = run
        self.names = tuple(names)
        what = f" for {', '.join(map(repr, self.names))}" if self.names else ""
        super().__init__(f"run {run!r} waits{what}: let this exception leave the block of the run")


class ChildWaits(CallerError):
    """A run inside the block of a run of another store waits: the outer one cannot wait for it, nor have its result."""

    def __init__(self, run: str, names: Iterable[str], outer: str) -> None:
        self.run = run
        self.names = tuple(names)
        self.outer = outer
        super().__init__(
            f"run {run!r} waits for {', '.join(map(repr, self.names))}, and run {outer!r} around it, of another store, "
            "cannot wait for it; start both from one store object"
        )


class StepTimeout(CallerError, TimeoutError):
    """The function of a step did not return within its `timeout_s`."""

    def __init__(self, run: str, name: str, key: str, timeout_s: float) -> None:
        super().__init__(
            f"step {name!r} ({key}) of run {run!r} did not return within {timeout_s:g} s; "
            "its effects may have happened, or happen later"
        )
        self.run = run
        self.name = name
        self.key = key
        self.timeout_s = timeout_s


class NoEffect(CallerError):
    """`run.effect_key` was read outside of a step with a side effect."""

    def __init__(self, run: str) -> None:
        super().__init__(
            f"run {run!r} is in no effect here: read run.effect_key inside the function of a step with "
            "effect=True, in the thread or task that the step was called in"
        )
        self.run = run


class BudgetSpent(CallerError):
    """A run used more than its budget. What crossed it is stored, and the run is parked."""

    def __init__(self, run: str, what: str, used: float, limit: float) -> None:
        super().__init__(
            f"run {run!r} has used {used:,.10g} of {limit:,.10g} {what}; "
            f"continue it with store.retry({run!r}, budget=...) and a larger budget"
        )
        self.run = run
        self.what = what
        self.used = used
        self.limit = limit


class KeyMissing(CallerError):
    """The key ring does not have the key, or an encrypted store was opened without a ring."""

    def __init__(self, id: str | None) -> None:
        reason = (
            "this needs a key, and the ring has none"
            if id is None
            else f"this is encrypted under key {id!r}, which is not in the ring"
        )
        super().__init__(f"{reason}; open the store with key=outlive.KeyRing({{id: key}})")
        missing = "and no key was given" if id is None else f"under key {id!r}, which was not given"
        self.with_advice(_GIVE_KEY, f"this store is encrypted {missing}")
        self.id = id


class WrongKey(CallerError):
    """The ring has another key under the id that the store was encrypted with."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"the store was encrypted with another key {id!r} than the one in the ring; nothing was read or "
            "written. Give the ring the key that the store was made with, or last rotated to"
        )
        self.advice = _GIVE_KEY
        self.id = id


class NotEncrypted(CallerError):
    """A key was given for a store that is not encrypted; nothing was read or written."""

    def __init__(self) -> None:
        super().__init__(
            "this store is not encrypted, but a key was given; open it without key=, or copy it into a new "
            "encrypted store: store.copy_to(target)"
        )
        self.with_advice(
            "remove --key-file and OUTLIVE_KEYS, or make an encrypted copy: "
            "outlive copy TARGET_URL --target-key-file PATH",
            "this store is not encrypted",
        )


class EpochPassed(CallerError):
    """A failover has ended the epoch in which this process writes."""

    def __init__(self, thread: str, epoch: int, current: int) -> None:
        super().__init__(
            f"a failover has begun epoch {current} of thread {thread!r}, and this process is still in epoch "
            f"{epoch}; open the store again"
        )
        self.thread = thread
        self.epoch = epoch
        self.current = current


class ReplicaOpenedAlone(CallerError):
    """One store of a pair was opened without the other, so it can only be read.

    A write to it alone would not reach the other store. `role` is what this store is and `active`
    the store that takes writes: "primary" or "secondary". `is_old_copy`: the pair was ended, and
    only the other store is in use.
    """

    def __init__(self, role: str, active: str, *, is_old_copy: bool = False) -> None:
        if is_old_copy:
            message = (
                f"this store is an old copy: it was the {role} of a pair, outlive replication --leave ended "
                f"the pair, and only the {active} is in use. Open the {active}; to change this copy, copy it "
                "into a new store: outlive copy NEW --store THIS"
            )
        else:
            which = (
                "; single=True uses this store alone, and the other one catches up when both are opened again"
                if role == active
                else f". The {active} is active"
            )
            message = (
                f"this store is the {role} of a pair and was opened alone, so a write would not reach the "
                "other store; open both: outlive.open(primary, replication=outlive.Replication(secondary))"
                f"{which}"
            )
        super().__init__(message)
        self.role = role
        self.active = active
        self.is_old_copy = is_old_copy


class NoSecondary(CallerError):
    """The call needs a pair of stores, and this store has no secondary."""

    def __init__(self) -> None:
        super().__init__(
            "this store has no secondary; "
            "open it with outlive.open(primary, replication=outlive.Replication(secondary))"
        )


# Errors of the store ------------------------------------------------------------------------------


class StoreUnavailable(StoreError):
    """The store cannot be reached, or its disk reported an error."""


class StoreMissing(StoreUnavailable, LookupError):
    """There is no store at this URL, and `create=False` forbids to create one."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"there is no store at {url}; check the URL, or open it without create=False to create one"
        )
        self.url = url
        self.with_advice("check the URL, or save something first", f"no store at {url}")


class FolderMissing(BadURL, StoreUnavailable):
    """The folder of a local store does not exist: the path is wrong, or its disk is not mounted."""


class SchemaMissing(StoreUnavailable):
    """The server answers, but the tables of the store do not exist: not yet created, or dropped."""


class StoreFull(StoreUnavailable):
    """The disk or the memory of the store is full."""


class NotErased(StoreError):
    """The data is deleted, but its bytes are still in the files of the store.

    Repeat the call to erase them.
    """

    def __init__(self, thread: str, reason: str) -> None:
        super().__init__(
            f"data of thread {thread!r} is deleted, but its bytes are still in the file ({reason}); "
            "free disk space and repeat the call"
        )
        self.thread = thread
        self.reason = reason


class StoreBusy(StoreUnavailable):
    """The store was busy until the call, or the statement in the server, timed out.

    Nothing was stored.
    """

    advice = "try again, or wait longer: --timeout 5min"


class OutcomeUnknown(StoreError):
    """The call ended before the store answered: it may or may not have saved.

    `thread.save(state, id=error.checkpoint)` is the safe retry: it stores the state once.
    For a call that saves nothing, such as a deletion, `checkpoint` is empty: repeat the call.
    """

    def __init__(self, thread: str, checkpoint: str, timeout_s: float | None, reason: str = "") -> None:
        why = reason or f"no answer within {timeout_s} s"
        what = f"{why}: checkpoint {checkpoint!r} of thread {thread!r} may or may not be stored"
        retry = f"retry with save(state, id={checkpoint!r}), which stores it once"
        if not checkpoint:
            what, retry = f"{why}: thread {thread!r} may or may not be changed", "repeat the call"
        super().__init__(f"{what}; {retry}")
        self.thread = thread
        self.checkpoint = checkpoint
        self.timeout_s = timeout_s


class NotReplicated(OutcomeUnknown):
    """The primary has stored it, but too few replicas confirmed in time: a failover may lose it.

    `thread.save(state, id=error.checkpoint)` is the safe retry: it waits for the replicas again.
    For a call that saves nothing, such as a deletion, `checkpoint` is empty: repeat the call.
    """

    def __init__(self, thread: str, checkpoint: str, confirmed: object, wanted: int) -> None:
        what, retry = f"done this on thread {thread!r}", "repeat the call"
        if checkpoint:
            what = f"stored checkpoint {checkpoint!r} of thread {thread!r}"
            retry = f"retry with save(state, id={checkpoint!r})"
        StoreError.__init__(
            self,
            f"the primary has {what}, but only {confirmed} of {wanted} replicas confirmed it in time; {retry}",
        )
        self.thread = thread
        self.checkpoint = checkpoint
        self.timeout_s = None
        self.confirmed = confirmed
        self.wanted = wanted


class StaleBase(StoreError):
    """Something was deleted since this process read the thread. outlive plans the save again.

    A backend may report the current generation of the thread and the chunks of its head: a save
    that shares only these need not read the thread again. `may_be_stored`: an earlier attempt in
    the other store of a pair may have stored it.
    """

    def __init__(self, thread: str, generation: int | None = None, chunks: Iterable[bytes] = ()) -> None:
        super().__init__(f"another process pruned or deleted thread {thread!r} during this call; try again")
        self.thread = thread
        self.generation = generation
        self.chunks = frozenset(chunks)
        self.may_be_stored = False


class OutOfTurn(StoreError):
    """A change for the secondary came out of order: earlier ones are late or were lost."""

    def __init__(self, thread: str) -> None:
        super().__init__(
            f"a replicated change of thread {thread!r} is out of order: the secondary lacks earlier changes"
        )
        self.thread = thread


class Corrupt(StoreError):
    """The stored data is not what was saved; none of it was returned."""

    def __init__(self, what: str, *, thread: str | None = None, checkpoint: str | None = None) -> None:
        where = "".join(
            f" {name} {value!r}"
            for name, value in (("thread", thread), ("checkpoint", checkpoint))
            if value is not None
        )
        super().__init__(f"corrupt store:{where and where + ':'} {what}")
        if thread is not None:
            delete = "" if checkpoint is None else ", or delete it with outlive rm"
            self.advice = f"outlive verify lists all damage; restore the thread from a backup{delete}"
        self.what = what
        self.thread = thread
        self.checkpoint = checkpoint


@contextlib.contextmanager
def well_formed(what: str, thread: str | None) -> Iterator[None]:
    """Raise Corrupt if a stored value does not have the fields that outlive writes."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} lacks fields, or has them with wrong types", thread=thread) from error


class DamagedEntry(Corrupt):
    """A run, step, response or lock does not match its checksum.

    A listing continues after `key`. `status` is the status in the row, which may be damaged too.
    `thread` is None if nothing tells the thread any more.
    """

    def __init__(self, thread: str | None, kind: str, key: str, status: str, what: str = "") -> None:
        super().__init__(what or f"{kind} {key!r} does not match its checksum", thread=thread)
        self.kind = kind
        self.key = key
        self.status = status


class Undecryptable(Corrupt):
    """A record cannot be decrypted: it was changed, cut short, moved, or has another key."""


class PlainRecord(Corrupt):
    """A record of an encrypted store is not encrypted: it was not written by outlive."""


class NewerFormat(StoreError):
    """A newer version of outlive wrote the store."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(f"{what} has format {found}, but this version reads up to {known}; upgrade outlive")
        self.found = found
        self.known = known


class DelayedSaveFailed(StoreError):
    """A save with durability="async" failed; it and the saves after it are lost."""

    def __init__(self, thread: str, checkpoints: list[str], cause: BaseException) -> None:
        super().__init__(
            f"{len(checkpoints)} delayed save(s) of thread {thread!r} failed ({cause}); "
            "load the thread and save the state again"
        )
        self.thread = thread
        self.checkpoints = checkpoints


class SeveralFailed(StoreError, ExceptionGroup[Exception]):
    """Several parts of one call failed; the other parts were done.

    `exceptions` has every error, `threads` the threads that they name. `except outlive.StoreError`
    catches the group, `except* outlive.errors.DelayedSaveFailed` picks errors of one kind.
    """

    def __new__(cls, errors: Sequence[Exception]) -> Self:
        messages = "; ".join(str(error) for error in errors)
        return super().__new__(cls, f"{len(errors)} errors: {messages}", errors)

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(self.message, errors)
        threads = (getattr(error, "thread", None) for error in errors)
        self.threads = tuple(dict.fromkeys(thread for thread in threads if isinstance(thread, str)))

    def __str__(self) -> str:
        return self.message

    def derive(self, errors: Sequence[Exception]) -> SeveralFailed:  # type: ignore[override]
        """Keep the class when `except*` splits the group."""
        return SeveralFailed(errors)


def raise_all(errors: Sequence[Exception]) -> None:
    """Raise the error, or a group of them; do nothing if there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralFailed(errors)
