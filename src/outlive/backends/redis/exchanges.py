"""Commits of one turn of the event loop, sent over one connection.

A lone call is sent at once by its own task. Those that come while it waits for its answer are
gathered until the end of the turn, or until they are enough: then they leave in the middle of the
turn, so that the server works while this process prepares the next ones. A task waits for their
answers. Each call has its answer as soon as it arrives, and its own deadline. A caller that is
cancelled takes no other along: the answer is read and dropped. When the connection breaks, each
call that has no answer is tried again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

import hiredis

from outlive.backends.redis.connection import Command, Reply
from outlive.backends.server.attempts import AttemptFailed, Deadline

_MOST = 4  # groups on their way to one server; what comes then waits, and makes the next one larger
_MAX_CALLS, _MAX_BYTES = 256, 1 << 18  # of one group
_ENOUGH = 16  # calls that do not wait for the end of the turn


class Member:
    """A call of a group."""

    __slots__ = ("data", "deadline", "future", "is_sent")

    def __init__(self, command: Command, deadline: Deadline, loop: asyncio.AbstractEventLoop) -> None:
        self.data = hiredis.pack_command(command)
        self.deadline = deadline
        self.is_sent = False
        self.future: asyncio.Future[Reply] = loop.create_future()

    def answer(self, reply: Reply) -> None:
        if not self.future.done():  # else nobody waits any more
            self.future.set_result(reply)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            # An error for each: callers add to it.
            own = AttemptFailed(error.reason, sent=error.sent) if isinstance(error, AttemptFailed) else error
            self.future.set_exception(own)


class Latest(Deadline):
    """The deadline of a group: that of its most patient member that has no answer."""

    __slots__ = ("_members",)

    def __init__(self, members: Sequence[Member]) -> None:
        super().__init__(None)
        self._members = members

    def remaining_s(self) -> float:
        waiting = (member.deadline.remaining_s() for member in self._members if not member.future.done())
        return max(waiting, default=0.0)

    def note_progress(self) -> None:
        for member in self._members:
            if not member.future.done():
                member.deadline.note_progress()


class Begun(Protocol):
    """A group whose first bytes are sent."""

    def abandon(self) -> None:
        """Close its connection, unless the rest was sent."""
        ...


B = TypeVar("B", bound=Begun)
Begin = Callable[[Sequence[Member]], B | None]  # sends what can be sent at once
# Sends the rest and answers each call, or raises why it did not.
Send = Callable[[Sequence[Member], Deadline, B | None], Awaitable[None]]


class Exchanges(Generic[B]):
    """The calls of one event loop to one server that may share a connection."""

    def __init__(self, begin: Begin[B], send: Send[B], pool_size: int) -> None:
        self._begin = begin
        self._send = send
        self._free = min(_MOST, pool_size)
        self._queue: list[Member] = []
        self._sent: set[Member] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone = 0  # calls that their own tasks send
        self._is_scheduled = False  # a task starts at the end of this turn of the loop
        self._timer: asyncio.TimerHandle | None = None

    def is_idle(self) -> bool:
        """Tell whether no call is on its way: the next one need not wait for others."""
        return not (self._alone or self._tasks or self._queue)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Note a call that its own task sends."""
        self._alone += 1
        try:
            yield
        finally:
            self._alone -= 1

    async def call(self, command: Command, deadline: Deadline) -> Any:
        """Send a command together with others and return its reply, which may be an error."""
        loop = asyncio.get_running_loop()
        member = Member(command, deadline, loop)
        self._queue.append(member)
        if len(self._queue) >= _ENOUGH and self._free:
            self._launch(loop, self._next())
        else:
            self._schedule(loop)
        self._watch(loop, deadline.remaining_s())
        try:
            return await member.future
        finally:
            if not member.is_sent:  # cancelled, or its time is over
                self._queue = [other for other in self._queue if other is not member]

    # Groups

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_scheduled and self._free and self._queue:
            self._is_scheduled = True
            loop.call_soon(self._start, loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_scheduled = False
        if self._free and (group := self._next()):
            self._launch(loop, group)
            self._schedule(loop)  # if the group was full

    def _launch(self, loop: asyncio.AbstractEventLoop, group: Sequence[Member]) -> None:
        self._free -= 1
        begun = self._begin(group)
        task = loop.create_task(self._work(group, begun), name="outlive-redis-group")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._end(done, loop, begun))

    def _next(self) -> list[Member]:
        count, size = 0, 0
        for member in self._queue:
            size += len(member.data)
            if count == _MAX_CALLS or (count and size > _MAX_BYTES):
                break
            member.is_sent = True
            count += 1
        group, self._queue = self._queue[:count], self._queue[count:]
        return group

    async def _work(self, group: Sequence[Member], begun: B | None) -> None:
        self._sent.update(group)
        error: Exception = AttemptFailed("the exchange was cancelled", sent=True)
        try:
            await self._send(group, Latest(group), begun)
        except Exception as failed:  # noqa: BLE001  # raised by the tasks that wait
            error = failed
        finally:
            self._sent.difference_update(group)
            for member in group:
                member.fail(error)

    def _end(self, task: asyncio.Task[None], loop: asyncio.AbstractEventLoop, begun: B | None) -> None:
        self._tasks.discard(task)
        if begun is not None:
            begun.abandon()  # the task was cancelled before it began
        self._free += 1
        if not loop.is_closed():
            self._schedule(loop)

    # Deadlines. One timer for all: a timer for each would cost as much as its place in the group.

    def _watch(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        if seconds == float("inf"):
            return
        at = loop.time() + seconds
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Fail the calls whose time is over; they are tried again elsewhere."""
        self._timer = None
        for member in (*self._queue, *self._sent):
            if member.future.done():
                continue
            left_s = member.deadline.remaining_s()
            if left_s > 0:
                self._watch(loop, left_s)
            elif member.is_sent:
                member.fail(AttemptFailed("no answer in time", sent=True))
            else:
                member.fail(
                    AttemptFailed("all connections were in use; raise pool_size", sent=False, busy=True)
                )
