"""Every error that outlive raises: one root, two branches.

`CallerError` is the caller's to fix: the same call fails again until the program changes.
`StoreError` is the store's: the world was in the way, a retry may help.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Self


class OutliveError(Exception):
    """The root of all errors of this library.

    `advice` says in one sentence what to do at a command line, or is None; `summary` what went wrong, without advice.
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


class StoreError(OutliveError):
    """The store could not do it now, or holds something that it should not."""


# The caller's to fix ---------------------------------------------------------------------------------


class BadURL(CallerError):
    """A store's URL, or an option beside it, is not understood."""


class BadArgument(CallerError, ValueError):
    """An argument is of the wrong kind or out of range."""


class SyncAsyncMixed(CallerError, TypeError):
    """A sync store is used as an async one, or the other way round."""


class MissingExtra(CallerError, ImportError):
    """An optional dependency is not installed. `extra` is the extra of outlive that brings it, empty when none does."""

    def __init__(self, what: str, extra: str, *, package: str = "") -> None:
        needs = package or f"an optional part of outlive: pip install 'outlive[{extra}]'"
        super().__init__(f"{what} needs {needs}" + (f": pip install {package}" if package else ""))
        self.extra = extra


class StoreClosed(CallerError):
    """The store was closed before this call."""

    def __init__(self) -> None:
        super().__init__("this store is closed; open it again with outlive.open(url)")


class WrongLoop(CallerError, RuntimeError):
    """An async store is at work in another event loop."""

    def __init__(self) -> None:
        super().__init__(
            "this store is in use in another event loop, and works in one loop at a time; "
            "open one in each loop: async with outlive.open_async(url) as store"
        )


class Unencodable(CallerError, TypeError):
    """A value of the state cannot be stored exactly; `path` says where it is."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class UnknownTag(CallerError):
    """A stored value has a tag that nobody registered in this process."""

    def __init__(self, tag: str, version: int, advice: str | None = None) -> None:
        advice = advice or f"call outlive.register(YourType, tag={tag!r}, version={version}) before loading"
        super().__init__(
            f"the state holds a value with tag {tag!r} (version {version}), which is not registered here; {advice}"
        )
        self.tag = tag
        self.version = version


class NeedsUpgrade(CallerError):
    """A stored value is of a version for which no upgrade was registered."""

    def __init__(self, tag: str, stored: int, registered: int) -> None:
        super().__init__(
            f"a stored {tag!r} has version {stored}, this program registered version {registered}; "
            f"give outlive.register(..., upgrade={{{stored}: function}})"
        )
        self.tag = tag
        self.stored = stored
        self.registered = registered


class TypeChanged(CallerError):
    """A registered type does not fit what was stored under its tag any more."""

    def __init__(self, tag: str, version: int, reason: str) -> None:
        super().__init__(
            f"a stored {tag!r} (version {version}) cannot be built: {reason}; register the changed type with a higher version= and "
            f"upgrade={{{version}: function}}"
        )
        self.tag = tag
        self.version = version


class CheckpointExists(CallerError):
    """This id was saved before with other content."""

    def __init__(self, thread: str, checkpoint: str) -> None:
        super().__init__(
            f"thread {thread!r} has a checkpoint {checkpoint!r} with other content already; "
            "use a new id, or replace=True to overwrite it"
        )
        self.thread = thread
        self.checkpoint = checkpoint


class CheckpointMissing(CallerError, LookupError):
    """A checkpoint that the call builds on is not there."""

    def __init__(self, thread: str, checkpoint: str | None, advice: str = "") -> None:
        which = "no checkpoint at all" if checkpoint is None else f"no checkpoint {checkpoint!r}"
        super().__init__(f"thread {thread!r} has {which}; {advice or 'thread.history() lists what it has'}")
        self.thread = thread
        self.checkpoint = checkpoint


class ThreadNotEmpty(CallerError):
    """A fork, copy or import may not write into a thread that has checkpoints or metadata. `what` is which of the two."""

    def __init__(self, thread: str, what: str = "checkpoints") -> None:
        super().__init__(f"thread {thread!r} has {what} already; choose another id or delete it first")
        self.thread = thread
        self.what = what


class HeadMoved(CallerError):
    """Compare-and-set failed: somebody saved first."""

    def __init__(self, thread: str, namespace: str, expected: str | None, head: str | None) -> None:
        where = f" namespace {namespace!r}" if namespace else ""
        super().__init__(
            f"the head of thread {thread!r}{where} is {head!r}, not {expected!r}; load it and decide again"
        )
        self.thread = thread
        self.namespace = namespace
        self.expected = expected
        self.head = head


class MetadataMoved(CallerError):
    """The thread's metadata was changed by someone else in between; the core reads it again and retries."""

    def __init__(self, thread: str) -> None:
        super().__init__(f"the metadata of thread {thread!r} keeps changing under this call; try again")
        self.thread = thread


