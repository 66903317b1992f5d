"""What backends that speak to a server share: deadlines, trying again, and the names of hosts.

A call has one deadline for all it does. When the connection is lost, or the server says that it cannot serve now
(it starts, it stops, it was demoted), the call is tried again on another connection until the deadline. That is
safe for every commit: the server knows the tokens of the last ones (rule 9 of the waist). A connection on which nothing
moves for half of the time that is left is given up, so that one which swallows everything does not use up the whole.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive.backend import Commit, Receipt, outcome_unknown
from outlive.errors import (
    Corrupt,
    NotReplicated,
    OutcomeUnknown,
    StaleBase,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from outlive.runtime.runtime import Deadline as Deadline  # what every server backend takes from here

T = TypeVar("T")
Pause = Callable[[float], Awaitable[None]]
_PATIENCE_S = 30.0  # for one attempt, when the call itself may take for ever
_LITTLE_S = 0.5
_MOST_GIVEN_UP = 4  # commits of one thread that are remembered
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Attempt(Deadline):
    """The deadline of one attempt: when nothing moved for half of the time that was left, or the call's own."""

    __slots__ = ("_call", "_idle_s")

    def __init__(self, call: Deadline, number: int) -> None:
        left_s = call.left_s()
        most_s = _PATIENCE_S if left_s < float("inf") else _PATIENCE_S * 2**number
        self._idle_s = min(left_s / 2 if left_s > _LITTLE_S else left_s, most_s)
        self._call = call
        super().__init__(self._idle_s)

    def moved(self) -> None:
        """Bytes came or went: the connection lives."""
        self.extend(min(self._idle_s, self._call.left_s()))


def lock_ms(deadline: Deadline) -> int:
    """Return how long the server may wait for a lock: it gives up a little before nobody listens any more."""
    return max(1, int(min(deadline.left_s(), _PATIENCE_S) * 0.85 * 1000))


class AbandonedCommits:
    """Tokens of commits whose callers did not wait for the end: they may still be on their way.

    They are told to the server with the thread's next commit, after which they do nothing.
    """

    def __init__(self) -> None:
        self._tokens: dict[bytes, tuple[bytes, ...]] = {}  # by the thread's digest

    async def watch(self, commit: Commit, send: Callable[[bytes], Awaitable[Receipt]]) -> Receipt:
        """Send a commit with the tokens that it makes void."""
        void = self._tokens.get(commit.thread.digest, ())
        try:
            receipt = await send(b"".join(void))
        except OutcomeUnknown:
            self._add(commit)
            raise
        except Exception:
            raise
        except BaseException:  # cancelled, or interrupted
            self._add(commit)
            raise
        if void and receipt.existing is None:  # else nothing was stored, and nothing told
            self._forget(commit, void)
        return receipt

    def _add(self, commit: Commit) -> None:
        tokens = self._tokens.get(commit.thread.digest, ())
        self._tokens[commit.thread.digest] = (*tokens, commit.token)[-_MOST_GIVEN_UP:]

    def _forget(self, commit: Commit, void: tuple[bytes, ...]) -> None:
        left = tuple(token for token in self._tokens.pop(commit.thread.digest, ()) if token not in void)
        if left:
            self._tokens[commit.thread.digest] = left


class StoreReplaced(StoreUnavailable):
    """The server lost everything, and somebody else has begun another store there: what was done before is gone."""


class AttemptFailed(Exception):
    """The server could not be reached or cannot do it now.

    `sent`: it may have done what it was asked. `busy`: it is there, and others are in the way. `is_over`: the
    connection is of no use any more.
    """

    def __init__(self, reason: str, *, sent: bool, busy: bool = False, is_over: bool = False) -> None:
        super().__init__(reason)
        self.is_over = is_over
        self.reason = reason
        self.sent = sent
        self.busy = busy


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
                return await attempt(Attempt(self.deadline, self.count))
            except AttemptFailed as lost:
                await self._go_on(lost, commit)
            except (StaleBase, Corrupt, StoreReplaced, NotReplicated):
                raise
            except StoreError as error:
                if commit is None or not self.sent:
                    raise
                raise outcome_unknown(commit, str(error)) from error  # an attempt before may have done it

    async def _go_on(self, lost: AttemptFailed, commit: Commit | None) -> None:
        """Wait a little before the next attempt, or give up."""
        self.sent = self.sent or lost.sent
        longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self.count)
        pause_s = longest * random.uniform(0.5, 1.0)
        self.count += 1
        tried_enough = self._max_retries is not None and self.count > self._max_retries
        if tried_enough or self.deadline.left_s() <= pause_s:
            raise self._failure(lost, commit) from lost
        await self._pause(pause_s)

    def _failure(self, lost: AttemptFailed, commit: Commit | None) -> OutcomeUnknown | StoreUnavailable:
        if commit is not None and self.sent:
            return outcome_unknown(commit, f"no answer within {self.deadline.timeout_s} s ({lost.reason})")
        if lost.busy:
            return StoreBusy(f"{self.place} was busy for {self.deadline.timeout_s} s: {lost.reason}")
        times = "once" if self.count == 1 else f"{self.count} times within {self.deadline.timeout_s} s"
        return StoreUnavailable(
            f"{self.place} could not be reached, tried {times}: {lost.reason}; is it running and reachable?"
        )


# Names of hosts -------------------------------------------------------------------------------------------------


def look_up(name: str) -> tuple[socket.socket, list[str]]:
    """Begin to look up a name; when the socket can be read, the list holds its addresses.

    The system has no deadline for that, so a thread does it for which nobody waits: it may be stuck for minutes.
    """
    ours, theirs = socket.socketpair()
    found: list[str] = []

    def ask() -> None:
        with theirs, contextlib.suppress(OSError):
            rows = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(str(row[4][0]) for row in rows))

    threading.Thread(target=ask, name="outlive-resolver", daemon=True).start()
    return ours, found


def is_address(name: str) -> bool:
    """Tell whether there is nothing to look up."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
