"""Commits that wait at the same moment and share one call of the server.

The first of them sends; what arrives meanwhile waits, and is sent together when that call is over.
So a lone commit is sent at once, and under load each call brings as many as have gathered. A commit
that the call did not do, or that would wait for too long, continues alone: the server knows its
token, so nothing is done twice.
"""

from __future__ import annotations

import asyncio
import collections
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from outlive.backend import Commit
from outlive.backends.postgres.rows import Cells
from outlive.runtime.fork import reset_in_child

_TURN_S = 0.5  # the longest wait for the call before
_GATHER_S = 0.002  # that a call waits while others arrive, if those before had several commits
_ENOUGH = 32  # commits that do not wait for more
MOST = 250  # commits in one call
_QUEUED, _LEADS, _SENT, _SETTLED = range(4)  # _LEADS: queued, and about to send


class Member:
    """A commit of a group. It continues alone if it has no `cells` in the end."""

    __slots__ = ("cells", "commit", "future", "state", "until", "void", "wake")

    def __init__(self, commit: Commit, void: bytes, until: float) -> None:
        self.commit = commit
        self.void = void
        self.until = until  # by time.monotonic()
        self.state = _QUEUED
        self.cells: Cells | None = None
        self.wake = threading.Lock()  # a thread that waits acquires it twice
        self.future: asyncio.Future[None] | None = None  # a task waits for it

    @property
    def may_be_done(self) -> bool:
        """Tell whether it was sent and nobody knows what came of it."""
        return self.state == _SENT

    def settle(self, cells: Cells | None) -> None:
        """Note the answer; None: it was not done."""
        self.cells, self.state = cells, _SETTLED


def sent_together(commits: Sequence[Commit], until: float) -> list[Member]:
    """Return commits of as many threads as members of one group, in their order, for a caller that sends them."""
    members = [Member(commit, b"", until) for commit in commits]
    for member in members:
        member.state = _SENT
    return members


Send = Callable[[Sequence[Member]], Awaitable[None]]  # settles those whose outcome it knows


class Groups:
    """The commits that wait for the call before."""

    def __init__(self) -> None:
        self.begin()
        reset_in_child(self)

    def begin(self) -> None:
        """Start with nothing waiting."""
        self._queue: collections.deque[Member] = collections.deque()
        self._usual = 1  # how many commits the last calls had

    def after_fork_in_child(self) -> None:
        """Forget what waits: that is for the threads of the parent."""
        self.begin()

    async def join(self, member: Member, send: Send) -> None:
        """Wait until a commit was sent with others, or is to be sent alone."""
        raise NotImplementedError

    def _next(self) -> list[Member]:
        """Return the next group: of each thread one commit, in the order of their digests."""
        group: dict[bytes, Member] = {}
        for member in self._waiting():
            digest = member.commit.thread.digest
            if digest in group:  # its thread has to be done with the one before
                self._queue.appendleft(member)
                break
            member.state = _SENT
            group[digest] = member
        self._usual = max(len(group), self._usual // 2)
        return [group[digest] for digest in sorted(group)]

    def _waiting(self) -> Iterator[Member]:
        for _ in range(MOST):
            try:
                yield self._queue.popleft()
            except IndexError:
                return

    def _leave(self, member: Member) -> bool:
        """Take a commit out of the queue; False: it is being sent, or about to be."""
        if member.state != _QUEUED:
            return False
        try:
            self._queue.remove(member)
        except ValueError:
            return False
        return True


class BlockingGroups(Groups):
    """The sync mode: one of the threads sends for all that wait, then the next one that has waited."""

    def begin(self) -> None:
        super().begin()
        self._mutex = threading.Lock()
        self._is_sending = False

    async def join(self, member: Member, send: Send) -> None:
        member.wake.acquire()
        with self._mutex:
            self._queue.append(member)
            if not self._is_sending:
                self._is_sending, member.state = True, _LEADS
        try:
            if (
                member.state != _LEADS
                and not member.wake.acquire(timeout=_TURN_S)
                and not self._leave(member)
            ):
                # It is being sent, so the answer is worth waiting for.
                member.wake.acquire(timeout=_left_s(member))
            if member.state == _LEADS:
                await self._lead(member, send)
        finally:
            # After an interruption nobody may send it later, nor wait for it to send.
            with self._mutex:
                self._withdraw(member)

    async def _lead(self, member: Member, send: Send) -> None:
        group: Sequence[Member] = ()
        try:
            self._gather()
            with self._mutex:
                group = self._next()
            await send(group)
        finally:
            with self._mutex:
                if member in self._queue:  # interrupted while it gathered
                    self._queue.remove(member)
                self._pass_on()
            for other in group:
                other.wake.release()

    def _leave(self, member: Member) -> bool:
        with self._mutex:
            return super()._leave(member)

    def _withdraw(self, member: Member) -> None:
        """Forget a member that waits no longer; if it had to send for the others, let the next one do that."""
        is_queued = member in self._queue
        if is_queued:
            self._queue.remove(member)
        if is_queued and member.state == _LEADS:
            self._pass_on()

    def _pass_on(self) -> None:
        if self._queue:
            self._queue[0].state = _LEADS
            self._queue[0].wake.release()
        else:
            self._is_sending = False

    def _gather(self) -> None:
        """Wait while others arrive, if there were more lately."""
        before = 0
        while before < len(self._queue) < min(_ENOUGH, self._usual):
            before = len(self._queue)
            time.sleep(_GATHER_S)


class SuspendingGroups(Groups):
    """The async mode: a task of its own sends, so that a cancelled caller takes no other along."""

    def begin(self) -> None:
        super().begin()
        self._task: asyncio.Task[None] | None = None

    async def join(self, member: Member, send: Send) -> None:
        loop = asyncio.get_running_loop()
        member.future = loop.create_future()
        self._queue.append(member)
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._work(send))
        timers = [
            loop.call_later(_TURN_S, self._expire, member),
            loop.call_later(_left_s(member), _wake, member),
        ]
        try:
            await member.future
        finally:
            for timer in timers:
                timer.cancel()
            self._leave(member)

    async def _work(self, send: Send) -> None:
        group: Sequence[Member] = ()
        try:
            while self._queue:
                await asyncio.sleep(_GATHER_S if len(self._queue) < self._usual else 0)
                group = self._next()
                if group:  # else the callers were cancelled
                    await send(group)
                for member in group:
                    _wake(member)
        finally:
            for member in (*group, *self._queue):
                _wake(member)

    def _expire(self, member: Member) -> None:
        if member.state == _QUEUED:
            _wake(member)


def _wake(member: Member) -> None:
    if member.future is not None and not member.future.done():
        member.future.set_result(None)


def _left_s(member: Member) -> float:
    return min(threading.TIMEOUT_MAX, max(0.0, member.until - time.monotonic()))
