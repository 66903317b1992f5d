"""Ways in which replicated checkpoint stores lose data, each of which does not happen here."""

import asyncio
import contextlib
import copy
import itertools
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

import outlive
from outlive.backend import OUTBOX, Commit, EntryQuery, ThreadKey
from outlive.layers.replication.stores import Stores
from outlive.runtime.runtime import run_now
from outlive.testing.patience import PATIENCE_S, eventually
from rig.crash import ram_folder
from rig.proxy import FaultProxy
from rig.replicas import Client, hasty, memories, open_pair, pair_options

QUICK = {"timeout_s": 30.0, "health_check_interval_s": 0.05, "failback_delay_s": 0}
_number = itertools.count(1)


@pytest.fixture
def url_of(request, tmp_path):
    """A function that returns the URL of an empty store."""

    def find(kind):
        number = next(_number)
        if kind == "redis":
            return f"{request.getfixturevalue('valkey_url')}?prefix=l{number}:"
        if kind == "postgresql":
            return request.getfixturevalue("postgres_store")
        return {
            "memory": "memory:",
            "file": f"file://{tmp_path}/{number}",
            "sqlite": f"sqlite:///{tmp_path}/{number}.db",
        }[kind]

    return find


@pytest.fixture
def pair(url_of):
    """A pair in files, in strict mode, that would fail over by itself."""
    with open_pair(url_of("sqlite"), url_of("sqlite"), **QUICK) as store:
        yield store


KINDS = ("memory", "file", "sqlite", "redis", "postgresql")


@pytest.mark.parametrize(
    "primary, secondary",
    [*((kind, "postgresql") for kind in KINDS[:-1]), *(("sqlite", kind) for kind in KINDS[:-1])],
)
def test_any_two_stores_are_a_pair(url_of, primary, secondary):
    with open_pair(url_of(primary), url_of(secondary), **QUICK) as store:
        thread = store.thread("t")
        for n in range(4):
            thread.save({"n": n, "text": "x" * 500 * n}, id=f"{n}")
        store.promote()
        assert thread.load()["n"] == 3
        thread.save({"n": 4}, id="4")
        thread.delete_checkpoints(["0"])
        store.failback()
        assert [one.id for one in thread.history()] == ["4", "3", "2", "1"]
        store.promote()
        assert [one.id for one in thread.history()] == ["4", "3", "2", "1"]
        assert store.verify().problems == ()


# What is no reason to leave the primary ----------------------------------------------------------------------------


def test_what_is_not_there_is_no_reason_to_fail_over(pair):
    for n in range(5):
        assert pair.thread(f"absent {n}").load() is None
        assert pair.thread(f"absent {n}").checkpoint("x") is None
        assert not pair.thread(f"absent {n}").exists()
        assert not pair.delete(f"absent {n}")
    assert pair.replication_status().failovers == 0


def test_a_wrong_call_is_no_reason_to_fail_over(pair):
    thread = pair.thread("t")
    thread.save(1, id="one")
    for wrong in (
        lambda: thread.save(object()),
        lambda: thread.save(2, id="one"),
        lambda: thread.save(2, expect="never"),
        lambda: thread.fork("t"),
        lambda: thread.load(""),
    ):
        with pytest.raises(outlive.CallerError):
            wrong()
    assert pair.replication_status().failovers == 0


def test_damage_of_one_record_is_no_reason_to_fail_over(url_of):
    url = url_of("sqlite")
    with open_pair(url, url_of("sqlite"), cache_bytes=0, **QUICK) as store:
        store.thread("t").save({"text": "x" * 5000})
        store.thread("u").save("whole")
        damage(url)
        with pytest.raises(outlive.Corrupt):
            store.thread("t").load()
        assert store.thread("u").load() == "whole"
        assert store.replication_status().failovers == 0


