"""Databases are as old as the program that made them: rows and tables of former versions are read as LangGraph reads them."""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import warnings

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.base import MIGRATIONS
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import TASKS
from langgraph.types import Command, Send

import outlive
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, everything, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS, Ticket, on
from outlive.adapters.langgraph import OutliveSaver, StrictSerializer
from outlive.adapters.langgraph.importer.importer import CannotImport, import_langgraph


def test_writes_without_a_path_of_their_task_are_moved(tmp_path):
    old = tmp_path / "old.db"
    with sqlite_saver(old) as saver:
        graphs.fill(saver, turns=2)
    with contextlib.closing(sqlite3.connect(old)) as db, db:
        db.execute("alter table writes drop column task_path")
    db.close()
    with outlive.open("memory:") as store:
        assert import_langgraph(f"sqlite:///{old}", store, types=[Ticket]).ok
        with sqlite_saver(old) as source:  # adds the column
            assert_same(source, saver_on(store), THREADS)


def as_json(old):
    """Write all rows as the first versions did: JSON, objects in envelopes."""

    def envelope(value):
        return {"lc": 2, "type": "constructor", "id": [*type(value).__module__.split("."), type(value).__name__], "kwargs": kwargs_of(value)}  # fmt: skip

    def kwargs_of(value):
        if hasattr(value, "model_dump"):
            return value.model_dump()
        names = ("node", "arg") if isinstance(value, Send) else ("value", "id")
        return {name: getattr(value, name) for name in names}

    serde = StrictSerializer()
    with contextlib.closing(sqlite3.connect(old)) as db, db:
        for table, column in (("checkpoints", "checkpoint"), ("writes", "value")):
            for row, kind, data in db.execute(f"select rowid, type, {column} from {table}").fetchall():
                text = json.dumps(serde.loads_typed((kind, data)), default=envelope)
                db.execute(
                    f"update {table} set type = 'json', {column} = ? where rowid = ?", (text.encode(), row)
                )
    db.close()


def say_hello(saver):
    graph = graphs.chat().compile(checkpointer=saver)
    graph.update_state(on("messages"), {"messages": [HumanMessage("hello", id="h")]}, as_node="answer")


def test_rows_of_json_are_moved(tmp_path):
    old = tmp_path / "old.db"
    with sqlite_saver(old) as saver:
        graph = graphs.asking().compile(checkpointer=saver)
        graph.invoke({"answers": ["start"]}, on("asked"))
        graphs.sending().compile(checkpointer=saver, interrupt_before=["work"]).invoke(
            {"items": []}, on("sending")
        )
        say_hello(saver)
    as_json(old)
    with outlive.open("memory:") as store:
        assert import_langgraph(f"sqlite:///{old}", store).ok
        target = OutliveSaver(store)
        with sqlite_saver(old) as source:
            assert_same(source, target, ["asked", "sending", "messages"])
        sent = graphs.sending().compile(checkpointer=target).invoke(None, on("sending"))
        assert sent["items"] == ["plan", "work 0", "work 1", "work 2"]


def test_a_message_of_json_that_its_class_refuses_is_a_problem(tmp_path):
    old = tmp_path / "old.db"
    with sqlite_saver(old) as saver:
        say_hello(saver)
    as_json(old)
    with contextlib.closing(sqlite3.connect(old)) as db, db:
        db.execute(
            "update checkpoints set checkpoint = cast(replace(cast(checkpoint as text), '\"hello\"', '7') as blob)"
        )
    db.close()
    with (
        outlive.open("memory:") as store,
        pytest.raises(CannotImport, match=r"HumanMessage.*cannot be built"),
    ):
        import_langgraph(f"sqlite:///{old}", store)


# PostgreSQL ------------------------------------------------------------------------------------------------


def without_paths(link):
    link.execute("alter table checkpoint_writes drop column task_path")


def test_postgres_tables_of_a_former_migration_are_read(postgres_url):
    assert "task_path" in MIGRATIONS[-1]
    with PostgresSaver.from_conn_string(postgres_url) as source, outlive.open("memory:") as store:
        source.setup()
        graphs.fill(source, turns=1)
        with psycopg.connect(postgres_url, autocommit=True) as link:
            without_paths(link)
        assert import_langgraph(postgres_url, store, types=[Ticket]).ok
        with psycopg.connect(postgres_url, autocommit=True) as link:
            link.execute(MIGRATIONS[-1])
        assert_same(source, saver_on(store), THREADS)


