"""The place of a run, a thread and namespace: one holder at a time, and the runs that it shares its place with.

The holder has the entry of kind "lock". A run with `parent=` whose parent works there takes no entry of its own: its record says that
it shares the place. It keeps the place when its parent ends or dies: whoever finds the entry free, or its holder dead, looks for live
runs that share the place.

That look and the taking are two calls. What makes them safe:

- A run joins a place that is held by a commit with the holder's fence, and one that is free by a commit that expects the entry as
  it was and raises its revision. So nobody else took the place in between, and who wants to take it is refused.
- The place of a dead holder is cleared before it is taken, by a commit that expects the thread's revision from before the look: a
  run that joined since refuses it. A crash after that leaves a free place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outlive.backend import ABSENT, NEXT, Commit, EntryQuery, EntryRecord, ThreadKey
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
Fence = tuple[str, str, int, int]  # (kind, key, epoch, fence) of an entry that must still be running


@dataclass(frozen=True, slots=True)
class Claim:
    """What a commit must bring to be in the place when it is done."""

    entries: tuple[EntryRecord, ...] = ()
    fence: Fence | None = None
    is_shared: bool = False  # with its parent, who keeps the entry


class Place:
    """A thread and namespace, as somebody sees it who wants to work there."""

    def __init__(self, engine: Engine, key: ThreadKey, namespace: str) -> None:
        self._engine = engine
        self._key = key
        self._namespace = namespace

    async def claim(self, run: str | None, parent: str | None, lease_s: float) -> Claim:
        """Return how a run, or a lock without one, gets the place. Raises ThreadBusy when another has it, RunBusy when the run itself is alive there.

        A commit with the claim may still be refused, with EntryHeld or LeaseLost, because others were faster.
        """
        mine = Lock(run, Owner.me())
        for _ in range(TRIES):
            held = await find(self._engine, self._key, LOCK, self._namespace)
            if held is None:
                return Claim((self._taken(mine, None, lease_s),))
            lock = Lock.unpack(self._engine.codec, held)
            if lock.run in (None, run):  # its own: those that shared it go on with its successor
                return Claim((self._taken(mine, held, lease_s),))
            if parent is not None and lock.run == parent and held.status == RUNNING:
                return Claim(fence=_fence(held), is_shared=True)
            sharing = await self._sharing()
            if parent in [other.id for other in sharing]:
                return self._joined(held, next(other for other in sharing if other.id == parent))
            if held.status == RUNNING:
                await self._clear(held, lock, run)
                continue
            self._refuse(run, sharing)
            return Claim((self._taken(mine, held, lease_s),))
        raise ThreadBusy(self._key.id, self._namespace, None, None)  # others keep writing to the thread

    def _taken(self, mine: Lock, held: EntryRecord | None, lease_s: float) -> EntryRecord:
        """Return the entry that takes the place: one that is free, that has lapsed, or whose holder is gone."""
        codec = self._engine.codec
        entry = EntryRecord(
            LOCK, self._namespace, mine.pack(codec), RUNNING, fence=NEXT, lease_s=lease_s, expect_lapsed=True
        )
        if held is None:
            return replace(entry, expect=ABSENT)
        is_gone = Lock.unpack(codec, held).owner.is_gone()
        return replace(entry, epoch=held.epoch, expect=held.rank, expect_lapsed=not is_gone)

    def _joined(self, held: EntryRecord, parent: RunInfo) -> Claim:
        """Return how to join a parent that shares the place itself."""
        if held.status == RUNNING:
            return Claim(fence=_fence(held), is_shared=True)
        assert parent._entry is not None
        moved = replace(held, revision=held.revision + 1, expect=held.rank)
        return Claim((moved,), _fence(parent._entry), is_shared=True)

    async def _sharing(self) -> list[RunInfo]:
        """Return the live runs that share the place with its holder."""
        found: list[RunInfo] = []
        after = None
        while True:
            page = await self._engine.backend.entries(EntryQuery(self._key.tenant, RUN, thread=self._key, statuses=[RUNNING], lapsed=False, after=after, limit=_PAGE))  # fmt: skip
            found += [unpack_or_tell(self._engine.codec, key, entry) for key, entry in page]
            if len(page) < _PAGE:
                break
            after = (page[-1][1].key, page[-1][0].digest)
        return [
            run
            for run in found
            if run.shares_place
            and run.namespace == self._namespace
            and not (run.owner is not None and run.owner.is_gone())
        ]

    def _refuse(self, run: str | None, sharing: Sequence[RunInfo]) -> None:
        """Raise when the place is not free because somebody shares it."""
        for other in sharing:
            assert other._entry is not None
            if other.id == run:
                raise run_busy(self._engine.codec, run, other._entry)
            owner = None if other.owner is None else str(other.owner)
            raise ThreadBusy(self._key.id, self._namespace, other.id, lapses_at(other._entry), owner)

    async def _clear(self, held: EntryRecord, lock: Lock, run: str | None) -> None:
        """Free the place of a dead holder when nobody shares it. Raises ThreadBusy when somebody is in it."""
        codec = self._engine.codec
        if await self._is_held(held, lock):
            raise thread_busy(codec, self._key.id, self._namespace, held)
        revision = (await self._engine.backend.inventory(self._key)).revision
        self._refuse(run, await self._sharing())
        body = Lock(None, Owner.me()).pack(codec)
        free = EntryRecord(
            LOCK, self._namespace, body, "free", epoch=held.epoch, fence=NEXT, expect=held.rank
        )
        free = replace(free, expect_lapsed=not lock.owner.is_gone())
        try:
            await self._engine.commit(Commit(self._key, entries=(free,), revision=revision))
        except (EntryHeld, StaleBase):
            pass  # somebody wrote to the thread since: look again

    async def _is_held(self, held: EntryRecord, lock: Lock) -> bool:
        """Tell whether the holder is alive, as far as the store and this machine know."""
        if held.status != RUNNING or lock.owner.is_gone():
            return False
        live = await self._engine.backend.entries(
            EntryQuery(
                self._key.tenant, LOCK, thread=self._key, prefix=self._namespace, lapsed=False, limit=1
            )
        )
        return any(entry.key == self._namespace and entry.fence == held.fence for _, entry in live)


def _fence(entry: EntryRecord) -> Fence:
    return (entry.kind, entry.key, entry.epoch, entry.fence)