def test_a_lock_is_no_reason_to_fail_over_but_who_says_so_leaves_a_locked_primary(url_of):
    url = url_of("sqlite")
    with (
        open_pair(url, url_of("sqlite"), **QUICK) as store,
        contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as other,
    ):
        store.thread("t").save(1)
        other.set_busy_timeout(100_000)
        other.execute("begin immediate")
        with pytest.raises(outlive.errors.StoreBusy):
            store.thread("t").save(2, timeout_s=0.3)
        time.sleep(0.2)  # some beats
        assert store.replication_status().failovers == 0
        stores = store._store._pair.stores
        stores.patience_s = stores.transfer_s = 0.3
        store.promote()
        store.thread("t").save(3)
        other.execute("rollback")
        stores.patience_s = stores.transfer_s = PATIENCE_S
        store.failback()
        assert store.thread("t").load() == 3


def test_a_damaged_primary_is_left_when_somebody_says_so(url_of):
    url = url_of("sqlite")
    with open_pair(url, url_of("sqlite"), mode="async", cache_bytes=0, **QUICK) as store:
        store.thread("t").save({"text": "x" * 5000})
        eventually(lambda: store.replication_status().queued == 0)
        store._store._pair._upkeep.is_closed = True  # what comes now stays queued
        store.thread("u").save({"text": "y" * 5000})
        damage(url)
        store.promote()  # it cannot be carried over
        assert "stays there" in store.replication_status().last_error
        assert store.thread("t").load() == {"text": "x" * 5000}
        assert store.thread("u").load() is None


def damage(url):
    """Change every chunk of a SQLite store."""
    with contextlib.closing(apsw.Connection(url.removeprefix("sqlite:///"))) as db:
        db.execute("update chunk set data = zeroblob(length(data))")
        assert db.changes() > 0


def test_a_cancelled_call_is_no_reason_to_fail_over_and_is_in_both_or_in_none(url_of):
    async def scenario():
        urls = url_of("sqlite"), url_of("sqlite")
        async with outlive.open_async(urls[0], **pair_options(urls[1], dict(QUICK))) as store:
            thread = store.thread("t")
            for n in range(12):
                task = asyncio.ensure_future(thread.save({"n": n}, id=f"{n}"))
                await asyncio.sleep(0.0007 * (n % 6))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await thread.save("last", id="last")
            while (await store.replication_status()).queued:
                await asyncio.sleep(0.02)
            assert (await store.replication_status()).failovers == 0
        found = []
        for url in urls:
            async with outlive.open_async(url) as alone:
                found.append([one.id async for one in alone.thread("t").history()])
        assert found[0] == found[1]

    asyncio.run(scenario())


# What an unreachable or an empty primary must not lead to ------------------------------------------------------------


def test_an_unreachable_store_is_an_error_and_never_an_absent_thread(valkey_server, url_of):
    with FaultProxy(valkey_server.host, valkey_server.port) as network:
        url = hasty(network.through(valkey_server.url))
        with open_pair(url, url_of("sqlite"), **QUICK, auto_failover=False) as store:
            store.thread("t").save("precious")
            with network.refusing(), pytest.raises(outlive.errors.StoreUnavailable):
                store.thread("t").load()


def test_a_primary_that_lost_all_it_had_is_left_and_filled_again(valkey_server, url_of):
    with open_pair(valkey_server.url, url_of("sqlite"), **QUICK) as store:
        for n in range(3):
            store.thread("t").save({"n": n})
        valkey_server.call("FLUSHALL")
        assert (store.thread("t").load() or {}).get("n") == 2
        store.thread("t").save({"n": 3})
        eventually(lambda: not store.replication_status().is_failed_over)
    with outlive.open(valkey_server.url) as alone:
        assert [alone.thread("t").load(one.id)["n"] for one in alone.thread("t").history()] == [3, 2, 1, 0]


