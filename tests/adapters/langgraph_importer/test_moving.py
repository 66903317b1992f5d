"""A LangGraph database that was imported says in the store what it said; graphs continue with it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

import outlive
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, everything, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS, Ticket, on
from outlive.adapters.langgraph import aimport_langgraph, import_langgraph
from outlive.adapters.langgraph.importer.importer import CannotImport
from outlive.adapters.langgraph.values.digest import digest
from outlive.runtime.runtime import run_now


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "old.db"
    with sqlite_saver(path) as saver:
        graphs.fill(saver)
    return path


@pytest.fixture
def old(made, tmp_path):
    """The path of a database that SqliteSaver wrote."""
    return Path(shutil.copy(made, tmp_path / "old.db"))


def move(old, target, **options):
    url = old if isinstance(old, str) else f"sqlite:///{old}"
    return import_langgraph(url, target, types=[Ticket], **options)


def count(path):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        return tuple(
            db.execute(f"select count(*) from {table}").fetchone()[0] for table in ("checkpoints", "writes")
        )


@pytest.mark.parametrize("backend", ["memory", "sqlite", "file", "postgresql", "redis"])
def test_what_sqlite_had_is_in_every_kind_of_store(backend, old, tmp_path, url_for):
    url = "memory:" if backend == "memory" else url_for(backend, tmp_path)
    with outlive.open(url) as store:
        moved = move(old, store)
        assert (moved.checkpoints, moved.writes) == count(old)
        assert (moved.threads, moved.verified, moved.problems) == (len(THREADS), moved.checkpoints, ())
        with sqlite_saver(old) as source:
            assert_same(source, saver_on(store), THREADS)
        assert store.verify().ok


def test_what_an_async_sqlite_saver_had_is_in_the_store(tmp_path):
    old = tmp_path / "old.db"

    async def fill():
        async with AsyncSqliteSaver.from_conn_string(str(old)) as saver:
            await graphs.fill_async(saver)

    asyncio.run(fill())
    with outlive.open("memory:") as store:
        assert move(old, store).verified == count(old)[0]
        with sqlite_saver(old) as source:
            assert_same(source, saver_on(store), THREADS)


def test_what_postgres_had_is_in_the_store(postgres_url, tmp_path):
    with PostgresSaver.from_conn_string(postgres_url) as source:
        source.setup()
        graphs.fill(source)
        with outlive.open(f"sqlite:///{tmp_path}/new.db") as store:
            moved = move(postgres_url, store)
            assert moved.verified == moved.checkpoints > 30
            assert_same(source, saver_on(store), THREADS)


def test_a_store_in_the_same_postgres_database_takes_them_over(postgres_url):
    with PostgresSaver.from_conn_string(postgres_url) as source:
        source.setup()
        graphs.fill(source, turns=1)
        move(postgres_url, postgres_url)
        with saver_on(postgres_url) as target:
            assert_same(source, target, THREADS)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_graphs_go_on_where_they_were(backend, old, tmp_path, url_for):
    with outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store)
        saver = saver_on(store)
        asked = graphs.asking().compile(checkpointer=saver)
        assert [one.value for one in asked.get_state(on("asked")).interrupts] == [{"question": "first"}]
        asked.invoke(Command(resume="one"), on("asked"))
        assert asked.invoke(Command(resume="two"), on("asked"))["answers"] == [
            "start",
            "one",
            "two",
            "beside",
        ]
        assert asked.invoke(Command(resume="two"), on("half"))["answers"] == ["start", "one", "two", "beside"]
        sent = graphs.sending().compile(checkpointer=saver).invoke(None, on("sending"))
        assert sent["items"] == ["plan", "work 0", "work 1", "work 2"]
        noted = graphs.delta().compile(checkpointer=saver).invoke({"log": ["more"]}, on("delta"))
        assert [one if isinstance(one, str) else one.content for one in noted["log"]][-4:] == [
            "in 5",
            "note 11",
            "more",
            "note 13",
        ]
        chat = graphs.chat().compile(checkpointer=saver)
        before = chat.get_state(on("chat")).values["messages"]
        assert chat.invoke({"messages": ["hello"]}, on("chat"))["messages"][: len(before)] == before


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_moments_are_those_of_the_source(backend, old, tmp_path, url_for):
    with outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["chat"])
        history = store.thread("chat").history(all_namespaces=True)
        found = {one.id: one.created_at.isoformat() for one in history}
        with sqlite_saver(old) as source:
            for one in source.list(on("chat")):
                assert found[one.checkpoint["id"]] == one.checkpoint["ts"]


def test_a_long_chat_takes_a_fraction_of_its_space(tmp_path):
    old, turns = tmp_path / "old.db", 30
    with sqlite_saver(old) as source:
        graph = graphs.chat().compile(checkpointer=source)
        for turn in range(turns):
            graph.invoke({"messages": [f"{turn} {'word ' * 100}"]}, on("chat"))
    with outlive.open("memory:") as store:
        move(old, store)
        assert store.size().stored_bytes * 20 < old.stat().st_size


# The source -------------------------------------------------------------------------------------------------


def test_the_source_stays_as_it_is(old, tmp_path):
    before = hashlib.sha256(old.read_bytes()).digest()
    move(old, f"sqlite:///{tmp_path}/new.db")
    assert hashlib.sha256(old.read_bytes()).digest() == before


def test_the_source_may_be_in_use(old, tmp_path):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        graph = graphs.chat().compile(checkpointer=source)
        graph.invoke({"messages": ["not in the file yet, but in its log"]}, on("chat"))
        assert Path(f"{old}-wal").stat().st_size > 0

        def go_on(done, total):
            if done == 3:
                graph.invoke({"messages": ["meanwhile"]}, on("later"))

        move(old, store, progress=go_on)
        move(old, store)
        assert_same(source, saver_on(store), [*THREADS, "later"])


def test_another_process_may_have_the_source_open(old):
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with sqlite_saver(old) as source:
                graphs.chat().compile(checkpointer=source).invoke({"messages": ["in the log"]}, on("logged"))
                os.write(ready[1], b"!")
                os.read(go[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"!"
    try:
        before = old.read_bytes(), Path(f"{old}-wal").read_bytes()
        with outlive.open("memory:") as store:
            assert move(old, store).ok
            assert (
                saver_on(store).get_tuple(on("logged")).checkpoint["channel_values"]["messages"][0].content
                == "in the log"
            )
        assert (old.read_bytes(), Path(f"{old}-wal").read_bytes()) == before
    finally:
        os.write(go[1], b"!")
        os.waitpid(pid, 0)
        for end in (*ready, *go):
            os.close(end)


def test_progress_is_told(old):
    told = []
    with outlive.open("memory:") as store:
        move(old, store, progress=lambda done, total: told.append((done, total)))
    total = count(old)[0]
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_thread_that_was_asked_for_and_is_not_there_is_told(old):
    with pytest.raises(CannotImport, match=r"'caht': there is no such thread"):
        move(old, "memory:", threads=["chat", "caht"])
    moved = move(old, "memory:", threads=["caht", "chat"], on_problem="skip")
    assert (moved.threads, moved.ok) == (1, False)


def test_on_an_event_loop_it_does_the_same(old, tmp_path):
    async def main():
        async with outlive.open_async(f"sqlite:///{tmp_path}/new.db") as store:
            moved = await aimport_langgraph(f"sqlite:///{old}", store, types=[Ticket])
            again = await aimport_langgraph(
                f"sqlite:///{old}", f"sqlite:///{tmp_path}/new.db", types=[Ticket]
            )
            assert (again.checkpoints, again.present) == (0, moved.checkpoints)
            assert [info.id async for info in store.threads()] == list(THREADS)
            return moved

    moved = asyncio.run(main())
    assert (moved.threads, moved.verified) == (len(THREADS), moved.checkpoints)


def test_on_an_event_loop_it_can_be_cancelled_and_repeated(old, tmp_path):
    url = f"sqlite:///{tmp_path}/new.db"
    seen = []

    async def main():
        loop = asyncio.get_running_loop()

        def tell(done, total):
            seen.append(done)
            loop.call_soon_threadsafe(task.cancel)
            time.sleep(0.02)

        task = loop.create_task(aimport_langgraph(f"sqlite:///{old}", url, types=[Ticket], progress=tell))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(seen) < count(old)[0]
    before = len(seen)
    assert move(old, url).ok
    assert len(seen) == before  # nobody is at work any more
    with sqlite_saver(old) as source, saver_on(url) as target:
        assert_same(source, target, THREADS)


def test_some_threads_can_be_chosen(old):
    with outlive.open("memory:") as store:
        assert move(old, store, threads=["delta"]).threads == 1
        assert [info.id for info in store.threads()] == ["delta"]


def test_a_dry_run_stores_nothing(old, tmp_path, tuned):
    moved = move(old, f"sqlite:///{tmp_path}/new.db", dry_run=True)
    assert (moved.checkpoints, moved.writes) == count(old)
    assert moved.ok
    assert not (tmp_path / "new.db").exists()
    tuned(import_chunk_bytes=1_000)
    with outlive.open("memory:") as store:
        move(old, store, dry_run=True)
        assert list(store.threads()) == []
        key = store._store._key("chat")
        assert run_now(store._store._engine.backend.inventory(key)).chunks == {}


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_thread_of_many_parts_is_the_same(backend, old, tmp_path, url_for, tuned):
    tuned(import_chunk_bytes=1_000, import_batch=4)
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["chat"])
        assert_same(source, saver_on(store), ["chat"])


# Again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_repeating_it_brings_what_is_new(backend, old, tmp_path, url_for):
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        first = move(old, store)
        again = move(old, store)
        assert (again.checkpoints, again.writes, again.present) == (0, 0, first.checkpoints)
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        graphs.asking().compile(checkpointer=source).invoke(Command(resume="one"), on("asked"))
        third = move(old, store)
        # asked and chat changed, and are imported again as a whole
        assert (third.again, third.checkpoints + third.present) == (2, count(old)[0])
        assert_same(source, saver_on(store), THREADS)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_question_that_was_answered_in_the_source_is_answered_in_the_target(
    backend, old, tmp_path, url_for
):
    """The second question overwrites the first one, on a checkpoint that was moved already."""
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["asked"])
        asking = graphs.asking().compile(checkpointer=source)
        asking.invoke(Command(resume="one"), on("asked"))
        assert move(old, store, threads=["asked"]).again == 1
        assert_same(source, saver_on(store), ["asked"])


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_checkpoint_that_was_put_again_is_replaced_and_keeps_its_place(backend, old, tmp_path, url_for):
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["delta"])
        some = list(source.list(on("delta")))[3]
        source.put(some.parent_config, some.checkpoint, {**some.metadata, "more": 1}, {})
        assert move(old, store, threads=["delta"]).again == 1
        assert_same(source, saver_on(store), ["delta"])


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_checkpoint_that_comes_late_stands_where_it_belongs(backend, old, tmp_path, url_for):
    """Ids of several processes are not in the order of their saves."""
    early = Path(shutil.copy(old, tmp_path / "early.db"))
    with contextlib.closing(sqlite3.connect(early)) as db, db:
        db.execute("delete from checkpoints where thread_id = 'chat' and (rowid % 3 = 0 or rowid % 5 = 0)")
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(early, store, threads=["chat"])
        move(old, store, threads=["chat"])
        assert_same(source, saver_on(store), ["chat"])


def test_what_went_on_in_the_target_stays(old):
    with outlive.open("memory:") as store:
        move(old, store, threads=["asked"])
        saver = saver_on(store)
        graphs.asking().compile(checkpointer=saver).invoke(Command(resume="mine"), on("asked"))
        before = everything(saver, "asked")
        again = move(old, store, threads=["asked"])
        assert (again.checkpoints, again.writes, again.again, again.ahead) == (0, 0, 0, 1)
        assert everything(saver, "asked") == before


@pytest.mark.parametrize("backend", ["sqlite", "file", "postgresql", "redis"])
def test_an_answer_in_the_source_does_not_mix_with_one_in_the_target(backend, old, tmp_path, url_for):
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["asked"])
        saver = saver_on(store)
        for one, answer in ((saver, "mine"), (source, "theirs")):
            graphs.asking().compile(checkpointer=one).invoke(Command(resume=answer), on("asked"))
        before = everything(saver, "asked")
        moved = move(old, store, threads=["asked"], on_problem="skip")
        assert everything(saver, "asked") == before
        assert moved.ahead + len(moved.problems) == 1


def test_without_comparing_it_brings_the_same(old):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        assert move(old, store, verify=False).verified == 0
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        source.put_writes(source.get_tuple(on("delta")).config, [("log", ["late"])], "task")
        again = move(old, store, verify=False)
        assert again.writes > 1
        assert_same(source, saver_on(store), THREADS)


def test_a_thread_that_went_on_in_both_is_not_mixed(old):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        move(old, store, threads=["delta"])
        saver = saver_on(store)
        for one in (source, saver):
            graphs.delta().compile(checkpointer=one).invoke({"log": ["own"]}, on("delta"))
        before = everything(saver, "delta")
        with pytest.raises(CannotImport, match="used in the target, and in the source as well"):
            move(old, store, threads=["delta"])
        assert everything(saver, "delta") == before


def test_what_was_pruned_from_the_source_stays_in_the_target(old):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        move(old, store)
        total = store.thread("delta").size().checkpoints
        with contextlib.closing(sqlite3.connect(old)) as db, db:
            db.execute(
                "delete from checkpoints where thread_id = 'delta' and rowid % 2 = 0 and checkpoint_id < (select max(checkpoint_id) from checkpoints where thread_id = 'delta')"
            )
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        assert move(old, store).ok
        assert store.thread("delta").size().checkpoints == total


def test_what_only_the_target_has_is_not_deleted_when_the_source_has_grown(old):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        move(old, store, threads=["delta"])
        with contextlib.closing(sqlite3.connect(old)) as db, db:
            db.execute(
                "delete from checkpoints where thread_id = 'delta' and checkpoint_id < "
                "(select max(checkpoint_id) from checkpoints where thread_id = 'delta')"
            )
        graphs.delta().compile(checkpointer=source).invoke({"log": ["more"]}, on("delta"))
        before = everything(saver_on(store), "delta")
        with pytest.raises(
            CannotImport, match="the target has checkpoints or writes that the source no longer"
        ):
            move(old, store, threads=["delta"])
        assert everything(saver_on(store), "delta") == before


@pytest.mark.parametrize("backend", ["sqlite", "file", "postgresql", "redis"])
def test_a_control_write_that_was_overwritten_in_the_target_is_not_lost(backend, old, tmp_path, url_for):
    """Same checkpoints, same writes, another value: only its rank says that the target was used."""
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["half"])
        saver = saver_on(store)
        head = saver.get_tuple(on("half"))
        task = next(task for task, channel, _ in head.pending_writes if channel == "__resume__")
        saver.put_writes(head.config, [("__resume__", ["mine"])], task)
        before = everything(saver, "half")
        assert move(old, store, threads=["half"]).ahead == 1
        graphs.asking().compile(checkpointer=source).invoke(Command(resume="two"), on("half"))
        with pytest.raises(CannotImport, match="used in the target, and in the source as well"):
            move(old, store, threads=["half"])
        assert everything(saver, "half") == before


def test_a_bad_row_in_a_thread_that_has_grown_leaves_the_target_as_it_was(old):
    with sqlite_saver(old) as source, outlive.open("memory:") as store:
        move(old, store, threads=["chat"])
        before = everything(saver_on(store), "chat")
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        with contextlib.closing(sqlite3.connect(old)) as db, db:
            db.execute(
                "update checkpoints set type = 'pickle' where thread_id = 'chat' and checkpoint_id = "
                "(select max(checkpoint_id) from checkpoints where thread_id = 'chat')"
            )
        with pytest.raises(CannotImport, match="pickle"):
            move(old, store, threads=["chat"])
        assert everything(saver_on(store), "chat") == before


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_thread_that_is_used_while_it_is_replaced_is_not_replaced(backend, old, tmp_path, url_for, tuned):
    tuned(import_chunk_bytes=1_000)
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["chat"])
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        saver, todo = saver_on(store), [10]

        def meanwhile(done, total):
            if done in todo:
                todo.remove(done)
                graphs.chat().compile(checkpointer=saver).invoke({"messages": ["mine"]}, on("chat"))

        with pytest.raises(CannotImport, match="used in the target, and in the source as well"):
            move(old, store, threads=["chat"], progress=meanwhile)
        assert todo == []
        assert "mine" in [
            one.content for one in saver.get_tuple(on("chat")).checkpoint["channel_values"]["messages"]
        ]
        assert store.verify().ok


def test_a_thread_that_is_something_else_in_the_target_is_left_alone(old):
    with outlive.open("memory:") as store:
        store.thread("chat").save({"mine": 1})
        moved = move(old, store, on_problem="skip")
        assert [problem.thread for problem in moved.problems] == ["chat"]
        assert store.thread("chat").load() == {"mine": 1}
        assert moved.threads == len(THREADS) - 1


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_two_movers_at_once_bring_everything_once(backend, old, tmp_path, url_for):
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:

        def meanwhile(done, total):
            if done == 10:  # in the middle of a thread
                move(old, store)

        move(old, store, progress=meanwhile)
        assert_same(source, saver_on(store), THREADS)
        assert store.size().checkpoints == count(old)[0]


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "redis"])
def test_a_thread_that_is_deleted_meanwhile_comes_whole(backend, old, tmp_path, url_for, tuned):
    tuned(import_chunk_bytes=1_000)
    with sqlite_saver(old) as source, outlive.open(url_for(backend, tmp_path)) as store:
        move(old, store, threads=["chat"])
        graphs.chat().compile(checkpointer=source).invoke({"messages": ["more"]}, on("chat"))
        todo = [10]

        def meanwhile(done, total):
            if done in todo:
                todo.remove(done)
                store.delete("chat")

        move(old, store, threads=["chat"], progress=meanwhile)
        assert todo == []
        assert_same(source, saver_on(store), ["chat"])


# Comparing -------------------------------------------------------------------------------------------------


class Lossy(JsonPlusSerializer):
    """A serializer that forgets something."""

    def dumps_typed(self, obj):
        return super().dumps_typed(["nothing"] if obj == ["beside"] else obj)


def test_a_target_that_gives_back_something_else_is_found_out(old):
    with (
        outlive.open("memory:") as store,
        pytest.raises(CannotImport, match="does not return what the source says"),
    ):
        import_langgraph(f"sqlite:///{old}", store, serde=Lossy(), threads=["asked"])


VALUES = [
    None, True, False, 0, 1, 1.0, -0.0, 0.0, 1 << 70, "1", b"1", "\ud800", "é", [1], (1,), {1}, frozenset({1}), {"1": 1}, {1: 1},
    {"a": 1, "b": 2}, {"b": 2, "a": 1}, [[1], 2], [1, [2]], [1 << 70], ["\ud800"], Ticket(1, {"a"}), Ticket(1, {"b"}),
    HumanMessage("a"), HumanMessage("a", id="1"), AIMessage("a"), [HumanMessage("a")], [HumanMessage("a", extra="b")],
]  # fmt: skip


def test_different_values_have_different_digests():
    digests = [digest(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert [digest(copy.deepcopy(value)) for value in VALUES] == digests
    assert digest({"a", "b", "c", "d", 5}) == digest({5, "d", "c", "b", "a"})
    assert digest([float("nan")]) == digest([float("nan")])


def test_a_moved_thread_can_be_moved_again_after_its_keys_changed_and_in_a_copy(old, tmp_path):
    keys = {name: outlive.KeyRing.new_key() for name in ("first", "second")}
    url = f"sqlite:///{tmp_path}/new.db"
    with outlive.open(url, key=outlive.KeyRing({"first": keys["first"]})) as store:
        assert move(old, store, threads=["chat"]).problems == ()
    with outlive.open(url, key=outlive.KeyRing(keys)) as store:
        assert store.rotate().problems == []
    with outlive.open(url, key=outlive.KeyRing({"second": keys["second"]})) as store:
        assert move(old, store, threads=["chat"]).problems == ()
        with outlive.open("memory:") as copy:
            store.copy_to(copy)
            assert move(old, copy, threads=["chat"]).problems == ()
            assert store.verify().ok
