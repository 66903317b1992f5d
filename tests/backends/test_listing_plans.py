"""Pages of tickets, timers and questions over all threads are read by an index, however many there are, and so are the
threads that changed last."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg

from outlive.backend import Backend, Commit, EntryQuery, EntryRecord, ThreadKey
from outlive.backends.local.sync_local import SyncLocal
from outlive.backends.postgres import urls as postgres_url
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.runtime.runtime import run_now

COUNT, LIMIT = 750, 10
AGENT = "7:planner\n"
LAST = (f"{AGENT}{COUNT // 3:023d}\nr", b"")
QUERIES = {
    "tickets of an agent": EntryQuery("", "ticket", prefix=AGENT, limit=LIMIT),
    "the page after a ticket": EntryQuery("", "ticket", prefix=AGENT, after=LAST, limit=LIMIT),
    "timers": EntryQuery("", "timer", limit=LIMIT),
    "open questions": EntryQuery("", "wait", statuses=["open"], limit=LIMIT),
    "released runs": EntryQuery("", "run", statuses=["released"], limit=LIMIT),
}


def fill(backend: Backend) -> None:
    """Store one run per thread: its ticket, its timer, and a question that few have not answered."""

    def entries(n: int) -> Iterator[EntryRecord]:
        yield EntryRecord("ticket", f"{AGENT}{n:023d}\nr{n}")
        yield EntryRecord("timer", f"{n:020d}\nr{n}\nsleep", until=n, clock="wall")
        yield EntryRecord("run", f"r{n}", status="completed" if n % 20 else "released")
        yield EntryRecord("wait", f"r{n}\nquestion", status="answered" if n % 20 else "open")

    for start in range(0, COUNT, 250):
        commits = [
            Commit(ThreadKey.of("", f"t{n}"), entries=tuple(entries(n))) for n in range(start, start + 250)
        ]
        for result in run_now(backend.commit_all(commits)):
            if isinstance(result, Exception):
                raise result


def test_sqlite_reads_them_by_an_index(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    local = SQLiteBackend(str(path), fsync="normal")
    local.identity(b"k" * 32)
    fill(SyncLocal(local))
    traced: list[tuple[str, Any]] = []
    db = local._connection.db()
    other = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    for name, query in QUERIES.items():
        traced.clear()
        db.exec_trace = lambda cursor, sql, bindings: bool(traced.append((sql, bindings)) or True)
        assert len(local.entries(query)) == LIMIT, name
        db.exec_trace = None
        selects = [(sql, bindings) for sql, bindings in traced if sql.startswith("select")]
        assert len(selects) >= 3, name
        for sql, bindings in selects:
            plan = [row[3] for row in other.execute(f"explain query plan {sql}", bindings)]
            assert not any(step.startswith("SCAN") for step in plan), (name, plan)
            assert "USE TEMP B-TREE FOR ORDER BY" not in plan, (name, plan)
            # An index that is used from the start of its range to the end would do for the plan.
            assert steps_of(other, sql, bindings) < 100 * LIMIT, (name, sql)
    other.close()
    local.close()


def steps_of(db: apsw.Connection, sql: str, bindings: Sequence[Any]) -> int:
    """Return about how many steps SQLite takes for a statement: the more rows, the more steps."""
    count = 0

    def tick() -> bool:
        nonlocal count
        count += 1
        return False

    db.set_progress_handler(tick, 1)
    try:
        db.execute(sql, bindings).fetchall()
    finally:
        db.set_progress_handler(None)
    return count


def test_postgresql_reads_them_by_an_index(postgres_store: str) -> None:
    backend: Any = postgres_url.parse_url(postgres_store, {}).sync(60)
    run_now(backend.identity(b"k" * 32))
    fill(backend)
    with psycopg.connect(postgres_store, autocommit=True) as connection:
        connection.execute("vacuum (analyze) outlive.entry, outlive.thread, outlive.roster")
    asked: list[tuple[Any, ...]] = []
    ask = backend._ask

    async def noted(*statement: Any, **options: Any) -> Any:
        asked.append(statement)
        return await ask(*statement, **options)

    for name, query in QUERIES.items():
        asked.clear()
        backend._ask = noted
        assert len(run_now(backend.entries(query))) == LIMIT, name
        (statement, *parameters) = asked[0]
        ((plan,),) = run_now(ask(f"explain (analyze, format json) {statement}", *parameters))
        nodes = list(nodes_of(json.loads(plan[plan.index(b"[") :])[0]["Plan"]))
        read = [
            (
                node["Node Type"],
                node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)),
            )
            for node in nodes
            if node.get("Relation Name") == "entry"
        ]
        bound = 4 * LIMIT
        assert read, name
        assert all(count <= bound for _, count in read), (name, read)
    run_now(backend.close())


def test_postgresql_reads_the_newest_threads_by_an_index_whatever_the_planner_knows(
    postgres_store: str,
) -> None:
    backend: Any = postgres_url.parse_url(postgres_store, {}).sync(60)
    run_now(backend.identity(b"k" * 32))
    with psycopg.connect(postgres_store, autocommit=True) as connection:
        connection.execute("alter table outlive.thread set (autovacuum_enabled = off)")
        fill(backend)
        # As if one had changed each second.
        connection.execute("update outlive.thread set updated_at = updated_at - key * 1000000")
        connection.execute("vacuum outlive.thread")
        connection.execute("set random_page_cost = 1000000")  # as wrong as missing statistics
        tenant = connection.execute("select tenant_digest from outlive.thread limit 1").fetchone()
        page = f"select * from outlive.newest_threads_1(%s, '', {(1 << 63) - 1}, '', {LIMIT})"
        for _ in range(2):  # the first call plans, and reads catalogs
            explained = connection.execute(
                f"explain (analyze, buffers, format json) {page}", tenant
            ).fetchone()
        assert explained is not None
        (node,) = nodes_of(explained[0][0]["Plan"])
        assert node["Actual Rows"] == LIMIT
        assert (
            node["Shared Hit Blocks"] + node["Shared Read Blocks"] <= 3 * LIMIT
        )  # of more than twice as many
    run_now(backend.close())


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes_of(child)