class LeaseLost(CallerError):
    """The run or lock that writes is no longer the owner of its lease: another one has it, or it was given back."""

    def __init__(self, thread: str, kind: str, key: str, fence: int, current: int | None) -> None:
        newer = "" if current is None else f"the store knows {current}: "
        why = (
            "it was given back or has ended; take it again before you write"
            if fence == current
            else f"{newer}another process has taken it over; stop this one"
        )
        super().__init__(f"{kind} {key!r} on thread {thread!r} holds fence {fence}: {why}")
        self.thread = thread
        self.kind = kind
        self.key = key
        self.fence = fence
        self.current = current


class EntryHeld(CallerError):
    """A record that the call wanted to take is held by someone else or has moved on; `stored` is what is there."""

    def __init__(self, thread: str, kind: str, key: str, stored: object) -> None:
        super().__init__(
            f"{kind} {key!r} of thread {thread!r} is held by someone else or has moved on; read it again"
        )
        self.thread = thread
        self.kind = kind
        self.key = key
        self.stored = stored


class ThreadBusy(CallerError):
    """Another run, or a lock, has this place.

    `holder` is its run (None: a lock), `owner` its process, `lease_expires_at` when its lease ends unless it is renewed.
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
        when = (
            ""
            if lease_expires_at is None
            else f" until {lease_expires_at:%H:%M:%S} UTC, if it does not renew its lease"
        )
        where = f" namespace {namespace!r}" if namespace else ""
        problem = f"thread {thread!r}{where} is held by {who}{when}"
        super().__init__(f"{problem}; wait for it, or use exclusive=False")
        if holder is not None:
            self.with_advice(_take_over(holder), problem)
        self.thread = thread
        self.namespace = namespace
        self.holder = holder
        self.owner = owner
        self.lease_expires_at = lease_expires_at


class SweepBusy(ThreadBusy):
    """Another process sweeps this store, or this tenant of it."""

    def __init__(self, thread: str, lease_expires_at: dt.datetime | None, owner: str | None = None) -> None:
        super().__init__(thread, "", None, lease_expires_at, owner)
        who = "another process" if owner is None else f"another process ({owner})"
        when = (
            ""
            if lease_expires_at is None
            else f" (until {lease_expires_at:%H:%M:%S} UTC, if it does not go on)"
        )
        self.args = (f"{who} sweeps already{when}; one at a time is enough",)


class RunBusy(CallerError):
    """The run is alive, or was just claimed by another process. `owner` is its process, `lease_expires_at` when its lease ends unless it is renewed."""

    def __init__(
        self,
        run: str,
        lease_expires_at: dt.datetime | None,
        owner: str | None = None,
        *,
        is_mine: bool = False,
    ) -> None:
        when = (
            ""
            if lease_expires_at is None
            else f" until {lease_expires_at:%H:%M:%S} UTC, if it does not renew its lease"
        )
        where = "this process" if is_mine else owner or "another process"
        advice = "use the Run that started it, or end that one first" if is_mine else "wait for it"
        problem = f"run {run!r} is alive in {where}, which holds it{when}"
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
    """The run was made and not started."""

    def __init__(self, run: str) -> None:
        super().__init__(f"run {run!r} has not started: use it in a `with` block, or call its start() first")
        self.run = run


class RunMissing(CallerError, LookupError):
    """No run has this id."""

    def __init__(self, run: str) -> None:
        super().__init__(f"no run with id {run!r}; see store.runs() for all runs")
        self.run = run


class RunElsewhere(CallerError):
    """A run of this id is in another thread: an id is used once in a tenant. `threads` are those that have one."""

    def __init__(self, run: str, threads: Iterable[str]) -> None:
        self.run = run
        self.threads = tuple(sorted(threads))
        super().__init__(
            f"run {run!r} is in {_threads(self.threads)} already; use another id, or the thread that it is in"
        )


class AmbiguousRun(CallerError):
    """Several threads have a run of this id. `threads` are these."""

    def __init__(self, run: str, threads: Iterable[str]) -> None:
        self.run = run
        self.threads = tuple(sorted(threads))
        problem = f"{_threads(self.threads)} have a run {run!r} each"
        super().__init__(f"{problem}: say which by thread=")
        self.with_advice("choose one: --thread THREAD", problem)


def _threads(ids: tuple[str, ...]) -> str:
    names = ", ".join(map(repr, ids[:5])) + (", ..." if len(ids) > 5 else "")
    return f"thread {names}" if len(ids) == 1 else f"threads {names}"


class RunEnded(CallerError):
    """The run has ended: nothing more can be written in its name."""

    def __init__(self, run: str, status: str) -> None:
        can_retry = status not in ("completed", "deleted")
        retry = f", or store.retry({run!r}) to resume it" if can_retry else ""
        super().__init__(f"run {run!r} is {status}: start another one{retry}")
        advice = f"outlive retry {_argument(run)} resumes it" if can_retry else "nothing is left to do"
        self.with_advice(advice, f"run '{run}' is {status}")
        self.run = run
        self.status = status


class AmbiguousStep(CallerError):
    """Two steps of one name at once: without keys nobody could tell their results apart after a crash."""

    def __init__(self, run: str, name: str) -> None:
        super().__init__(f"a step {name!r} of run {run!r} is in flight already; give each a key=")
        self.run = run
        self.name = name


class StepMismatch(CallerError):
    """A step came back with other arguments than those of its stored result."""

    def __init__(self, run: str, name: str, key: str) -> None:
        super().__init__(
            f"step {name!r} ({key}) of run {run!r} is stored for other arguments: the code or its input has changed; "
            "give the new call a key= of its own"
        )
        self.run = run
        self.name = name
        self.key = key


class StepUnfinished(CallerError):
    """A step with a side effect had begun when its process died, and its policy is to ask."""

    def __init__(self, run: str, name: str, key: str) -> None:
        super().__init__(
            f"step {name!r} ({key}) of run {run!r} had begun when its process died: whether its effect happened is not known; "
            'find out, and go on with on_unfinished="retry", "skip" or ("value", x)'
        )
        self.run = run
        self.name = name
        self.key = key


class KeyMissing(CallerError):
    """The ring has no key of this id, or the store is encrypted and was opened without a ring."""

    def __init__(self, id: str | None) -> None:
        which = (
            "this needs a key, and the ring has none"
            if id is None
            else f"this is sealed under key {id!r}, which is not in the ring"
        )
        super().__init__(f"{which}; open the store with key=outlive.KeyRing({{id: key}})")
        missing = "and no key was given" if id is None else f"under key {id!r}, which was not given"
        self.with_advice(_GIVE_KEY, f"this store is encrypted {missing}")
        self.id = id


class WrongKey(CallerError):
    """The ring has another key under the id that the store was sealed with."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"the store was sealed with another key {id!r} than the ring has; nothing was read or written. Give the ring the key that "
            "the store was made with, or last rotated to"
        )
        self.advice = _GIVE_KEY
        self.id = id


