"""What backends that speak to a server share: deadlines, trying again, and URLs without their secrets.

A call has one deadline for all it does. When the connection is lost, or the server says that it cannot serve now
(it starts, it stops, it was demoted), the call is tried again on another connection until the deadline. That is
safe for every commit: a checkpoint that is there already is the answer (rule 1 of the waist), and everything else
in a commit can be done twice. One attempt gets half of the time that is left, so that a connection which
swallows everything does not use up the whole of it.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..backend import Backend, Commit, unknown
from ..errors import OutcomeUnknown, StoreUnavailable

T = TypeVar("T")
Pause = Callable[[float], Awaitable[None]]
_PATIENCE_S = 30.0  # for one attempt, when the call itself may take for ever
_LITTLE_S = 0.5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


@dataclass(frozen=True, slots=True)
class Served:
    """How to reach a server, in each colour. `shown` is its URL without anything secret."""

    shown: str
    sync: Callable[[], Backend]
    asynchronous: Callable[[], Awaitable[Backend]]


class Deadline:
    """The moment at which a call has to have returned."""

    __slots__ = ("_end", "timeout_s")

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the time that is left, 0 when it is over."""
        return float("inf") if self._end is None else max(0.0, self._end - time.monotonic())

    def attempt(self) -> Deadline:
        """Return the deadline of one attempt: half of what is left, or all when that is little."""
        left_s = self.left_s()
        return Deadline(min(left_s / 2 if left_s > _LITTLE_S else left_s, _PATIENCE_S))


class Lost(Exception):
    """The server could not be reached or answered nothing. `sent`: it may have done what it was asked."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Attempts:
    """Counts what was tried in one call, and says what to raise in the end."""

    def __init__(self, place: str, deadline: Deadline, max_retries: int | None, pause: Pause) -> None:
        self.place = place
        self.deadline = deadline
        self.count = 0
        self.sent = False  # an attempt before may have done it
        self._max_retries = max_retries
        self._pause = pause

    async def run(self, attempt: Callable[[Deadline], Awaitable[T]], commit: Commit | None = None) -> T:
        """Try until it works or there is no time left."""
        while True:
            try:
                return await attempt(self.deadline.attempt())
            except Lost as lost:
                await self._go_on(lost, commit)

    async def _go_on(self, lost: Lost, commit: Commit | None) -> None:
        """Wait a little before the next attempt, or give up."""
        self.sent = self.sent or lost.sent
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self.count)
        pause_s = longest * random.uniform(0.5, 1.0)
        self.count += 1
        tried_enough = self._max_retries is not None and self.count > self._max_retries
        if tried_enough or self.deadline.left_s() <= pause_s:
            raise self._failure(lost, commit) from lost
        await self._pause(pause_s)

    def _failure(self, lost: Lost, commit: Commit | None) -> OutcomeUnknown | StoreUnavailable:
        if commit is not None and self.sent:
            return unknown(commit)
        times = "once" if self.count == 1 else f"{self.count} times within {self.deadline.timeout_s} s"
        return StoreUnavailable(
            f"{self.place} could not be reached, tried {times}: {lost.reason}; is it running and reachable?"
        )


def hide_secrets(text: str, secrets: tuple[str, ...] = ()) -> str:
    """Take user, password and query out of every URL in a text, and the given words wherever they stand."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(\w+://)[^\s/@]*@", r"\1", text)
    return re.sub(r"(\w+://[^\s?]*)\?\S*", r"\1", text)
