"""Which released runs a worker may claim next: by priority, then first come, first served.

The queue of each agent that has a handler is a page of tickets, and the pages are merged by
priority and age. A ticket is passed over, without a call to the store, when this worker knows that
it cannot be claimed now:

- Its place is busy. Runs of one thread and namespace follow each other: only the first of them is
  tried, and after a refusal none before a pause. The pause doubles up to a second. It is over at
  once when a run of this worker leaves the place.
- It belongs to another version of the code, and the policy is to hold those.
- Its run could not be started here, or was given back by its handler: others may try first.

Each look reads the front of a queue. What is after tickets that must wait is read once, and the
first of those tickets are kept for each place (`waiting_tickets.py`). So a long queue of one thread
costs neither attempts nor another look at all of its tickets for each of its runs. A look reads a
thousand tickets of an agent beyond the front at most; the next look continues where it ended.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from outlive.runs.tickets import Source, Ticket, list_agents, list_ready
from outlive.runs.waiting_tickets import Place, WaitingTickets, place_of
from outlive.threads.engine import Engine

_PAGES, _LONG_PAGE = 5, 200  # that a look reads beyond the front
_AGENTS = 200  # that a handler "*" looks at
_FIRST_S, _LONGEST_S = 0.05, 1.0  # pauses before a busy place is tried again
_SUSPECTS = 1000


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
        self._waiting: dict[str | None, WaitingTickets] = {}  # by agent
        self._paused: dict[Place, _Pause] = {}
        self._avoided: dict[str, float] = {}  # run → until when
        self._suspects: dict[str, None] = {}  # keys of tickets by which no run could be claimed
        self._clock = time.monotonic
        self._again_at = math.inf  # when the next look has to continue this one
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
        if self._forget() or self.is_stale:
            self._note_stored()
        self.is_stale, self._is_empty, self._again_at = False, True, math.inf
        taken: set[Place] = set(busy)
        tickets: list[Ticket] = []
        for agent in await self._agents():
            if agent not in full:
                tickets += await self._look_at(source, agent, taken, count)
            else:
                self._is_empty = False
        tickets.sort(key=lambda ticket: ticket.turn)
        if len(tickets) > count:
            self.is_stale = True  # those that are left out may be beyond the front
        return tickets[:count]

    async def _agents(self) -> list[str | None]:
        named = [agent for agent in self._handlers if agent != "*"]
        if "*" not in self._handlers:
            return named
        return list(dict.fromkeys([*named, *await list_agents(self._engine, self._tenant, _AGENTS)]))

    async def _look_at(
        self, source: Source, agent: str | None, taken: set[Place], count: int
    ) -> list[Ticket]:
        """Return up to `count` tickets of an agent that may be claimed; add their places to `taken`."""
        waiting = self._waiting.setdefault(agent, WaitingTickets())
        look = _Look(count, taken, self._is_paused, self._is_unwanted)
        if not waiting.may_have(look.is_free):  # all was read, and nothing was stored since
            self._is_empty = self._is_empty and waiting.is_empty
            return []
        # 1. The front. It is reserved, so other workers see other tickets there.
        front = await list_ready(source, self._engine.codec, self._tenant, agent, limit=count)
        self._is_empty = self._is_empty and not front.tickets and front.after is None
        waiting.note_front(front.tickets)
        for ticket in front.tickets:
            look.offer(ticket)
        # What is beyond the front is not needed, or others have reserved it.
        if look.is_full or (front.after is None and front.tickets and not look.has_passed):
            return look.tickets
        # 2. What was read before: the first ticket of each place that is free by now.
        waiting.begin_if_due(self._clock(), look.is_free)
        for ticket in waiting.firsts(self._is_unwanted):
            look.offer(ticket)
        # 3. What was not read so far. Other workers may need it too, so it is not reserved.
        await self._read_on(waiting, agent, look)
        self._is_empty = self._is_empty and waiting.is_empty
        if waiting.due_at is not None:
            self._again_at = min(self._again_at, waiting.due_at)
        return look.tickets

    async def _read_on(self, waiting: WaitingTickets, agent: str | None, look: _Look) -> None:
        """Continue the pass until the look is full, or the queue is read."""
        backend, codec = self._engine.backend, self._engine.codec
        for _ in range(_PAGES):
            if look.is_full or waiting.is_complete:
                return
            page = await list_ready(
                backend, codec, self._tenant, agent, limit=_LONG_PAGE, after=waiting.after
            )
            read = 0
            for ticket in page.tickets:
                if look.is_full:
                    break
                read += 1
                if waiting.add(ticket):
                    look.offer(ticket)
            waiting.note_read(page, read)
        if not waiting.is_complete:
            self._again_at = self._clock() + _FIRST_S

    def _is_unwanted(self, ticket: Ticket) -> bool:
        return ticket.run_id in self._avoided or self._is_other_code(ticket.code_version)

    def _is_paused(self, place: Place) -> bool:
        pause = self._paused.get(place)
        return pause is not None and pause.until > self._clock()

    def _note_stored(self) -> None:
        for waiting in self._waiting.values():
            waiting.note_stored()

    # What this worker knows about runs that it could not claim

    def refused(self, ticket: Ticket) -> None:
        """Note that a place is busy: its runs wait."""
        place = place_of(ticket)
        if place is None:
            self.avoid(ticket.run_id, _LONGEST_S)
        else:
            self._paused.setdefault(place, _Pause()).extend(self._clock())
            self.is_stale = True  # it is to be read again, if it is beyond the front

    def claimed(self, ticket: Ticket) -> None:
        """Note that this worker works on a run."""
        if ticket.agent in self._waiting:
            self._waiting[ticket.agent].remove(ticket)

    def is_suspect(self, ticket: Ticket) -> bool:
        """Tell whether the run of a ticket must be looked at before it is claimed: it could not be claimed before."""
        return ticket.entry.key in self._suspects

    def suspect(self, ticket: Ticket) -> None:
        """Note that a claim was refused by what the ticket does not tell, such as who held the place before."""
        if len(self._suspects) >= _SUSPECTS:
            self._suspects.clear()
        self._suspects[ticket.entry.key] = None

    def lost(self, ticket: Ticket) -> bool:
        """Note that a run is not released any more; True: its ticket was left behind.

        A ticket that disappears after it was listed was claimed by another worker, with its run.
        """
        self.claimed(ticket)
        if ticket.entry.key in self._suspects:
            return True
        if len(self._suspects) >= _SUSPECTS:
            self._suspects.clear()
        self._suspects[ticket.entry.key] = None
        self.avoid(ticket.run_id, _LONGEST_S)
        return False

    def left(self, place: Place) -> None:
        """Note that a run of this worker has left a place."""
        self._paused.pop(place, None)

    def avoid(self, run_id: str, seconds: float) -> None:
        """Leave a run to others for some time."""
        self._avoided[run_id] = self._clock() + seconds

    def _forget(self) -> bool:
        """Forget what is over; tell whether a run may be tried again."""
        now, before = self._clock(), len(self._avoided)
        self._avoided = {run: until for run, until in self._avoided.items() if until > now}
        # A pause that ended a while ago is over, and its place starts with a short one again.
        self._paused = {place: pause for place, pause in self._paused.items() if pause.until + 5 > now}
        return len(self._avoided) < before

    def next_s(self) -> float | None:
        """Return in how many seconds a run may be tried that was passed over; None: nothing was."""
        now = self._clock()
        moments = [pause.until for pause in self._paused.values() if pause.until > now]
        moments += [until for until in self._avoided.values() if until > now]
        if self._again_at < math.inf:
            moments.append(max(now, self._again_at))
        return min(moments) - now if moments else None


class _Look:
    """What one look at the queue of an agent has taken so far."""

    def __init__(
        self,
        count: int,
        taken: set[Place],
        is_paused: Callable[[Place], bool],
        is_unwanted: Callable[[Ticket], bool],
    ) -> None:
        self.tickets: list[Ticket] = []
        self.has_passed = False  # over a ticket whose place is busy
        self._count = count
        self._taken = taken
        self._is_paused = is_paused
        self._is_unwanted = is_unwanted

    @property
    def is_full(self) -> bool:
        return len(self.tickets) >= self._count

    def is_free(self, place: Place) -> bool:
        """Tell whether a run may be claimed in a place, as far as this worker knows."""
        return place not in self._taken and not self._is_paused(place)

    def offer(self, ticket: Ticket) -> None:
        """Take a ticket if it may be claimed now."""
        place = place_of(ticket)
        if self.is_full or self._is_unwanted(ticket):
            return
        if place is not None and not self.is_free(place):
            self.has_passed = True
            return
        self.tickets.append(ticket)
        self._taken.update(filter(None, [place]))