class NotEncrypted(CallerError):
    """A key was given for a store that is not encrypted; nothing was read or written."""

    def __init__(self) -> None:
        super().__init__(
            "this store is not encrypted, but a key was given; open it without key=, or copy it into a new store that has one: "
            "store.copy_to(target)"
        )
        self.with_advice(
            "remove --key-file and OUTLIVE_KEYS, or make an encrypted copy: "
            "outlive copy TARGET_URL --target-key-file PATH",
            "this store is not encrypted",
        )


class EpochPassed(CallerError):
    """The writer still believes in an epoch that a failover has ended."""

    def __init__(self, thread: str, epoch: int, current: int) -> None:
        super().__init__(
            f"thread {thread!r} is in epoch {current}; this writer is still in {epoch}: reopen the store"
        )
        self.thread = thread
        self.epoch = epoch
        self.current = current


class ReplicaOpenedAlone(CallerError):
    """One store of a pair was opened without the other, and may be read only: what is written to it alone would be lost from sight.

    `role` is what this store is, `active` which of the two is written to: "primary" or "secondary". `is_old_copy` says that
    the pair has ended, and that the other store goes on without this one.
    """

    def __init__(self, role: str, active: str, *, is_old_copy: bool = False) -> None:
        other = "" if role == active else f", of which the {active} is active,"
        going_on = (
            "; single=True uses this one alone, and the other gets everything when both are opened again"
            if role == active
            else ""
        )
        said = (
            f"this store is the {role} of a pair{other} and was opened alone: the other one would not learn of this; "
            f"open both by outlive.open(primary, replication=outlive.Replication(secondary)){going_on}"
        )
        if is_old_copy:
            said = (
                f"this store is an old copy: it was the {role} of a pair that outlive replication --leave has ended, and the "
                f"{active} goes on alone. Open that one; to change what is here, copy it into a new store: outlive copy NEW --store THIS"
            )
        super().__init__(said)
        self.role = role
        self.active = active
        self.is_old_copy = is_old_copy