CALLS = {
    "load": lambda store: store.thread("t").load() == 2,
    "history": lambda store: len(list(store.thread("t").history())) == 3,
    "list": lambda store: [info.id for info in store.threads()] == ["t"],
    "save": lambda store: store.thread("t").save(3, expect="c2").parent == "c2",
    "create": lambda store: store.thread("new").save(3).seq == 1,
    "delete": lambda store: store.delete("t") is True,
    "claim": lambda store: store.run("t", run_id="mine").start().id == "mine",
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("role", [0, 1], ids=["primary", "secondary"])
def test_a_store_that_lost_all_it_had_may_be_noticed_by_another_process_at_any_moment_of_a_call(role, call):
    """The other process leaves or fills that store while this one is about to do the same."""
    for number in itertools.count():
        backends = memories()
        client, other = Client(backends), Client(backends)
        for n in range(3):
            client.store.thread("t").save(n, id=f"c{n}")
        empty = memories()[role]
        for each in (client, other):
            each.links[role].inner.inner = empty
        has_happened = client.at_call(number, other.beat)
        assert CALLS[call](client.store), f"the other one at call {number}"
        if not has_happened():
            assert number > 0
            return


def test_a_lease_is_not_lost_with_the_data_of_the_primary():
    backends = memories()
    client = Client(backends)
    run = client.store.run("t").start()
    run.save(1)
    client.links[0].inner.inner = memories()[0]
    run.save(2)
    assert client.pair.stores.is_failed_over
    assert client.store.thread("t").load() == 2


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("renewals", [0, 3])
@pytest.mark.parametrize("holder", ["lock", "run"])
def test_a_place_is_not_taken_twice_when_the_primary_forgot_who_holds_it(holder, renewals, is_used):
    backends = memories()
    client, other = Client(backends), Client(backends)
    if is_used:
        client.store.lock("t").acquire().release()
    tables, digest = backends[0].local._tables, ThreadKey.of("", "t").digest
    before = copy.deepcopy(tables.get(digest))
    takes = {
        "lock": lambda store: store.lock("t", lease_s=600, timeout_s=0.1).acquire(),
        "run": lambda store: store.run("t", lease_s=600).start(),
    }
    first = takes.pop(holder)(client.store)
    for _ in range(renewals):
        run_now(client.store._store._heart.beat())
    del tables[digest]  # the primary lost its last commits
    if before is not None:
        tables[digest] = before
    (take,) = takes.values()
    with pytest.raises(outlive.ThreadBusy):
        take(other.store)
    assert other.pair.stores.is_failed_over
    if holder == "lock":
        client.store.thread("t").save({"n": 1}, fence=first)
    else:
        first.save({"n": 1})
    first.release()
    take(other.store).release()


def test_a_thread_that_is_deleted_and_locked_again_has_lost_nothing():
    client = Client(memories())
    for n in range(3):
        with client.store.lock("t", lease_s=600) as lock:
            client.store.thread("t").save({"n": n}, fence=lock)
        client.store.delete("t")
    assert not client.pair.stores.is_failed_over


def test_a_call_waits_for_a_change_of_roles_that_another_process_has_not_finished(monkeypatch):
    """The primary is about to be active again, and cannot be reached for a moment."""
    backends = memories()
    client, other = Client(backends), Client(backends)
    client.store.thread("t").save(1)
    client.store.promote()
    client.store.thread("t").save(2)
    other.links[0].inner.refuse("commit_all", after=1)  # the failback is announced, and no more
    with pytest.raises(outlive.errors.StoreUnavailable):
        other.store.failback()
    client.links[0].mode = "refuse"
    pauses = []

    async def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            client.heal()

    monkeypatch.setattr(client.pair._runtime, "sleep", sleep)
    client.store.thread("t").save(3)
    assert len(pauses) == 3
    assert client.store.replication_status().active == "primary"
    assert client.store.thread("t").load() == 3


@pytest.mark.parametrize("look", ["load", "history", "threads"])
def test_a_primary_that_lost_all_it_had_is_left_though_notes_stand_in_it_again(valkey_server, url_of, look):
    looks = {
        "load": lambda: store.thread("t").load(),
        "history": lambda: len(list(store.thread("t").history())),
        "threads": lambda: [info.id for info in store.threads()],
    }
    quiet = {**QUICK, "health_check_interval_s": 1000}
    with open_pair(valkey_server.url, url_of("sqlite"), **quiet) as store:
        for n in range(3):
            store.thread("t").save(n)
        valkey_server.call("FLUSHALL")
        run_now(
            store._store._pair._upkeep.flush(0.0)
        )  # takes off what was queued, from a thread that is not there any more
        assert looks[look]() == {"load": 2, "history": 3, "threads": ["t"]}[look]
        store.failback()


def test_a_primary_that_lost_all_it_had_while_nobody_looked_is_filled_again(valkey_server, url_of):
    second = url_of("sqlite")
    with open_pair(valkey_server.url, second, **QUICK) as store:
        store.thread("t").save("precious")
    valkey_server.call("FLUSHALL")
    with open_pair(valkey_server.url, second, **QUICK) as store:
        assert store.thread("t").load() == "precious"
        eventually(lambda: not store.replication_status().is_failed_over)
    for url in (valkey_server.url, second):
        with outlive.open(url) as alone:
            assert alone.thread("t").load() == "precious"
            assert alone.verify().problems == ()


def test_a_secondary_that_lost_all_it_had_is_filled_again(valkey_server, url_of):
    first = url_of("sqlite")
    with open_pair(first, valkey_server.url, **QUICK) as store:
        store.thread("t").save("precious")
        valkey_server.call("FLUSHALL")
        store.thread("u").save("new")
        eventually(lambda: store.replication_status().is_caught_up)
    with outlive.open(valkey_server.url) as alone:
        assert {info.id: alone.thread(info.id).load() for info in alone.threads()} == {
            "t": "precious",
            "u": "new",
        }


def test_a_secondary_that_forgot_its_last_commits_gets_them_again_with_the_next_one(url_of):
    urls = url_of("sqlite"), url_of("sqlite")
    path = Path(urls[1].removeprefix("sqlite:///"))
    for ids in ("012", "345", "67"):
        if ids == "67":
            shutil.copy(f"{path}.kept", path)  # as after a power cut
        with open_pair(urls[0], urls[1], **QUICK) as store:
            for id in ids:
                store.thread("t").save({"id": id, "text": id * 2000}, id=id)
        if ids == "012":
            shutil.copy(path, f"{path}.kept")
    with outlive.open(urls[1]) as alone:
        assert [one.id for one in alone.thread("t").history()] == list("76543210")
        assert alone.thread("t").load("4") == {"id": "4", "text": "4" * 2000}
        assert alone.verify().problems == ()


@pytest.mark.filterwarnings("ignore:what is queued for the primary")
@pytest.mark.parametrize("dies_at", [None, 0, 1, 2])
def test_a_primary_that_lost_commits_gets_them_again_before_it_is_active(tmp_path, monkeypatch, dies_at):
    folders = [tmp_path / name for name in ("a", "b", "old")]
    for folder in folders[:2]:
        folder.mkdir()
    urls = (f"sqlite:///{folders[0]}/a.db", f"sqlite:///{folders[1]}/b.db")
    with open_pair(*urls) as store:
        store.thread("t").save(1)
    shutil.copytree(folders[0], folders[2])
    with open_pair(*urls) as store:
        store.thread("t").save(2)
        store.thread("t").save(3)
    shutil.rmtree(folders[0])
    shutil.copytree(folders[2], folders[0])  # a disk that forgot its last seconds
    writes, write = itertools.count(), Stores.write

    async def die(*args):
        if next(writes) == dies_at:
            raise Died
        return await write(*args)

    with open_pair(*urls) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Stores, "write", die)
            try:
                store.thread("t").save(4)
            except Died:
                assert dies_at is not None
    with open_pair(*urls) as store:
        store.thread("t").save(5)
        store.promote()
        store.failback()
        assert {1, 2, 3, 5} <= {store.thread("t").load(item.id) for item in store.thread("t").history()}
        assert store.verify().ok


