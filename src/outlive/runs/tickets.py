"""The queue of released runs: one ticket for each, found by agent in the order of claiming.

The key of a ticket is made of the agent, the priority and the moment from which the run was ready.
So a query by prefix lists the runs of an agent in the order in which they are to be claimed: by
priority, then first come, first served. No run is read for that.

Every commit that releases a run puts its ticket, and every commit that claims, cancels or parks it
removes it. The `until` of a released run has the moment of its ticket, so that the commit knows its
key. The run itself is the truth. A ticket that was left behind, by a failover for example, is
harmless: a process that finds its run not released removes it (`drop`).

The body of a ticket has what a worker asks before it claims: the place that the run will hold, and
the version of the code that it belongs to. So it passes over runs that it cannot work on without a
read of each. It also repeats the record of the run, unless that is long, and has its rank. So a
worker claims the run without reading it: the commit is refused if the run has changed since.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from outlive.backend import WALL, Commit, EntryCursor, EntryQuery, EntryRecord, ThreadKey
from outlive.backend.entries import READY, RUN
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, DamagedEntry, EntryHeld, well_formed
from outlive.format.codec import Codec
from outlive.runs.lease import RELEASED, RunInfo
from outlive.threads.engine import Engine

MAX_PRIORITY = 999
_MOST_BYTES = 4096  # of a record that its ticket repeats


@dataclass(frozen=True, slots=True)
class Ticket:
    """A run that is ready, as far as the queue knows."""

    thread: ThreadKey
    run_id: str
    agent: str | None
    priority: int
    ready_at: int  # microseconds since 1970, by the clock of the store
    namespace: str | None  # that it will hold alone; None: it takes no place, or that of its parent
    code_version: str | None
    run_body: bytes | None  # None: it is long, and has to be read
    entry: EntryRecord

    @property
    def run(self) -> EntryRecord | None:
        """The entry of the run, if the ticket has all of it."""
        if self.run_body is None:
            return None
        epoch, fence, revision = self.entry.rank
        return EntryRecord(
            RUN, self.run_id, self.run_body, RELEASED, epoch, fence, revision, until=self.ready_at, clock=WALL
        )

    @property
    def turn(self) -> tuple[int, int, str]:
        """Sort tickets of several agents in the order of claiming."""
        return (-self.priority, self.ready_at, self.run_id)


@dataclass(frozen=True, slots=True)
class Errand:
    """What a ticket says about its run."""

    agent: str | None
    priority: int
    namespace: str | None
    code_version: str | None

    @classmethod
    def of(cls, run: RunInfo) -> Errand:
        is_alone = run.exclusive and run.parent is None
        return cls(run.agent, run.priority, run.namespace if is_alone else None, run.code_version)

    @classmethod
    def stored(cls, fields: Mapping[str, Any]) -> Errand:
        """Return the errand of a run from the fields of its stored body."""
        is_alone = fields["exclusive"] and fields["parent"] is None
        place = fields["namespace"] if is_alone else None
        return cls(fields["agent"], fields["priority"], place, fields["code_version"])


def released(
    codec: Codec, run: EntryRecord, errand: Errand, now: int, kept: bytes | None = None
) -> tuple[EntryRecord, EntryRecord]:
    """Return the entry of a run that is released by a commit, and its ticket.

    `kept` is the body that is stored, for a commit that does not change it.
    """
    key = _key(errand.agent, errand.priority, now, run.key)
    record = kept if run.body is None else run.body
    if record is not None and len(record) > _MOST_BYTES:
        record = None
    body = codec.pack([errand.namespace, errand.code_version, record])
    ticket = EntryRecord(READY, key, body, epoch=run.epoch, fence=run.fence, revision=run.revision)
    return replace(run, status=RELEASED, until=now, clock=WALL, lease_s=None), ticket


def removed(stored: EntryRecord | None, run: RunInfo) -> tuple[EntryRecord, ...]:
    """Return the entries that remove the ticket of a run, whose entry is stored like this."""
    if stored is None or stored.status != RELEASED or stored.clock != WALL:
        return ()
    return (EntryRecord(READY, _key(run.agent, run.priority, stored.until, run.id), gone=True),)


@dataclass(frozen=True, slots=True)
class TicketPage:
    """Some tickets of an agent, and where the next page begins; None: there are no more."""

    tickets: list[Ticket]
    after: EntryCursor | None


class Source(Protocol):
    """Where tickets are listed: a backend, or a reservation."""

    async def entries(
        self, query: EntryQuery, *, timeout_s: float | None = None
    ) -> list[tuple[ThreadKey, EntryRecord]]: ...


async def list_ready(
    source: Source,
    codec: Codec,
    tenant: str,
    agent: str | None,
    *,
    limit: int,
    after: EntryCursor | None = None,
) -> TicketPage:
    """Return the next tickets of an agent, in the order of claiming. A damaged one hides no other."""
    query = EntryQuery(tenant, READY, prefix=_prefix(agent), after=after, limit=limit)
    try:
        rows = await source.entries(query)
    except DamagedEntry as error:
        if limit > 1:  # smaller pages return the tickets before it
            return await list_ready(source, codec, tenant, agent, limit=1, after=after)
        return TicketPage([], (error.key, ThreadKey.of(tenant, error.thread or "").digest))
    tickets: list[Ticket] = []
    for thread, entry in rows:
        with contextlib.suppress(Corrupt):
            tickets.append(_ticket(codec, thread, entry, agent))
    last = (rows[-1][1].key, rows[-1][0].digest) if len(rows) == limit else None
    return TicketPage(tickets, last)


async def list_agents(engine: Engine, tenant: str, limit: int) -> list[str | None]:
    """Return the agents that have tickets: one read of one ticket for each."""
    agents: list[str | None] = []
    after: EntryCursor | None = None
    while len(agents) < limit:
        try:
            page = await engine.backend.entries(EntryQuery(tenant, READY, after=after, limit=1))
        except DamagedEntry as error:
            after = (error.key, ThreadKey.of(tenant, error.thread or "").digest)
            continue
        if not page:
            break
        thread, entry = page[0]
        try:
            agent = _agent(thread, entry)
        except Corrupt:  # a damaged ticket hides no other
            after = (entry.key, thread.digest)
            continue
        agents.append(agent)
        after = (f"{_prefix(agent)}:", b"")  # after all of this agent: what follows there is a digit
    return agents


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


def _ticket(codec: Codec, thread: ThreadKey, entry: EntryRecord, agent: str | None) -> Ticket:
    rest = entry.key[len(_prefix(agent)) :]
    with well_formed(f"ticket {entry.key!r:.100}", thread.id):
        namespace, code_version, record, *_ = codec.unpack(entry.body or b"")
        if not isinstance(namespace, str | None) or not isinstance(code_version, str | None):
            raise TypeError("a namespace and a version must be text")
        if not isinstance(record, bytes | None):
            raise TypeError("the record of a run must be bytes")
        priority, ready_at = MAX_PRIORITY - int(rest[:3]), int(rest[3:23])
        return Ticket(thread, rest[24:], agent, priority, ready_at, namespace, code_version, record, entry)


def _agent(thread: ThreadKey, entry: EntryRecord) -> str | None:
    """Return the agent of a ticket."""
    length, _, rest = entry.key.partition(":")
    if entry.key.startswith(_prefix(None)):
        return None
    if not (length.isascii() and length.isdigit() and len(length) < 6) or rest[int(length) :][:1] != "\n":
        raise Corrupt(f"ticket {entry.key!r:.100} has no valid key", thread=thread.id)
    return rest[: int(length)]
