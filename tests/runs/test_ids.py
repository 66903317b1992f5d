"""A run is found by its id without looking at the other runs."""

from __future__ import annotations

import apsw
import apsw.ext
import pytest

import outlive
from outlive.backend import EntryQuery, ThreadKey, escape
from outlive.backends.file.backend import FileBackend
from outlive.backends.local.run_index import RunIndex
from outlive.errors import Corrupt, RunElsewhere
from outlive.runs.start import Start
from outlive.runtime.runtime import run_now


def test_sqlite_finds_a_run_by_an_index(tmp_path):
    path = tmp_path / "store.db"
    with outlive.open(f"sqlite:///{path}") as store:
        for n in range(20):
            with store.run(f"t{n}", run_id=f"r{n}") as run:
                run.step("s", int)
        statements = []
        apsw.connection_hooks.append(lambda db: db.trace_v2(apsw.SQLITE_TRACE_STMT, statements.append))
        try:
            with outlive.open(f"sqlite:///{path}") as other:
                assert other.find_run("r7").thread == "t7"
        finally:
            apsw.connection_hooks.pop()
    asked = [event["sql"] for event in statements if "'run', 'ticket', 'timer'" in event["sql"]]
    assert asked
    db = apsw.Connection(str(path))
    plans = [str(apsw.ext.query_info(db, sql, explain_query_plan=True).query_plan) for sql in asked]
    db.close()
    assert all("_key (kind" in plan and "SCAN" not in plan for plan in plans), plans


@pytest.mark.parametrize("url", ["memory:", "file:store", "sqlite:///store.db"])
def test_a_run_is_found_by_one_call(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with outlive.open(url) as store:
        for n in range(5):
            store.run(f"t{n}", run_id=f"r{n}").start().complete()
        backend = store._store._engine.backend
        calls = []
        real = backend.entries

        async def entries(*args, **options):
            calls.append(options)
            return await real(*args, **options)

        backend.entries = entries
        assert store.find_run("r3").thread == "t3"
        assert len(calls) == 1
        assert run_now(real(EntryQuery("", "run", prefix="r3")))


def test_the_file_backend_opens_only_the_thread_of_the_run(tmp_path, monkeypatch):
    looked = []
    real = FileBackend._look_once

    def look_once(self, thread, *rest):
        looked.append(thread.id)
        return real(self, thread, *rest)

    with outlive.open(f"file:{tmp_path}/store") as store:
        for n in range(20):
            store.thread(f"t{n}").save({"n": n})
            store.run(f"t{n}", run_id=f"r{n}").start().complete()
        with outlive.open(f"file:{tmp_path}/store") as other:
            monkeypatch.setattr(FileBackend, "_look_once", look_once)
            assert other.find_run("r7").thread == "t7"
            assert other.find_run("nobody") is None
            assert looked == ["t7"]
            store.run("t3", run_id="later").start().complete()  # a process that has read the index sees it
            assert other.find_run("later").thread == "t3"
            store.delete("t7")
            assert other.find_run("r7") is None
            other.run("t8", run_id="r7").start().complete()
            assert store.find_run("r7").thread == "t8"


def test_runs_are_paged_by_id_and_thread():
    index = RunIndex()
    keys = [ThreadKey.of("", f"t{n}") for n in range(5)]
    for key in keys:
        for run in ("a", "a\0", "ab", "b", "\ud800"):
            index.add(key, run)
            index.add(ThreadKey.of("other", key.id), run)
    index.add(keys[0], "a")
    whole = [(run, key.digest) for key, run in index.matches("", "a", None)]
    assert whole == sorted(
        ((run, key.digest) for key in keys for run in ("a", "a\0", "ab")),
        key=lambda row: (escape(row[0]), row[1]),
    )
    for at, (run, digest) in enumerate(whole):
        assert [(one, key.digest) for key, one in index.matches("", "a", (run, digest))] == whole[at + 1 :]
    assert [key.id for key, _ in index.matches("", "\ud800", None)] == [
        key.id for key in sorted(keys, key=lambda key: key.digest)
    ]


@pytest.mark.parametrize("url", ["memory:", "file:store", "sqlite:///store.db"])
@pytest.mark.parametrize("is_found", [True, False])
def test_a_start_that_is_taken_back_removes_only_what_it_stored(url, is_found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with outlive.open(url) as store:
        thread = store.thread("late")
        thread.save("mine", id="mine", run="r")
        if is_found:
            store.run("early", run_id="r").start()
        answers = []
        real = Start._find_all

        async def find_all(self):  # the first look comes before the other run
            if not answers:
                answers.append("nothing yet")
                return []
            if not is_found:
                raise Corrupt("the other runs cannot be read")
            return await real(self)

        monkeypatch.setattr(Start, "_find_all", find_all)
        with pytest.raises(RunElsewhere if is_found else Corrupt):
            store.run("late", run_id="r").start()
        monkeypatch.setattr(Start, "_find_all", real)
        assert [one.id for one in thread.history()] == ["mine"]
        assert thread.load() == "mine"
        assert [run.thread for run in store.runs()] == (["early"] if is_found else [])
        store.run("late").start().complete()  # its place is free
        assert store.verify().problems == ()
