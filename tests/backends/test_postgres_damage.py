"""PostgreSQL: a row that is gone, or is an older copy of itself, is noticed by its readers, and by `verify`."""

import psycopg
import pytest

import outlive
from outlive import Corrupt
from outlive.errors import StoreBusy

TABLES = ("roster", "thread", "checkpoint", "space", "chunk", "write", "entry")


def sql(url, statement, *parameters):
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else None


def keep(url):
    copies = [
        f"drop table if exists older_{table}; create table older_{table} as select * from outlive.{table}"
        for table in TABLES
    ]
    sql(url, "; ".join(copies))


def put_back(url, table, keys, condition="true"):
    """Put rows back as they were when they were kept."""
    same = " and ".join(f"o.{key} = n.{key}" for key in keys)
    found = sql(
        url,
        f"with old as (delete from outlive.{table} n using older_{table} o where {same} and {condition} returning 1) "
        "select count(*) from old",
    )
    assert found[0][0], "nothing was put back"
    sql(
        url,
        f"alter table older_{table} drop column if exists recent;"  # the last one, which is generated
        f"insert into outlive.{table} select o.* from older_{table} o where {condition.replace('n.', 'o.')}",
    )


@pytest.fixture
def url(postgres_store):
    """A thread with some of everything, and what it was like halfway: see `keep`."""
    with outlive.open(postgres_store) as store:
        thread, sub = store.thread("t"), store.thread("t", namespace="sub")
        store.thread("other").save({"n": 1})
        for n in range(2):
            thread.save({"n": n}, id=f"c{n}")
            sub.save({"n": n}, id=f"s{n}")
        thread.set_metadata({"title": "old"})
        store.run("t", run_id="r").start().release()
        keep(postgres_store)
        thread.save({"n": 2}, id="c2")
        sub.save({"n": 2}, id="s2")
        thread.write("task", [("a", 1)])
        thread.set_metadata({"title": "new"})
        with store.run("t", run_id="r") as run:
            run.step("pay", lambda: "paid")
            run.responses.open(["m1", "m2"])
        assert store.verify().ok
    return postgres_store


def run_again(store):
    return store.run("t", run_id="r").start().is_finished


