"""Retention: what is beyond count, age or time to live goes, whatever else happens meanwhile; what somebody needs stays."""

import asyncio
import multiprocessing
import os
import random
import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlive
from outlive import testing
from outlive.backend import ThreadKey, WriteRecord
from outlive.backends.local.memory import MemoryBackend
from outlive.backends.local.sync_local import SyncLocal
from outlive.retention import sweeper, thread_sweep
from outlive.runtime.runtime import run_now
from outlive.testing.patience import eventually
from outlive.testing.trial import _Awaited
from outlive.threads import prune
from outlive.threads.keep_policy import open_interrupts
from rig.crash import rounds
from rig.replicas import open_pair

pytestmark = pytest.mark.heavy

BACKENDS = ("sqlite", "file", "postgresql", "redis")
DAY = 86_400.0
KEEP = outlive.Retain(keep_last=3, every_s=None)


@pytest.fixture(autouse=True, scope="module")
def _restless():
    """Let no test wait while a sweep rests."""
    with testing.tuned(sweep_rest_s=0.0):
        yield


def fill(store, id="t", count=10, namespace=""):
    thread = store.thread(id, namespace=namespace)
    return [thread.save({"n": n, "text": f"{id} {n} " * 60}).id for n in range(count)]


def ids(store, id="t", namespace=""):
    return [item.id for item in store.thread(id, namespace=namespace).history()]


def memory_store(inner=None, retain=None):
    inner = inner or MemoryBackend()
    backend = SyncLocal(inner) if isinstance(inner, MemoryBackend) else inner
    served = outlive.factory.BackendFactory("memory:", lambda _: backend, None)
    target = outlive.factory.StoreConfig(
        served, outlive.factory.Settings("memory:"), 1 << 20, outlive.factory.EventSink(), retain=retain
    )
    return outlive.Store(run_now(outlive.factory._open_inline(target))), inner


def age(inner, seconds, id="t", *, only=None):
    """Make a thread in memory older."""
    table = inner._tables[ThreadKey.of("", id).digest]
    back = int(seconds * 1e6)
    if only is None:
        table.updated_at -= back
    for pair, record in list(table.records.items()):
        if only is None or record.id in only:
            table.records[pair] = replace(record, created_at=record.created_at - back)


# What goes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_newest_of_every_namespace_stay_and_the_rest_goes(backend, url_for, tmp_path):
    with outlive.open(url_for(backend, tmp_path), retain=KEEP) as store:
        saved = {(id, space): fill(store, id, 10, space) for id in "ab" for space in ("", "sub")}
        before = store.size().stored_bytes
        planned = store.sweep(dry_run=True)
        assert all(len(ids(store, *place)) == 10 for place in saved)
        swept = store.sweep()
        assert planned == replace(swept, dry_run=True)
        assert (swept.threads, swept.keep_last.checkpoints, swept.checkpoints) == (2, 28, 28)
        assert (swept.max_age.checkpoints, swept.ttl.checkpoints, swept.kept, swept.problems) == (
            0,
            0,
            {},
            [],
        )
        for place, line in saved.items():
            assert ids(store, *place) == line[:-4:-1]
        assert store.thread("a").load()["n"] == 9
        assert before - store.size().stored_bytes == pytest.approx(swept.freed_bytes, abs=200)
        assert store.sweep() == outlive.Swept(threads=2)
        assert store.verify().ok


def test_bytes_that_go_because_a_chunk_is_written_again_are_counted():
    store, _ = memory_store()
    noise, thread = random.Random(1), store.thread("t")
    said = [f"{noise.getrandbits(8000):x}" for _ in range(30)]
    thread.save({"said": said})
    for n in range(5):
        thread.save({"said": said[:5], "n": n})
    before = store.size().stored_bytes
    expected = thread.prune(keep_last=2, dry_run=True).freed_bytes
    planned, swept = (store.sweep(dry_run=dry, retain=outlive.Retain(keep_last=2)) for dry in (True, False))
    assert swept.freed_bytes == before - store.size().stored_bytes > 20_000
    assert planned.freed_bytes == pytest.approx(swept.freed_bytes, rel=0.02)
    assert expected == pytest.approx(swept.freed_bytes, rel=0.02)