class Died(BaseException):
    pass


class Later:
    """A runtime whose clock is set ahead."""

    def __init__(self, runtime, seconds):
        self._runtime, self._ahead = runtime, int(seconds * 1e6)

    def __getattr__(self, name):
        return getattr(self._runtime, name)

    def now(self):
        return self._runtime.now() + self._ahead


def test_the_number_of_failovers_is_bounded_until_the_primary_is_stable_again(valkey_server, url_of):
    with FaultProxy(valkey_server.host, valkey_server.port) as network:
        options = {"timeout_s": 30, "max_failover_attempts": 1, "health_check_interval_s": 0.1}
        url = hasty(network.through(valkey_server.url))
        with open_pair(url, url_of("memory"), failback_delay_s=3600, **options) as store:
            store.thread("t").save(1)
            with network.refusing():
                assert store.thread("t").load() == 1
            store.failback()
            with network.refusing(), pytest.raises(outlive.errors.StoreUnavailable):
                store.thread("t").load()
            upkeep = store._store._pair._upkeep
            assert not upkeep.may_fail_over()
            upkeep._runtime = Later(upkeep._runtime, 3600)
            eventually(upkeep.may_fail_over)
            with network.refusing():
                assert store.thread("t").load() == 1
            eventually(lambda: not store.replication_status().is_failed_over)