LOST = {
    "newest checkpoint": ("delete from outlive.checkpoint where id = 'c2'", lambda store: store.thread("t").load("c2")),
    "head": ("delete from outlive.checkpoint where seq = (select max(seq) from outlive.checkpoint where space = '')",
             lambda store: store.thread("t").load()),
    "head of a namespace": ("delete from outlive.checkpoint where id = 's2'",
                            lambda store: store.thread("t", namespace="sub").load()),
    "checkpoint in the middle": ("delete from outlive.checkpoint where id = 'c1'", lambda store: list(store.thread("t").history())),
    "whether it exists": ("delete from outlive.checkpoint where id = 'c1'", lambda store: store.thread("t").exists("c1")),
    "thread": ("delete from outlive.thread where id = 't'", lambda store: store.thread("t").load()),
    "thread, saved to": ("delete from outlive.thread where id = 't'", lambda store: store.thread("t").save({"n": 9})),
    "thread in a list": ("delete from outlive.thread where id = 't'", lambda store: list(store.threads())),
    "metadata": ("update outlive.thread set metadata = null where id = 't'", lambda store: store.thread("t").metadata()),
    "pending write": ("delete from outlive.write where task = 'task'", lambda store: store.thread("t").writes("c2")),
    "run": ("delete from outlive.entry where kind = 'run'", run_again),
    "status of a run": ("update outlive.entry set status = 'interrupted' where kind = 'run'", run_again),
    "kind of a run": ("update outlive.entry set kind = 'lock' where kind = 'run'", run_again),
    "counter": ("update outlive.thread set seq = 1 where id = 't'", lambda store: store.thread("t").save({"n": 9})),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_what_is_lost_is_missed_by_the_call_that_needs_it_and_by_verify(url, name):
    damage, call = LOST[name]
    sql(url, damage)
    with outlive.open(url) as store:
        with pytest.raises(Corrupt) as corrupt:
            call(store)
        assert corrupt.value.thread == "t"
        assert any("'t'" in str(problem) for problem in store.verify().problems)
        assert store.thread("other").load() == {"n": 1}


OLDER = {
    "thread": (("key",), "n.id = 't'", lambda store: store.thread("t").load()),
    "thread, saved to": (("key",), "n.id = 't'", lambda store: store.thread("t").save({"n": 9})),
    "space": (("thread", "space"), "true", lambda store: store.thread("t", namespace="sub").load()),
    "entry": (("thread", "name"), "n.kind = 'run'", run_again),
    "roster": (("key",), "n.id = 't'", lambda store: store.thread("t").metadata()),
}


@pytest.mark.parametrize("name", OLDER)
def test_a_row_that_is_an_older_copy_of_itself_is_not_taken_for_the_truth(url, name):
    keys, condition, call = OLDER[name]
    put_back(url, name.partition(",")[0], keys, condition)
    with outlive.open(url) as store:
        with pytest.raises(Corrupt):
            call(store)
        assert not store.verify().ok


def test_metadata_that_is_an_older_copy_is_noticed_although_the_newest_checkpoint_is_the_same(url):
    keep(url)
    with outlive.open(url) as store:
        store.thread("t").set_metadata({"title": "newer"})
        put_back(url, "thread", ("key",), "n.id = 't'")
        with pytest.raises(Corrupt, match="metadata"):
            store.thread("t").metadata()
        assert not store.verify().ok


@pytest.mark.parametrize(
    "damage",
    [
        "update outlive.entry set body = body || 'x'::bytea where kind = 'step'",
        "update outlive.entry set body = '' where kind = 'run'",
        "update outlive.entry set until = until + 1 where kind = 'lock'",
        "update outlive.entry e set body = o.body from outlive.entry o where e.kind = 'step' and o.kind = 'run'",
        "delete from outlive.entry where kind = 'step'",
        "delete from outlive.roster where id = 't'",
        "delete from outlive.space",
        "insert into outlive.chunk select 99, name, revision, data from (values ('\\x00'::bytea, 1, '\\x00'::bytea)) v(name, revision, data)",
        "update outlive.checkpoint set name = name || 'x'::bytea where id = 'c1'",
    ],
)
def test_verify_reads_entries_and_rows_that_belong_to_no_thread(url, damage):
    sql(url, damage)
    with outlive.open(url) as store:
        assert not store.verify().ok


@pytest.mark.parametrize(
    "damage",
    [
        "delete from outlive.thread where id = 't'",
        "delete from outlive.roster where id = 't'",
        "update outlive.roster set digest = digest || 'x'::bytea where id = 't'",
        "update outlive.roster set key = 99 where id = 't'",
        "update outlive.thread set key = 99 where id = 't'",
        "update outlive.thread set tenant = 'x' where id = 't'",
        "delete from outlive.space",
        "delete from outlive.checkpoint where id = 'c2'",
        "delete from outlive.entry where kind = 'run'",
        "update outlive.thread set seq = -5, revision = 4611686018427387904 where id = 't'",
        "update outlive.thread set metadata = 'x' where id = 't'",
    ],
)
def test_a_damaged_thread_can_be_deleted_and_gives_no_seq_twice(url, damage):
    sql(url, damage)
    with outlive.open(url) as store:
        store.delete("t")
        assert store.thread("t").load() is None
        assert store.thread("t").save({"n": 9}).seq > 6
        assert store.verify().problems == ()
        assert sorted(info.id for info in store.threads()) == ["other", "t"]


def test_a_response_whose_row_is_gone_is_damage_and_no_bare_error(url):
    with outlive.open(url) as store:
        run = store.run("t", run_id="second").start()
        run.responses.open(["m1", "m2"])
        run.release()
    sql(url, "delete from outlive.entry where key = %s", "second\n0000\nm2")
    with outlive.open(url) as store, pytest.raises(Corrupt):
        store.run("t", run_id="second").start().responses.open().all()


def test_a_store_whose_own_row_is_gone_is_not_taken_for_a_new_one(url):
    sql(url, "delete from outlive.store")
    with pytest.raises(Corrupt, match="naming key"):
        outlive.open(url)


def test_a_statement_that_the_server_ends_is_busy_and_nothing_was_stored(url):
    limited = url + "?options=-c%20statement_timeout%3D1500"
    sql(
        url,
        "create or replace function slow() returns trigger language plpgsql as "
        "$$begin perform pg_sleep(20); return new; end$$",
    )
    with outlive.open(limited, timeout_s=8) as store, outlive.open(url) as other:
        thread = store.thread("t")
        sql(
            url,
            "create trigger slow before update on outlive.thread for each row execute function slow()",
        )
        try:
            with pytest.raises(StoreBusy, match="nothing was stored; raise statement_timeout"):
                thread.save({"n": 9}, id="late")
            with pytest.raises(StoreBusy, match="nothing was stored; raise statement_timeout"):
                thread.set_metadata({"title": "late"})
        finally:
            sql(url, "drop trigger slow on outlive.thread")
        assert not other.thread("t").exists("late")
        assert other.thread("t").metadata() == {"title": "new"}
        assert thread.save({"n": 9}, id="late").id == "late"
