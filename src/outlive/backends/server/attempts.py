"""What the server backends share: deadlines and retries.

A call has one deadline for all it does. When the connection is lost, or the server cannot serve now
(it starts, it stops, it was demoted), the call is tried again on another connection until the
deadline. That is safe for every commit: the server knows the tokens of the last ones (rule 9 of the
backend protocol). An attempt ends when its connection makes no progress for half of the time that
is left, so that one dead connection does not use up all of it.
"""

from __future__ import annotations

import random
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
from outlive.runtime.runtime import Deadline as Deadline

T = TypeVar("T")
Pause = Callable[[float], Awaitable[None]]
_MAX_IDLE_S = 30.0  # of one attempt, when the call itself has no limit
_LAST_ATTEMPT_S = 0.5  # so little time is not divided any more
_MAX_ABANDONED = 4  # commits of one thread that are remembered
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class Attempt(Deadline):
    """The deadline of one attempt: half of the time left without progress, or the call's end."""

    __slots__ = ("_call", "_idle_s")

    def __init__(self, call: Deadline, number: int) -> None:
        left_s = call.remaining_s()
        max_idle_s = _MAX_IDLE_S if left_s < float("inf") else _MAX_IDLE_S * 2**number
        self._idle_s = min(left_s / 2 if left_s > _LAST_ATTEMPT_S else left_s, max_idle_s)
        self._call = call
        super().__init__(self._idle_s)

    def note_progress(self) -> None:
        """Bytes were sent or received: the connection is alive."""
        self.extend(min(self._idle_s, self._call.remaining_s()))


def lock_ms(deadline: Deadline) -> int:
    """Return how long the server may wait for a lock: a little less than its client waits."""
    return max(1, int(min(deadline.remaining_s(), _MAX_IDLE_S) * 0.85 * 1000))


class AbandonedCommits:
    """Tokens of commits whose callers stopped waiting: they may still be on their way.

    The thread's next commit names them, after which they have no effect when they arrive.
    """

    def __init__(self) -> None:
        self._tokens: dict[bytes, tuple[bytes, ...]] = {}  # by the thread's digest

    async def watch(self, commit: Commit, send: Callable[[bytes], Awaitable[Receipt]]) -> Receipt:
        """Send a commit with the tokens of those that it makes void."""
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
        if void and receipt.existing is None:  # otherwise nothing was stored, tokens neither
            self._forget(commit, void)
        return receipt

    def _add(self, commit: Commit) -> None:
        tokens = self._tokens.get(commit.thread.digest, ())
        self._tokens[commit.thread.digest] = (*tokens, commit.token)[-_MAX_ABANDONED:]

    def _forget(self, commit: Commit, void: tuple[bytes, ...]) -> None:
        left = tuple(token for token in self._tokens.pop(commit.thread.digest, ()) if token not in void)
        if left:
            self._tokens[commit.thread.digest] = left


class StoreReplaced(StoreUnavailable):
    """The server lost everything, and another process has started a new store there."""

    def __init__(self) -> None:
        super().__init__(
            "this store was emptied, and another process has started a new one there; open it again"
        )


class AttemptFailed(Exception):
    """The server could not be reached, or cannot serve now; another attempt may succeed.

    `sent`: it may have done what it was asked. `busy`: it is there, but occupied by others.
    `is_over`: the connection cannot be used again.
    """

    def __init__(self, reason: str, *, sent: bool, busy: bool = False, is_over: bool = False) -> None:
        super().__init__(reason)
        self.is_over = is_over
        self.reason = reason
        self.sent = sent
        self.busy = busy


class Attempts:
    """The attempts of one call, and what to raise when all of them failed."""

    def __init__(self, shown: str, deadline: Deadline, max_retries: int | None, pause: Pause) -> None:
        self.shown = shown
        self.deadline = deadline
        self.count = 0
        self.sent = False  # an earlier attempt may have done it
        self._max_retries = max_retries
        self._pause = pause

    async def run(self, attempt: Callable[[Deadline], Awaitable[T]], commit: Commit | None = None) -> T:
        """Try until it succeeds or there is no time left."""
        while True:
            try:
                return await attempt(Attempt(self.deadline, self.count))
            except AttemptFailed as failed:
                await self._pause_or_raise(failed, commit)
            except (StaleBase, Corrupt, StoreReplaced, NotReplicated):
                raise
            except StoreError as error:
                if commit is None or not self.sent:
                    raise
                # An earlier attempt may have done it before its connection broke.
                raise outcome_unknown(commit, str(error)) from error

    async def _pause_or_raise(self, failed: AttemptFailed, commit: Commit | None) -> None:
        """Wait a little before the next attempt, or give up."""
        self.sent = self.sent or failed.sent
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self.count)
        pause_s = longest_s * random.uniform(0.5, 1.0)
        self.count += 1
        tried_enough = self._max_retries is not None and self.count > self._max_retries
        if tried_enough or self.deadline.remaining_s() <= pause_s:
            raise self._failure(failed, commit) from failed
        await self._pause(pause_s)

    def _failure(self, failed: AttemptFailed, commit: Commit | None) -> OutcomeUnknown | StoreUnavailable:
        if commit is not None and self.sent:
            return outcome_unknown(commit, f"no answer within {self.deadline.timeout_s} s ({failed.reason})")
        if failed.busy:
            return StoreBusy(f"{self.shown} was busy for {self.deadline.timeout_s} s: {failed.reason}")
        times = "once" if self.count == 1 else f"{self.count} times within {self.deadline.timeout_s} s"
        return StoreUnavailable(
            f"{self.shown} could not be reached, tried {times}: {failed.reason}; is it running and reachable?"
        )