def test_sends_of_old_checkpoints_and_empty_channels_are_read(postgres_url):
    """Before version 4 a checkpoint found its Sends in the writes of its parent."""
    with PostgresSaver.from_conn_string(postgres_url) as source, outlive.open("memory:") as store:
        source.setup()
        graphs.fill(source, turns=1)
        with psycopg.connect(postgres_url, autocommit=True) as link:
            link.execute(
                "update checkpoints set checkpoint = jsonb_set(checkpoint, '{v}', '3') #- '{channel_values,__pregel_tasks}'"
            )
            link.execute("update checkpoint_blobs set type = 'empty', blob = null where channel = 'seen'")
            link.execute("delete from checkpoint_blobs where channel = %s", (TASKS,))
        assert import_langgraph(postgres_url, store, types=[Ticket]).ok
        assert_same(source, saver_on(store), THREADS)
        head = saver_on(store).get_tuple(on("sending")).checkpoint
        assert head["channel_values"][TASKS] == [Send("work", {"n": n}) for n in range(3)]


def test_what_the_shallow_saver_kept_is_moved(postgres_url):
    from langgraph.checkpoint.postgres.shallow import ShallowPostgresSaver

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ShallowPostgresSaver.from_conn_string(postgres_url) as source, outlive.open("memory:") as store:
            source.setup()
            graph = graphs.asking().compile(checkpointer=source)
            graph.invoke({"answers": ["start"]}, on("asked"))
            assert import_langgraph(postgres_url, store).checkpoints == 1
            target = OutliveSaver(store)
            expected = source.get_tuple(on("asked"))
            assert expected.checkpoint.pop("pending_sends") == []  # the reader adds it
            assert target.get_tuple(on("asked")).checkpoint == expected.checkpoint
            assert target.get_tuple(on("asked")).pending_writes == expected.pending_writes
            going = graphs.asking().compile(checkpointer=target)
            going.invoke(Command(resume="one"), on("asked"))
            assert going.invoke(Command(resume="two"), on("asked"))["answers"] == [
                "start",
                "one",
                "two",
                "beside",
            ]


def test_values_that_only_json_has_are_moved_exactly(postgres_url):
    with PostgresSaver.from_conn_string(postgres_url) as source, outlive.open("memory:") as store:
        source.setup()
        graphs.chat().compile(checkpointer=source).update_state(
            on("chat"), {"turns": 1 << 80, "note": "é\u2028"}, as_node="answer"
        )
        assert import_langgraph(postgres_url, store).ok
        assert_same(source, OutliveSaver(store), ["chat"])


# Encrypted -------------------------------------------------------------------------------------------------


class Shifting:
    """A cipher that is easy to see through; it gives other bytes every time."""

    shifts = itertools.cycle(range(255))  # several threads of a graph encrypt at once

    def encrypt(self, plaintext):
        shift = next(self.shifts)
        return "shift", bytes([shift]) + bytes((byte + shift + 1) % 256 for byte in plaintext)

    def decrypt(self, name, ciphertext):
        assert name == "shift"
        return bytes((byte - ciphertext[0] - 1) % 256 for byte in ciphertext[1:])


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_encrypted_rows_are_moved_and_stay_encrypted(kind, tmp_path, request):
    serde = EncryptedSerializer(Shifting(), StrictSerializer([Ticket]))
    new = tmp_path / "new.db"
    if kind == "sqlite":
        url, opened = f"sqlite:///{tmp_path}/old.db", sqlite_saver(tmp_path / "old.db")
    else:
        url = request.getfixturevalue("postgres_url")
        opened = PostgresSaver.from_conn_string(url)
    with opened as source:
        source.serde = serde
        if kind == "postgresql":
            source.setup()
        graphs.fill(source, turns=2)
        with pytest.raises(CannotImport, match="encrypted"):
            import_langgraph(url, "memory:")
        assert import_langgraph(url, f"sqlite:///{new}", serde=serde).ok
        with OutliveSaver(f"sqlite:///{new}", serde=serde) as target:
            assert_same(source, target, THREADS)
            assert everything(target, "chat")
    stored = new.read_bytes()
    assert b"langchain" not in stored
    assert b"thought" not in stored
