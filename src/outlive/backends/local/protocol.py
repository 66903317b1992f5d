"""What a backend of this process (memory, file, SQLite) brings, and how it becomes a `Backend`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from outlive.backend import (
    Backend,
    CachedHead,
    CheckpointKey,
    CheckpointRecord,
    Commit,
    EntryQuery,
    EntryRecord,
    HistoryQuery,
    Inventory,
    Page,
    ReadResult,
    Receipt,
    Reservation,
    ThreadKey,
    ThreadQuery,
    ThreadRecord,
    Totals,
    Unreserved,
    Watch,
    WriteRecord,
)
from outlive.backends.local.watch import Alarm, LocalWatch, bell_of
from outlive.errors import BadArgument, Corrupt, OutliveError, StoreBusy

P = ParamSpec("P")
T = TypeVar("T")


class Local(Protocol):
    """The methods of `Backend` as plain functions. The caller holds `lock`, a `threading.RLock`.

    They do what `Backend` says of the methods with their names, and `commit_all` returns refusals.
    `timeout_s` is how long to wait for other processes; None means the timeout of the handle.
    """

    name: str
    lock: Any

    def identity(self, offered: bytes) -> bytes: ...
    def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | OutliveError]: ...
    def read(
        self,
        thread: ThreadKey,
        namespace: str,
        id: str | None = None,
        *,
        at: int | None = None,
        known: CachedHead | None = None,
        chunks: bool = True,
        timeout_s: float | None = None,
    ) -> ReadResult: ...
    def history(
        self, query: HistoryQuery, *, timeout_s: float | None = None
    ) -> tuple[int, list[CheckpointRecord]]: ...
    def states(self, query: HistoryQuery, *, max_bytes: int, timeout_s: float | None = None) -> Page: ...
    def writes(
        self,
        thread: ThreadKey,
        checkpoints: Sequence[CheckpointKey] | None,
        *,
        timeout_s: float | None = None,
    ) -> list[WriteRecord]: ...
    def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]: ...
    def threads(self, query: ThreadQuery, *, timeout_s: float | None = None) -> list[ThreadRecord]: ...
    def totals(self, tenant: str, *, timeout_s: float | None = None) -> Totals: ...
    def inventory(self, thread: ThreadKey, *, timeout_s: float | None = None) -> Inventory: ...
    def fetch(
        self, thread: ThreadKey, names: Sequence[bytes], *, timeout_s: float | None = None
    ) -> dict[bytes, bytes]: ...
    def share(self, source: ThreadKey, target: ThreadKey, names: Sequence[bytes]) -> int: ...
    def audit(self, thread: ThreadKey | None) -> list[Corrupt]: ...
    def facts(self) -> dict[str, object]: ...
    def version(self) -> object:
        """Return a value that changes after a commit by another process; None if no other can commit.

        Commits without an entry of a kind that `wakes` need not change it. Those of this handle
        should not: its process is woken without it, and would look for work in vain.
        """
        ...

    def before_fork(self) -> None:
        """Put away what a child must not inherit; the next call takes it up again."""
        ...

    def roll_back(self) -> None:
        """Undo what a call has left half done that was interrupted, as by Ctrl-C."""
        ...

    def close(self) -> None: ...


_PARTS = ("name", "lock", *(name for name in vars(Local) if not name.startswith("_")))


def check_complete(local: object) -> None:
    """Raise BadArgument for an object that lacks a part of `Local`, and name all that it lacks."""
    if missing := [part for part in _PARTS if not hasattr(local, part)]:
        raise BadArgument(
            f"{type(local).__name__} is not a complete backend: it has no {', '.join(missing)} "
            "(outlive.authoring.Local has the signatures)"
        )


def _called(
    method: Callable[Concatenate[Local, P], T],
) -> Callable[Concatenate[LocalCalls, P], Coroutine[Any, Any, T]]:
    """Return the method of `Backend` that calls a plain function, under the lock."""
    name = method.__name__

    async def call(self: LocalCalls, /, *args: P.args, **options: P.kwargs) -> T:
        wait_s: Any = options.get("timeout_s")
        function: Callable[P, T] = getattr(self.local, name)
        return await self._call(wait_s, function, *args, **options)

    call.__name__, call.__qualname__ = name, f"LocalCalls.{name}"
    return call


class LocalCalls:
    """The methods of `Backend` except `commit_all` and `close`.

    Each calls the plain function of its name through `_call`.
    """

    def __init__(self, local: Local) -> None:
        self.local = local
        self.name = local.name

    async def _call(
        self, wait_s: float | None, method: Callable[P, T], /, *args: P.args, **options: P.kwargs
    ) -> T:
        """Call a plain function under the lock, which is waited for so long."""
        raise NotImplementedError

    identity = _called(Local.identity)
    read = _called(Local.read)
    history = _called(Local.history)
    states = _called(Local.states)
    writes = _called(Local.writes)
    entries = _called(Local.entries)
    threads = _called(Local.threads)
    totals = _called(Local.totals)
    inventory = _called(Local.inventory)
    fetch = _called(Local.fetch)
    share = _called(Local.share)
    audit = _called(Local.audit)
    facts = _called(Local.facts)

    async def watch(self, tenant: str) -> Watch:
        async def version() -> object:
            return await self._call(None, self.local.version)

        return await LocalWatch(bell_of(self.local), tenant, self._alarm(), version).begin()

    async def reserve(self) -> Reservation:
        return Unreserved(cast(Backend, self))

    def _alarm(self) -> Alarm:
        raise NotImplementedError


def reentered() -> StoreBusy:
    """Return the error of a call from within another one of the same Python thread."""
    return StoreBusy(
        "this Python thread is in the middle of another call to this store, which a signal handler interrupted; "
        "let the handler set a flag, and call the store after the other call has returned"
    )


def busy(timeout_s: float | None) -> StoreBusy:
    """Return the error of a call that waited too long for the lock of its backend."""
    return StoreBusy(f"the store was busy in this process for {timeout_s} s; raise timeout_s")
