"""A thread: saving, loading and everything else that is done with one history, sync and async.

A facade: signatures and their documentation are here, the work is in the modules beside it.

`AsyncThread` holds the logic; `outlive.sync.thread.Thread` calls it without an event loop.
"""

from __future__ import annotations

import builtins
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Unpack, overload

from outlive.arguments import (
    check_durability,
    check_filter,
    check_id,
    check_limit,
    check_metadata,
    check_options,
    check_pairs,
    check_text,
    optional_id,
)
from outlive.backend import (
    Commit,
    Fence,
    Removal,
    ThreadKey,
    WriteRecord,
    lineage,
    retry_stale,
    thread_record,
)
from outlive.errors import BadArgument, CheckpointMissing, MetadataMoved
from outlive.format.registry import accepts
from outlive.runtime.runtime import Deadline, new_id
from outlive.threads.engine import Engine
from outlive.threads.history import History
from outlive.threads.metadata import describe_thread, pack_metadata, unpack_metadata
from outlive.threads.pending_writes import open_interrupts
from outlive.threads.save import Draft, Save
from outlive.threads.save_options import Fencing, RunHandle, SaveOptions, run_id_of, set_options
from outlive.threads.write_behind import SaveQueue
from outlive.values import (
    CONTROL,
    Change,
    Checkpoint,
    CheckpointInfo,
    Diff,
    Interrupt,
    PendingWrite,
    Pruned,
    Sizes,
    ThreadInfo,
    Verified,
    micros,
    parse_cursor,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    S = TypeVar("S", default=Any)  # the type of the thread's states
else:  # the default is only for type checkers, which bring typing_extensions along
    from typing import TypeVar

    S = TypeVar("S")

_TRIES = 8


class ThreadStore(Protocol):
    """What a thread asks of its store."""

    _durability: str  # of saves that do not say
    _queues: dict[bytes, SaveQueue]  # of delayed saves, by the digest of their thread

    def thread(self, id: str, *, namespace: str = "", type: Any = None) -> AsyncThread[Any]: ...
    def _timeout(self, timeout_s: float | None) -> float | None: ...
    def _delayed(self, key: ThreadKey) -> SaveQueue: ...
    async def _flush_queue(self, key: ThreadKey) -> None: ...
    async def _touch(self, key: ThreadKey) -> None: ...
    def _deleting(self, key: ThreadKey) -> AbstractAsyncContextManager[None]: ...


class AsyncThread(Generic[S]):
    """The history of one thread, in one namespace. Made by `store.thread(id)`; costs nothing until used."""

    def __init__(
        self, store: ThreadStore, engine: Engine, key: ThreadKey, namespace: str, type: type[S] | None = None
    ) -> None:
        self.id = key.id
        self._type = type
        self.namespace = namespace
        self._store = store
        self._engine = engine
        self._key = key

    def __repr__(self) -> str:
        head = self._engine.cache.get((self._key.digest, self.namespace))
        place = f" head=#{head.record.seq}" if head is not None and head.record.seq else ""
        space = f" namespace={self.namespace!r}" if self.namespace else ""
        return f"<{type(self).__name__} {self.id!r}{space}{place}>"

    # Saving and loading

    async def save(self, state: S, **options: Unpack[SaveOptions]) -> CheckpointInfo:
        """Save a state as the new head of the thread: `await thread.save(state, step=3)`.

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
        draft = Draft(self.namespace, new_id(), timeout_s=self._engine.timeout_s)
        durability = None
        if options:
            check_options("thread.save", options, SaveOptions.__optional_keys__)
            set_options(draft, options)
            if (fence := options.get("fence")) is not None:
                draft.fence = self._fence(fence)
                if draft.run is None and isinstance(fence, RunHandle):
                    draft.run = fence.id
            durability = options.get("durability")
        if self._type is not None and not accepts(self._type, state):
            name = getattr(self._type, "__qualname__", None) or str(self._type)
            raise BadArgument(
                f"this thread was opened with type={name}, and this state is a {builtins.type(state).__qualname__}; "
                f"save a {name}, or open the thread without type="
            )
        if (self._store._durability if durability is None else check_durability(durability)) == "async":
            if draft.expect is not None:
                raise BadArgument(
                    'expect= needs an answer from the store: use durability="sync" for this save'
                )
            return await self._store._delayed(self._key).save(state, draft)
        if self._store._queues:
            await self._flush_queue()
        return await Save(self._engine, self._key, state, draft).run()

    def _draft(self, **options: Unpack[SaveOptions]) -> Draft:
        """Return what a caller wants to save beside the state, checked."""
        draft = Draft(self.namespace, new_id(), timeout_s=self._engine.timeout_s)
        if options:
            set_options(draft, options)
        return draft

    def _fence(self, fence: Fencing | None) -> Fence | None:
        """Return what a commit must find in the store for a run or a lock to be held still."""
        if fence is None:
            return None
        if not hasattr(fence, "_fence_of"):
            raise BadArgument(f"fence must be a run, or a lock of store.lock(...), not {fence!r:.100}")
        return fence._fence_of(self._engine, self._key)

    async def _save(self, state: Any, draft: Draft) -> CheckpointInfo:
        if self._store._queues:
            await self._flush_queue()
        return await Save(self._engine, self._key, state, draft).run()

    async def load(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> S | None:
        """Return the newest state, that of a checkpoint, or the newest at a moment; None when there is none.

        `at` is a datetime with a time zone: `thread.load(at=datetime.now(UTC) -
        timedelta(hours=1))`.
        """
        stored = await self._read(id, at, timeout_s)
        return None if stored is None else self._engine.unpack(self._key, stored[0].record.id, stored[1])

    async def checkpoint(
        self, id: str | None = None, *, at: dt.datetime | None = None, timeout_s: float | None = None
    ) -> Checkpoint | None:
        """Return a checkpoint with its state, parent and pending writes, all read at one moment."""
        stored = await self._read(id, at, timeout_s)
        if stored is None:
            return None
        reading, stream = stored
        record = reading.record
        state = self._engine.unpack(self._key, record.id, stream)
        writes = self._engine.pending(self._key, reading.writes, reading.chunks)
        return Checkpoint.of(self._engine.checkpoint(self._key, record), state, writes)

    async def exists(self, id: str | None = None) -> bool:
        """Tell whether this namespace of the thread has any checkpoint, or the one with this id."""
        await self._flush_queue()
        reading = await self._engine.backend.read(
            self._key, self.namespace, optional_id("id", id), chunks=False
        )
        return reading.record is not None

    async def _read(self, id: str | None, at: dt.datetime | None, timeout_s: float | None) -> Any:
        if id is not None and at is not None:
            raise BadArgument("give either a checkpoint id or a moment, not both")
        await self._flush_queue()
        when = None if at is None else micros(at)
        timeout_s = self._store._timeout(timeout_s)
        stored = await self._engine.load(self._key, self.namespace, optional_id("id", id), when, timeout_s)
        if stored is not None:
            await self._store._touch(self._key)
        return stored

    async def _flush_queue(self) -> None:
        """Wait for delayed saves of this thread, and raise the errors of those that failed."""
        await self._store._flush_queue(self._key)

    # Looking back

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
    ) -> AsyncIterator[CheckpointInfo]: ...
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
    ) -> AsyncIterator[Checkpoint]: ...
    def history(
        self,
        *,
        limit: int | None = None,
        before: str | CheckpointInfo | None = None,
        filter: Mapping[str, Any] | None = None,
        run: str | RunHandle | None = None,
        all_namespaces: bool = False,
        states: bool = False,
    ) -> AsyncIterator[CheckpointInfo] | AsyncIterator[Checkpoint]:
        """Iterate over checkpoints, newest first: `async for info in thread.history(limit=10)`.

        before:          where to start: a checkpoint, its `cursor` or its id. The first two also work after the
                         checkpoint was deleted; an id does if this process listed or deleted it.
        filter:          keys that the metadata must have with equal values
        run:             only the checkpoints of this run
        limit:           how many to return, counted after the filter
        all_namespaces:  of every namespace, not only of this one
        states:          read the states too, page by page
        """
        return History(
            self._engine,
            self._key,
            self.namespace,
            flush=self._store._flush_queue,
            touch=self._store._touch,
            limit=check_limit(limit),
            before=self._start(before),
            filter=check_filter(filter),
            run=run_id_of(run),
            all_namespaces=all_namespaces,
            states=states,
        )

    def _start(self, before: str | CheckpointInfo | None) -> str | CheckpointInfo | None:
        if not isinstance(before, CheckpointInfo):
            # A cursor may be longer than an id.
            is_cursor = isinstance(before, str) and parse_cursor(before) is not None
            return before if is_cursor else optional_id("before", before)
        if before.thread != self.id:
            raise BadArgument(
                f"before= is a checkpoint of thread {before.thread!r}; this is the history of {self.id!r}"
            )
        return before

    async def lineage(self, id: str | None = None) -> list[CheckpointInfo]:
        """Return a checkpoint (default: the head) and its ancestors by parent, newest first, as far as they exist.

        Raises CheckpointMissing for an id that does not exist.
        """
        await self._flush_queue()
        records = await self._engine.records(self._key, self.namespace)
        line = lineage(records, optional_id("id", id))
        if id is not None and not line:
            raise CheckpointMissing(self.id, id)
        return [self._engine.checkpoint(self._key, record) for record in line]

    async def tips(self) -> list[CheckpointInfo]:
        """Return the checkpoints that have no child, newest first. More than one means branches."""
        await self._flush_queue()
        records = await self._engine.records(self._key, self.namespace)
        parents = {record.parent for record in records}
        return [self._engine.checkpoint(self._key, record) for record in records if record.id not in parents]

    async def diff(self, old: str, new: str | None = None) -> list[Change]:
        """Return what changed between two checkpoints, path by path; `new` defaults to the newest."""
        from outlive.format.diff import diff

        states = []
        for id in (check_id("old", old), optional_id("new", new)):
            stored = await self._read(id, None, None)
            if stored is None:
                raise CheckpointMissing(self.id, id)
            states.append(self._engine.unpack(self._key, stored[0].record.id, stored[1], opaque=True))
        return Diff(diff(*states))

    async def namespaces(self) -> list[str]:
        """Return the namespaces of the thread that have a checkpoint, sorted; "" is the root.

        Reads the list of all checkpoints, without their states.
        """
        await self._flush_queue()
        return sorted({record.namespace for record in await self._engine.records(self._key)})

    # Pending writes and interrupts

    async def write(
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
        pairs, token = check_pairs(writes), self._fence(fence)
        deadline = Deadline(self._store._timeout(timeout_s))
        await self._flush_queue()
        target = optional_id("checkpoint", checkpoint) or await self._head_id(deadline.as_timeout_s())
        records, chunks = [], {}
        for position, (channel, value) in enumerate(pairs):
            index = CONTROL.get(check_text("channel", channel), position)
            record, new = self._engine.write_record(
                self.namespace,
                target,
                check_id("task", task),
                index,
                channel,
                value,
                check_text("path", path),
            )
            records.append(record)
            chunks.update(new)
        await self._engine.commit(
            Commit(
                self._key,
                writes=tuple(records),
                chunks=tuple(chunks.items()),
                fence=token,
                timeout_s=deadline.as_timeout_s(),
            )
        )

    async def writes(self, checkpoint: str | None = None) -> tuple[PendingWrite, ...]:
        """Return the pending writes of a checkpoint (default: the head), by path, task and index."""
        await self._flush_queue()
        target = optional_id("checkpoint", checkpoint) or await self._head_id()
        records, data = await self._read_writes(target)
        for _ in range(_TRIES):
            if all(name in data for record in records for name in record.chunks):
                break  # else they were deleted meanwhile, or are damaged
            records, data = await self._read_writes(target)
        return self._engine.pending(self._key, records, data)

    async def _read_writes(self, checkpoint: str) -> tuple[list[WriteRecord], dict[bytes, bytes]]:
        records = await self._engine.backend.writes(self._key, [(self.namespace, checkpoint)])
        names = list({name for record in records for name in record.chunks})
        return records, await self._engine.backend.fetch(self._key, names) if names else {}

    async def interrupts(self, checkpoint: str | None = None) -> tuple[Interrupt, ...]:
        """Return the interrupts of a checkpoint (default: the head) that have no resume value.

        Those of a LangGraph thread too, without its types: what cannot be built is `Opaque`.
        """
        await self._flush_queue()
        id = optional_id("checkpoint", checkpoint)
        reading = await self._engine.backend.read(self._key, self.namespace, id, chunks=False)
        if reading.record is None:
            return ()
        info = self._engine.checkpoint(self._key, reading.record)
        return open_interrupts(info.interrupts, await self.writes(info.id))

    async def resume(
        self, interrupt_id: str, value: Any, *, checkpoint: str | None = None, fence: Fencing | None = None
    ) -> None:
        """Answer an interrupt with a value; the last answer counts. `fence` is a run or a lock that must still hold this thread."""
        stored = await self.checkpoint(checkpoint)
        if stored is None or interrupt_id not in {asked.id for asked in stored.interrupts}:
            raise BadArgument(
                f"there is no interrupt {interrupt_id!r} here; thread.interrupts() lists those that are open"
            )
        await self.write(interrupt_id, [("__resume__", value)], checkpoint=stored.id, fence=fence)

    async def _head_id(self, timeout_s: float | None = None) -> str:
        reading = await self._engine.backend.read(
            self._key, self.namespace, chunks=False, timeout_s=timeout_s
        )
        if reading.record is None:
            raise CheckpointMissing(self.id, None)
        return reading.record.id

    # Copies

    async def fork(self, id: str, *, checkpoint: str | None = None) -> AsyncThread[S]:
        """Make a new thread that starts with one checkpoint of this one (default: the head)."""
        from outlive.threads.copy import fork_thread

        await self._flush_queue()
        target: AsyncThread[S] = self._store.thread(id, namespace=self.namespace, type=self._type)
        place = (self.namespace, optional_id("checkpoint", checkpoint))
        await fork_thread(self._engine, self._key, target._key, place)
        return target

    async def copy(self, id: str) -> AsyncThread[S]:
        """Make a new thread with the whole history of this one, in all namespaces."""
        from outlive.threads.copy import copy_thread

        await self._flush_queue()
        target: AsyncThread[S] = self._store.thread(id, namespace=self.namespace, type=self._type)
        await copy_thread(self._engine, self._key, target._key)
        return target

    async def export(self) -> str:
        """Return the whole thread as readable JSON. `store.import_thread` makes an equal thread from it."""
        from outlive.threads.export import export_thread

        await self._flush_queue()
        return await export_thread(self._engine, self._key)

    # Metadata of the thread itself

    async def info(self) -> ThreadInfo | None:
        """Return the thread as `store.threads()` lists it, or None when it does not exist."""
        await self._flush_queue()
        row = await thread_record(self._engine.backend, self._key, heads=True)
        return None if row is None else describe_thread(self._engine, self._key, row)

    async def metadata(self) -> dict[str, Any]:
        """Return the thread's own metadata (title, user, tags, ...)."""
        return unpack_metadata(
            self._engine, await thread_record(self._engine.backend, self._key, heads=True)
        )[0]

    async def set_metadata(
        self, metadata: Mapping[str, Any], *, replace: bool = False, fence: Fencing | None = None
    ) -> dict[str, Any]:
        """Change the thread's own metadata and return the result: merge these keys (None removes one), or replace all.

        `fence` is a run or a lock that must still hold this thread.
        """
        new, token = check_metadata(metadata), self._fence(fence)

        async def attempt() -> dict[str, Any]:
            row = await thread_record(self._engine.backend, self._key, heads=True)
            old, forked_from = unpack_metadata(self._engine, row)
            merged = {**({} if replace else old), **new}
            merged = {key: value for key, value in merged.items() if value is not None}
            body, text = pack_metadata(self._engine, merged, forked_from)
            version = row.metadata_version if row else 0
            await self._engine.commit(
                Commit(
                    self._key, metadata=body, metadata_projection=text, metadata_version=version, fence=token
                )
            )
            return merged

        # When another process changed the metadata meanwhile, merge into theirs.
        return await retry_stale(self.id, attempt, errors=(MetadataMoved,), attempts=100)

    # Deleting

    async def delete(self, *, erase: bool = False) -> bool:
        """Delete the thread in all namespaces; False when it did not exist. `erase` leaves no byte in the files."""
        await self._flush_queue()
        removal = Removal(everything=True, erase=erase)
        async with self._store._deleting(self._key):
            receipt = await self._engine.commit(Commit(self._key, removal=removal))
        self._engine.cache.drop(self._key.digest)
        return receipt.removed > 0

    async def delete_namespace(self, *, erase: bool = False) -> Pruned:
        """Delete all checkpoints and pending writes of this namespace; other namespaces, runs and metadata are kept.

        Data that other namespaces share is kept. `erase` leaves no other byte of it in the files.
        """
        from outlive.threads import prune

        await self._flush_queue()
        return await prune.remove(self._engine, self._key, namespace=self.namespace, erase=erase)

    async def delete_checkpoints(
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
        from outlive.threads import prune

        keys, ids_anywhere = prune.check_selection(self.id, self.namespace, ids, all_namespaces)
        await self._flush_queue()
        return await prune.remove(
            self._engine, self._key, keys=keys, ids=ids_anywhere, run=run_id_of(run), erase=erase
        )

    async def prune(
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
        from outlive.threads import prune
        from outlive.threads.keep_policy import KeepPolicy

        if not isinstance(keep_last, int) or isinstance(keep_last, bool) or keep_last < 1:
            raise BadArgument(f"keep_last must be 1 or more, not {keep_last!r}; thread.delete() deletes all")
        await self._flush_queue()
        return await prune.prune(
            self._engine,
            self._key,
            KeepPolicy(keep_last),
            keep_lineage=keep_lineage,
            erase=erase,
            dry_run=dry_run,
            namespace=None if all_namespaces else self.namespace,
        )

    # Care

    async def verify(self) -> Verified:
        """Check every stored byte of the thread. Problems are reported, not raised."""
        from outlive.threads.verify import verify_thread

        await self._flush_queue()
        return await verify_thread(self._engine, self._key)

    async def size(self) -> Sizes:
        """Return how much the thread stores."""
        await self._flush_queue()
        row = await thread_record(self._engine.backend, self._key, heads=True)
        records = await self._engine.records(self._key)
        return Sizes(
            1 if row else 0, len(records), row.stored if row else 0, sum(record.size for record in records)
        )

    async def flush(self) -> None:
        """Wait until the saves of this thread that are in the background are stored. Raises what went wrong."""
        await self._flush_queue()