def test_what_is_older_than_an_age_goes_whatever_its_number():
    store, inner = memory_store()
    line = fill(store)
    age(inner, 2 * DAY, only=line[:6])
    swept = store.sweep(retain=outlive.Retain(keep_last=8, max_age_s=DAY))
    assert ids(store) == line[:5:-1]
    assert (swept.max_age.checkpoints, swept.keep_last.checkpoints) == (6, 0)
    age(inner, 9 * DAY, only=line)
    swept = store.sweep(retain=outlive.Retain(keep_last=2, max_age_s=10 * DAY))
    assert (swept.max_age.checkpoints, swept.keep_last.checkpoints) == (0, 2)
    store.sweep(retain=outlive.Retain(max_age_s=DAY))
    assert ids(store) == line[-1:]  # the newest stays, however old


def test_a_thread_that_nobody_used_for_its_time_goes_with_everything():
    store, inner = memory_store()
    fill(store, "old")
    store.thread("old").set_metadata({"title": "x"})
    with store.run("old") as run:
        run.step("s", lambda: 1)
    fill(store, "new")
    age(inner, 2 * DAY, "old")
    swept = store.sweep(retain=outlive.Retain(ttl_s=DAY))
    assert (swept.ttl.threads, swept.ttl.checkpoints) == (1, 11)
    assert swept.ttl.freed_bytes > 500
    assert [info.id for info in store.threads()] == ["new"]
    assert list(store.runs()) == []
    assert len(ids(store, "new")) == 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_keeps_a_thread_if_that_was_asked_for(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    retain = outlive.Retain(ttl_s=1000, every_s=None, refresh_on_read=True)
    with outlive.open(url, retain=retain) as store:
        for id in ("read", "left"):
            store.thread(id).save({"n": 1})
        saved_at = time.time()
        time.sleep(1.6)
        assert store.thread("read").load() == {"n": 1}
        assert store.thread("nobody").load() is None
        between = outlive.Retain(
            ttl_s=time.time() - saved_at - 0.05
        )  # older than this is what was only saved
        assert store.sweep(retain=between).ttl.threads == 1
        assert [info.id for info in store.threads()] == ["read"]


def test_reads_are_noted_now_and_then_only():
    store, inner = memory_store(retain=outlive.Retain(ttl_s=100, every_s=None, refresh_on_read=True))
    store.thread("t").save(1)
    revision = inner._tables[ThreadKey.of("", "t").digest].counters.revision
    for _ in range(20):
        store.thread("t").load()
    assert inner._tables[ThreadKey.of("", "t").digest].counters.revision == revision + 1


@pytest.mark.parametrize("backend", ["postgresql", "redis"])
def test_ages_are_by_the_clock_of_the_server(backend, url_for, tmp_path, monkeypatch):
    with outlive.open(url_for(backend, tmp_path)) as store:
        fill(store, "t", 3)
        ours = time.time
        for ahead in (30 * DAY, -30 * DAY):
            monkeypatch.setattr(sweeper.time, "time", lambda ahead=ahead: ours() + ahead)
            for dry_run in (True, False):
                swept = store.sweep(dry_run=dry_run, retain=outlive.Retain(ttl_s=DAY, max_age_s=DAY))
                assert (swept.checkpoints, swept.ttl.threads) == (0, 0)
        time.sleep(0.03)
        assert store.sweep(retain=outlive.Retain(max_age_s=0.02)).max_age.checkpoints == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_thread_that_somebody_came_back_to_is_not_deleted(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    with outlive.open(url) as store:
        fill(store, "t", 3)
        time.sleep(0.06)
        engine = store._store._engine
        entries = engine.backend.entries

        async def save_then_list(query, **options):
            if query.thread == ThreadKey.of("", "t"):
                store.thread("t", namespace="elsewhere").save({"back": True})
            return await entries(query, **options)

        engine.backend.entries = save_then_list  # between the look at the thread and its deletion
        swept = store.sweep(retain=outlive.Retain(ttl_s=0.05))
        engine.backend.entries = entries
        assert (swept.ttl.threads, swept.kept) == (0, {"in use": 1})
        assert store.thread("t", namespace="elsewhere").load() == {"back": True}


# What stays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["running", "released", "parked", "completed"])
def test_the_newest_checkpoint_of_a_run_that_may_go_on_stays_with_its_writes_and_ledger(status):
    store, inner = memory_store()
    run = store.run("t", run_id="r").start()
    run.step("s", lambda: 5)
    saved = run.save({"of": "the run"})
    store.thread("t").write("task", [("c", 1)], checkpoint=saved.id)
    if status == "released":
        run.release()
    elif status == "completed":
        run.complete()
    else:
        table = inner._tables[ThreadKey.of("", "t").digest]
        table.entries["run", "r"] = replace(table.entries["run", "r"], status=status)
    last = {item.id for item in store.thread("t").history(run="r", limit=1)}
    fill(store)
    swept = store.sweep(retain=outlive.Retain(keep_last=1))
    kept = set(ids(store))
    if status == "completed":
        assert not kept & last
        return
    assert kept == {ids(store)[0]} | last
    assert swept.kept == {"unfinished run": 1}
    assert len(store.thread("t").writes(saved.id)) == (saved.id in last)
    age(inner, 9 * DAY)
    swept = store.sweep(retain=outlive.Retain(ttl_s=DAY))
    assert (swept.ttl.threads, swept.kept) == (0, {"unfinished run": 1})
    assert any(kind == "step" for kind, _ in inner._tables[ThreadKey.of("", "t").digest].entries)


def test_an_open_question_stays_until_it_has_an_answer():
    store, inner = memory_store()
    thread = store.thread("t")
    asked = thread.save({"q": 1}, interrupts=[outlive.Interrupt("i", "node", "sure?")])
    other = thread.save({"a": 1}, parent="elsewhere")
    by_write = thread.save({"b": 1}, parent="elsewhere")
    thread.write("task", [("__interrupt__", "sure?")], checkpoint=by_write.id)
    for _ in range(5):
        thread.save({"n": 1}, parent=other.id)
    retain = outlive.Retain(keep_last=1, ttl_s=DAY)
    assert store.sweep(retain=retain).kept == {"open interrupt": 2}
    assert {asked.id, by_write.id} < set(ids(store))
    age(inner, 2 * DAY)
    assert store.sweep(retain=retain).kept["open interrupt"] >= 1
    assert len(ids(store)) == 3
    thread.resume("i", "yes", checkpoint=asked.id)
    store.sweep(retain=retain)
    assert asked.id not in ids(store)
    assert by_write.id in ids(store)


def test_a_thread_under_a_lock_stays():
    store, inner = memory_store()
    fill(store)
    with store.lock("t"):
        age(inner, 2 * DAY)
        assert store.sweep(retain=outlive.Retain(ttl_s=DAY)).kept == {"lock": 1}
    age(inner, 2 * DAY)
    assert store.sweep(retain=outlive.Retain(ttl_s=DAY)).ttl.threads == 1


def test_a_framework_s_question_by_a_write_is_told_from_others():
    store, _ = memory_store()
    line = fill(store, count=3)
    engine, key = store._store._engine, ThreadKey.of("", "t")
    records = run_now(engine.records(key))
    assert run_now(open_interrupts(engine, key, records)) == set()
    store.thread("t").write("task", [("__interrupt__", 1)], checkpoint=line[0])
    assert run_now(open_interrupts(engine, key, records)) == set()  # another save continued from there
    store.thread("t").write("task", [("__interrupt__", 1)], checkpoint=line[2])
    assert run_now(open_interrupts(engine, key, records)) == {("", line[2])}
    assert WriteRecord("", "c", "t", -3, "__interrupt__", "", b"").index < 0


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"every_s": 5},
        {"keep_last": 0},
        {"keep_last": 1.5},
        {"keep_last": True},
        {"max_age_s": 0},
        {"ttl_s": -1},
        {"ttl_s": "3"},
        {"keep_last": 1, "every_s": 0},
        {"keep_last": 1, "refresh_on_read": True},
        {"ttl_s": 1, "refresh_on_read": "no"},
        {"ttl_s": float("nan")},
        {"ttl_s": 1e12},
    ],
    ids=repr,
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(outlive.errors.BadArgument):
        outlive.Retain(**wrong)