def test_a_promotion_by_hand_is_ended_by_hand(pair):
    pair.promote()
    time.sleep(0.4)  # some beats
    assert pair.replication_status().is_failed_over
    pair.failback()
    assert not pair.replication_status().is_failed_over


# The queue -------------------------------------------------------------------------------------------------------------


def save_for_ever(report, url, secondary, mode):
    with open_pair(url, secondary, mode=mode, timeout_s=PATIENCE_S) as store:
        for n in itertools.count():
            store.thread(f"{n % 3}").save({"n": n}, id=f"{n}")
            report(f"{n % 3}", f"{n}")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_what_was_acknowledged_and_queued_survives_kill_9(workers, postgres_store, mode):
    with ram_folder() as folder:
        url = f"sqlite:///{folder}/store.db"
        worker = workers.spawn(save_for_ever, url, postgres_store, mode)
        acknowledged = {tuple(worker.receive()) for _ in range(40)}
        worker.kill()
        with open_pair(url, postgres_store, health_check_interval_s=0.05) as store:
            eventually(lambda: store.replication_status().queued == 0)
        for place in (url, postgres_store):
            with outlive.open(place) as alone:
                found = {(id, one.id) for id in "012" for one in alone.thread(id).history()}
                assert acknowledged <= found


def test_what_is_queued_is_not_what_the_state_became_later(url_of):
    urls = url_of("sqlite"), url_of("sqlite")
    with open_pair(urls[0], urls[1], mode="async") as store:
        state = {"list": [1]}
        for n in range(2, 6):
            store.thread("t").save(state, id=f"{n}")
            state["list"].append(n)
    with outlive.open(urls[1]) as alone:
        assert [alone.thread("t").load(f"{n}")["list"] for n in range(2, 6)] == [
            list(range(1, n)) for n in range(2, 6)
        ]


def test_a_queued_save_does_not_come_over_after_a_queued_deletion(url_of, tuned):
    # All of it is still queued when the store is closed.
    tuned(replication_beat_s=60)
    urls = url_of("sqlite"), url_of("sqlite")
    with open_pair(urls[0], urls[1], mode="async", health_check_interval_s=60) as store:
        for id in ("old", "older"):
            store.thread("gone").save(id, id=id)
            store.thread("again").save(id, id=id)
        for id in ("gone", "again"):
            store.delete(id)
        store.thread("again").save("new", id="new")
        assert store.replication_status().queued == 3  # a deletion takes the notes of its thread along
    for url in urls:
        with outlive.open(url) as alone:
            assert [info.id for info in alone.threads()] == ["again"]
            assert [one.id for one in alone.thread("again").history()] == ["new"]


