"""Many leases are renewed by one statement that locks no thread: what that leaves as it was, and how a claim meets it."""

from __future__ import annotations

import threading

import psycopg
import pytest

import outlive
from outlive.backend import ABSENT, NEXT, Commit, EntryQuery, EntryRecord, Receipt, ThreadKey
from outlive.errors import EntryHeld, LeaseLost
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually

RACES = 40


@pytest.fixture
def store(postgres_url):
    with outlive.open(postgres_url) as opened:
        yield opened


@pytest.fixture
def backend(store):
    return store._store._engine.backend


class Holder:
    """A run and its place, with leases."""

    def __init__(self, backend, name, lease_s=30.0):
        self.backend, self.key = backend, ThreadKey.of("", name)
        taken = (
            EntryRecord("run", name, b"body", "running", fence=NEXT, expect=ABSENT, lease_s=lease_s),
            EntryRecord("lock", "", b"place", "running", fence=NEXT, expect=ABSENT, lease_s=lease_s),
        )
        receipt = self.committed(Commit(self.key, entries=taken))
        self.run, self.place = receipt.entries

    def committed(self, commit):
        (result,) = run_now(self.backend.commit_all([commit]))
        assert isinstance(result, Receipt), result
        return result

    def renewal(self):
        leases = [
            EntryRecord(
                entry.kind, entry.key, None, "running", entry.epoch, entry.fence, entry.revision, lease_s=30.0
            )
            for entry in (self.run, self.place)
        ]
        return Commit(self.key, entries=tuple(leases), fence=self.run.as_fence())

    def claim(self, body=b"claimed", **more):
        entry = EntryRecord(
            "run", self.run.key, body, "running", fence=NEXT, lease_s=30.0, expect=self.run.rank, expect_lapsed=True
        )  # fmt: skip
        return Commit(self.key, entries=(entry,), **more)

    def stored(self, kind="run"):
        ((_, entry),) = run_now(self.backend.entries(EntryQuery("", kind, thread=self.key)))
        return entry


def rows(postgres_url):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        return connection.execute(
            "select e.thread, e.kind, e.until, e.row_checksum, t.revision, t.updated_at, t.run_sum, t.row_checksum "
            "from outlive.entry e join outlive.thread t on t.key = e.thread order by e.thread, e.kind"
        ).fetchall()


def test_a_renewal_changes_the_ends_of_the_leases_and_no_other_row(postgres_url, store, backend):
    holders = [Holder(backend, f"t{n}") for n in range(20)]
    before = rows(postgres_url)
    results = run_now(backend.commit_all([holder.renewal() for holder in holders]))
    after = rows(postgres_url)
    assert [row[4:] for row in after] == [row[4:] for row in before]
    assert all(new[2] > old[2] and new[3] != old[3] for new, old in zip(after, before, strict=True))
    for holder, receipt in zip(holders, results, strict=True):
        assert receipt.entries == (holder.stored("run"), holder.stored("lock"))
    assert store.verify().ok


def test_the_leases_of_a_commit_are_renewed_together_or_not_at_all(backend):
    kept, robbed = Holder(backend, "kept"), Holder(backend, "robbed")
    thief = EntryRecord("lock", "", b"thief", "running", fence=NEXT, expect=robbed.place.rank, lease_s=30.0)
    robbed.committed(Commit(robbed.key, entries=(thief,)))
    before = robbed.stored()
    results = run_now(backend.commit_all([robbed.renewal(), kept.renewal()]))
    assert isinstance(results[0], EntryHeld)
    assert robbed.stored() == before
    assert kept.stored().until == results[1].entries[0].until > kept.run.until


def test_a_renewal_that_finds_another_fence_is_refused(backend):
    kept, lost = Holder(backend, "kept"), Holder(backend, "lost", lease_s=0.0)
    lost.committed(lost.claim())
    results = run_now(backend.commit_all([lost.renewal(), kept.renewal()]))
    assert isinstance(results[0], LeaseLost)
    assert isinstance(results[1], Receipt)
    assert lost.stored().body == b"claimed"


@pytest.mark.parametrize("road", ["put", "save", "transaction"])
def test_a_claim_waits_for_a_renewal_that_is_under_way(postgres_url, backend, road):
    """It would else take a run whose lease it has read before, and whose owner hears that it is renewed."""
    holder = Holder(backend, "t", lease_s=0.0)
    claim = {
        "put": holder.claim,
        "save": lambda: holder.claim(body=b"x" * 100_000),
        "transaction": lambda: holder.claim(metadata=b"{}"),
    }[road]()
    results = []
    with psycopg.connect(postgres_url) as renewing, psycopg.connect(postgres_url, autocommit=True) as watcher:
        renewing.execute(
            "update outlive.entry set until = until + 30000000, row_checksum = row_checksum # until # (until + 30000000)"
        )
        claiming = threading.Thread(target=lambda: results.extend(run_now(backend.commit_all([claim]))))
        claiming.start()
        waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock'"
        eventually(lambda: watcher.execute(waiting).fetchone() is not None)
        renewing.commit()
        claiming.join(PATIENCE_S)
    assert isinstance(results[0], EntryHeld)
    assert holder.stored().fence == holder.run.fence


def test_of_a_renewal_and_a_claim_of_an_expired_lease_one_succeeds(postgres_url, store, backend):
    for number in range(RACES):
        holder, other = (Holder(backend, f"{name}{number}", lease_s=0.0) for name in ("t", "other"))
        barrier, results = threading.Barrier(2), {}

        def commit(name, *commits, barrier=barrier, results=results):
            barrier.wait(PATIENCE_S)
            results[name] = run_now(backend.commit_all(commits))[0]

        claiming = threading.Thread(target=commit, args=("claim", holder.claim()))
        claiming.start()
        commit("renewal", holder.renewal(), other.renewal())
        claiming.join(PATIENCE_S)
        winners = [name for name, result in results.items() if isinstance(result, Receipt)]
        assert len(winners) == 1, results
        assert (holder.stored().body == b"claimed") == (winners == ["claim"])
        assert isinstance(results["renewal"], Receipt | LeaseLost | EntryHeld)
    assert store.verify().ok