def test_a_store_that_keeps_everything_says_so():
    with outlive.open("memory:") as store:
        with pytest.raises(outlive.errors.BadArgument):
            store.sweep()
        with pytest.raises(outlive.errors.BadArgument):
            store.sweep(retain=5)
    with pytest.raises(outlive.errors.BadArgument):
        outlive.open("memory:", retain=5)


# Under way ------------------------------------------------------------------------------------------------------


class Died(BaseException):
    pass


class Dying:
    def __init__(self, inner, calls=1 << 60):
        self.inner, self.left, self.name = inner, calls, inner.name

    def __getattr__(self, name):
        method = getattr(self.inner, name)

        async def call(*args, **options):
            self.left -= 1
            if self.left < 0:
                raise Died
            return await method(*args, **options)

        return call


def test_a_sweep_that_dies_at_any_call_loses_nothing_and_the_next_one_finishes(tuned):
    tuned(sweep_batch=2)
    calls = 0
    while True:
        local = MemoryBackend()
        store, _ = memory_store(local)
        lines = {id: fill(store, id, 7) for id in "ab"}
        fill(store, "gone", 3)
        age(local, 2 * DAY, "gone")
        states = {id: {item: store.thread(id).load(item) for item in line} for id, line in lines.items()}
        dying = Dying(SyncLocal(local))
        sweeper, _ = memory_store(dying)
        dying.left = calls
        is_over = True
        try:
            sweeper.sweep(retain=outlive.Retain(keep_last=2, ttl_s=DAY))
        except Died:
            is_over = False
        after, _ = memory_store(local)
        assert after.verify().ok
        for id, line in lines.items():
            left = ids(after, id)
            assert left == line[: -len(left) - 1 : -1]
            assert {item: after.thread(id).load(item) for item in left} == {
                item: states[id][item] for item in left
            }
        table = local._tables.get(sweeper._store._sweeper._key.digest)
        if table is not None:  # the dead sweeper's lease runs out
            table.entries = {key: replace(note, until=0) for key, note in table.entries.items()}
        after.sweep(retain=outlive.Retain(keep_last=2, ttl_s=DAY))
        after.sweep(
            retain=outlive.Retain(keep_last=2, ttl_s=DAY)
        )  # with what the first found to be left over
        assert [ids(after, id) for id in "ab"] == [line[:-3:-1] for line in lines.values()]
        assert not after.thread("gone").exists()
        for table in local._tables.values():
            named = {name for record in table.records.values() for name in record.chunks}
            assert set(table.chunks) == named  # nothing is left without a reader
        if is_over:
            break
        calls += 1
    assert calls > 30