def test_what_is_carried_over_late_and_twice_overwrites_nothing_newer(url_of, tuned):
    tuned(replication_beat_s=60)
    urls = url_of("sqlite"), url_of("sqlite")
    with open_pair(urls[0], urls[1], mode="async", health_check_interval_s=60) as store:
        thread, pair = store.thread("t"), store._store._pair
        thread.save("old", id="same")
        notes = run_now(pair.entries(EntryQuery("", OUTBOX)))
        thread.save("new", id="same", replace=True)
        thread.save("newest", id="newest")
        for _ in range(3):
            store.promote()
            store.failback()
            for key, note in notes:  # it comes once more
                run_now(pair.stores.both[0].commit_all([Commit(key, entries=(note,))]))
    for url in urls:
        with outlive.open(url) as alone:
            assert (alone.thread("t").load(), alone.thread("t").load("same")) == ("newest", "new")


def test_a_note_that_cannot_be_read_brings_its_whole_thread(url_of, tuned):
    tuned(replication_beat_s=60)
    urls = url_of("sqlite"), url_of("sqlite")
    with open_pair(urls[0], urls[1], mode="async", health_check_interval_s=60) as store:
        store.thread("t").save(1)
        store.thread("t").save(2)
        primary = store._store._pair.stores.both[0]
        for key, note in run_now(primary.entries(EntryQuery("", OUTBOX))):
            other = replace(note, body=b"of another version")
            run_now(primary.commit_all([Commit(key, entries=(other,))]))
        assert store.replication_status().queued == 2
    with outlive.open(urls[1]) as alone:
        assert [alone.thread("t").load(one.id) for one in alone.thread("t").history()] == [2, 1]


def test_saves_of_one_thread_arrive_in_their_order_from_many_threads(url_of):
    urls = url_of("sqlite"), url_of("sqlite")
    with open_pair(urls[0], urls[1], mode="async") as store:
        running = [
            threading.Thread(target=lambda: [store.thread("t").save(n) for n in range(10)]) for _ in range(4)
        ]
        for one in running:
            one.start()
        for one in running:
            one.join()
    lines = []
    for url in urls:
        with outlive.open(url) as alone:
            lines.append([(one.seq, one.id, one.parent) for one in alone.thread("t").history()])
    assert lines[0] == lines[1]
    assert [seq for seq, _, _ in lines[0]] == list(range(40, 0, -1))


def test_closing_says_what_is_left_and_the_next_one_carries_it_over(
    postgres_server, postgres_store, tmp_path
):
    url = f"sqlite:///{tmp_path}/a.db"
    with FaultProxy(postgres_server.host, postgres_server.port) as network:
        far = hasty(network.through(postgres_store))
        store = open_pair(url, far, mode="async", timeout_s=30)
        store.thread("t").save(1)
        eventually(lambda: store.replication_status().queued == 0)
        network.mode = "refuse"
        network.drop_connections()
        store.thread("t").save(2)
        with pytest.warns(
            UserWarning, match="what is queued for the secondary stays in the primary.*1 commits"
        ):
            store.close()
        store.close()
        with pytest.raises(outlive.errors.StoreClosed):
            store.thread("t").save(3)
        network.mode = "pass"
        with open_pair(url, far, health_check_interval_s=0.05) as store:
            eventually(lambda: store.replication_status().queued == 0)
    with outlive.open(postgres_store) as alone:
        assert alone.thread("t").load() == 2


def test_a_forked_child_goes_on_with_the_pair(pair):
    pair.thread("t").save("parent", id="1")
    if (child := os.fork()) == 0:
        code = 1
        with contextlib.suppress(BaseException):
            pair.thread("t").save("child", id="2")
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pair.thread("t").save("parent again", id="3")
    pair.promote()
    assert [one.id for one in pair.thread("t").history()] == ["3", "2", "1"]


