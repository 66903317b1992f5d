"""Commits that share a call: one whose caller is interrupted or cancelled holds up no other, and is not sent later."""

import asyncio
import threading
import time

import pytest

from outlive.backend import Commit, EntryRecord, ThreadKey
from outlive.backends.postgres.groups import BlockingGroups, Member, SuspendingGroups
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def _patient(tuned):
    tuned(postgres_turn_s=PATIENCE_S)  # nobody leaves a group because the machine is slow


def member(name):
    commit = Commit(ThreadKey.of("", name), entries=(EntryRecord("run", name, b""),))
    return Member(commit, b"", time.monotonic() + PATIENCE_S)


class Server:
    """Takes calls one after another; `is_open` lets them end."""

    def __init__(self):
        self.calls = []
        self.is_open = threading.Event()
        self.is_open.set()

    async def send(self, group):
        self.calls.append([member.commit.thread.id for member in group])
        assert self.is_open.wait(PATIENCE_S)
        for member in group:
            member.settle([])


class Interrupted:
    """A lock whose owner is interrupted when it waits, after `before` was called."""

    def __init__(self, before=lambda: None):
        self._before = before
        self._is_acquired = False

    def acquire(self, timeout=-1):
        if self._is_acquired:
            self._before()
            raise KeyboardInterrupt
        self._is_acquired = True
        return True

    def release(self):
        pass


class GatheringInterrupted(BlockingGroups):
    """The first call is interrupted while it waits for others."""

    def begin(self):
        super().begin()
        self.before = lambda: None
        self._is_interrupted = False

    def _gather(self):
        if not self._is_interrupted:
            self._is_interrupted = True
            self.before()
            raise KeyboardInterrupt


class InThread:
    """A commit of another thread."""

    def __init__(self, groups, server, name):
        self.member = member(name)
        self._thread = threading.Thread(target=lambda: run_now(groups.join(self.member, server.send)))
        self._thread.start()

    def finish(self):
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.member


def join_alone(groups, server, name):
    """Commit when nothing else waits: it is sent at once, if nothing is left of those before."""
    last = member(name)
    run_now(groups.join(last, server.send))
    assert last.cells == []


def is_waiting(groups, count):
    eventually(lambda: len(groups._queue) == count, "a commit has not joined")


def test_a_sender_that_is_interrupted_while_others_join_sends_nothing_and_lets_them_send():
    groups, server = GatheringInterrupted(), Server()
    others = []

    def join_others():
        others.extend(InThread(groups, server, name) for name in ("b", "c"))
        is_waiting(groups, 3)

    groups.before = join_others
    with pytest.raises(KeyboardInterrupt):
        run_now(groups.join(member("a"), server.send))
    assert [each.finish().cells for each in others] == [[], []]
    join_alone(groups, server, "d")
    assert sorted(name for call in server.calls for name in call) == ["b", "c", "d"]


def test_a_lone_sender_that_is_interrupted_leaves_nothing_behind():
    groups, server = GatheringInterrupted(), Server()
    with pytest.raises(KeyboardInterrupt):
        run_now(groups.join(member("a"), server.send))
    join_alone(groups, server, "b")
    assert server.calls == [["b"]]


def test_one_that_is_to_send_next_and_is_interrupted_lets_the_next_one_send():
    groups, server = BlockingGroups(), Server()
    server.is_open.clear()
    first = InThread(groups, server, "a")
    eventually(lambda: server.calls == [["a"]], "the first commit is not sent")
    others = []

    def become_the_next_sender():
        others.append(InThread(groups, server, "c"))
        is_waiting(groups, 2)
        server.is_open.set()
        first.finish()  # which makes this one the next to send

    interrupted = member("b")
    interrupted.wake = Interrupted(become_the_next_sender)
    with pytest.raises(KeyboardInterrupt):
        run_now(groups.join(interrupted, server.send))
    assert others[0].finish().cells == []
    join_alone(groups, server, "d")
    assert server.calls == [["a"], ["c"], ["d"]]


def test_one_that_waits_and_is_interrupted_is_not_sent_later():
    groups, server = BlockingGroups(), Server()
    server.is_open.clear()
    first = InThread(groups, server, "a")
    eventually(lambda: server.calls == [["a"]], "the first commit is not sent")
    interrupted = member("b")
    interrupted.wake = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run_now(groups.join(interrupted, server.send))
    server.is_open.set()
    first.finish()
    join_alone(groups, server, "c")
    assert server.calls == [["a"], ["c"]]


def test_nothing_is_sent_when_all_callers_were_cancelled():
    async def scene():
        groups, server = SuspendingGroups(), Server()
        callers = [asyncio.ensure_future(groups.join(member(name), server.send)) for name in "ab"]
        while len(groups._queue) < 2:
            await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert groups._task is not None
        await groups._task
        last = member("c")
        await groups.join(last, server.send)
        return server.calls, last.cells

    assert asyncio.run(scene()) == ([["c"]], [])


def test_a_cancelled_caller_takes_no_other_along():
    async def scene():
        groups, server = SuspendingGroups(), Server()
        may_end = asyncio.Event()

        async def send(group):
            await may_end.wait()
            await server.send(group)

        members = [member(name) for name in "ab"]
        callers = [asyncio.ensure_future(groups.join(each, send)) for each in members]
        while not all(each.may_be_done for each in members):
            await asyncio.sleep(0)
        callers[0].cancel()
        await asyncio.gather(callers[0], return_exceptions=True)
        may_end.set()
        await callers[1]
        return server.calls, members[1].cells

    calls, cells = asyncio.run(scene())
    assert [sorted(call) for call in calls] == [["a", "b"]]
    assert cells == []
