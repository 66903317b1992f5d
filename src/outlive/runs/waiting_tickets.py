"""What a worker has read of the queue of an agent beyond its front: the next tickets of each place.

A pass reads the queue once, from the front to its end, over several looks. It keeps the first
tickets of each place: one of them may be claimed when the place is free and no other ticket is.
When something was stored since, the pass continues after the last ticket that it has read, because
most tickets are put there. Once a second it starts again, for those that were put between others.

It is a hint, and so is every ticket: a claim is refused when its run has changed.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

from outlive.backend import EntryCursor
from outlive.runs.tickets import Ticket, TicketPage

_OF_PLACE = 64  # tickets that are kept for one place
_KEPT = 2000  # for all places
_AGE_S = 1.0  # of a pass that may have missed something

Place = tuple[bytes, str]  # (digest of the thread, namespace)


def place_of(ticket: Ticket) -> Place | None:
    """Return the place that a run will hold."""
    return None if ticket.namespace is None else (ticket.thread.digest, ticket.namespace)


class WaitingTickets:
    """One pass over the queue of one agent."""

    def __init__(self) -> None:
        self._begin(float("-inf"))
        self._is_stale = True  # something was stored since it began

    def _begin(self, now: float) -> None:
        self._began, self._is_stale = now, False
        self.is_complete = False  # there may be tickets after the last one that was read
        self.after: EntryCursor | None = None
        self._places: dict[Place, collections.deque[Ticket]] = {}
        self._cut: set[Place] = set()  # those that have more tickets than are kept
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing waits, as far as it has read."""
        return self.is_complete and not self._places and not self._cut

    def may_have(self, is_free: Callable[[Place], bool]) -> bool:
        """Tell whether there may be a ticket for a free place, or one that was not read."""
        is_current = self.is_complete and not self._is_stale
        return not is_current or any(map(is_free, (*self._places, *self._cut)))

    @property
    def due_at(self) -> float | None:
        """When the pass has to start again; None: nothing was stored since it began."""
        return self._began + _AGE_S if self._is_stale and not self.is_empty else None

    def note_stored(self) -> None:
        """Note that there may be other tickets than were read."""
        self._is_stale, self.is_complete = True, False

    def begin_if_due(self, now: float, is_free: Callable[[Place], bool]) -> None:
        """Start the pass again if it is old, or if a place is free of which it has no ticket left."""
        is_old = self._is_stale and now >= self._began + _AGE_S
        if is_old or any(place not in self._places and is_free(place) for place in self._cut):
            self._begin(now)

    def firsts(self, is_unwanted: Callable[[Ticket], bool]) -> list[Ticket]:
        """Return the first ticket of each place, in the order of claiming. Unwanted ones are dropped."""
        firsts: list[Ticket] = []
        for place, tickets in list(self._places.items()):
            while tickets and is_unwanted(tickets[0]):
                self._drop(place, tickets[0])
            firsts += list(tickets)[:1]
        return sorted(firsts, key=lambda ticket: ticket.turn)

    def add(self, ticket: Ticket) -> bool:
        """Keep a ticket that was read after all others; tell whether it is the first of its place."""
        place = place_of(ticket)
        if place is None:
            return True
        tickets = self._places.get(place, ())
        if place in self._cut or len(tickets) >= _OF_PLACE or self._count >= _KEPT:
            self._cut.add(place)
            return False
        if ticket not in tickets:
            self._places.setdefault(place, collections.deque()).append(ticket)
            self._count += 1
        return self._places[place][0] == ticket

    def note_front(self, tickets: Sequence[Ticket]) -> None:
        """Note which tickets are the first of their places by now: those before them were claimed."""
        for place, first in {place_of(ticket): ticket for ticket in reversed(tickets)}.items():
            while place in self._places and self._places[place][0].turn < first.turn:
                self._drop(place, self._places[place][0])

    def note_read(self, page: TicketPage, count: int) -> None:
        """Note that the first tickets of a page were read."""
        if count:
            self.after = (page.tickets[count - 1].entry.key, page.tickets[count - 1].thread.digest)
        if count == len(page.tickets):
            self.after, self.is_complete = page.after or self.after, page.after is None

    def remove(self, ticket: Ticket) -> None:
        """Forget a ticket: its run was claimed."""
        place = place_of(ticket)
        if place is not None and ticket in self._places.get(place, ()):
            self._drop(place, ticket)

    def _drop(self, place: Place, ticket: Ticket) -> None:
        tickets = self._places[place]
        tickets.remove(ticket)
        self._count -= 1
        if not tickets:
            del self._places[place]
