"""A run is found by its id without looking at the other runs."""

from __future__ import annotations

import apsw
import apsw.ext
import pytest

import outlive
from outlive.runtime import run_now


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
    asked = [event["sql"] for event in statements if "= 'run'" in event["sql"]]
    assert asked
    db = apsw.Connection(str(path))
    plans = [str(apsw.ext.query_info(db, sql, explain_query_plan=True).query_plan) for sql in asked]
    db.close()
    assert all("_run (key" in plan and "SCAN" not in plan for plan in plans), plans


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
        assert run_now(real("", "run", prefix="r3"))
