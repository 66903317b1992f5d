"""Which released runs a worker may claim next: by priority, then first come, first served.

The queue of each agent that has a handler is a page of tickets, and the pages are merged by
priority and age. A ticket is passed over, without a call to the store, when this worker knows that
it cannot be claimed now:

- Its place is busy. Runs of one thread and namespace follow each other: only the first of them is
  tried, and after a refusal none before a pause. The pause doubles up to a second. It is over at
  once when a run of this worker leaves the place.
- It belongs to another version of the code, and the policy is to hold those.
- Its run could not be started here, or was given back by its handler: others may try first.

So a long queue of one thread costs a look at its tickets and no attempts. A look reads at most
`_MOST` tickets of an agent; the next look continues where it ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from outlive.backend import EntryCursor
from outlive.runs.tickets import Source, Ticket, list_agents, list_ready
from outlive.threads.engine import Engine

_MOST = 1000
_LONG_PAGE = 200
_AGENTS = 200  # that a handler "*" looks at
_FIRST_S, _LONGEST_S = 0.05, 1.0  # pauses before a busy place is tried again
_SUSPECTS = 1000

Place = tuple[bytes, str]  # (digest of the thread, namespace)


class _Pause:
    def __init__(self) -> None:
        self._seconds = _FIRST_S
        self.until = 0.0

    def extend(self, now: float) -> None:
        self.until = now + self._seconds * random.uniform(0.8, 1.2)
        self._seconds = min(_LONGEST_S, 2 * self._seconds)


class Queue:
    """The tickets that one worker looks at."""

    def __init__(
        self,
        engine: Engine,
        tenant: str,
        handlers: Mapping[str | None, Any],
        is_other_code: Callable[[str | None], bool],
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._handlers = handlers
        self._is_other_code = is_other_code
        self._cursors: dict[str | None, EntryCursor] = {}
        self._passed: set[Place] = set()  # that a ticket was passed over for: none may overtake it
        self._paused: dict[Place, _Pause] = {}
        self._avoided: dict[str, float] = {}  # run → until when
        self._lost: dict[str, None] = {}  # keys of tickets whose runs were not released any more
        self._clock = time.monotonic
        self._is_empty = False  # the last look has seen no ticket
        self.is_stale = True  # something was stored since the last look

    async def take(
        self, source: Source, busy: Collection[Place], count: int, full: Collection[str | None]
    ) -> list[Ticket]:
        """Return the next tickets that may be claimed, at most `count`.

        `busy` are the places in which this worker works, `full` the agents that must wait. `source`
        lists tickets, and may reserve them.
        """
        if self._is_empty and not self.is_stale:
            return []
        self.is_stale, self._is_empty = False, True
        self._forget()
        if not self._cursors:
            self._passed.clear()
        taken: set[Place] = set(busy)
        tickets: list[Ticket] = []
        for agent in await self._agents():
            if agent not in full:
                tickets += await self._look_at(source, agent, taken, count)
            else:
                self._is_empty = False
        return sorted(tickets, key=lambda ticket: ticket.turn)[:count]

    async def _agents(self) -> list[str | None]:
        named = [agent for agent in self._handlers if agent != "*"]
        if "*" not in self._handlers:
            return named
        return list(dict.fromkeys([*named, *await list_agents(self._engine, self._tenant, _AGENTS)]))

    async def _look_at(
        self, source: Source, agent: str | None, taken: set[Place], count: int
    ) -> list[Ticket]:
        """Return up to `count` tickets of an agent that may be claimed; add their places to `taken`."""
        tickets: list[Ticket] = []
        seen, after = 0, self._cursors.pop(agent, None)
        while len(tickets) < count:
            if seen >= _MOST and after is not None:
                self._cursors[agent] = after
                break
            # Only the first page is reserved. What is behind tickets that must wait is looked for in
            # longer pages, which other workers may need too.
            limit, lister = (_LONG_PAGE, self._engine.backend) if seen else (count, source)
            page = await list_ready(lister, self._engine.codec, self._tenant, agent, limit=limit, after=after)
            seen += limit
            self._is_empty = self._is_empty and not page.tickets and page.after is None
            for ticket in page.tickets:
                if len(tickets) < count and self._is_open(ticket, taken):
                    tickets.append(ticket)
                    taken.update(filter(None, [place_of(ticket)]))
            after = page.after
            if after is None and (page.tickets or lister is not source):
                break  # else tickets after one that is damaged or reserved may still be found unreserved
        return tickets

    def _is_open(self, ticket: Ticket, taken: Collection[Place]) -> bool:
        if ticket.run_id in self._avoided or self._is_other_code(ticket.code_version):
            return False
        place = place_of(ticket)
        if place is None:
            return True
        pause = self._paused.get(place)
        if place in taken or (pause is not None and pause.until > self._clock()):
            self._passed.add(place)
        return place not in self._passed

    # What this worker knows about runs that it could not claim

    def refused(self, ticket: Ticket) -> None:
        """Note that a place is busy: its runs wait."""
        place = place_of(ticket)
        if place is None:
            self.avoid(ticket.run_id, _LONGEST_S)
        else:
            self._paused.setdefault(place, _Pause()).extend(self._clock())

    def is_suspect(self, ticket: Ticket) -> bool:
        """Tell whether the run of a ticket must be looked at before it is claimed: it could not be claimed before."""
        return ticket.entry.key in self._lost

    def suspect(self, ticket: Ticket) -> None:
        """Note that a claim was refused by what the ticket does not tell, such as who held the place before."""
        if len(self._lost) >= _SUSPECTS:
            self._lost.clear()
        self._lost[ticket.entry.key] = None

    def lost(self, ticket: Ticket) -> bool:
        """Note that a run is not released any more; True: its ticket was left behind.

        A ticket that disappears after it was listed was claimed by another worker, with its run.
        """
        if ticket.entry.key in self._lost:
            return True
        if len(self._lost) >= _SUSPECTS:
            self._lost.clear()
        self._lost[ticket.entry.key] = None
        self.avoid(ticket.run_id, _LONGEST_S)
        return False

    def left(self, place: Place) -> None:
        """Note that a run of this worker has left a place."""
        self._paused.pop(place, None)

    def avoid(self, run_id: str, seconds: float) -> None:
        """Leave a run to others for some time."""
        self._avoided[run_id] = self._clock() + seconds

    def _forget(self) -> None:
        now = self._clock()
        self._avoided = {run: until for run, until in self._avoided.items() if until > now}
        # A pause that ended a while ago is over, and its place starts with a short one again.
        self._paused = {place: pause for place, pause in self._paused.items() if pause.until + 5 > now}

    def next_s(self) -> float | None:
        """Return in how many seconds a run may be tried that was passed over; None: nothing was."""
        now = self._clock()
        moments = [pause.until for pause in self._paused.values() if pause.until > now]
        moments += [until for until in self._avoided.values() if until > now]
        if self._cursors:
            return _FIRST_S
        return min(moments) - now if moments else None


def place_of(ticket: Ticket) -> Place | None:
    """Return the place that a run will hold."""
    return None if ticket.namespace is None else (ticket.thread.digest, ticket.namespace)
