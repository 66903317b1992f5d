"""A damaged entry hides no other: listings continue after it, and say what they cannot read."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from dataclasses import replace

import apsw
import pytest

import outlive
from outlive.backend import Commit, EntryQuery
from outlive.errors import Corrupt
from outlive.runs.questions import check_readable
from outlive.runtime.runtime import run_now


def ask(store, count):
    for n in range(count):
        with contextlib.suppress(outlive.RunSuspended), store.run(f"t{n}", run_id=f"r{n}", agent="a") as run:
            run.ask("sure?", {"n": n})


def names(questions):
    return [(question.run, question.is_readable) for question in questions]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


def damage(path, sql):
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute(sql)
        assert db.changes()


@pytest.mark.parametrize(
    "sql",
    [
        "update entry set body = zeroblob(length(body)) where kind = 'wait' and key like 'r1%'",
        "update entry set status = 'x' where kind = 'wait' and key like 'r1%'",
        "delete from entry where kind = 'wait' and key like 'r1%'",
        "delete from thread where id = 't1'",
    ],
)
def test_a_damaged_question_hides_no_other(path, sql):
    with outlive.open(path) as store:
        ask(store, 4)
        damage(path, sql)
        for status in ("open", None):
            questions = list(store.questions(status=status))
            assert names(questions) == [("r0", True), ("r1", False), ("r2", True), ("r3", True)]
        assert (questions[1].name, questions[1].status, questions[1].payload) == ("sure?", "open", None)
        assert questions[1].error.startswith("it cannot be read: corrupt store")
        assert names(store.questions(agent="a")) == [("r0", True), ("r2", True), ("r3", True)]
        check_readable(questions[0])
        with pytest.raises(Corrupt, match="'sure\\?' of run 'r1'"):
            check_readable(questions[1])


def test_all_questions_may_be_damaged(path):
    with outlive.open(path) as store:
        ask(store, 3)
        damage(path, "update entry set body = zeroblob(length(body)) where kind = 'wait'")
        assert names(store.questions()) == [("r0", False), ("r1", False), ("r2", False)]


@pytest.mark.parametrize(
    "wrong",
    [{"schema": 7}, {"due_at": "soon"}, {"asked_at": 1 << 62}, {"type": None}, {"by": 7}, {"group": 7}],
    ids=str,
)
def test_a_question_with_wrong_fields_is_said_to_be_damaged(wrong):
    with outlive.open("memory:") as store:
        ask(store, 3)
        inner = store._store
        entries = run_now(inner._engine.backend.entries(EntryQuery("", "wait", prefix="r1", limit=9)))
        ((key, entry),) = entries
        fields = inner._engine.codec.unpack(entry.body)
        body = inner._engine.codec.pack({**fields, **wrong})
        run_now(inner._engine.commit(Commit(key, entries=(replace(entry, body=body, revision=9),))))
        assert names(store.questions()) == [("r0", True), ("r1", False), ("r2", True)]
        with pytest.raises(Corrupt):
            store.answer("r1", "sure?", True)


def test_a_damaged_sleep_is_no_question(path):
    with outlive.open(path) as store:
        ask(store, 1)
        with contextlib.suppress(outlive.RunSuspended), store.run("s", run_id="s") as run:
            run.sleep(3600)
        damage(path, "update entry set body = zeroblob(length(body)) where kind = 'wait' and key like 's%'")
        assert names(store.questions(events=True)) == [("r0", True)]


def test_a_damaged_timer_stops_no_other(path):
    with outlive.open(path) as store:
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        for n in range(3):
            store.submit(f"t{n}", run_id=f"r{n}", not_before=due + dt.timedelta(milliseconds=n))
        damage(
            path,
            "update entry set body = x'00' where kind = 'timer' and key = "
            "(select min(key) from entry where kind = 'timer')",
        )
        recovered, until = set(), time.monotonic() + 60
        while len(recovered) < 2 and time.monotonic() < until:
            recovered |= {run.id for run in store.recover({None: lambda run: None}).resumed}
            time.sleep(0.02)
        assert recovered == {"r1", "r2"}


def test_a_listing_with_damage_names_the_thread_whose_row_is_gone(path):
    with outlive.open(path) as store:
        for n in range(3):
            store.thread(f"t{n}").save({})
        damage(path, "delete from thread where id = 't1'")
        with pytest.raises(Corrupt) as caught:
            list(store.threads())
        assert caught.value.thread == "t1"
        assert any("'t1'" in str(problem) for problem in store.verify().problems)