@st.composite
def scripts(draw):
    return draw(
        st.lists(
            st.tuples(st.sampled_from(["save", "branch", "fork", "prune", "run", "write", "delete"]), st.integers(0, 4)),
            max_size=8,
        )
    ), draw(st.integers(0, 25)), draw(st.integers(1, 3))  # fmt: skip


@given(scripts())
@settings(max_examples=rounds(80, 3000))
def test_whatever_comes_between_two_calls_of_a_sweep_nothing_alive_is_lost(script):
    steps, at, keep = script
    local = MemoryBackend()
    store, _ = memory_store(local)
    fill(store, "t", 6)
    thread = store.thread("t")

    def act(what, n):
        past = ids(store)
        if what == "save":
            thread.save({"n": n, "text": "t 1 " * 60})
        elif what == "branch" and past:
            thread.save({**thread.load(past[n % len(past)]), "b": n}, parent=past[n % len(past)])
        elif what == "fork" and past:
            store.delete(f"fork {n}")
            thread.fork(f"fork {n}", checkpoint=past[n % len(past)])
        elif what == "prune":
            thread.prune(keep_last=n + 1)
        elif what == "run":
            with store.run("t") as run:
                run.save({"n": n})
        elif what == "write" and past:
            thread.write("task", [("c", "x" * 500)], checkpoint=past[n % len(past)])
        elif what == "delete" and n == 4:
            store.delete("t")

    def note():
        for info in store.threads():
            for item in store.thread(info.id).history():
                states[info.id, item.id] = store.thread(info.id).load(item.id)

    states = {}
    note()

    class Between(Dying):
        def __getattr__(self, name):
            method = getattr(self.inner, name)

            async def call(*args, **options):
                self.left -= 1
                if self.left == 0:
                    for step in steps:
                        act(*step)
                    note()
                return await method(*args, **options)

            return call

    between = Between(SyncLocal(local))
    sweeper, _ = memory_store(between)
    between.left = at
    sweeper.sweep(retain=outlive.Retain(keep_last=keep))
    assert store.verify().problems == ()
    for info in store.threads():
        for item in store.thread(info.id).history():
            assert memory_store(local)[0].thread(info.id).load(item.id) == states[info.id, item.id]