class NotReplicatedStore(CallerError):
    """The call is about two stores, and this store has no secondary."""

    def __init__(self) -> None:
        super().__init__(
            "this store has no secondary; open it with outlive.open(url, replication=outlive.Replication(url))"
        )


# The store's --------------------------------------------------------------------------------------


class StoreUnavailable(StoreError):
    """The store could not be reached, or its disk refused."""


class StoreMissing(StoreUnavailable, LookupError):
    """There is no store at this URL, and `create=False` was given; nothing was created."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"there is no store at {url}; check the URL, or open it without create=False to create one"
        )
        self.url = url
        self.with_advice("check the URL, or save something first", f"no store at {url}")


class FolderMissing(BadURL, StoreUnavailable):
    """The folder of a local store does not exist: the path is wrong, or its disk is not mounted."""


class MissingSchema(StoreUnavailable):
    """The server answers, and the tables of the store are not there: not yet made, or dropped."""


class StoreFull(StoreUnavailable):
    """There is no space left where the store is kept."""


class NotErased(StoreError):
    """What a deletion named is deleted, but its bytes are still in the store's files. Repeat the call to erase them."""

    def __init__(self, thread: str, reason: str) -> None:
        super().__init__(
            f"what was to be erased from thread {thread!r} is deleted, but its bytes are still in the file ({reason}); "
            "make room and repeat the call"
        )
        self.thread = thread
        self.reason = reason


class StoreBusy(StoreUnavailable):
    """The store was busy for the whole time that the call had, or that the server gives a statement; nothing was stored."""

    advice = "try again, or wait longer: --timeout 5min"


class OutcomeUnknown(StoreError):
    """The call ended before the store answered: saved or not, nobody knows.

    `thread.save(state, id=error.checkpoint_id)` is the safe retry: it stores the state once.
    """

    def __init__(self, thread: str, checkpoint_id: str, timeout_s: float | None, reason: str = "") -> None:
        why = reason or f"no answer within {timeout_s} s"
        super().__init__(
            f"{why}: whether checkpoint {checkpoint_id!r} of thread {thread!r} is stored is not known; "
            f"retry with save(state, id={checkpoint_id!r})"
        )
        self.thread = thread
        self.checkpoint_id = checkpoint_id
        self.timeout_s = timeout_s


class NotReplicated(OutcomeUnknown):
    """The primary has stored it, but too few replicas confirmed that in time: a failover may still lose it.

    `thread.save(state, id=error.checkpoint_id)` is the safe retry: it waits for the replicas once more. What saves nothing (a deletion) is
    repeated as it is, and `checkpoint_id` is empty.
    """

    def __init__(self, thread: str, checkpoint_id: str, confirmed: object, wanted: int) -> None:
        what, retry = f"done this on thread {thread!r}", "repeat the call"
        if checkpoint_id:
            what = f"stored checkpoint {checkpoint_id!r} of thread {thread!r}"
            retry = f"retry with save(state, id={checkpoint_id!r})"
        StoreError.__init__(
            self,
            f"the primary has {what}, but only {confirmed} of {wanted} replicas confirmed it in time; {retry}",
        )
        self.thread = thread
        self.checkpoint_id = checkpoint_id
        self.timeout_s = None
        self.confirmed = confirmed
        self.wanted = wanted


class StaleBase(StoreError):
    """Something was deleted since this process read the thread. The core re-bases and tries again.

    A backend may say in which generation the thread is now and which chunks its head has, so that a save
    which shares only these need not read the thread again. A pair of stores may say that an attempt in the other store may have stored it.
    """

    def __init__(self, thread: str, generation: int | None = None, chunks: Iterable[bytes] = ()) -> None:
        super().__init__(
            f"thread {thread!r} was pruned or deleted by someone else in the middle of this call; try again"
        )
        self.thread = thread
        self.generation = generation
        self.chunks = frozenset(chunks)
        self.may_be_stored = False


