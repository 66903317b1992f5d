"""The place of a run, a thread and namespace: one holder, and the runs that share its place.

The holder owns the entry of kind "lock". A run with `parent=` whose parent works in the place takes
no entry: its own record says that it shares the place. It keeps the place when its parent ends or
dies. So a process that sees the entry free, or its holder dead, looks for live runs that share the
place.

Looking and taking are two calls. Two rules make them safe:

- A run joins a held place by a commit with the fence of the holder. It joins a free place by a
  commit that expects the entry as it was read and raises its revision. If another run took the
  place in between, the store refuses the commit; if one tries to take it afterwards, the store
  refuses that.
- The place of a dead holder is cleared before it is taken, by a commit that expects the revision
  that the thread had before the look. A run that joined since refuses it. A crash after that leaves
  a free place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlive.backend import ABSENT, NEXT, Commit, EntryQuery, EntryRecord, Fence, ThreadKey
from outlive.dataclass import dataclass
from outlive.errors import EntryHeld, StaleBase, ThreadBusy
from outlive.runs.lease import (
    LOCK,
    RUN,
    RUNNING,
    Lock,
    RunInfo,
    find,
    lapses_at,
    run_busy,
    thread_busy,
    unpack_or_tell,
)
from outlive.runs.owner import Owner
from outlive.threads.engine import Engine

TRIES = 8
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Claim:
    """What a commit must contain to have, or to share, the place afterwards."""

    entries: tuple[EntryRecord, ...] = ()
    fence: Fence | None = None
    is_shared: bool = False  # with its parent, which keeps the entry


class Place:
    """A thread and namespace, as a process that wants to work there sees it."""

    def __init__(self, engine: Engine, key: ThreadKey, namespace: str) -> None:
        self._engine = engine
        self._key = key
        self._namespace = namespace

    async def claim(self, run: str | None, parent: str | None, lease_s: float) -> Claim:
        """Return how a run, or a lock without a run, gets the place.

        Raises ThreadBusy if another run holds it, RunBusy if the run itself is alive there. The
        store may still refuse a commit with the claim, by EntryHeld or LeaseLost, because another
        was faster.
        """
        holder = Lock(run, Owner.me())
        for _ in range(TRIES):
            stored = await find(self._engine, self._key, LOCK, self._namespace)
            # 1. Nobody ever held the place, or its holder was this run or a lock without a run:
            #    take it. The store refuses that while the lease is valid. Runs that share the place
            #    stay in it.
            if stored is None:
                return Claim((self._taken(holder, None, lease_s),))
            lock = Lock.unpack(self._engine.codec, stored)
            if lock.run in (None, run):
                holder = replace(holder, is_shared=lock.is_shared)
                return Claim((self._taken(holder, stored, lease_s),))
            # 2. The parent holds the place: share it under the fence of the parent. The first that
            #    does so notes it, so that nobody looks for such runs where there are none.
            if parent is not None and lock.run == parent and stored.status == RUNNING:
                noted = replace(stored, body=replace(lock, is_shared=True).pack(self._engine.codec))
                return Claim(() if lock.is_shared else (noted,), stored.as_fence(), is_shared=True)
            # 3. The parent shares the place itself: join it.
            sharing = await self._sharing() if lock.is_shared else []
            if parent in [other.id for other in sharing]:
                return self._joined(stored, next(other for other in sharing if other.id == parent))
            # 4. Another run holds it: refuse if that is alive, else clear the place and look again.
            if stored.status == RUNNING:
                await self._clear(stored, lock, run)
                continue
            # 5. It is free: take it, unless live runs still share it.
            self._refuse(run, sharing)
            return Claim((self._taken(holder, stored, lease_s),))
        raise ThreadBusy(self._key.id, self._namespace, None, None)  # others keep changing the place

    def claim_first(self, run: str, lease_s: float) -> Claim:
        """Return how a run gets a place that nobody has held so far; the store refuses it otherwise."""
        return Claim((self._taken(Lock(run, Owner.me()), None, lease_s),))

    def claim_left(self, run: str, left: EntryRecord, lease_s: float) -> Claim | None:
        """Return how a run gets a place as another one left it a moment ago; None: it has to be looked at.

        The store refuses it if the place has changed since.
        """
        if left.status == RUNNING or Lock.unpack(self._engine.codec, left).is_shared:
            return None
        return Claim((self._taken(Lock(run, Owner.me()), left, lease_s),))

    def _taken(self, holder: Lock, stored: EntryRecord | None, lease_s: float) -> EntryRecord:
        """Return the entry that takes a place that is free, expired, or of a dead holder."""
        codec = self._engine.codec
        entry = EntryRecord(
            LOCK,
            self._namespace,
            holder.pack(codec),
            RUNNING,
            fence=NEXT,
            lease_s=lease_s,
            expect_lapsed=True,
        )
        if stored is None:
            return replace(entry, expect=ABSENT)
        is_gone = Lock.unpack(codec, stored).owner.is_gone()
        return replace(entry, epoch=stored.epoch, expect=stored.rank, expect_lapsed=not is_gone)

    def _joined(self, stored: EntryRecord, parent: RunInfo) -> Claim:
        """Return how to join a parent that shares the place."""
        if stored.status == RUNNING:
            return Claim(fence=stored.as_fence(), is_shared=True)
        assert parent._entry is not None
        raised = replace(stored, revision=stored.revision + 1, expect=stored.rank)
        return Claim((raised,), parent._entry.as_fence(), is_shared=True)

    async def _sharing(self) -> list[RunInfo]:
        """Return the live runs that share the place with its holder."""
        runs: list[RunInfo] = []
        after = None
        while True:
            query = EntryQuery(self._key.tenant, RUN, thread=self._key, statuses=[RUNNING], lapsed=False)
            page = await self._engine.backend.entries(replace(query, after=after, limit=_PAGE))
            runs += [unpack_or_tell(self._engine.codec, key, entry) for key, entry in page]
            if len(page) < _PAGE:
                break
            after = (page[-1][1].key, page[-1][0].digest)
        return [
            run
            for run in runs
            if run.shares_place
            and run.namespace == self._namespace
            and not (run.owner is not None and run.owner.is_gone())
        ]

    def _refuse(self, run: str | None, sharing: Sequence[RunInfo]) -> None:
        """Raise the error that names the first run that shares the place, if there is one."""
        for other in sharing:
            assert other._entry is not None
            if other.id == run:
                raise run_busy(self._engine.codec, run, other._entry)
            owner = None if other.owner is None else str(other.owner)
            raise ThreadBusy(self._key.id, self._namespace, other.id, lapses_at(other._entry), owner)

    async def _clear(self, stored: EntryRecord, lock: Lock, run: str | None) -> None:
        """Free the place of a dead holder if no live run shares it. Raises ThreadBusy otherwise."""
        codec = self._engine.codec
        if await self._is_held(stored, lock):
            raise thread_busy(codec, self._key.id, self._namespace, stored)
        # The revision comes before the look: a run that joins after the look changes it, and the
        # commit is refused. A crash before the commit changes nothing, a crash after it leaves a
        # free place.
        revision = (await self._engine.backend.inventory(self._key)).revision
        self._refuse(run, await self._sharing())
        body = Lock(None, Owner.me()).pack(codec)
        free = EntryRecord(
            LOCK, self._namespace, body, "free", epoch=stored.epoch, fence=NEXT, expect=stored.rank
        )
        free = replace(free, expect_lapsed=not lock.owner.is_gone())
        try:
            await self._engine.commit(Commit(self._key, entries=(free,), revision=revision))
        except (EntryHeld, StaleBase):
            pass  # the thread has changed since: look again

    async def _is_held(self, stored: EntryRecord, lock: Lock) -> bool:
        """Tell whether the holder is alive, as far as the store and this machine know."""
        if stored.status != RUNNING or lock.owner.is_gone():
            return False
        live = await self._engine.backend.entries(
            EntryQuery(
                self._key.tenant, LOCK, thread=self._key, prefix=self._namespace, lapsed=False, limit=1
            )
        )
        return any(entry.key == self._namespace and entry.fence == stored.fence for _, entry in live)
