"""The sync API of a thread. Each method finishes the coroutine of `AsyncThread`, which never suspends here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, Unpack, overload

from outlive.runtime.runtime import run_now
from outlive.sync.iterator import History
from outlive.threads.save_options import Fencing, RunHandle, SaveOptions
from outlive.threads.thread import AsyncThread, S
from outlive.values import (
    Change,
    Checkpoint,
    CheckpointInfo,
    Interrupt,
    PendingWrite,
    Pruned,
    Sizes,
    ThreadInfo,
    Verified,
)


class Thread(Generic[S]):
    """The history of one thread, in one namespace. Made by `store.thread(id)`; costs nothing until used."""

    def __init__(self, thread: AsyncThread[S]) -> None:
        self._thread = thread

    @property
    def id(self) -> str:
        """The id of the thread."""
        return self._thread.id

    @property
    def namespace(self) -> str:
        """The namespace of this handle; "" is the root."""
        return self._thread.namespace

    def __repr__(self) -> str:
        return repr(self._thread).replace("<AsyncThread", "<Thread", 1)

    def save(self, state: S, **options: Unpack[SaveOptions]) -> CheckpointInfo:
        """Save a state as the new head of the thread: `thread.save(state, step=3)`.

        When this returns, the checkpoint survives a crash (with durability="sync").

        id:               the id of the checkpoint; saving the same content again under an id is safe
        parent:           the checkpoint to continue from, to make a branch (default: the head)
        expect:           the id that the head must still have; `outlive.NEW`: the thread must be empty
        step, source:     shown by `history`; source is "loop" unless you say, for example, "input"
        metadata:         shown by `history`, which can filter by it
        next_nodes, completed_tasks, interrupts:  where a graph is; an open interrupt waits for `resume`
        run:              the run that the checkpoint belongs to, or its id
        writes:           pending writes (task, channel, value), stored together with the checkpoint
        replace:          replace the checkpoint that has this id
        fence:            a run or a lock that holds this thread; when another process has taken it, nothing is stored
        durability:       "sync" or "async": store in the background, in order (default: the store's)
        timeout_s:        how long the call may take (default: the store's)

        Raises Unencodable, HeadMoved, CheckpointExists, LeaseLost, and StoreError when the store
        fails.
        """
        return run_now(self._thread.save(state, **options))

    def load(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> S | None:
        """Return the newest state, that of a checkpoint, or the newest at a moment; None when there is none.

        `at` is a datetime with a time zone: `thread.load(at=datetime.now(UTC) -
        timedelta(hours=1))`.
        """
        return run_now(self._thread.load(id, at=at, timeout_s=timeout_s))

    def checkpoint(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> Checkpoint | None:
        """Return a checkpoint with its state, parent and pending writes, all read at one moment."""
        return run_now(self._thread.checkpoint(id, at=at, timeout_s=timeout_s))

    def exists(self, id: str | None = None) -> bool:
        """Tell whether this namespace of the thread has any checkpoint, or the one with this id."""
        return run_now(self._thread.exists(id))

    @overload
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | RunHandle | None = None,
        all_namespaces: bool = False,
        states: Literal[False] = False,
    ) -> Iterator[CheckpointInfo]: ...
    @overload
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | RunHandle | None = None,
        all_namespaces: bool = False,
        states: Literal[True],
    ) -> Iterator[Checkpoint]: ...
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | RunHandle | None = None,
        all_namespaces: bool = False,
        states: bool = False,
    ) -> Iterator[CheckpointInfo] | Iterator[Checkpoint]:
        """Iterate over checkpoints, newest first: `for info in thread.history(limit=10)`.

        before:          where to start: a checkpoint, its `cursor` or its id. The first two also work after the
                         checkpoint was deleted; an id does if this process listed or deleted it.
        filter:          keys that the metadata must have with equal values
        run:             only the checkpoints of this run
        limit:           how many to return, counted after the filter
        all_namespaces:  of every namespace, not only of this one
        states:          read the states too, page by page
        """
        return History(
            self._thread.history(
                limit=limit,
                before=before,
                filter=filter,
                run=run,
                all_namespaces=all_namespaces,
                states=states,  # type: ignore[call-overload]
            )
        )

    def lineage(self, id: str | None = None) -> list[CheckpointInfo]:
        """Return a checkpoint (default: the head) and its ancestors by parent, newest first, as far as they exist.

        Raises CheckpointMissing for an id that does not exist.
        """
        return run_now(self._thread.lineage(id))

    def tips(self) -> list[CheckpointInfo]:
        """Return the checkpoints that have no child, newest first. More than one means branches."""
        return run_now(self._thread.tips())

    def diff(self, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints, path by path; `new` defaults to the newest."""
        return run_now(self._thread.diff(old, new))

    def namespaces(self) -> list[str]:
        """Return the namespaces of the thread that have a checkpoint, sorted; "" is the root.

        Reads the list of all checkpoints, without their states.
        """
        return run_now(self._thread.namespaces())

    def write(
        self,
        task: str,
        writes: Sequence[tuple[str, Any]],
        *,
        checkpoint: str | None = None,
        path: str = "",
        fence: Fencing | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Store what a finished task wrote, on a checkpoint that may not be saved yet (default: the head).

        The first write of a (task, position) wins; the control channels (`__error__`,
        `__scheduled__`, `__interrupt__`, `__resume__`) keep the last. `fence` is a run or a lock
        that must still hold this thread.
        """
        run_now(
            self._thread.write(
                task, writes, checkpoint=checkpoint, path=path, fence=fence, timeout_s=timeout_s
            )
        )

    def writes(self, checkpoint: str | None = None) -> tuple[PendingWrite, ...]:
        """Return the pending writes of a checkpoint (default: the head), by path, task and index."""
        return run_now(self._thread.writes(checkpoint))

    def interrupts(self, checkpoint: str | None = None) -> tuple[Interrupt, ...]:
        """Return the interrupts of a checkpoint (default: the head) that have no resume value.

        Those of a LangGraph thread too, without its types: what cannot be built is `Opaque`.
        """
        return run_now(self._thread.interrupts(checkpoint))

    def resume(
        self, interrupt_id: str, value: Any, *, checkpoint: str | None = None, fence: Fencing | None = None
    ) -> None:
        """Answer an interrupt with a value; the last answer counts. `fence` is a run or a lock that must still hold this thread."""
        run_now(self._thread.resume(interrupt_id, value, checkpoint=checkpoint, fence=fence))

    def fork(self, id: str, *, checkpoint: str | None = None) -> Thread[S]:
        """Make a new thread that starts with one checkpoint of this one (default: the head)."""
        return Thread(run_now(self._thread.fork(id, checkpoint=checkpoint)))

    def copy(self, id: str) -> Thread[S]:
        """Make a new thread with the whole history of this one, in all namespaces."""
        return Thread(run_now(self._thread.copy(id)))

    def export(self) -> str:
        """Return the whole thread as readable JSON. `store.import_thread` makes an equal thread from it."""
        return run_now(self._thread.export())

    def info(self) -> ThreadInfo | None:
        """Return the thread as `store.threads()` lists it, or None when it does not exist."""
        return run_now(self._thread.info())

    def metadata(self) -> dict[str, Any]:
        """Return the thread's own metadata (title, user, tags, ...)."""
        return run_now(self._thread.metadata())

    def set_metadata(
        self, metadata: Mapping[str, Any], *, replace: bool = False, fence: Fencing | None = None
    ) -> dict[str, Any]:
        """Change the thread's own metadata and return the result: merge these keys (None removes one), or replace all.

        `fence` is a run or a lock that must still hold this thread.
        """
        return run_now(self._thread.set_metadata(metadata, replace=replace, fence=fence))

    def delete(self, *, erase: bool = False) -> bool:
        """Delete the thread in all namespaces; False when it did not exist. `erase` leaves no byte in the files."""
        return run_now(self._thread.delete(erase=erase))

    def delete_namespace(self, *, erase: bool = False) -> Pruned:
        """Delete all checkpoints and pending writes of this namespace; other namespaces, runs and metadata are kept.

        Data that other namespaces share is kept. `erase` leaves no other byte of it in the files.
        """
        return run_now(self._thread.delete_namespace(erase=erase))

    def delete_checkpoints(
        self,
        ids: str | CheckpointInfo | Iterable[str | CheckpointInfo | tuple[str, str]] = (),
        *,
        run: str | RunHandle | None = None,
        erase: bool = False,
        all_namespaces: bool = False,
    ) -> Pruned:
        """Delete checkpoints with their pending writes, or all of a run. Data that others share is kept.

        An id means this namespace, or every namespace with `all_namespaces`. A checkpoint and a
        pair of (namespace, id) name their own. Ids that do not exist are not counted.
        """
        return run_now(
            self._thread.delete_checkpoints(ids, run=run, erase=erase, all_namespaces=all_namespaces)
        )

    def prune(
        self,
        *,
        keep_last: int,
        keep_lineage: bool = False,
        erase: bool = False,
        dry_run: bool = False,
        all_namespaces: bool = True,
    ) -> Pruned:
        """Keep the newest `keep_last` checkpoints of each namespace and open interrupts; delete the rest.

        `keep_lineage` keeps their ancestors too. `erase` leaves no byte of what is deleted in any
        chunk.
        """
        return run_now(
            self._thread.prune(
                keep_last=keep_last,
                keep_lineage=keep_lineage,
                erase=erase,
                dry_run=dry_run,
                all_namespaces=all_namespaces,
            )
        )

    def verify(self) -> Verified:
        """Check every stored byte of the thread. Problems are reported, not raised."""
        return run_now(self._thread.verify())

    def size(self) -> Sizes:
        """Return how much the thread stores."""
        return run_now(self._thread.size())

    def flush(self) -> None:
        """Wait until the saves of this thread that are in the background are stored. Raises what went wrong."""
        run_now(self._thread.flush())
