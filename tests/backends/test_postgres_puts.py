"""A commit of entries is done by one of two functions, alone or with others: both store and refuse the same."""

from __future__ import annotations

import pytest

import outlive
from outlive.backend import ABSENT, NEXT, Commit, EntryRecord, Fence, Receipt, ThreadKey
from outlive.backends.postgres.connection import Connection
from outlive.errors import OutliveError
from outlive.runtime.runtime import run_now


@pytest.fixture
def backend(postgres_url):
    with outlive.open(postgres_url) as store:
        yield store._store._engine.backend


@pytest.fixture
def functions(backend, monkeypatch):
    """Return the functions that were called, in their order."""
    called, send = [], Connection._send

    def noting(connection, statement, parameters):
        called.extend(name for name in ("put_one_1", "put_1", "save_1") if f".{name}(" in statement)
        send(connection, statement, parameters)

    monkeypatch.setattr(Connection, "_send", noting)
    return called


def step(key, body=b"body", **fields):
    return EntryRecord("step", key, body, "done", **fields)


RUN = EntryRecord("run", "r", b"run", "running", fence=NEXT, expect=ABSENT, lease_s=30.0)
RANK = (0, 1, 0)  # of the run, once it is stored


def renewed(**fields):
    usual = {"status": "running", "fence": 1, "revision": 1, "lease_s": 30.0}
    return EntryRecord("run", "r", None, **{**usual, **fields})


# One commit after the other to one thread, and whether it is done.
COMMITS = [
    ((step("a", expect=(0, 1, 0)),), {}, False),  # the thread does not exist
    ((RUN,), {}, True),
    ((RUN,), {}, False),  # it is there
    ((step("a"), renewed()), {"fence": Fence("run", "r", 0, 1)}, True),
    ((step("b"), renewed(revision=2)), {"fence": Fence("run", "r", 0, 7)}, False),
    ((step("b"),), {"fence": Fence("run", "r", 0, 1)}, True),  # it does not bring the entry of its fence
    ((step("b"),), {"fence": Fence("run", "other", 0, 1)}, False),
    ((step("c", expect=ABSENT), step("a", b"other", expect=(0, 5, 0))), {}, False),
    ((step("a"),), {}, True),  # exactly what is stored
    ((renewed(revision=0),), {}, False),  # older
    ((renewed(revision=2, expect=RANK),), {}, False),
    ((renewed(revision=2, expect=(0, 1, 1), expect_lapsed=True),), {}, False),
    ((renewed(revision=2, expect=(0, 1, 1)),), {}, True),
    ((renewed(revision=3, lease_s=None, until=5, clock="wall"),), {}, True),
    ((renewed(revision=4, expect_lapsed=True, status=""),), {}, True),  # lapsed; it keeps status and body
    ((step("a", gone=True), step("d", None)), {"epoch": 3}, True),
    ((step("e"),), {"epoch": 2}, False),
    ((EntryRecord("timer", "at", b"", "due"),), {}, True),  # it wakes
    ((renewed(fence=NEXT, epoch=4, revision=0),), {"epoch": 4}, True),
]


def outcomes(backend, functions, together):
    """Do the commits, alone or together with one to another thread; return what came of each."""
    thread, results = ThreadKey.of("", f"t-{together}"), []
    for number, (entries, more, _) in enumerate(COMMITS):
        commits = [Commit(thread, entries=entries, **more)]
        if together:
            commits.append(Commit(ThreadKey.of("", f"beside-{number}"), entries=(step("a"),)))
        functions.clear()
        result = run_now(backend.commit_all(commits))[0]
        assert functions[0] == ("put_1" if together else "put_one_1")
        if isinstance(result, Receipt):
            assert len(functions) == 1  # it was not left to save_1
            result = (
                result.revision,
                [(e.kind, e.key, e.body, e.status, e.rank, e.clock) for e in result.entries],
            )
        else:
            assert isinstance(result, OutliveError)
            result = type(result)
        results.append(result)
    assert run_now(backend.audit(thread)) == []  # sums and checksums are right
    return results


def test_both_functions_store_and_refuse_the_same(backend, functions):
    alone = outcomes(backend, functions, together=False)
    assert [isinstance(result, tuple) for result in alone] == [is_done for *_, is_done in COMMITS]
    assert alone == outcomes(backend, functions, together=True)


def test_a_step_of_a_run_is_one_call(postgres_url, functions):
    with outlive.open(postgres_url) as store, store.run("t") as run:
        run.step("first", int)
        functions.clear()
        run.step("second", int)
        assert functions == ["put_one_1"]


def test_a_commit_that_is_sent_again_is_done_once(backend, functions):
    commit = Commit(ThreadKey.of("", "t"), entries=(step("a"),))
    revisions = [run_now(backend.commit_all([commit]))[0].revision for _ in range(2)]
    assert revisions == [1, 1]
