"""PostgreSQL: what is its own beside the contract that all backends keep."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import outlive
from outlive.backend import ABSENT, NEXT, Commit, EntryQuery, EntryRecord, Removal, ThreadKey
from outlive.backend.entries import READY
from outlive.errors import BadURL, Corrupt, NewerFormat, StoreBusy, StoreError, StoreUnavailable
from outlive.runtime.runtime import Deadline, run_now
from outlive.testing.patience import PATIENCE_S, eventually
from rig.servers import PostgresServer

SECRET = "hush-%40-hush"  # hush-@-hush in a URL


def sql(url, statement, *parameters):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else None


def saves(store, count, thread="t"):
    handle = store.thread(thread)
    return [handle.save({"n": n}) for n in range(count)]


# Tables ----------------------------------------------------------------------------------------------------------


def open_and_save(report, url, name):
    with outlive.open(url) as store:
        report(store._store._engine.namer.key if hasattr(store._store._engine.namer, "key") else b"")
        store.thread(name).save({"by": name})


def test_eight_processes_may_open_a_new_database_at_once(postgres_url, workers):
    running = [workers.spawn(open_and_save, postgres_url, f"process {n}") for n in range(8)]
    for worker in running:
        with worker:
            worker.finish()
    with outlive.open(postgres_url) as store:
        assert [info.id for info in store.threads()] == [f"process {n}" for n in range(8)]
        assert all(store.thread(info.id).load() == {"by": info.id} for info in store.threads())


@pytest.mark.parametrize(
    "schema", ["agents", "Agents", "two words", 'quo"ted', "semi; drop table x", "naïve", "select"]
)
def test_a_schema_has_any_name_and_a_store_of_its_own(postgres_url, schema):
    with outlive.open(postgres_url, schema=schema) as named, outlive.open(postgres_url) as plain:
        named.thread("t").save("named")
        plain.thread("t").save("plain")
        assert (named.thread("t").load(), plain.thread("t").load()) == ("named", "plain")
    found = {row[0] for row in sql(postgres_url, "select nspname from pg_namespace")}
    assert {schema, "outlive"} <= found


@pytest.mark.parametrize("schema", ["", "x" * 64, "a\0b", "a$outlive$", 7, None, "line\nbreak"])
def test_a_name_that_cannot_be_a_schema_is_refused(schema):
    with pytest.raises(BadURL, match="schema"):
        outlive.open("postgresql://127.0.0.1:1/x", schema=schema)


def test_metadata_is_there_for_people_with_a_sql_prompt(postgres_url):
    with outlive.open(postgres_url) as store:
        thread = store.thread("t")
        thread.save(
            {"n": 1}, metadata={"user": "ann", "nul": "\0", "lone": "\ud800", "nan": float("nan"), "set": {1}}
        )
        thread.set_metadata({"topic": "storage"})
        assert store.thread("t").checkpoint().metadata["nul"] == "\0"
    found = sql(
        postgres_url,
        "select id, source, size, metadata->>'user' from outlive.checkpoint where metadata @> '{\"user\": \"ann\"}'",
    )
    assert [row[1:] for row in found] == [("loop", 4, "ann")]
    assert sql(postgres_url, "select id, metadata_json->>'topic', checkpoints from outlive.thread") == [
        ("t", "storage", 1)
    ]


def test_a_database_that_is_replicated_logically_takes_every_kind_of_write(postgres_url):
    with outlive.open(postgres_url) as store:
        store.thread("t").save({"n": 1}, id="c1")
        sql(postgres_url, "create publication everything for all tables")
        with store.run("t", run_id="r", agent="a") as run:
            run.step("ask", lambda: 7)
        thread = store.thread("t", namespace="helper")
        thread.save({"text": "x" * 5000}, id="c2")
        thread.save({"n": 2}, id="c2", replace=True)
        thread.write("task", [("notes", "y" * 5000), ("__error__", "first")])
        thread.write("task", [("__error__", "second")])
        store.thread("t").set_metadata({"title": "x"})
        thread.fork("fork")
        store.thread("t").prune(keep_last=1)
        assert store.verify().problems == ()
        for info in list(store.threads()):
            store.delete(info.id)


def test_no_index_depends_on_the_locale_of_the_server(postgres_store):
    with outlive.open(postgres_store) as store:
        store.thread("t").save({"n": 1})
    find = """
        select i.indexrelid::regclass::text from pg_index i join pg_class c on c.oid = i.indexrelid
        join pg_collation o on o.oid = any(i.indcollation)
        where c.relnamespace = 'outlive'::regnamespace and o.collname <> 'C'
    """
    assert sql(postgres_store, find) == []


def test_a_store_of_a_newer_outlive_is_refused(postgres_url):
    with outlive.open(postgres_url) as store:
        saves(store, 1)
    sql(postgres_url, "update outlive.store set version = 99")
    with pytest.raises(NewerFormat, match="99"):
        outlive.open(postgres_url)


def test_a_role_without_rights_on_the_database_may_use_a_schema_that_was_made_for_it(postgres_url):
    with outlive.open(postgres_url):
        pass
    for statement in (
        "drop role if exists clerk",
        "create role clerk login",
        "grant usage on schema outlive to clerk",
        "grant select, insert, update, delete on all tables in schema outlive to clerk",
    ):
        sql(postgres_url, statement)
    url = postgres_url.replace("outlive@", "clerk@")
    try:
        with outlive.open(url) as store:
            saves(store, 3)
            assert store.thread("t").load() == {"n": 2}
        with pytest.raises(StoreUnavailable, match="grant the role CREATE"):
            outlive.open(url, schema="other")
    finally:
        sql(postgres_url, "drop owned by clerk")
        sql(postgres_url, "drop role clerk")


def test_a_schema_that_is_dropped_under_a_store_is_said_so(postgres_url):
    with outlive.open(postgres_url) as store:
        saves(store, 1)
        sql(postgres_url, "drop schema outlive cascade")
        with pytest.raises(StoreUnavailable, match="open the store again"):
            saves(store, 1)


# Values ---------------------------------------------------------------------------------------------------------


def test_what_json_cannot_say_is_stored_exactly(postgres_store):
    state = {
        "nul": "a\0b",
        "lone": "\ud800",
        "nan": float("nan"),
        "inf": float("-inf"),
        "big": 2**70,
        "key\0": {1: (2,), "1": {3}},
    }
    with outlive.open(postgres_store) as store:
        store.thread("t\0\ud800").save(state, metadata=state)
    with outlive.open(postgres_store) as store:
        checkpoint = store.thread("t\0\ud800").checkpoint()
        assert repr(checkpoint.state) == repr(checkpoint.metadata) == repr(state)


@pytest.mark.parametrize("size_mb", [30, pytest.param(100, marks=pytest.mark.long)])
def test_a_state_of_many_mb_comes_back(postgres_store, size_mb):
    blob = os.urandom(1 << 20)
    state = {"blobs": [blob[n:] + blob[:n] for n in range(size_mb)]}
    with outlive.open(postgres_store, timeout_s=120) as store:
        store.thread("t").save(state)
        store.thread("t").save({**state, "more": 1})
        assert store.thread("t").info().stored_bytes < (size_mb + 1) * (1 << 20)
    with outlive.open(postgres_store, cache_bytes=0, timeout_s=120) as store:
        assert store.thread("t").load() == {**state, "more": 1}


EVIL = [
    "x') OR '1'='1", "x' UNION SELECT version()--", 'a"]', "$1", "a.b", "%", "_", "{a,b}", "'; drop table canary; --",
    "\\'; drop table canary; --", "$$; drop table canary; $$", "$outlive$", "../../x", "C:\\x", "a\r\nb", "", "NULL",
]  # fmt: skip


def test_text_that_looks_like_sql_is_text(postgres_url):
    sql(postgres_url, "create table canary (x int)")
    with outlive.open(postgres_url, tenant="'; drop table canary; --") as store:
        for text in filter(None, EVIL):
            thread = store.thread(text, namespace=text)
            thread.save({"said": text}, id=text, run=text, metadata={text: text})
            thread.write(text, [(text, text)], checkpoint=text)
            store.thread(text).set_metadata({text: text})
        for text in filter(None, EVIL):
            found = store.thread(text, namespace=text).checkpoint(text)
            assert (found.state, found.metadata, found.run) == ({"said": text}, {text: text}, text)
            assert [info.id for info in store.threads(filter={text: text})] == [text]
            assert all(info.id.startswith(text) for info in store.threads(prefix=text))
            assert [one.id for one in store.thread(text, namespace=text).history(filter={text: text})] == [
                text
            ]
        assert sorted(info.id for info in store.threads()) == sorted(filter(None, EVIL))
    assert sql(postgres_url, "select count(*) from canary") == [(0,)]


# Damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        "update outlive.checkpoint set body = body || 'x'::bytea where seq = 2",
        "update outlive.checkpoint set chunks = substr(chunks, 17) where seq = 2",
        "update outlive.checkpoint set size = size + 1 where seq = 2",
        "update outlive.checkpoint set id = id || 'x' where seq = 2",
        "update outlive.chunk set data = set_byte(data, 5, 255 - get_byte(data, 5))",
        "delete from outlive.checkpoint where seq = 2",
        "delete from outlive.chunk",
    ],
)
def test_damage_is_found_and_never_handed_out(postgres_store, damage):
    with outlive.open(postgres_store) as store:
        thread = store.thread("t")
        states = [{"n": n, "text": os.urandom(300)} for n in range(3)]
        for n, state in enumerate(states):
            thread.save(state, id=f"c{n}")
    sql(postgres_store, damage)
    with outlive.open(postgres_store) as store:
        found = store.verify()
        assert "'t'" in str(found.problems)
        for n, state in enumerate(states):
            try:
                held = store.thread("t").checkpoint(f"c{n}")
            except (Corrupt, outlive.errors.CheckpointMissing):
                continue
            assert held is None or held.state == state


# Connections ----------------------------------------------------------------------------------------------------


def test_threads_save_side_by_side_and_only_a_held_one_waits(postgres_store):
    with outlive.open(postgres_store, pool_size=4) as store:
        saves(store, 1, "held")
        with psycopg.connect(postgres_store) as other:
            other.execute("select from outlive.thread where id = 'held' for update")
            with ThreadPoolExecutor(4) as pool:
                held = pool.submit(store.thread("held").save, {"n": 1}, timeout_s=2)
                for n in range(20):
                    assert pool.submit(saves, store, 2, f"free {n}").result(PATIENCE_S)[-1].seq == 2
                with pytest.raises(StoreBusy, match="lock"):
                    held.result()
        assert store.thread("held").save({"n": 1}).seq == 2


def test_more_savers_than_connections_take_turns(postgres_url):
    def connections():
        return sql(
            postgres_url,
            "select count(*) from pg_stat_activity where application_name = 'outlive' and datname = current_database()",
        )[0][0]

    async def main():
        async with outlive.open_async(postgres_url, pool_size=2) as store:
            await asyncio.gather(*(store.thread(f"t{n % 7}").save({"n": n}) for n in range(100)))
            assert connections() <= 2
            return [(info.id, info.checkpoints) async for info in store.threads()]

    assert sum(count for _, count in asyncio.run(main())) == 100


def test_when_all_connections_are_in_use_for_too_long_the_call_says_so(postgres_store):
    with outlive.open(postgres_store, pool_size=1) as store:
        saves(store, 1)
        with psycopg.connect(postgres_store) as other, ThreadPoolExecutor(1) as pool:
            other.execute("select from outlive.thread for update")
            slow = pool.submit(store.thread("t").save, {"n": 1}, timeout_s=PATIENCE_S)
            waiting = "select 1 from pg_stat_activity where application_name = 'outlive' and wait_event_type = 'Lock'"
            eventually(lambda: sql(postgres_store, waiting))
            with pytest.raises(StoreBusy, match="pool_size"):
                store.thread("t").load(timeout_s=0.5)
            other.rollback()
            assert slow.result().seq == 2


def test_without_prepared_statements_nothing_stays_behind_on_a_connection(postgres_store):
    with outlive.open(postgres_store, pool_size=1, prepared_statements=False) as store:
        saves(store, 8)
        store.thread("t").prune(keep_last=2)
        pool = store._store._engine.backend._pool
        link = pool._idle[0]
        found = run_now(link.query("select count(*) from pg_prepared_statements", (), Deadline(PATIENCE_S)))
        assert int.from_bytes(found.get_value(0, 0), "big") == 0
        found = run_now(link.query("show lock_timeout", (), Deadline(PATIENCE_S)))
        assert found.get_value(0, 0) == b"0"


def test_dropped_connections_are_not_noticed(postgres_store):
    with outlive.open(postgres_store) as store:
        for _ in range(5):
            saves(store, 2)
            sql(
                postgres_store,
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'outlive'",
            )
        assert store.thread("t").info().checkpoints == 10


@pytest.mark.parametrize("how", ["fast", "immediate", "kill"])
@pytest.mark.parametrize("io_mode", ["sync", "async"])
def test_a_restart_in_the_middle_loses_nothing_and_shows_nobody_an_error(how, io_mode):
    with PostgresServer(ram=True) as server:
        url = server.database("agents")
        done: list[int] = []
        stop = threading.Event()

        def save_for_ever():
            with outlive.open(url, timeout_s=PATIENCE_S) as store:
                thread = store.thread("t")
                while not stop.is_set():
                    done.append(thread.save({"n": len(done)}).seq)

        async def save_for_ever_async():
            async with outlive.open_async(url, timeout_s=PATIENCE_S) as store:
                thread = store.thread("t")
                while not stop.is_set():
                    done.append((await thread.save({"n": len(done)})).seq)

        with ThreadPoolExecutor(1) as pool:
            saving = (
                pool.submit(save_for_ever)
                if io_mode == "sync"
                else pool.submit(asyncio.run, save_for_ever_async())
            )
            for _ in range(2):
                wait_for_more(done, saving)
                if how == "kill":
                    server.kill()
                else:
                    server.stop(how)
                time.sleep(0.1)
                server.start()
            wait_for_more(done, saving)
            stop.set()
            saving.result(PATIENCE_S)
        with outlive.open(url) as store:
            assert store.thread("t").info().checkpoints == len(done)
            assert store.thread("t").load() == {"n": len(done) - 1}
            assert store.verify().problems == ()


def wait_for_more(done, saving, count=15):
    enough = len(done) + count
    eventually(lambda: len(done) >= enough or saving.done(), "saves do not continue")
    assert not saving.done(), saving.result()


def test_a_failover_is_survived_by_a_url_that_names_both_hosts():
    settings = {"synchronous_standby_names": "*", "synchronous_commit": "remote_apply"}
    with PostgresServer(ram=True) as first:
        first.database("agents")
        with PostgresServer.replica(first, ram=True) as second:
            first.settings.update(settings)
            first.restart()
            url = first.url_with(second, database="agents", target_session_attrs="read-write")
            with outlive.open(url, timeout_s=PATIENCE_S) as store, ThreadPoolExecutor(1) as pool:
                before = saves(store, 20)
                second.settings["synchronous_standby_names"] = ""
                first.kill()
                later = pool.submit(saves, store, 20)
                time.sleep(0.5)
                second.promote()
                after = later.result(PATIENCE_S)
                assert [one.seq for one in before + after] == list(range(1, 41))
                assert store.thread("t").load() == {"n": 19}


def test_an_async_save_that_is_cancelled_leaves_the_pool_whole(postgres_store):
    async def main():
        async with outlive.open_async(postgres_store, pool_size=2) as store:
            thread = store.thread("t")
            await thread.save({"n": -1})
            for n in range(40):
                task = asyncio.create_task(thread.save({"n": n}, id=f"c{n}"))
                await asyncio.sleep(n * 0.0002)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            await asyncio.gather(*(store.thread(f"t{n}").save(n) for n in range(6)))
            for n in range(40):
                assert (await thread.save({"n": n}, id=f"c{n}")).id == f"c{n}"
            assert len([one async for one in thread.history()]) == 41

    asyncio.run(main())
    held = sql(
        postgres_store, "select count(*) from pg_stat_activity where state like 'idle in transaction%'"
    )
    assert held == [(0,)]


def test_a_child_after_a_fork_has_connections_of_its_own(postgres_store):
    with outlive.open(postgres_store) as store:
        saves(store, 3)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                saves(store, 3)
                store.close()
                status = 0
            finally:
                os._exit(status)
        more = saves(store, 3)
        assert os.waitpid(child, 0)[1] == 0
        assert len(more) == 3
        assert sorted(one.seq for one in store.thread("t").history()) == list(range(1, 10))


# Errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/db",
        f"postgresql://ann@127.0.0.1:1/db?password={SECRET}",
        f"postgres://ann:{SECRET}@127.0.0.1:1/db?sslmode=nonsense",
        f"postgresql://ann:{SECRET}@[::1/db",
        f"postgresql://ann:{SECRET}@127.0.0.1:port/db",
        f"postgresql://ann:{SECRET}@127.0.0.1:1/db?nonsense={SECRET}",
        f"postgresql://ann:{SECRET}/x@127.0.0.1:1/db",
    ],
)
def test_the_secrets_of_a_url_are_shown_nowhere(url, caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(outlive.OutliveError) as caught:
        outlive.open(url, max_retries=1)
    import traceback

    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "hush" not in shown


def test_a_wrong_password_is_said_at_once_and_not_shown():
    with PostgresServer(ram=True, password="right") as server:
        url = server.database("agents")
        with outlive.open(url) as store:
            saves(store, 1)
            assert "right" not in repr(store)
        start = time.monotonic()
        with pytest.raises(StoreUnavailable, match="user and password") as caught:
            outlive.open(url.replace("right", "hush"), timeout_s=2 * PATIENCE_S)
        assert time.monotonic() - start < PATIENCE_S, "not when its time is over"
        assert "hush" not in str(caught.value)
        with pytest.raises(StoreUnavailable, match="createdb"):
            outlive.open(url.replace("/agents", "/nowhere"))


def test_without_psycopg_the_extra_is_named():
    code = "import sys; sys.modules['psycopg'] = None\nimport outlive\noutlive.open('postgresql://x/y')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert "outlive.errors.ExtraMissing" in ran.stderr
    assert "pip install 'outlive[postgres]'" in ran.stderr


@pytest.mark.parametrize(
    "options, says",
    [
        ({"pool_size": 0}, "pool_size must be a whole number, 1 or more"),
        ({"pool_size": "many"}, "pool_size must be"),
        ({"max_retries": -1}, "max_retries must be"),
        ({"dial_timeout_s": 0}, "dial_timeout_s must be"),
        ({"prepared_statements": "perhaps"}, "prepared_statements must be True or False"),
        ({"fsync": "full"}, "has no option 'fsync'; it has schema, pool_size"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(options, says):
    with pytest.raises(BadURL, match=says):
        outlive.open("postgresql://127.0.0.1:1/x", **options)


def test_options_may_stand_in_the_url_beside_those_of_libpq(postgres_url):
    url = (
        postgres_url
        + "?connect_timeout=7&schema=mine&pool_size=3&timeout_s=9&tenant=a&prepared_statements=no"
    )
    with outlive.open(url) as store:
        saves(store, 2)
        assert json.dumps(repr(store)).count("?") == 0
    assert sql(postgres_url, "select tenant from mine.thread") == [("a",)]
    with pytest.raises(BadURL, match="is in the URL and beside it"):
        outlive.open(url, schema="other")


def test_the_server_refuses_and_the_reason_is_said(postgres_store):
    with outlive.open(postgres_store) as store:
        saves(store, 1)
        sql(postgres_store, "alter table outlive.checkpoint add constraint no check (seq < 2) not valid")
        try:
            with pytest.raises(StoreError, match="violates check constraint"):
                saves(store, 1)
        finally:
            sql(postgres_store, "alter table outlive.checkpoint drop constraint no")
        assert saves(store, 1)[0].seq == 2


def test_a_server_that_lost_commits_is_noticed_before_anything_refers_to_them(postgres_store):
    messages = [os.urandom(500) for _ in range(60)]
    with outlive.open(postgres_store) as store:
        thread = store.thread("t")
        thread.save({"messages": messages[:40]})
        tables = ("thread", "checkpoint", "chunk")
        for table in tables:
            sql(postgres_store, f"create table kept_{table} as select * from outlive.{table}")
            sql(postgres_store, f"alter table kept_{table} drop column if exists recent")  # it is generated
        thread.save({"messages": messages[:50]})
        # As after a failover to a standby that lagged behind: the last commit is gone, the generation is the same.
        for table in tables:
            sql(postgres_store, f"delete from outlive.{table}")
            sql(postgres_store, f"insert into outlive.{table} select * from kept_{table}")
            sql(postgres_store, f"drop table kept_{table}")
        thread.save({"messages": messages})
    with outlive.open(postgres_store) as store:
        assert store.thread("t").load() == {"messages": messages}


# What a server does to its clients ---------------------------------------------------------------------------------


def test_a_server_that_is_demoted_without_a_restart_is_left_for_the_other():
    with PostgresServer(ram=True) as first, PostgresServer(ram=True) as second:
        for server in (first, second):
            server.database("agents")
        url = first.url_with(second, database="agents", target_session_attrs="read-write")
        with outlive.open(url, timeout_s=PATIENCE_S) as store:
            saves(store, 2)
            sql(first.url, "alter system set default_transaction_read_only = on")
            sql(first.url, "select pg_reload_conf()")
            with outlive.open(second.url.replace("/postgres", "/agents")):
                pass  # the other server's tables
            eventually(lambda: sql(first.url, "show default_transaction_read_only") == [("on",)])
            assert saves(store, 1)[0].seq == 1


SESSIONS = "select count(*) from pg_stat_activity where datname = 'agents'"


def test_sessions_that_the_server_ends_when_idle_are_not_noticed():
    with PostgresServer(ram=True, settings={"idle_session_timeout": "150ms"}) as server:
        url = server.database("agents")
        with outlive.open(url) as store:
            for n in range(3):
                assert saves(store, 1)[0].seq == n + 1
                eventually(lambda: sql(server.url, SESSIONS) == [(0,)], "the server ends no session")


def test_a_server_that_has_no_connection_left_is_waited_for(postgres_url):
    sql(postgres_url, "drop role if exists crowd")
    sql(postgres_url, "create role crowd login superuser connection limit 1")
    url = postgres_url.replace("outlive@", "crowd@")
    try:
        with outlive.open(url, pool_size=1):
            other = psycopg.connect(postgres_url)
        sql(postgres_url, "alter role crowd nosuperuser")
        sql(postgres_url, "grant all on schema outlive to crowd")
        sql(postgres_url, "grant all on all tables in schema outlive to crowd")
        with psycopg.connect(url) as taken, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(outlive.open, url, timeout_s=PATIENCE_S)
            time.sleep(0.3)
            assert not waiting.done()
            taken.close()
            waiting.result().close()
        other.close()
    finally:
        sql(postgres_url, "drop owned by crowd")
        sql(postgres_url, "drop role crowd")


def test_a_host_that_cannot_be_found_ends_in_time(monkeypatch):
    import outlive.backends.server.sockets as link

    gate = threading.Event()
    monkeypatch.setattr(link.socket, "getaddrinfo", lambda *a, **k: (gate.wait(PATIENCE_S), [])[1])
    for open_it in (outlive.open, lambda url, **o: asyncio.run(open_async(url, **o))):
        with pytest.raises(StoreUnavailable, match="cannot be found"):
            open_it("postgresql://nowhere.invalid/x", timeout_s=0.5)  # the name is not told yet
    gate.set()


async def open_async(url, **options):
    await outlive.open_async(url, **options)


def test_all_addresses_of_a_host_are_tried(postgres_url, monkeypatch):
    import outlive.backends.server.sockets as link

    rows = [(0, 0, 0, "", ("::1", 0, 0, 0)), (0, 0, 0, "", ("127.0.0.1", 0))]
    monkeypatch.setattr(link.socket, "getaddrinfo", lambda *a, **k: rows)
    url = postgres_url.replace("127.0.0.1", "two.invalid")
    with outlive.open(url) as store:
        saves(store, 1)
    asyncio.run(open_async(url))


def test_a_damaged_checkpoint_can_be_removed(postgres_store):
    with outlive.open(postgres_store) as store:
        thread = store.thread("t")
        for n in range(3):
            thread.save({"n": n}, id=f"c{n}")
        sql(postgres_store, "update outlive.checkpoint set body = body || 'x'::bytea where seq = 2")
        engine, key = store._store._engine, thread._thread._key
        run_now(engine.commit(Commit(key, removal=Removal(checkpoints=(("", "c1"),)))))
        assert [one.id for one in thread.history()] == ["c2", "c0"]
        assert store.verify().problems == ()


@pytest.mark.parametrize(
    "damage",
    [
        "update outlive.checkpoint set parent = 'x'",
        "update outlive.checkpoint set run = 'x'",
        "update outlive.checkpoint set created_at = created_at + 1",
        "update outlive.checkpoint set seq = seq + 1",
        "update outlive.checkpoint set source = 'input'",
        "update outlive.write set body = body || 'x'::bytea",
        "update outlive.write set channel = 'other'",
        "update outlive.thread set metadata = metadata || 'x'::bytea",
        "delete from outlive.write",
    ],
)
def test_every_column_is_covered_by_a_checksum_or_a_count(postgres_store, damage):
    with outlive.open(postgres_store) as store:
        thread = store.thread("t")
        thread.save({"n": 1})
        thread.write("task", [("c", 1)])
        thread.set_metadata({"topic": "x"})
        assert store.verify().problems == ()
        sql(postgres_store, damage)
        assert store.verify().problems


def test_many_commits_are_one_transaction_and_refused_one_by_one(postgres_store):
    with outlive.open(postgres_store) as store:
        backend = store._store._engine.backend
        keys = [ThreadKey.of("", f"t{n}") for n in range(60)]
        claims = [
            Commit(key, entries=(EntryRecord("run", "r", b"x", "running", fence=NEXT, expect=ABSENT),))
            for key in keys
        ]
        run_now(backend.commit_all(claims[:20]))
        before = commits_of(postgres_store)
        again = [Commit(one.thread, entries=one.entries) for one in claims]
        results = run_now(backend.commit_all(again))
        assert [type(result).__name__ for result in results] == ["EntryHeld"] * 20 + ["Receipt"] * 40
        assert {result.entries[0].fence for result in results[20:]} == {1}
        assert commits_of(postgres_store) - before < 40  # and some to read what is in the way
        assert [type(one).__name__ for one in run_now(backend.commit_all(again))] == ["EntryHeld"] * 20 + [
            "Receipt"
        ] * 40


def claims(thread):
    return Commit(ThreadKey.of("", thread), entries=(EntryRecord("run", "r", b"x", "running", fence=NEXT),))


def test_entries_that_are_committed_at_the_same_moment_share_transactions(postgres_store):
    with outlive.open(postgres_store) as store, ThreadPoolExecutor(8) as pool:
        backend = store._store._engine.backend
        before = commits_of(postgres_store)
        done = list(pool.map(lambda n: run_now(backend.commit_all([claims(f"t{n % 40}")])), range(200)))
        assert all(result.entries[0].fence for (result,) in done)
        assert commits_of(postgres_store) - before < 200
        assert store.verify().problems == ()


def test_entries_of_tasks_share_transactions_and_a_cancelled_one_takes_none_along(postgres_store):
    async def main():
        async with outlive.open_async(postgres_store) as store:
            backend = store._engine.backend
            tasks = [asyncio.create_task(backend.commit_all([claims(f"t{n}")])) for n in range(60)]
            await asyncio.sleep(0)
            for task in tasks[::7]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results[::7])
            stored = [result[0] for n, result in enumerate(results) if n % 7]
            assert {result.entries[0].fence for result in stored} == {1}

    before = commits_of(postgres_store)
    asyncio.run(main())
    assert commits_of(postgres_store) - before < 60
    with outlive.open(postgres_store) as store:
        assert store.verify().problems == ()


def test_a_held_thread_does_not_hold_up_the_entries_of_others(postgres_store):
    with outlive.open(postgres_store, pool_size=4) as store, ThreadPoolExecutor(4) as pool:
        backend = store._store._engine.backend

        def commit(thread, timeout_s=PATIENCE_S):
            claim = claims(thread)
            claim.timeout_s = timeout_s
            return run_now(backend.commit_all([claim]))[0]

        commit("held")
        with psycopg.connect(postgres_store) as other:
            other.execute("select from outlive.thread where id = 'held' for update")
            held = pool.submit(commit, "held", 3)
            for n in range(20):
                assert pool.submit(commit, f"free {n}").result(PATIENCE_S).entries[0].fence == 1
            assert isinstance(held.result(PATIENCE_S), StoreBusy)
        assert commit("held").entries[0].fence == 2


def test_two_workers_that_look_at_the_same_moment_see_different_tickets(postgres_store):
    query = EntryQuery("", READY, limit=2)
    with outlive.open(postgres_store) as one, outlive.open(postgres_store) as two:
        for n in range(5):
            one.submit(f"t{n}", run_id=f"r{n}", agent="a")
        first, second = (run_now(store._store._engine.backend.reserve()) for store in (one, two))
        pages = [run_now(each.entries(query)) for each in (first, second)]
        assert [thread.id for page in pages for thread, _ in page] == ["t0", "t1", "t2", "t3"]
        run_now(first.release())
        third = run_now(one._store._engine.backend.reserve())
        assert [thread.id for thread, _ in run_now(third.entries(query))] == ["t0", "t1"]
        for each in (second, third):
            run_now(each.release())


def test_a_run_behind_a_long_queue_of_a_busy_thread_is_claimed(postgres_store):
    with outlive.open(postgres_store) as store, outlive.open(postgres_store) as other:
        with store.run("t", run_id="holds the thread", agent="a"):
            for number in range(250):  # more than a reservation looks at
                store.submit("t", run_id=f"r{number}", agent="a")
            store.submit("other", run_id="next", agent="a")
            reservation = run_now(other._store._engine.backend.reserve())
            rows = run_now(reservation.entries(EntryQuery("", READY, limit=8)))
            run_now(reservation.release())
            assert [thread.id for thread, _ in rows] == ["t"]
            worker = other.worker({"a": lambda run: None}, interval_s=60)
            thread = threading.Thread(target=worker.run)
            thread.start()
            try:
                eventually(lambda: store.find_run("next").is_finished, "the run is not claimed")
            finally:
                worker.drain(0)
                thread.join()
            assert not any(run.is_finished for run in store.runs(thread="t"))


def test_a_worker_with_one_connection_works(postgres_store):
    with outlive.open(postgres_store, pool_size=1) as store:
        with store.run("t0"):
            pass
        for n in range(3):
            store.submit(f"t{n}", agent="a")
        worker = store.worker({"a": lambda run: None})
        thread = threading.Thread(target=worker.run)
        thread.start()
        eventually(lambda: all(run.is_finished for run in store.runs()))
        worker.stop()
        thread.join(PATIENCE_S)


def commits_of(url):
    """Count transactions that wrote, exactly: `pg_stat_database` hears of those of other sessions late."""
    return int(sql(url, "select txid_current()")[0][0])


def test_a_store_without_the_functions_of_this_version_gets_them_when_it_is_opened(postgres_url):
    """A later or an earlier version has made it, with functions of another number."""
    with outlive.open(postgres_url) as store:
        store.thread("t").save({"n": 1})
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        names = "select p.oid::regprocedure::text from pg_proc p where pronamespace = 'outlive'::regnamespace and prokind = 'f'"
        for (name,) in connection.execute(names).fetchall():
            connection.execute(f"drop function if exists {name} cascade")
        connection.execute(
            "drop aggregate outlive.xor_1(bigint); drop type outlive.settled_1; drop type outlive.written_1"
        )
    with outlive.open(postgres_url) as store:
        assert store.thread("t").save({"n": 2}).seq == 2
        assert store.verify().problems == ()
