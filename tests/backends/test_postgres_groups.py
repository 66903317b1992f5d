"""Commits that wait at the same moment share one call: how long the first of them waits for the others."""

import threading
import time

from outlive.backend import Commit, EntryRecord, ThreadKey
from outlive.backends.postgres.groups import BlockingGroups, Member
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually
from outlive.testing.tuning import tuned


class _Server:
    """Takes groups, and remembers which threads each of them had."""

    def __init__(self):
        self.groups = BlockingGroups()
        self.calls = []

    def commit(self, name):
        entry = EntryRecord("run", name, b"", "completed")
        member = Member(Commit(ThreadKey.of("", name), entries=(entry,)), b"", time.monotonic() + PATIENCE_S)
        run_now(self.groups.join(member, self._send))

    def start(self, name):
        thread = threading.Thread(target=self.commit, args=(name,))
        thread.start()
        return thread

    async def _send(self, group):
        self.calls.append(sorted(member.commit.thread.id for member in group))
        for member in group:
            member.settle((b"", b""))

    @property
    def waiting(self):
        return len(self.groups._queue)


def test_commits_of_runs_that_were_claimed_together_are_sent_together():
    server = _Server()
    with tuned(postgres_rush_s=PATIENCE_S):
        server.groups.expect(3)
        threads = []
        for count, name in enumerate("abc", 1):  # one after the other, with pauses of any length
            threads.append(server.start(name))
            eventually(lambda count=count: server.waiting == count or server.calls)
    for thread in threads:
        thread.join()
    assert server.calls == [["a", "b", "c"]]


def test_a_commit_waits_for_those_that_are_expected_for_a_moment_only():
    server = _Server()
    server.groups.expect(8)
    server.commit("a")
    assert server.calls == [["a"]]


def test_a_run_that_was_claimed_alone_makes_no_commit_wait():
    server = _Server()
    with tuned(postgres_rush_s=3600.0):
        server.groups.expect(1)
        server.commit("a")
    assert server.calls == [["a"]]