def test_a_sweep_ends_beside_a_saver_that_is_faster(tuned):
    tuned(sweep_batch=2)
    local = MemoryBackend()
    store, _ = memory_store(local)
    known = fill(store)

    class Saving(Dying):
        def __getattr__(self, name):
            method = getattr(self.inner, name)

            async def call(*args, **options):
                result = await method(*args, **options)
                if name == "commit_all" and any(commit.removal for commit in args[0]):
                    fill(store, count=4)
                return result

            return call

    swept = memory_store(Saving(SyncLocal(local)))[0].sweep(retain=KEEP)
    assert swept.checkpoints == len(known)
    assert not {*known} & {*ids(store)}
    assert swept.is_complete
    assert store.verify().ok


@pytest.mark.parametrize("backend", BACKENDS)
def test_savers_and_sweepers_of_several_threads_do_not_disturb_each_other(backend, url_for, tmp_path):
    url = url_for(backend, tmp_path)
    stop, failures, saved = threading.Event(), [], {"a": [], "b": []}

    def save(name):
        try:
            with outlive.open(url) as store:
                thread, n = store.thread(name), 0
                while not stop.is_set() or n < 5:
                    state = {"n": n, "said": [f"{i} {'x' * 99}" for i in range(n % 30)]}
                    saved[name].append(thread.save(state).id)
                    n += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    with outlive.open(url, retain=KEEP) as store:
        swept = [store.sweep() for _ in range(rounds(3))]
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        swept.append(store.sweep())
        assert sum(report.checkpoints for report in swept) > 0
        assert all(report.problems == [] for report in swept)
        assert store.verify().ok
        for name, made in saved.items():
            assert ids(store, name) == made[:-4:-1]


# One at a time, in the background ----------------------------------------------------------------------------------


def test_one_process_sweeps_at_a_time(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url, retain=KEEP) as one, outlive.open(url, retain=KEEP) as two:
        for id in "abc":
            fill(one, id)
        met = []
        visit = thread_sweep.ThreadSweep.thread

        async def meet(self, key, row):
            if not met:
                met.append(True)
                with pytest.raises(
                    outlive.ThreadBusy, match=r"another process \(process \d+ on .*\) is sweeping already"
                ):
                    two.sweep()
                assert two.sweep(dry_run=True).checkpoints > 0  # looking is free
            return await visit(self, key, row)

        thread_sweep.ThreadSweep.thread = meet
        try:
            assert one.sweep().checkpoints == 21
        finally:
            thread_sweep.ThreadSweep.thread = visit
        assert met
        assert two.sweep().checkpoints == 0


def _sweep_and_die(url, pipe):
    store = outlive.open(url, retain=KEEP)
    visit = thread_sweep.ThreadSweep.thread

    async def die(self, key, row):
        await visit(self, key, row)
        pipe.send("dying")
        os.kill(os.getpid(), 9)

    thread_sweep.ThreadSweep.thread = die
    store.sweep()


def test_a_sweeper_that_was_killed_is_followed_at_once(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url, retain=KEEP) as store:
        for id in "abc":
            fill(store, id)
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_sweep_and_die, args=(url, theirs))
        process.start()
        assert mine.recv() == "dying"
        process.join()
        assert store.sweep().keep_last.checkpoints == 14  # it is known to be gone: nobody waits for its lease
        assert store.verify().ok


