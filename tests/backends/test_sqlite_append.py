"""An ordinary save to SQLite takes the fast path, and what is not ordinary ends as on the general one."""

from __future__ import annotations

import asyncio
import random
import time

import apsw
import pytest

import outlive
from outlive.backends.sqlite import backend as sqlite_backend
from outlive.backends.sqlite.append import Unusual
from outlive.backends.sqlite.connection import _Transaction
from outlive.errors import CheckpointExists, Corrupt, HeadMoved, LeaseLost, StoreBusy

STATE = {"messages": ["first"], "text": "x" * 5000}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def store(path):
    with outlive.open(path) as store:
        yield store


@pytest.fixture
def thread(store):
    """A thread with two checkpoints, the second of which was put on the fast path."""
    thread = store.thread("t")
    thread.save(STATE, id="a")
    thread.save(grown(1), id="b")
    return thread


@pytest.fixture
def decided(monkeypatch):
    """The commits that the general path judges."""
    commits = []
    decide = sqlite_backend.decide

    def watched(commit, *rest):
        commits.append(commit)
        return decide(commit, *rest)

    monkeypatch.setattr(sqlite_backend, "decide", watched)
    return commits


def grown(count):
    return {**STATE, "messages": ["first", *(f"message {n}" * 40 for n in range(count))]}


def change(path, sql):
    with apsw.Connection(str(path)) as db:
        db.execute(sql)
        assert db.total_changes()


def test_only_the_first_save_of_a_thread_is_judged_by_the_general_path(store, decided):
    thread = store.thread("t")
    for count in range(30):
        thread.save(grown(count))
    assert [commit.checkpoints[0].seq for commit in decided] == [0]
    assert [info.seq for info in thread.history()] == list(range(30, 0, -1))
    assert thread.load() == grown(29)
    assert store.verify().problems == ()


def test_steps_and_saves_of_a_run_take_the_fast_path(store, decided, path):
    with store.run("t", run_id="r") as run:
        run.step("first", lambda: 1)
        run.save(STATE)
        decided.clear()
        for number in range(20):
            assert run.step("n", lambda number=number: number) == number
            run.save(grown(number))
        assert decided == []
        assert [step.value for step in store.steps("r")] == [1, *range(20)]
    assert [commit.entries[0].status for commit in decided] == ["completed"]
    assert store.verify().problems == ()


def test_a_run_that_another_process_cancelled_is_refused(store, path):
    def steps(run):
        run.step("first", lambda: 1)
        with outlive.open(path) as other:
            other.cancel("r")
        run.step("second", lambda: 2)

    with pytest.raises(LeaseLost), store.run("t", run_id="r") as run:
        steps(run)
    assert [step.name for step in store.steps("r")] == ["first"]


@pytest.mark.parametrize(
    "sql",
    [
        "update entry set status = 'completed' where kind = 'run'",
        "update entry set status = 'completed', checksum = x'00' where kind = 'run'",
        "delete from entry where kind = 'run'",
        "update entry_version set checksum = x'00' where kind = 'run'",
        "delete from entry_version where kind = 'run'",
    ],
)
def test_a_run_whose_row_was_damaged_in_between_writes_nothing(store, path, sql):
    def steps(run):
        run.step("first", lambda: 1)
        change(path, sql)
        run.step("second", lambda: 2)

    with pytest.raises(Corrupt), store.run("t", run_id="r") as run:
        steps(run)
    with pytest.raises(Corrupt):
        store.find_run("r")


def test_what_another_process_saved_in_between_is_seen(thread, store, path, decided):
    with outlive.open(path) as other:
        other.thread("t").save(grown(2), id="theirs")
    assert thread.save(grown(3), id="mine").parent == "theirs"
    assert [info.id for info in thread.history()] == ["mine", "theirs", "b", "a"]
    assert thread.save(grown(4)).parent == "mine"
    assert store.verify().problems == ()


def test_an_id_that_is_stored_is_answered_or_refused(thread, store):
    assert thread.save(grown(1), id="b").seq == 2  # said again
    with pytest.raises(CheckpointExists):
        thread.save(grown(5), id="b")
    assert thread.save(grown(5), id="c").parent == "b"
    assert store.verify().problems == ()


def test_a_head_that_moved_is_refused(thread, store):
    with pytest.raises(HeadMoved):
        thread.save(grown(2), expect="a")
    assert thread.save(grown(2), expect="b").parent == "b"


def test_content_that_comes_back_is_stored_once(thread, store):
    for _ in range(3):
        thread.save({"text": "another" * 1000})
        thread.save(STATE)
    assert thread.load() == STATE
    assert store.verify().problems == ()


def test_what_a_deletion_took_is_stored_again(thread, store, path):
    with outlive.open(path) as other:
        other.thread("t").delete()
    assert thread.save(grown(2)).parent is None
    assert thread.load() == grown(2)
    assert store.verify().problems == ()


