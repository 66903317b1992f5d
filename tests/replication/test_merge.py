"""Whatever two stores did apart from each other: when each has got the other's news, both are the same.

The news are carried in any order after the first exchange, and any number of times.
"""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlive
from outlive.backend import OUTBOX, Commit, EntryQuery, EntryRecord, HistoryQuery, ThreadKey
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.format.chunk import Namer
from outlive.format.codec import Codec
from outlive.layers.replication.layer import Replicate
from outlive.layers.replication.options import Replication
from outlive.runtime.runtime import SyncRuntime, run_now
from outlive.store import AsyncStore, Settings
from outlive.sync.store import Store
from outlive.testing.interposed import Interposed
from outlive.threads.cache import Cache
from outlive.threads.engine import Engine

pytestmark = pytest.mark.heavy

THREADS, IDS = ("s", "t"), "abcdef"
sides = st.sampled_from([0, 1])
threads = st.sampled_from(THREADS)
days = st.sampled_from([0, -2, 2])
steps = st.one_of(
    st.tuples(st.just("save"), sides, threads, st.sampled_from(IDS), st.integers(0, 3)),
    st.tuples(st.just("replace"), sides, threads, st.sampled_from(IDS), st.integers(0, 3)),
    st.tuples(st.just("write"), sides, threads, st.sampled_from(IDS), st.integers(0, 3)),
    st.tuples(st.just("run"), sides, threads, st.sampled_from("pq"), st.integers(0, 3)),
    st.tuples(st.just("remove"), sides, threads, st.sampled_from(IDS), st.just(0)),
    st.tuples(st.just("prune"), sides, threads, st.just(""), st.integers(1, 2)),
    st.tuples(st.just("delete"), sides, threads, st.just(""), st.just(0)),
)


class Skewed(SyncRuntime):
    """The clock of a machine that is wrong by so much."""

    def __init__(self, days):
        self._days = days

    def now(self):
        return super().now() + self._days * 86_400_000_000


class Apart:
    """Two clients of one pair that do not know of each other: one works in epoch 0, one in epoch 1."""

    def __init__(self, days=(0, 0)):
        runtimes = [Skewed(one) for one in days]
        self.backends = [Interposed(SyncLocal(MemoryBackend())), Interposed(SyncLocal(MemoryBackend()))]
        options = Replication("", mode="async", health_check_interval_s=1000)
        self.pairs = [
            Replicate(*self.backends, options, runtime=runtime, naming=lambda key: lambda *chunk: True)
            for runtime in runtimes
        ]
        self.stores = []
        for pair, runtime in zip(self.pairs, runtimes, strict=True):
            pair._keep_beating = lambda: None  # nothing happens by itself
            key = run_now(pair.identity(b"k" * 32))
            engine = Engine(pair, Codec(), Namer(key), Cache(1 << 20), runtime)
            self.stores.append(Store(AsyncStore(engine, Settings("testing:"), pair=pair)))

    def begin(self):
        for id in THREADS:
            self.stores[0].thread(id).save({"base": id}, id="base")
        self.stores[1].promote()

    def do(self, name, side, thread, id, n):
        handle = self.stores[side].thread(thread)
        with contextlib.suppress(outlive.CallerError):
            if name in ("save", "replace"):
                handle.save({"n": n, "text": f"{side}" * n * 300}, id=id, replace=name == "replace")
            elif name == "write":
                handle.write(f"task {n}", [("c", n), ("__error__", f"{side} {n}")], checkpoint=id)
            elif name == "run":
                self.run(side, handle._thread._key, id, n)
            elif name == "remove":
                handle.delete_checkpoints([id])
            elif name == "prune":
                handle.prune(keep_last=n)
            else:
                handle.delete()

    def run(self, side, key, id, n):
        stored = run_now(self.pairs[side].entries(EntryQuery(key.tenant, "run", thread=key)))
        rank = next((entry.rank for _, entry in stored if entry.key == id), (0, 0, 0))
        entry = EntryRecord("run", id, b"%d" % n, "running", epoch=rank[0], fence=-1, expect=rank)
        run_now(self.pairs[side].commit_all([Commit(key, entries=(entry,))]))

    def exchange(self, source):
        run_now(self.pairs[1].stores.drain(source, None))

    def dump(self, which):
        backend, found = self.backends[which], {}
        for id in THREADS:
            key = ThreadKey.of("", id)
            entries = run_now(backend.entries(EntryQuery("", "run", thread=key)))
            found[id] = (
                run_now(backend.history(HistoryQuery(key, None, limit=1000)))[1],
                run_now(backend.writes(key, None)),
                [(entry.key, entry.rank, entry.body, entry.status) for _, entry in entries],
            )
        return found

    def check(self):
        assert self.dump(0) == self.dump(1)
        for backend in self.backends:
            assert run_now(backend.entries(EntryQuery("", OUTBOX))) == []
        for store in self.stores:
            assert store.verify().problems == ()


@given(done=st.lists(steps, max_size=25), again=st.lists(sides, max_size=4), days=st.tuples(days, days))
def test_two_stores_that_went_apart_come_together_whatever_their_clocks_say(done, again, days):
    apart = Apart(days)
    apart.begin()
    for step in done:
        apart.do(*step)
    for source in (1, 0, 1):  # the later epoch first, as a failback does it
        apart.exchange(source)
    before = apart.dump(0)
    apart.check()
    for source in again:
        apart.exchange(source)
    assert apart.dump(0) == before
    apart.check()


@given(done=st.lists(steps, min_size=1, max_size=25))
def test_the_primary_takes_over_with_everything_and_the_head_of_the_later_epoch(done):
    apart = Apart()
    apart.begin()
    for step in done:
        apart.do(*step)
    heads = {id: apart.stores[1].thread(id).checkpoint() for id in THREADS}
    apart.stores[1].failback()
    apart.check()
    for id, head in heads.items():
        found = apart.stores[1].thread(id).checkpoint()
        if head is not None and head.epoch == 1 and found.id != head.id:
            assert head.id not in {one.id for one in apart.stores[1].thread(id).history()} or found.epoch >= 1


DEEDS = {
    "save": lambda thread: thread.save({"n": 9}, id="nine"),
    "replace": lambda thread: thread.save({"n": 9}, id="2", replace=True),
    "write": lambda thread: thread.write("task", [("c", "v" * 500)], checkpoint="3"),
    "update": lambda thread: thread.set_metadata({"title": "trip"}),
    "remove": lambda thread: thread.delete_checkpoints(["2"]),
    "prune": lambda thread: thread.prune(keep_last=1),
    "erase": lambda thread: thread.prune(keep_last=1, erase=True),
    "delete": lambda thread: thread.delete(),
}


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("side", [0, 1])
def test_whoever_carries_over_what_is_queued_at_whichever_moment_nothing_is_forgotten(deed, side):
    """Another process drains the queue before each call that a deed makes to its store."""
    for number in range(100):
        apart = Apart()
        apart.begin()
        thread = apart.stores[side].thread("t")
        for n in range(4):
            thread.save({"n": n, "text": f"{n}" * (n % 2) * 3000}, id=f"{n}")
        backend, other = apart.backends[side], apart.pairs[1 - side]

        async def carry(other=other):
            await other.stores.drain(side, None)

        backend.before_call(number, carry)
        DEEDS[deed](thread)
        if backend._at_call is not None:
            assert number > 0
            return  # it makes no more calls
        for source in (1, 0, 1):
            apart.exchange(source)
        apart.check()
    raise AssertionError("it makes more calls than it should")
