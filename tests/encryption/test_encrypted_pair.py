"""An encrypted store made of two: both hold the same sealed bytes, also after a rotation, and each can be opened alone."""

import contextlib
import sqlite3

import pytest

import outlive
from rig.replicas import open_pair

MODES = [{"mode": "sync", "on_secondary_down": "fail"}, {"mode": "async"}]
TABLES = {
    "chunk": "name, data",
    "checkpoint": "id, body",
    "write": "task, body",
    "thread": "digest, metadata",
}


def rows(path, table):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        found = sorted(db.execute(f"select {TABLES[table]} from {table}").fetchall())
    db.close()
    return found


def fill(store):
    thread = store.thread("t")
    for n in range(6):
        thread.save({"n": n, "messages": ["secret " * 500] * n})
    thread.write("task", [("channel", "secret " * 50)])
    thread.set_metadata({"title": "secret"})
    with store.run("t2", agent="x", prompt="secret prompt") as run:
        run.step("ask", lambda: "secret answer")


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["mode"])
def test_both_stores_hold_the_same_sealed_bytes_before_and_after_a_rotation(mode, tmp_path):
    old, new = outlive.KeyRing.new_key(), outlive.KeyRing.new_key()
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    options = {"secondary": f"sqlite:///{b}", **mode}
    with open_pair(f"sqlite:///{a}", key=outlive.KeyRing({"old": old}), **options) as store:
        fill(store)
    assert all(rows(a, table) == rows(b, table) for table in TABLES)
    with open_pair(f"sqlite:///{a}", key=outlive.KeyRing({"old": old, "new": new}), **options) as store:
        assert store.rotate().chunks > 0
        assert store.rotate().total == 0
        store.thread("t").save({"after": 1})
        assert store.verify().ok
    for path in (a, b):
        assert b"secret" not in path.read_bytes()
        with outlive.open(f"sqlite:///{path}", key=outlive.KeyRing({"new": new})) as store:
            assert store.thread("t").load() == {"after": 1}
            assert store.verify().ok
    assert all(rows(a, table) == rows(b, table) for table in TABLES)


def test_a_ring_without_keys_opens_a_pair_that_is_encrypted_and_no_other(tmp_path):
    a, b, c, d = (f"sqlite:///{tmp_path / name}.db" for name in "abcd")
    with pytest.raises(outlive.errors.KeyMissing):
        open_pair(a, b, key=outlive.KeyRing())
    with open_pair(a, b, key=outlive.KeyRing({"k": outlive.KeyRing.new_key()}), auto_failover=False) as store:
        fill(store)
        store.promote()
        store.thread("new").save(1)
    with open_pair(a, b, key=outlive.KeyRing()) as store:
        assert store.replication_status().active == "secondary"
        assert [info.id for info in store.threads()] == ["new", "t", "t2"]
        assert store.verify().ok
    open_pair(c, d).close()
    with pytest.raises(outlive.errors.NotEncrypted):
        open_pair(c, d, key=outlive.KeyRing())


def test_a_failover_leaves_an_encrypted_store_readable(tmp_path):
    ring = outlive.KeyRing({"k": outlive.KeyRing.new_key()})
    options = {"secondary": f"sqlite:///{tmp_path / 'b.db'}", "mode": "sync"}
    with open_pair(f"sqlite:///{tmp_path / 'a.db'}", key=ring, **options) as store:
        fill(store)
        store.promote()
        assert store.thread("t").load()["n"] == 5
        store.thread("t").save({"n": 6})
        store.failback()
        assert store.thread("t").load() == {"n": 6}
        assert store.verify().ok


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode["mode"])
def test_what_a_sweep_lets_go_stays_gone_in_both_sealed_stores_over_a_failover(mode, tmp_path):
    a, b = tmp_path / "a.db", tmp_path / "b.db"
    ring = outlive.KeyRing({"k": outlive.KeyRing.new_key()})
    options = {"secondary": f"sqlite:///{b}", "key": ring, "retain": outlive.Retain(keep_last=2), **mode}
    with open_pair(f"sqlite:///{a}", **options) as store:
        thread = store.thread("t")

        def work(ids):
            for id in ids:
                thread.save({"id": id, "text": f"secret {id} " * 300}, id=id)
            store.sweep()

        work("abc")
        store.promote()
        assert [one.id for one in thread.history()] == ["c", "b"]
        work("de")
        store.failback()
        assert [one.id for one in thread.history()] == ["e", "d"]
        work("f")
    assert all(rows(a, table) == rows(b, table) for table in TABLES)
    for path in (a, b):
        with outlive.open(f"sqlite:///{path}", key=ring) as alone:
            assert [one.id for one in alone.thread("t").history()] == ["f", "e"]
            assert alone.thread("t").load()["id"] == "f"
            assert alone.verify().ok