# Locks and names -----------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_over_a_failover_and_given_back_by_its_owner_alone(pair):
    lock = pair.lock("t", lease_s=600).acquire()
    pair.promote()
    with pytest.raises(outlive.ThreadBusy):
        pair.lock("t", timeout_s=0.1).acquire()
    pair.failback()
    with pytest.raises(outlive.ThreadBusy):
        pair.lock("t", timeout_s=0.1).acquire()
    lock.release()
    with pair.lock("t", timeout_s=PATIENCE_S):
        pass


def test_a_lock_whose_owner_is_cancelled_is_free_at_once(url_of):
    async def scenario():
        urls = url_of("sqlite"), url_of("sqlite")
        async with outlive.open_async(urls[0], **pair_options(urls[1], dict(QUICK))) as store:

            async def hold(held):
                async with store.lock("t", lease_s=600):
                    held.set()
                    await asyncio.sleep(600)

            for change in (store.promote, store.failback):
                held = asyncio.Event()
                task = asyncio.ensure_future(hold(held))
                await held.wait()
                await change()
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                async with store.lock("t", timeout_s=PATIENCE_S):
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize("id", ["outbox", "pair", "tombstone", "lock:foo", "0:", "\0", "a\\b"])
def test_no_name_of_a_thread_reaches_what_the_pair_keeps_for_itself(pair, id):
    pair.thread(id).save("mine", id=id)
    pair.thread(id, namespace=id).save("sub", id=id)
    pair.thread(id).delete_checkpoints([id])
    pair.promote()
    assert pair.thread(id).load() is None
    assert pair.thread(id, namespace=id).load() == "sub"
    pair.thread(id).delete()
    pair.failback()
    assert list(pair.threads()) == []
    with pytest.raises(outlive.errors.BadArgument):
        pair.thread("")


def test_tenants_fail_over_apart_from_each_other(url_of):
    urls = url_of("sqlite"), url_of("sqlite")
    with (
        open_pair(urls[0], urls[1], tenant="a", **QUICK) as one,
        open_pair(urls[0], urls[1], tenant="b", **QUICK) as two,
    ):
        one.thread("t").save("of a")
        two.thread("t").save("of b")
        one.promote()
        one.thread("t").save("of a, later")
        assert (two.replication_status().active, two.thread("t").load()) == ("primary", "of b")
        one.failback()
        assert (one.thread("t").load(), two.thread("t").load()) == ("of a, later", "of b")


def test_a_chunk_that_somebody_changed_in_the_secondary_is_not_carried_back(url_of, tuned):
    # Nothing is transferred before it is damaged.
    tuned(replication_beat_s=60)
    urls = url_of("sqlite"), url_of("sqlite")
    store = open_pair(urls[0], urls[1], health_check_interval_s=60)
    store.promote()
    store.thread("t").save({"text": "x" * 5000})
    damage(urls[1])
    with pytest.raises(outlive.Corrupt):
        store.failback()
    assert store.replication_status().active == "secondary"
    with pytest.warns(UserWarning, match="what is queued for the primary stays in the secondary"):
        store.close()


@pytest.mark.parametrize(
    "look",
    [
        lambda store: store.find_run("r", thread="t"),
        lambda store: list(store.runs(thread="t")),
        lambda store: store.size().threads,
    ],
    ids=["find_run", "runs", "size"],
)
def test_nothing_is_not_taken_from_a_primary_that_lost_all_it_had(valkey_server, url_of, look):
    with open_pair(valkey_server.url, url_of("sqlite"), **QUICK) as store:
        with store.run("t", run_id="r") as run:
            run.save({"a": 1})
        valkey_server.call("FLUSHALL")
        assert look(store)
        eventually(lambda: not store.replication_status().is_failed_over)
