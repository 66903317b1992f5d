"""A store as commands open it: with what is below it, for records and settings that a store does not show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlive.backend import ThreadKey
from outlive.errors import BadArgument, Corrupt, KeyMissing
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.iterator import each
from outlive.sync.store import Store
from outlive.view.escape import escape_terminal
from outlive.view.opaque import OpaqueCodec

if TYPE_CHECKING:
    from outlive.factory import StoreParts
    from outlive.layers.replication.pair import PairRecord
    from outlive.runs.lease import RunInfo
    from outlive.sync.thread import Thread
    from outlive.values import CheckpointInfo, ThreadInfo


class OpenedStore(Store):
    """A store with its engine, settings and pair."""

    def __init__(self, parts: StoreParts) -> None:
        self.asynchronous = AsyncStore(*parts)
        super().__init__(self.asynchronous)
        self.engine, self.pair = parts.engine, parts.pair
        self.url, self.tenant = parts.settings.url, parts.settings.tenant

    @property
    def backend(self) -> Any:
        """The backend below all layers: of a pair, the active one."""
        if self.pair is not None:
            return self.pair.stores.active
        backend: Any = self.engine.backend
        while hasattr(backend, "inner"):  # encryption, and the guard of one store of a pair
            backend = backend.inner
        return backend

    @classmethod
    def beside(cls, store: Store) -> OpenedStore:
        """Return a view of a store that builds no value of a registered type. It is not closed: the store is."""
        from outlive.factory import StoreParts

        own = store._store
        engine = own._engine.with_codec(OpaqueCodec())
        return cls(StoreParts(engine, own._settings, own._opener, None, own._pair))

    def key(self, thread: str) -> ThreadKey:
        return ThreadKey.of(self.tenant, thread)

    def list_threads(self, damaged: list[Corrupt], **selection: Any) -> Iterator[ThreadInfo]:
        """List threads; damaged ones are skipped, and their errors added to the list."""
        from outlive.threads.listing import Threads

        return each(Threads(self.engine, self.tenant, damaged=damaged, **selection))

    def describe(self, thread: Thread[Any], id: str | None) -> CheckpointInfo | None:
        """Return a checkpoint (default: the head) without its state, which is not read."""
        key = self.key(thread.id)
        record = run_now(self.engine.backend.read(key, thread.namespace, id, chunks=False)).record
        return None if record is None else self.engine.checkpoint(key, record)

    def facts(self) -> dict[str, Any]:
        """Return the facts of the backend: of a pair, those of the active store."""
        return run_now(self.engine.backend.facts())

    def give_back(self, run: RunInfo) -> None:
        """Release a run that failed, was parked or cancelled, or whose process died: any worker can claim it.

        Raises RunBusy for one that is running, and RunEnded for one that is completed.
        """
        from outlive.runs.start import Start, StartOptions

        # `store.retry` would read what the run did, which may have values of types that only its
        # program knows.
        place = self.asynchronous.thread(run.thread, namespace=run.namespace)
        start = Start(self.engine, place, run, StartOptions(retries=True))
        holding = run_now(start.take())
        if holding.info.is_finished:
            raise BadArgument(
                f"run '{escape_terminal(run.id)}' is {holding.info.status}; nothing is left to do"
            )
        run_now(start.release(holding))

    def pair_record(self) -> PairRecord | None:
        """Return the pair record of a store that was opened alone; None if it is in no pair, or left it."""
        from outlive.layers.replication.pair import ALONE, read_pair_record

        if self.pair is not None:
            return None
        record = run_now(read_pair_record(self.backend, self.tenant, self.engine.timeout_s))
        return None if record is None or record.ended == ALONE else record

    def check_keys(self) -> None:
        """Raise KeyMissing when what may be deleted cannot be decided: everything would look needed."""
        from outlive.layers.encryption.layer import Encrypted

        backend = self.engine.backend
        if isinstance(backend, Encrypted) and not backend.has_key:
            raise KeyMissing(None)
