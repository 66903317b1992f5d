"""The queue of released runs: one ticket for each, found by agent in the order of claiming.

The key of a ticket is made of the agent, the priority and the moment from which the run was ready.
So a query by prefix lists the runs of an agent in the order in which they are to be claimed: by
priority, then first come, first served. No run is read for that.

Every commit that releases a run puts its ticket, and every commit that claims, cancels or parks it
removes it. The `until` of a released run has the moment of its ticket, so that the commit knows its
key. The run itself is the truth. A ticket that was left behind, by a failover for example, is
harmless: a process that finds its run not released removes it (`drop`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from outlive.backend import WALL, Commit, EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import READY
from outlive.errors import EntryHeld, well_formed
from outlive.runs.lease import RELEASED, RunInfo
from outlive.threads.engine import Engine

MAX_PRIORITY = 999


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run that is ready, as far as the queue knows."""

    thread: ThreadKey
    run_id: str
    priority: int
    ready_at: int  # microseconds since 1970, by the clock of the store
    entry: EntryRecord

    @property
    def cursor(self) -> EntryCursor:
        """Where a listing continues after this ticket."""
        return (self.entry.key, self.thread.digest)


def released(run: EntryRecord, agent: str | None, priority: int, now: int) -> tuple[EntryRecord, EntryRecord]:
    """Return the entry of a run that is released by a commit, and its ticket."""
    ticket = EntryRecord(READY, _key(agent, priority, now, run.key), epoch=run.epoch, fence=run.fence)
    return replace(run, status=RELEASED, until=now, clock=WALL, lease_s=None), ticket


def removed(stored: EntryRecord | None, run: RunInfo) -> tuple[EntryRecord, ...]:
    """Return the entries that remove the ticket of a run, whose entry is stored like this."""
    if stored is None or stored.status != RELEASED or stored.clock != WALL:
        return ()
    return (EntryRecord(READY, _key(run.agent, run.priority, stored.until, run.id), gone=True),)


async def list_ready(
    engine: Engine, tenant: str, agent: str | None, *, limit: int, after: EntryCursor | None = None
) -> list[Ticket]:
    """Return the next tickets of an agent, in the order in which they are to be claimed."""
    query = EntryQuery(tenant, READY, prefix=_prefix(agent), after=after, limit=limit)
    return [_ticket(thread, entry, agent) for thread, entry in await engine.backend.entries(query)]


async def drop(engine: Engine, ticket: Ticket) -> None:
    """Remove a ticket whose run is not released any more."""
    gone = EntryRecord(READY, ticket.entry.key, gone=True, expect=ticket.entry.rank)
    try:
        await engine.commit(Commit(ticket.thread, entries=(gone,)))
    except EntryHeld:
        pass  # another process removed it


def _prefix(agent: str | None) -> str:
    # The length comes first: no agent's tickets begin like those of another.
    return "-\n" if agent is None else f"{len(agent)}:{agent}\n"


def _key(agent: str | None, priority: int, now: int, run_id: str) -> str:
    return f"{_prefix(agent)}{MAX_PRIORITY - priority:03d}{now:020d}\n{run_id}"


def _ticket(thread: ThreadKey, entry: EntryRecord, agent: str | None) -> Ticket:
    rest = entry.key[len(_prefix(agent)) :]
    with well_formed(f"ticket {entry.key!r:.100}", thread.id):
        return Ticket(thread, rest[24:], MAX_PRIORITY - int(rest[:3]), int(rest[3:23]), entry)
