"""A row that is damaged, hostile or of an unknown class is one problem: nothing of it runs, and its thread is left out as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import shutil
import sqlite3
from pathlib import Path

import ormsgpack
import psycopg
import pytest
from langgraph.checkpoint.postgres import PostgresSaver

import outlive
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS, Ticket
from conftest import LONG, SEED
from outlive.adapters.langgraph import StrictSerializer
from outlive.adapters.langgraph.importer.importer import CannotImport, import_langgraph


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "old.db"
    with sqlite_saver(path) as saver:
        graphs.fill(saver, turns=2)
    return path


@pytest.fixture
def old(made, tmp_path):
    return Path(shutil.copy(made, tmp_path / "old.db"))


def change(path, sql, *values):
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        assert db.execute(sql, values).rowcount > 0
    db.close()


def ext(code, *parts):
    return ormsgpack.packb(ormsgpack.Ext(code, ormsgpack.packb(parts)))


CANARY = "canary-that-must-not-exist"
TOUCH = f"touch {CANARY}"
LC2 = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [TOUCH]}
LC1 = {"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": TOUCH}}


class Touching:
    def __reduce__(self):
        return os.system, (TOUCH,)


# what is wrong → (type, bytes) in place of a value, and what the problem says
VALUES = {
    "single": ("msgpack", ext(0, "os", "system", TOUCH), "an object of os.system, which is not in types"),
    "positional": (
        "msgpack",
        ext(1, "os", "system", [TOUCH]),
        "an object of os.system, which is not in types",
    ),
    "keywords": ("msgpack", ext(2, "os", "system", {"command": TOUCH}), "an object of os.system"),
    "method": ("msgpack", ext(3, "os", "path", TOUCH, "exists"), "an object of os.path.exists"),
    "pydantic": (
        "msgpack",
        ext(5, "os", "system", {"command": TOUCH}, "model_validate_json"),
        "of os.system",
    ),
    "json 2": ("json", json.dumps([LC2]).encode(), "an object of os.system, which is not in types"),
    "json 1": ("json", json.dumps([LC1]).encode(), "an object of os.system, which is not in types"),
    "pickle": ("pickle", pickle.dumps(Touching()), "stored as a pickle"),
    "encrypted": ("msgpack+aes", b"\0" * 50, "pass serde= the EncryptedSerializer that wrote it"),
    "unknown type": ("yaml", b"a: 1", "'yaml'"),
    "no type": (None, b"", "stored as type None"),
    "text": ("msgpack", "text", "with str instead of bytes"),
    "cut": ("msgpack", b"\xdf\xff\xff\xff\xff", "not a LangGraph value"),
    "deep": ("msgpack", b"\x91" * 100_000, "not a LangGraph value"),
    "deep json": ("json", b"[" * 100_000, "RecursionError"),
    "other code": ("msgpack", ormsgpack.packb(ormsgpack.Ext(99, b"x")), "not a LangGraph value"),
}


def check_left_out(old, said, monkeypatch, tmp_path):
    """Make sure that the thread with the bad row is told and left out, and the others are moved."""
    monkeypatch.chdir(tmp_path)
    with outlive.open("memory:") as store:
        with pytest.raises(CannotImport) as caught:
            import_langgraph(f"sqlite:///{old}", store, threads=["chat", "sending"])
        assert caught.value.problem.thread == "chat"
        assert said in str(caught.value)
        assert list(store.threads()) == []
        moved = import_langgraph(f"sqlite:///{old}", store, threads=["chat", "sending"], on_problem="skip")
        assert [problem.thread for problem in moved.problems] == ["chat"]
        assert [info.id for info in store.threads()] == ["sending"]
        with sqlite_saver(old) as source:
            assert_same(source, saver_on(store), ["sending"])
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("what", VALUES)
def test_a_bad_checkpoint_is_left_out_with_its_thread(what, old, monkeypatch, tmp_path):
    kind, data, said = VALUES[what]
    change(
        old,
        "update checkpoints set type = ?, checkpoint = ? where thread_id = 'chat' and checkpoint_id = "
        "(select max(checkpoint_id) from checkpoints where thread_id = 'chat')",
        kind,
        data,
    )
    check_left_out(old, said, monkeypatch, tmp_path)


@pytest.mark.parametrize("what", ["positional", "pickle", "json 2", "text", "cut"])
def test_a_bad_write_is_left_out_with_its_thread(what, old, monkeypatch, tmp_path):
    kind, data, said = VALUES[what]
    change(old, "update writes set type = ?, value = ? where thread_id = 'chat'", kind, data)
    check_left_out(old, said, monkeypatch, tmp_path)


ROWS = {
    "checkpoints set metadata = '{not json'": "metadata cannot be read as JSON",
    "checkpoints set metadata = '[1]'": "list instead of an object",
    "checkpoints set metadata = 7": "int",
    "checkpoints set checkpoint = x'c0'": "not a LangGraph checkpoint",
    "checkpoints set checkpoint_id = 'other' || rowid": "instead of the one in its key",
    "checkpoints set checkpoint_id = zeroblob(rowid)": "a checkpoint_id is b",
    "checkpoints set checkpoint_id = cast(x'ff' as text) || rowid": "Could not decode",
    "checkpoints set parent_checkpoint_id = x'00'": "parent checkpoint id must be a str",
    "checkpoints set checkpoint_ns = printf('%.*c', 2000, 'x') || rowid": "at most 1,000 characters",
    "writes set idx = idx + 1000000000000": "the idx of a write is",
    "writes set idx = 'x' || rowid": "the idx of a write is",
    "writes set channel = x'00'": "channel must be a str",
    "writes set task_id = ''  || rowid, task_path = printf('%.*c', 2000, 'x')": "task_path must be a str of at most",
}


@pytest.mark.parametrize("what", ROWS)
def test_a_row_that_langgraph_would_not_write_is_left_out_with_its_thread(what, old, monkeypatch, tmp_path):
    change(old, f"update {what} where thread_id = 'chat'")
    check_left_out(old, ROWS[what], monkeypatch, tmp_path)


def test_a_class_that_nobody_named_is_named_in_the_report(old):
    with outlive.open("memory:") as store:
        with pytest.raises(
            CannotImport,
            match=r"thread 'ticket', checkpoint '.*graphs.Ticket, which is not in types: add types=\[Ticket\]",
        ):
            import_langgraph(f"sqlite:///{old}", store)
        looked = import_langgraph(f"sqlite:///{old}", store, dry_run=True)
        assert looked.unknown == (f"{Ticket.__module__}.Ticket",)
        assert looked.threads == len(THREADS) - 1


@pytest.mark.parametrize("id", ["x'ff00'", "cast(x'ff' as text)", "''"])
def test_a_thread_id_that_cannot_be_is_a_problem_of_its_own(id, old):
    change(old, f"update checkpoints set thread_id = {id} where thread_id = 'chat'")
    with outlive.open("memory:") as store:
        moved = import_langgraph(f"sqlite:///{old}", store, types=[Ticket], on_problem="skip")
        assert len(moved.problems) == 1
        assert {"asked", "delta", "half", "sending", "ticket"} <= {info.id for info in store.threads()}


def test_a_file_whose_pages_are_damaged_is_told(old):
    data = bytearray(old.read_bytes())
    data[4096:-4096] = os.urandom(len(data) - 8192)
    old.write_bytes(data)
    with outlive.open("memory:") as store, pytest.raises(outlive.Corrupt, match="cannot be read"):
        import_langgraph(f"sqlite:///{old}", store, types=[Ticket], on_problem="skip")


WRONG = {
    "sqlite:///nowhere.db": (outlive.errors.StoreUnavailable, "there is no file"),
    "sqlite://host/old.db": (outlive.errors.BadURL, "takes no host"),
    "sqlite:///old.db?mode=rw": (outlive.errors.BadURL, "takes no options"),
    "sqlite:///": (outlive.errors.BadURL, "needs the path"),
    "redis://host": (outlive.errors.BadURL, "not a LangGraph database that can be read"),
    "postgresql://me:secret@127.0.0.1:1/x": (outlive.errors.StoreUnavailable, "cannot be reached"),
    "sqlite:///empty.db": (outlive.errors.BadArgument, "does not have the tables"),
    "sqlite:///ours.db": (outlive.errors.BadArgument, "is an outlive store already"),
    "sqlite:///text.db": (outlive.errors.BadArgument, "is not a SQLite database"),
}


@pytest.mark.parametrize("url", WRONG)
def test_a_source_that_is_none_is_told(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sqlite3.connect("empty.db").execute("create table checkpoints (x)").connection.close()
    outlive.open("sqlite:///ours.db").close()
    Path("text.db").write_text("no database, but more than a few bytes of text " * 20)
    kind, said = WRONG[url]
    with outlive.open("memory:") as store, pytest.raises(kind, match=said) as caught:
        import_langgraph(url, store)
    assert "secret" not in str(caught.value)


def test_a_postgres_without_the_tables_is_told(postgres_url):
    with (
        outlive.open("memory:") as store,
        pytest.raises(outlive.errors.BadArgument, match="does not have the tables"),
    ):
        import_langgraph(postgres_url, store)


def test_a_source_cannot_be_its_own_target(old, monkeypatch):
    monkeypatch.chdir(old.parent)
    (old.parent / "link.db").symlink_to(old)
    for target in (
        f"sqlite:///{old}",
        f"sqlite:{old}",
        "sqlite:///./old.db",
        "sqlite:///link.db?fsync=off",
        f"file://{old}",
    ):
        with pytest.raises(outlive.errors.BadArgument, match="its own target"):
            import_langgraph(f"sqlite:///{old}", target, types=[Ticket])
    with sqlite_saver(old) as source:
        assert source.get_tuple(graphs.on("chat")) is not None


def test_wrong_arguments_are_told(old):
    url = f"sqlite:///{old}"
    for options, said in [
        ({"on_problem": "ignore"}, "on_problem must be"),
        ({"threads": "chat"}, "must be a list of thread ids"),
        ({"types": [Ticket], "serde": object()}, "not both"),
    ]:
        with pytest.raises(outlive.errors.BadArgument, match=said):
            import_langgraph(url, "memory:", **options)
    with pytest.raises(outlive.errors.BadArgument, match="must be a URL or a store"):
        import_langgraph(url, 7)


# Anything at all -------------------------------------------------------------------------------------------

JUNK = [
    None,
    True,
    7,
    -1.5,
    1 << 63,
    "",
    "x" * 2000,
    "\0",
    [],
    [[]],
    {},
    {"": None},
    {"id": 1},
    ["__start__"],
    b"\xff",
    {"lc": 1},
]


def spoiled(value, rng):
    """Return a value with something else somewhere in it."""
    if rng.random() < 0.3 or not isinstance(value, dict | list) or not value:
        return rng.choice(JUNK)
    if isinstance(value, list):
        place = rng.randrange(len(value))
        return [*value[:place], spoiled(value[place], rng), *value[place + 1 :]]
    name = rng.choice(list(value))
    if rng.random() < 0.2:
        return {key: one for key, one in value.items() if key != name}
    return {**value, name: spoiled(value[name], rng)}


def test_whatever_stands_in_a_row_is_moved_or_told(old):
    """Each round spoils a checkpoint, its metadata and a write. (Seeded: the same every time unless OUTLIVE_SEED says otherwise.)"""
    rng = random.Random(SEED)
    serde = StrictSerializer([Ticket])
    told = 0
    for _ in range(1_000 if LONG else 40):
        with contextlib.closing(sqlite3.connect(old)) as db, db:
            row, kind, data, metadata = db.execute(
                "select rowid, type, checkpoint, metadata from checkpoints where thread_id = 'sending' limit 1 offset ?", (rng.randrange(2),)
            ).fetchone()  # fmt: skip
            bad = ormsgpack.packb(
                spoiled(serde.loads_typed((kind, data)), rng), default=repr, option=ormsgpack.OPT_NON_STR_KEYS
            )
            said = json.dumps(spoiled(json.loads(metadata), rng), default=repr)
            sets = "update checkpoints set checkpoint = ?, metadata = ? where rowid = ?"
            db.execute(
                sets, (bad if rng.random() < 0.7 else data, said if rng.random() < 0.7 else metadata, row)
            )
            with outlive.open("memory:") as store:
                db.commit()
                moved = import_langgraph(
                    f"sqlite:///{old}", store, types=[Ticket], on_problem="skip", threads=["sending", "asked"]
                )
                assert {problem.thread for problem in moved.problems} <= {"sending"}
                assert store.verify().ok
                told += len(moved.problems)
            db.execute(
                "update checkpoints set checkpoint = ?, metadata = ? where rowid = ?", (data, metadata, row)
            )
        db.close()
    assert told > 10


PG_ROWS = {
    "checkpoints set checkpoint = '[]'": "not a LangGraph checkpoint",
    "checkpoints set checkpoint = checkpoint - 'channel_versions'": "not a LangGraph checkpoint",
    "checkpoints set checkpoint = jsonb_set(checkpoint, '{channel_versions}', '[1]')": "not a LangGraph checkpoint",
    "checkpoints set checkpoint = jsonb_set(checkpoint, '{channel_values}', '[1]')": "not as LangGraph writes it",
    "checkpoints set metadata = '[1]'": "list instead of an object",
    "checkpoint_blobs set type = 'pickle'": "stored as a pickle",
    "checkpoint_blobs set blob = null": "not a LangGraph value",
    "checkpoint_writes set blob = '\\xc1'": "not a LangGraph value",
}


def test_a_bad_row_of_postgres_is_left_out_with_its_thread(postgres_url):
    with PostgresSaver.from_conn_string(postgres_url) as source:
        source.setup()
        graphs.fill(source, turns=1)
        others = [thread for thread in THREADS if thread != "chat"]
        for what, said in PG_ROWS.items():
            with psycopg.connect(postgres_url) as link, outlive.open("memory:") as store:
                for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                    link.execute(f"create table kept_{table} as table {table}")
                assert link.execute(f"update {what} where thread_id = 'chat'").rowcount
                link.commit()
                moved = import_langgraph(postgres_url, store, types=[Ticket], on_problem="skip")
                assert [problem.thread for problem in moved.problems] == ["chat"], what
                assert said in str(moved.problems[0]), what
                assert_same(source, saver_on(store), others)
                for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
                    link.execute(f"delete from {table}")
                    link.execute(f"insert into {table} select * from kept_{table}")
                    link.execute(f"drop table kept_{table}")