def test_a_refused_save_of_a_group_takes_no_other_with_it(path):
    async def use():
        async with outlive.open_async(path) as store:
            threads = [store.thread(f"t{n}") for n in range(8)]
            for count in (1, 2):
                await asyncio.gather(*(thread.save(grown(count), id=f"s{count}") for thread in threads))
            ids = ["s1" if n % 3 == 0 else "s3" for n in range(8)]
            saves = [thread.save(grown(3), id=id) for thread, id in zip(threads, ids, strict=True)]
            results = await asyncio.gather(*saves, return_exceptions=True)
            assert [type(result) is CheckpointExists for result in results] == [id == "s1" for id in ids]
            heads = [(await thread.checkpoint()).id for thread in threads]
            assert heads == ["s2" if id == "s1" else "s3" for id in ids]
            assert (await store.verify()).problems == ()

    asyncio.run(use())


@pytest.mark.parametrize(
    "damage",
    [
        "update thread set stored = stored + 1",
        "update thread set tenant = 'x'",
        "update thread set created_at = 1",
        "update head set checkpoints = 7",
        "update head set record = x'00'",
        "delete from head",
        "delete from thread",
        "delete from checkpoint where id = 'b'",
    ],
)
def test_damage_under_an_open_store_is_found_by_the_next_save(thread, path, damage):
    change(path, damage)
    with pytest.raises(Corrupt):
        thread.save(grown(2))


def test_pending_writes_take_the_fast_path_too(thread, store, decided):
    thread.write("one", [("out", 1), ("log", "x" * 3000)])
    thread.write("two", [("out", 2)])
    thread.write("one", [("out", 3)])  # the first one stays
    assert [len(commit.writes) for commit in decided] == [1]  # the repeated one
    written = [(write.task, write.channel, write.value) for write in thread.writes("b")]
    assert written == [("one", "out", 1), ("one", "log", "x" * 3000), ("two", "out", 2)]
    assert thread.save(grown(2)).parent == "b"
    assert store.verify().problems == ()


@pytest.mark.parametrize("damage", ["update tally set writes = 7", "update head set revision = 7"])
def test_damage_is_found_by_the_next_write(thread, path, damage):
    thread.write("one", [("out", 1)])
    change(path, damage)
    with pytest.raises(Corrupt):
        thread.write("two", [("out", 2)])


@pytest.mark.parametrize("value", ["7", "'text'", "x'01'"])
def test_a_chunk_of_any_type_is_damage(thread, path, value):
    change(path, f"update chunk set data = {value}")
    with outlive.open(path) as other, pytest.raises(Corrupt):
        other.thread("t").load()


def test_a_backup_restored_under_an_open_store_takes_its_chunks_along(thread, store, path, tmp_path):
    parts = [random.Random(seed).randbytes(6000).hex() for seed in range(3)]
    thread.save({"parts": parts[:1]}, id="c")
    with apsw.Connection(str(path)) as live, apsw.Connection(str(tmp_path / "backup.db")) as backup:
        copy(live, backup)
        thread.save({"parts": parts[:2]}, id="d")
        copy(backup, live)
    assert thread.save({"parts": parts}, id="e").parent == "c"
    assert thread.load() == {"parts": parts}
    assert store.verify().problems == ()


def copy(source, target):
    with target.backup("main", source, "main") as copying:
        copying.step(-1)


@pytest.mark.parametrize("call", ["save", "load"])
def test_a_call_from_within_a_save_is_refused_and_the_save_is_done(thread, store, call, monkeypatch):
    """A signal handler of the program may call the store while the main thread is in a transaction."""
    append, refusals = sqlite_backend.append, []

    def interrupted(*arguments):
        receipt = append(*arguments)
        try:
            thread.load() if call == "load" else thread.save(grown(9))
        except StoreBusy as error:
            refusals.append(error)
        return receipt

    monkeypatch.setattr(sqlite_backend, "append", interrupted)
    assert thread.save(grown(2), id="c").parent == "b"
    assert len(refusals) == 1
    monkeypatch.undo()
    assert thread.load() == grown(2)
    assert thread.save(grown(3)).parent == "c"
    assert store.verify().problems == ()


def test_the_second_attempt_of_a_save_waits_only_for_the_rest_of_its_time(thread, monkeypatch):
    waits, enter = [], _Transaction.__enter__

    def noted(transaction):
        waits.append(transaction.busy_s)
        return enter(transaction)

    def slow(*arguments):
        time.sleep(0.05)
        raise Unusual

    monkeypatch.setattr(_Transaction, "__enter__", noted)
    monkeypatch.setattr(sqlite_backend, "append", slow)
    thread.save(grown(2), timeout_s=20)
    assert 0 < waits[0] <= 20
    assert 0 < waits[1] <= waits[0] - 0.05
