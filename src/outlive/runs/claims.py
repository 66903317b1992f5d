"""Claiming runs from the queue: as many as there are free hands, in one exchange with the store.

The tickets are listed under a reservation, so that workers of one store see different ones if the
backend can tell them apart. Each has what its claim needs. One group of commits claims them all,
and each of these is refused alone: then another worker has the run, or its place is held. A crash
before the commits changes nothing. A crash after them leaves runs with a lease and a dead owner,
which are recovered.

Some runs need more than one commit: one that cannot be read, that failed too often, or whose ticket
may be left behind. A hand takes care of each of these.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

from outlive.backend import EntryRecord, Receipt
from outlive.dataclass import dataclass
from outlive.errors import EntryHeld, LeaseLost, OutliveError, RunBusy, StoreError, ThreadBusy
from outlive.runs import tickets
from outlive.runs.attempts import count_releases
from outlive.runs.lease import RELEASED, RUN, RunInfo, find, unpack_or_tell
from outlive.runs.lock import AsyncLock
from outlive.runs.queue import Queue
from outlive.runs.recovery import Offer, Outcome, Recovery
from outlive.runs.slots import Slots
from outlive.runs.tickets import Ticket
from outlive.runs.waiting_tickets import Place, place_of
from outlive.threads.engine import Engine

_MOST_DOUBLINGS = 8  # of the pause after a release
_MOST_PLACES = 1000


@dataclass(frozen=True, slots=True)
class Claimed:
    """Work for a hand, which frees the slots after it."""

    work: Callable[[], Coroutine[Any, Any, object]]
    place: Place | None
    slots: Sequence[AsyncLock]


@dataclass(frozen=True, slots=True)
class _Bid:
    ticket: Ticket
    slots: Sequence[AsyncLock]
    offer: Offer | None  # None: a hand takes care of it


class Claims:
    """What one worker claims from its queue."""

    def __init__(
        self, engine: Engine, recovery: Recovery, queue: Queue, slots: Slots, avoided_s: float
    ) -> None:
        self._engine = engine
        self._recovery = recovery
        self._queue = queue
        self._slots = slots
        self._avoided_s = avoided_s  # how long a run that could not be worked on is left to others
        self.full: set[str | None] = set()  # agents without a free slot
        self._left: dict[Place, EntryRecord] = {}  # places, as runs of this worker have left them

    async def take_slots(self, agent: str | None) -> list[AsyncLock] | None:
        """Take the slots that a run of an agent needs; None: there is none free."""
        if agent in self.full:
            return None
        slots = await self._slots.take(agent)
        if slots is None:
            self.full.add(agent)
        return slots

    async def claim(self, busy: Collection[Place], count: int, start: Callable[[Claimed], None]) -> int:
        """Claim up to `count` runs and call `start` for each; return how many there were to claim."""
        reservation = await self._engine.backend.reserve()
        bids: list[_Bid] = []
        try:
            listed = await self._queue.take(reservation, busy, count, self.full)
            for ticket in listed:
                await self._bid(ticket, bids)
            offers = [bid.offer for bid in bids if bid.offer is not None]
            results = await reservation.commit_all([offer.commit for offer in offers]) if offers else []
        except BaseException:
            self._queue.is_stale = True  # what was listed is still there
            for bid in bids:
                await self._slots.free(bid.slots)
            raise
        finally:
            await reservation.release()
        await self._award(bids, results, start)
        return len(listed)

    async def _bid(self, ticket: Ticket, bids: list[_Bid]) -> None:
        slots = await self.take_slots(ticket.agent)
        if slots is None:
            self._queue.is_stale = True  # it is to be listed again
            return
        try:
            bids.append(_Bid(ticket, slots, await self._offer(ticket)))
        except BaseException as error:
            await self._slots.free(slots)
            if not isinstance(error, RunBusy | ThreadBusy):
                raise
            self._lose(ticket, is_lost=isinstance(error, RunBusy))

    async def _offer(self, ticket: Ticket) -> Offer | None:
        stored = None if self._queue.is_suspect(ticket) else ticket.run
        if stored is None:
            return None
        info, place = unpack_or_tell(self._engine.codec, ticket.thread, stored), place_of(ticket)
        left = None if place is None else self._left.pop(place, None)
        return await self._recovery.offer(info, left)

    async def _award(
        self,
        bids: Sequence[_Bid],
        results: Sequence[Receipt | OutliveError],
        start: Callable[[Claimed], None],
    ) -> None:
        """Start what was claimed; note what was not."""
        answers, lost = iter(results), list[tuple[_Bid, OutliveError]]()
        for bid in bids:
            answer = None if bid.offer is None else next(answers)
            if isinstance(answer, OutliveError):
                lost.append((bid, answer))
                continue
            work = functools.partial(self._take, bid.ticket)
            if bid.offer is not None and answer is not None:
                work = functools.partial(self._resume, bid.ticket, bid.offer, answer)
            self._queue.claimed(bid.ticket)
            start(Claimed(work, place_of(bid.ticket), bid.slots))
        for bid, error in lost:
            await self._slots.free(bid.slots)
            if isinstance(error, StoreError):  # if it is stored all the same, its lease ends
                raise error
            is_lost = isinstance(error, EntryHeld | LeaseLost) and error.kind == RUN
            if not is_lost:  # the place may be free, and only not as new as the ticket supposed
                self._queue.suspect(bid.ticket)
            self._lose(bid.ticket, is_lost=is_lost)

    def _lose(self, ticket: Ticket, *, is_lost: bool) -> None:
        """Note that another process has a run, or that its place is held."""
        if is_lost:
            self._queue.lost(ticket)
        else:
            self._queue.refused(ticket)

    # What hands do

    async def _take(self, ticket: Ticket) -> None:
        """Claim one run, after a look at it, and call its handler."""
        stored = await find(self._engine, ticket.thread, RUN, ticket.run_id)
        if stored is None or stored.status != RELEASED:
            if self._queue.lost(ticket):
                await tickets.drop(self._engine, ticket)
            return
        info = unpack_or_tell(self._engine.codec, ticket.thread, stored)
        take = functools.partial(self._recovery.take, ticket.thread, info, is_fresh=True)
        await self._work(ticket, info, take)

    async def _resume(self, ticket: Ticket, offer: Offer, receipt: Receipt) -> None:
        """Work on a run that was claimed; remember how it leaves its place, for the next one there."""
        await self._work(ticket, offer.info, functools.partial(self._recovery.work, offer, receipt))
        place = place_of(ticket)
        if place is not None and offer.run._left is not None:
            if len(self._left) >= _MOST_PLACES:
                self._left.clear()
            self._left[place] = offer.run._left

    async def _work(self, ticket: Ticket, info: RunInfo, resume: Callable[[], Awaitable[Outcome]]) -> None:
        """Resume a run, and note what came of it."""
        outcome: Outcome = "skipped"
        releases = count_releases(
            info.attempts
        )  # in a row: a handler that only releases is called ever more seldom
        try:
            outcome = await resume()
        finally:
            place = place_of(ticket)
            if outcome in ("busy", "lost"):
                self._lose(ticket, is_lost=outcome == "lost")
            elif outcome != "worked":
                self._queue.avoid(ticket.run_id, self._avoided_s * 2 ** min(releases, _MOST_DOUBLINGS))
            elif place is not None:
                self._queue.left(place)