class OutOfTurn(StoreError):
    """What a store sends to its secondary is not what comes next: something is late, is missing, or was lost there."""

    def __init__(self, thread: str) -> None:
        super().__init__(f"what came of thread {thread!r} is not what comes next")
        self.thread = thread


class Corrupt(StoreError):
    """What is stored is not what was saved; nothing of it was handed out."""

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
    """Raise Corrupt when what was read does not have the fields that outlive writes."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"{what} does not have the fields that it should have", thread=thread) from error


class DamagedEntry(Corrupt):
    """A run, step, response or lock does not match its checksum. Its key is where it stands: whoever lists others goes on behind it.

    `status` is what the row says, which may be part of the damage.
    """

    def __init__(self, thread: str, kind: str, key: str, status: str, what: str = "") -> None:
        super().__init__(what or f"{kind} {key!r} does not match its checksum", thread=thread)
        self.kind = kind
        self.key = key
        self.status = status


class SealBroken(Corrupt):
    """A sealed record does not open: it was changed, cut, moved from elsewhere, or is not of this key."""


class NotSealed(Corrupt):
    """A record stands in the clear where only sealed ones may be: somebody put it there."""


class NewerFormat(StoreError):
    """The store was written by a newer outlive."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(f"{what} has format {found}, this outlive reads up to {known}; upgrade outlive")
        self.found = found
        self.known = known


# What a layer hands up in place of bytes that it could not open, so that one record does not hide the others. No codec makes
# bytes that begin so. `NO_KEY` is followed by the id of the key, `NEWER` by the number of the format and the one that is known.
UNOPENED = b"\xc1"
BROKEN, PLAIN, NO_KEY, NEWER = (UNOPENED + why for why in (b"broken", b"plain", b"key ", b"newer "))


def unopened(error: OutliveError) -> bytes:
    """Return what stands in the place of bytes that a layer could not open."""
    if isinstance(error, KeyMissing):
        return NO_KEY + (error.id or "").encode()
    if isinstance(error, NewerFormat):
        return NEWER + f"{error.found} {error.known}".encode()
    return PLAIN if isinstance(error, NotSealed) else BROKEN


def refuse_unopened(data: bytes) -> None:
    """Raise what a layer found wrong with a record when that is about to be read, or stored again."""
    if data[:1] == UNOPENED:
        if data == PLAIN:
            raise NotSealed("a record that is not sealed stands where only sealed ones may be")
        if data.startswith(NO_KEY):
            raise KeyMissing(data[len(NO_KEY) :].decode())
        if data.startswith(NEWER):
            found, known = data[len(NEWER) :].split()
            raise NewerFormat("a sealed record", int(found), int(known))
        raise SealBroken(
            "a sealed record does not open: it was changed, cut, moved from elsewhere, or sealed under another key of this id"
        )


class DelayedSaveFailed(StoreError):
    """An earlier save with durability="async" did not reach the store; it and those after it are lost."""

    def __init__(self, thread: str, checkpoints: list[str], cause: BaseException) -> None:
        super().__init__(
            f"{len(checkpoints)} delayed save(s) of thread {thread!r} failed ({cause}); "
            "load the thread and save the state again"
        )
        self.thread = thread
        self.checkpoints = checkpoints


class SeveralFailed(StoreError, ExceptionGroup[Exception]):
    """Several parts of one call failed; the others were done. `exceptions` has every error, `threads` the threads that they name.

    `except outlive.StoreError` catches it as a whole, `except* outlive.errors.DelayedSaveFailed` picks errors of one kind.
    """

    def __new__(cls, errors: Sequence[Exception]) -> Self:
        told = "; ".join(str(error) for error in errors)
        return super().__new__(cls, f"{len(errors)} errors: {told}", errors)

    def __init__(self, errors: Sequence[Exception]) -> None:
        super().__init__(self.message, errors)
        found = (getattr(error, "thread", None) for error in errors)
        self.threads = tuple(dict.fromkeys(thread for thread in found if isinstance(thread, str)))

    def __str__(self) -> str:
        return self.message

    def derive(self, errors: Sequence[Exception]) -> SeveralFailed:  # type: ignore[override]  # `except*` keeps the class
        return SeveralFailed(errors)


def raise_all(errors: Sequence[Exception]) -> None:
    """Raise what was gathered: nothing, the one error, or all of them as one."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralFailed(errors)
