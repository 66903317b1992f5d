"""A commit that lingers is taken along by the next one, and is done without it when none comes."""

import threading

from outlive.backend import Commit, Receipt, ThreadKey, WriteRecord
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually

T = ThreadKey.of("", "t")


class Counting(MemoryBackend):
    """Remembers which commits shared a transaction."""

    def __init__(self):
        super().__init__()
        self.groups = []

    def commit_all(self, commits):
        self.groups.append([commit.writes[0].task for commit in commits])
        return super().commit_all(commits)


def writing(task, **options):
    return Commit(T, writes=(WriteRecord("", "c1", task, 0, "channel", "", b"\x92\x01\x90"),), **options)


def in_thread(backend, commit, results):
    thread = threading.Thread(target=lambda: results.extend(run_now(backend.commit_all([commit]))))
    thread.start()
    return thread


def test_the_next_commit_takes_it_along_in_its_transaction():
    local, results = Counting(), []
    backend = SyncLocal(local)
    queued = threading.Event()
    thread = in_thread(backend, writing("first", linger_s=PATIENCE_S * 10, on_queued=queued.set), results)
    assert queued.wait(PATIENCE_S)
    assert local.groups == []
    (own,) = run_now(backend.commit_all([writing("second")]))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert local.groups == [["first", "second"]]
    assert [type(result) for result in (*results, own)] == [Receipt, Receipt]


def test_alone_it_is_committed_all_the_same():
    local = Counting()
    (result,) = run_now(SyncLocal(local).commit_all([writing("first", linger_s=0.01)]))
    assert type(result) is Receipt
    assert local.groups == [["first"]]


def test_its_timeout_is_longer_than_it_lingers():
    (result,) = run_now(
        SyncLocal(Counting()).commit_all([writing("first", linger_s=PATIENCE_S * 10, timeout_s=1)])
    )
    assert type(result) is Receipt


def test_closing_the_store_commits_it():
    local, results = Counting(), []
    backend = SyncLocal(local)
    thread = in_thread(backend, writing("first", linger_s=PATIENCE_S * 10), results)
    eventually(lambda: len(backend._queue) == 1)
    run_now(backend.close())
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(result) for result in results] == [Receipt]
    assert local.groups == [["first"]]
