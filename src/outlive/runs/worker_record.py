"""The record of a worker: which agents it has handlers for, where it runs, and how busy it is.

It is an entry with a lease, in a thread of the store itself, renewed with the leases of the runs of
its store. A worker that ends removes its record. The record of one that died expires, and the next
worker that looks removes it.

The worker and the renewer of leases store the record without waiting for each other. Its revision
says which of them is newer, so an older one is refused and changes nothing. Both name the fence
under which the record was made: a renewal that arrives after the record was removed does not bring
it back.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Callable
from typing import Any

from outlive.backend import NEXT, Commit, EntryQuery, EntryRecord, Fence, ThreadKey, each_entry
from outlive.backend.entries import WORKER
from outlive.backend.records import reserved
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, DamagedEntry, EntryHeld, LeaseLost, OutliveError, well_formed
from outlive.format.codec import Codec
from outlive.runs.lease import RUNNING, lapses_at
from outlive.runs.owner import Owner
from outlive.runtime.runtime import new_id
from outlive.threads.engine import Engine
from outlive.values import moment

_LEASE_S = 30.0
_PAGE = 100


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that lives, as far as the store knows."""

    id: str
    agents: tuple[str | None, ...]  # that it has handlers for; "*" is any other
    code_version: str | None
    policy: str
    owner: Owner
    capacity: int  # how many runs it works on at the same time
    busy: int  # how many it works on, as of the last renewal
    is_draining: bool
    started_at: dt.datetime
    lease_expires_at: dt.datetime | None

    @property
    def host(self) -> str:
        """The machine that it runs on."""
        return self.owner.host

    @property
    def pid(self) -> int:
        """Its process."""
        return self.owner.pid

    def handles(self, agent: str | None, code_version: str | None = None) -> bool:
        """Tell whether it claims runs of an agent and a version of the code."""
        if self.is_draining or not ({agent, "*"} & set(self.agents)):
            return False
        is_held = self.policy == "hold" and None not in (code_version, self.code_version)
        return not is_held or code_version == self.code_version


class WorkerRecord:
    """The record of a worker of this process. The renewer of leases renews it."""

    _thread_ident = None

    def __init__(self, engine: Engine, tenant: str, fields: dict[str, Any]) -> None:
        self.id = new_id()
        self._lease_s = _LEASE_S
        self._engine = engine
        self._key = _thread(tenant)
        self._fields = {**fields, "owner": Owner.me().pack(), "started_at": moment(engine.runtime.now())}
        self.count_busy: Callable[[], int] = lambda: 0
        self._revision = 0
        self._fence: Fence | None = None  # None: it was not stored yet
        self.is_draining = False

    async def store(self) -> None:
        """Store the record, new or changed."""
        if self._fence is not None:
            try:
                await self._engine.commit(self._renewal())
                return
            except EntryHeld:
                return  # a newer renewal came first, and has all that this one says
            except LeaseLost:
                pass  # its lease had expired, and another worker removed it
        receipt = await self._engine.commit(Commit(self._key, entries=(self._entry(0, NEXT),)))
        self._fence = receipt.entries[0].as_fence()

    async def remove(self) -> None:
        """Remove the record: the worker ends. If that fails, its lease ends."""
        with contextlib.suppress(OutliveError):
            await self._engine.commit(Commit(self._key, entries=(EntryRecord(WORKER, self.id, gone=True),)))

    def _entry(self, epoch: int, fence: int) -> EntryRecord:
        self._revision += 1
        changing = {"busy": self.count_busy(), "is_draining": self.is_draining}
        body = self._engine.codec.pack({**self._fields, **changing})
        return EntryRecord(WORKER, self.id, body, RUNNING, epoch, fence, self._revision, lease_s=_LEASE_S)

    # What the renewer asks (`renewal.py`)

    def _renewal(self) -> Commit:
        fence = self._fence
        if fence is None:
            return Commit(self._key)
        return Commit(self._key, entries=(self._entry(fence.epoch, fence.number),), fence=fence)

    def _is_stalled(self) -> bool:
        return False

    def _renewed(self, is_stored: bool) -> None:
        """Do nothing: the next renewal has everything."""

    def _lose(self, error: LeaseLost | EntryHeld) -> LeaseLost:
        return LeaseLost(self._key.id, WORKER, self.id, 0, None)

    def _is_overtaken(self, error: LeaseLost | EntryHeld) -> bool:
        return True  # nobody else writes it: a newer renewal came first, or it was removed

    async def _give_up(self) -> None:
        await self.remove()


async def find_workers(engine: Engine, tenant: str) -> AsyncIterator[WorkerInfo]:
    """Iterate over the workers of a tenant that live."""
    async for _, entry in _entries(engine, tenant, lapsed=False):
        with contextlib.suppress(Corrupt):  # a damaged record must not hide the other workers
            worker = _unpack(engine.codec, entry)
            if not worker.owner.is_gone():
                yield worker


async def remove_dead(engine: Engine, tenant: str) -> None:
    """Remove the records of workers whose lease has expired."""
    async for key, entry in _entries(engine, tenant, lapsed=True):
        gone = EntryRecord(WORKER, entry.key, gone=True, expect=entry.rank, expect_lapsed=True)
        with contextlib.suppress(EntryHeld):  # it lives after all
            await engine.commit(Commit(key, entries=(gone,)))


async def _entries(
    engine: Engine, tenant: str, *, lapsed: bool
) -> AsyncIterator[tuple[ThreadKey, EntryRecord]]:
    """Iterate over the records of workers. A damaged one hides no other."""
    key = _thread(tenant)
    query = EntryQuery(key.tenant, WORKER, thread=key, lapsed=lapsed, limit=_PAGE)
    async for _, entry in each_entry(engine.backend, query):
        if not isinstance(entry, DamagedEntry):
            yield key, entry


def _unpack(codec: Codec, entry: EntryRecord) -> WorkerInfo:
    with well_formed(f"worker {entry.key!r}", None):
        fields = codec.unpack(entry.body or b"")
        return WorkerInfo(
            entry.key,
            tuple(fields["agents"]),
            fields["code_version"],
            fields["policy"],
            Owner.unpack(fields["owner"]),
            int(fields["capacity"]),
            int(fields["busy"]),
            bool(fields["is_draining"]),
            fields["started_at"],
            lapses_at(entry),
        )


def _thread(tenant: str) -> ThreadKey:
    return reserved(f"workers {ThreadKey.of(tenant, '').digest.hex()}")