def test_a_store_sweeps_in_the_background_and_stops_when_it_is_closed(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with outlive.open(url) as store:
        for n in range(30):
            fill(store, f"{n}", 8)
    before = set(threading.enumerate())
    store = outlive.open(url, retain=outlive.Retain(keep_last=2, every_s=0.05))
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["outlive-sweep"]
    eventually(lambda: len(ids(store, "0")) == 2)
    store.close()
    eventually(lambda: not set(threading.enumerate()) - before)
    with outlive.open(url) as store:
        assert store.verify().ok


def test_a_sweep_is_stopped_between_two_commits_and_counts_what_it_did(monkeypatch, tuned):
    tuned(sweep_batch=2)
    store, _ = memory_store()
    fill(store, count=20)
    before = store.size().stored_bytes
    remove = prune.remove_chosen

    async def remove_and_stop(*args, **options):
        done = await remove(*args, **options)
        store._store._sweeper._bell.set()  # as `close` does
        return done

    monkeypatch.setattr(prune, "remove_chosen", remove_and_stop)
    swept = store.sweep(retain=outlive.Retain(keep_last=1))
    assert (swept.is_complete, swept.checkpoints, len(ids(store))) == (False, 2, 18)
    assert before - store.size().stored_bytes == swept.freed_bytes
    with pytest.raises(outlive.errors.StoreClosed):
        store.sweep(retain=outlive.Retain(keep_last=1))


def test_what_goes_wrong_in_the_background_is_told():
    told = []
    with outlive.open("memory:", on_event=told.append, retain=outlive.Retain(keep_last=2)) as store:
        sweeper = store._store._sweeper
        fill(store)
        run_now(sweeper._tick())
        assert [(event.name, event.status, event.error) for event in told if event.name == "sweep"] == [
            ("sweep", "done", None)
        ]
        assert told[-1].state_bytes > 0

        async def fail(*_):
            raise outlive.errors.StoreUnavailable("the disk is gone")

        sweeper._last = fail
        run_now(sweeper._tick())
        assert (told[-1].status, told[-1].error) == ("failed", "StoreUnavailable: the disk is gone")
    with outlive.open("memory:", retain=outlive.Retain(keep_last=2)) as store:
        store._store._sweeper._last = fail
        with pytest.warns(UserWarning, match="the disk is gone"):
            run_now(store._store._sweeper._tick())


def test_a_clock_that_went_back_does_not_keep_a_store_from_being_swept(monkeypatch):
    store, _ = memory_store(retain=outlive.Retain(keep_last=2, every_s=1000))
    fill(store)
    now = time.time()
    monkeypatch.setattr(sweeper.time, "time", lambda: now + 365 * DAY)
    store.sweep()
    fill(store)
    monkeypatch.setattr(sweeper.time, "time", lambda: now)
    run_now(store._store._sweeper._tick())
    assert len(ids(store)) == 2


def test_an_async_store_sweeps_in_the_background_too(tmp_path):
    async def scenario():
        async with outlive.open_async("memory:", retain=outlive.Retain(keep_last=2, every_s=0.05)) as store:
            thread = store.thread("t")
            for n in range(9):
                await thread.save({"n": n})
            while len([item async for item in thread.history()]) > 2:
                await asyncio.sleep(0.02)
            left = [item async for item in thread.history()]
            await store.sweep(dry_run=True)
        return len(left), len(asyncio.all_tasks())

    assert asyncio.run(scenario()) == (2, 1)


def test_of_several_stores_with_one_policy_one_sweeps_in_its_time(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    retain = outlive.Retain(keep_last=1, every_s=1000)
    with outlive.open(url, retain=retain) as one, outlive.open(url, retain=retain) as two:
        fill(one, count=3)
        one.sweep()
        fill(one, count=3)
        run_now(two._store._sweeper._tick())  # the last sweep was just now
        assert len(ids(one)) == 4
        two.sweep()
        assert len(ids(one)) == 1


def test_a_sweep_looks_only_at_threads_that_changed():
    store, local = memory_store(retain=outlive.Retain(keep_last=5, max_age_s=DAY, every_s=None))
    for id in "abc":
        fill(store, id, 3)
    store.sweep()
    looked = []
    records = store._store._engine.records

    async def count(key, *args, **options):
        looked.append(key.id)
        return await records(key, *args, **options)

    store._store._engine.records = count
    store.sweep()
    assert looked == []
    store.thread("b").save(1)
    age(local, 2 * DAY, "c", only=ids(store, "c"))
    looked.clear()
    store.sweep()
    assert set(looked) == {"b"}
    store._store._sweeper._seen.clear()
    assert store.sweep().max_age.checkpoints == 2


def test_a_pair_is_swept_on_both_sides(tmp_path, tuned):
    tuned(replication_idle_s=0.05)
    one, two = (f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two"))
    with open_pair(one, two, mode="sync", health_check_interval_s=0.05) as store:
        line = fill(store)
        fill(store, "old", 3)
        time.sleep(3.6)  # the pair clears up behind itself, once, which counts as a change
        store.thread("t").save({"new": True})
        swept = store.sweep(retain=outlive.Retain(keep_last=3, ttl_s=3))
        assert (swept.ttl.threads, swept.keep_last.checkpoints, swept.problems) == (1, 8, [])
        left = ids(store)
        assert left[1:] == line[:-3:-1]
    for url in (one, two):
        with outlive.open(url) as store:
            assert ids(store) == left
            assert [info.id for info in store.threads()] == ["t"]
            assert store.verify().ok


# Space --------------------------------------------------------------------------------------------------------------


def test_the_file_of_sqlite_really_shrinks(tmp_path):
    url, path = f"sqlite:///{tmp_path}/store.db", tmp_path / "store.db"
    noise = random.Random(3)
    with outlive.open(url, retain=outlive.Retain(keep_last=1, every_s=None), fsync="normal") as store:
        for id in "abcd":
            for _ in range(20):
                store.thread(id).save({"image": noise.randbytes(200_000)})
        full = path.stat().st_size
        assert full > 8_000_000
        swept = store.sweep()
        assert swept.freed_bytes > 14_000_000
        assert path.stat().st_size < 2_000_000
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2_000_000


def test_the_logs_of_a_folder_really_shrink(tmp_path):
    noise = random.Random(3)
    with outlive.open(f"file://{tmp_path}/store", retain=outlive.Retain(keep_last=1, every_s=None)) as store:
        for _ in range(20):
            store.thread("t").save({"image": noise.randbytes(200_000)})
        store.sweep()
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 500_000


@pytest.mark.parametrize("io_mode", ["sync", "async"])
def test_the_sweep_in_the_background_can_be_stopped_and_started_by_itself(io_mode, tmp_path):
    rule = outlive.Retain(keep_last=3, every_s=0.05)
    url, options = f"sqlite:///{tmp_path}/a.db?fsync=normal", {"retain": rule}

    async def scenario(store, sleep):
        thread = store.thread("t")

        async def saved(count=10):
            for n in range(count):
                await thread.save(n)

        async def length():
            return len([item async for item in thread.history()])

        async def swept(to):
            end = time.monotonic() + 60
            while await length() != to:
                assert time.monotonic() < end
                await sleep(0.02)

        await saved()
        await swept(3)
        await store.stop_sweeping()
        await store.stop_sweeping()
        await saved()
        await sleep(0.3)
        assert await length() == 13
        assert (await store.sweep()).checkpoints == 10  # by hand it still works
        await saved()
        await store.start_sweeping()
        await store.start_sweeping()
        await swept(3)
        await store.start_sweeping(outlive.Retain(keep_last=2, every_s=0.05))
        await swept(2)
        await store.stop_sweeping()
        for wrong in (outlive.Retain(keep_last=1, every_s=None), "daily"):
            with pytest.raises(outlive.errors.BadArgument):
                await store.start_sweeping(wrong)

    async def asynchronous():
        async with outlive.open_async(url, **options) as store:
            await scenario(store, asyncio.sleep)
        with pytest.raises(outlive.errors.StoreClosed):
            await store.start_sweeping()

    async def paused(seconds):
        time.sleep(seconds)

    if io_mode == "async":
        asyncio.run(asynchronous())
    else:
        with outlive.open(url, **options) as store:
            run_now(scenario(_Awaited(store), paused))
        with pytest.raises(outlive.errors.StoreClosed):
            store.start_sweeping()


def test_a_store_that_was_opened_without_a_rule_sweeps_when_it_is_told_to(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/a.db?fsync=normal") as store:
        with pytest.raises(outlive.errors.BadArgument, match="every_s"):
            store.start_sweeping()
        fill(store)
        store.start_sweeping(outlive.Retain(keep_last=2, every_s=0.05))
        eventually(lambda: len(ids(store)) == 2)
