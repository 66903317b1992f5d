"""One row of a SQLite store that is lost, or is an older copy of itself, is never taken for the truth."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from functools import partial

import apsw
import pytest

import outlive
from outlive import Corrupt, OutliveError, StoreError
from rig.crash import ram_folder

LONG = bool(os.environ.get("OUTLIVE_LONG"))
KEYS = {
    "meta": ["name"],
    "thread": ["key"],
    "roster": ["tenant", "id"],
    "head": ["digest", "namespace"],
    "checkpoint": ["key"],
    "checkpoint_version": ["thread", "namespace", "id"],
    "chunk": ["key"],
    "write": ["thread", "namespace", "checkpoint", "task", "idx"],
    "tally": ["thread", "namespace", "checkpoint"],
    "entry": ["thread", "kind", "key"],
    "entry_version": ["thread", "kind", "key"],
}
IDS = ["c0", "c1", "c2", "c3", "c4", "asked"]
# Not for verify, while every answer is right: a chunk that nobody reads, its stamp for sweeps, and the version of a row that is there.
HARMLESS = {("lost", "chunk"), ("older", "chunk"), ("lost", "checkpoint_version")}


@pytest.fixture(scope="module")
def folder():
    with ram_folder() as folder:
        yield folder


def steps(store):
    """Write every kind of row, each several times; yield after each call that was stored."""
    thread, sub = store.thread("t"), store.thread("t", namespace="sub")
    for n in range(5):
        yield thread.save({"n": n, "text": "x" * 3000 * n}, id=f"c{n}")
    yield sub.save({"sub": 0}, id="s0")
    yield sub.save({"sub": 1}, id="s1")
    yield thread.save({"n": 20}, id="c2", replace=True)
    yield thread.save({"n": 30}, id="c2", replace=True)
    yield thread.save({"n": 40}, id="c4", replace=True)
    yield thread.save({"q": 1}, id="asked", interrupts=[outlive.Interrupt("q1", "ask")], source="interrupt")
    yield thread.write("task", [("a", 1), ("b", 2)])
    yield thread.resume("q1", "yes")
    yield thread.resume("q1", "no")
    yield thread.set_metadata({"title": "one"})
    yield thread.set_metadata({"title": "two"})
    yield store.thread("gone").save({"n": 1})
    yield store.delete("gone")
    yield store.thread("gone").save({"n": 2})
    yield store.delete("gone")
    run = store.run("job", run_id="run-1").start()
    yield run
    yield run.step("pay", effect=True)(lambda: "paid")()
    yield run.step("mail", lambda: "sent")
    yield run.save({"phase": 1}, iteration=1)
    yield run.release()
    run = store.run("job", run_id="run-1").start()
    yield run.step("book", lambda: "booked")
    yield run.complete("all done")


def tables(path):
    with contextlib.closing(apsw.Connection(str(path))) as db:
        found = {}
        for table, keys in KEYS.items():
            names = [row[1] for row in db.execute(f"pragma table_info({table})")]
            rows = [dict(zip(names, row, strict=True)) for row in db.execute(f"select * from {table}")]
            found[table] = {tuple(row[key] for key in keys): row for row in rows}
        return found


@pytest.fixture(scope="module")
def sound(folder):
    """A store, its rows now, and all that they were before."""
    path, before = folder / "sound.db", []
    with outlive.open(f"sqlite:///{path}") as store:
        before += [tables(path) for _ in steps(store)]
    now = tables(path)
    older = {}
    for moment in before:
        for table, rows in moment.items():
            for key, row in rows.items():
                if key in now[table] and row != now[table][key]:
                    older[table, key, repr(row)] = ("older", table, row)
    lost = [("lost", table, row) for table, rows in now.items() for row in rows.values()]
    assert {table for _, table, _ in older.values()} >= set(KEYS) - {"meta", "roster", "chunk"}
    return path, [*older.values(), *lost]


def questions(store):
    """Everything that is asked; those that write come last."""
    thread, sub = store.thread("t"), store.thread("t", namespace="sub")
    for name in IDS:
        yield f"load {name}", partial(thread.load, name)
        yield f"writes {name}", partial(thread.writes, name)
    yield "load", thread.load
    yield "history", lambda: [checkpoint.id for checkpoint in thread.history()]
    yield "metadata", thread.metadata
    yield "interrupts", lambda: [interrupt.id for interrupt in thread.interrupts()]
    yield "sub", sub.load
    yield "sub history", lambda: [checkpoint.id for checkpoint in sub.history()]
    yield "threads", lambda: [info.id for info in store.threads()]
    yield "runs", lambda: [(run.id, run.status, run.is_readable) for run in store.runs() if readable(run)]
    yield "running", lambda: [run.id for run in store.runs(status="running") if readable(run)]
    yield "released", lambda: [run.id for run in store.runs(status="released") if readable(run)]
    yield "recover", lambda: [run.id for run in store.recover({None: lambda run: None}).resumed]
    yield "run again", lambda: again(store)
    yield "save to sub", lambda: (sub.save({"sub": 2}, expect="s1", id="s2").seq, sub.load())
    yield "save", lambda: (thread.save({"new": 1}, expect="asked", id="new").parent, thread.load())
    yield "save again", lambda: (thread.save({"new": 2}, id="newer").parent, thread.load())
    yield "write", lambda: (thread.write("task", [("a", 3)], checkpoint="asked"), len(thread.writes("asked")))
    yield "begin again", lambda: (store.thread("gone").save({"n": 3}).seq, store.thread("gone").load())
    yield "work on", lambda: (store.thread("job").save({"x": 1}).seq, store.thread("job").load())


def readable(run):
    """A run of which nothing can be told is told as such."""
    if not run.is_readable:
        raise Corrupt(run.error or "")
    return True


def again(store):
    """Start a run that is completed: its steps are not called again."""
    called = []
    run = store.run("job", run_id="run-1").start()
    if not run.is_finished:
        for name in ("pay", "mail", "book"):
            run.step(name, lambda name=name: called.append(name))
        run.release()
    return run.result, called


def answers(path):
    found = {}
    with outlive.open(f"sqlite:///{path}", cache_bytes=0) as store:
        found["verify"] = store.verify()
        for name, ask in questions(store):
            try:
                found[name] = ask()
            except OutliveError as error:
                found[name] = error
    return found


def apply(path, how, table, row):
    keys = KEYS[table]
    where = " and ".join(f"{key} is ?" for key in keys)
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.execute(f"delete from {table} where {where}", [row[key] for key in keys])
        if how == "older":
            db.execute(
                f"insert into {table}({', '.join(row)}) values({', '.join('?' * len(row))})",
                list(row.values()),
            )


def test_a_row_that_is_lost_or_older_is_never_taken_for_the_truth(sound, folder):
    path, changes = sound
    shutil.copy(path, folder / "copy.db")
    expected = answers(folder / "copy.db")
    assert expected["verify"].ok
    assert not [a for a in expected.values() if isinstance(a, OutliveError)]
    chosen = changes if LONG else random.Random(1).sample(changes, 40)
    failures = []
    for how, table, row in chosen:
        shutil.copy(path, folder / "copy.db")
        apply(folder / "copy.db", how, table, row)
        what = f"{how} row of {table}: {[row[key] for key in KEYS[table]]}"
        try:
            found = answers(folder / "copy.db")
        except Corrupt:  # the store does not open
            continue
        verified = found.pop("verify")
        is_harmless = (how, table) in HARMLESS and not any(
            isinstance(answer, StoreError) for answer in found.values()
        )
        if verified.ok and not is_harmless:
            failures.append(f"{what}: not found by verify")
        failures += [
            f"{what}: {name}: {answer!r:.100} instead of {expected[name]!r:.100}"
            for name, answer in found.items()
            if not isinstance(answer, StoreError) and answer != expected[name]
        ]
    assert not failures, f"{len(failures)} of {len(chosen)} changes:\n" + "\n".join(failures[:20])


# The cases that were reported -------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["head", "thread"])
def test_a_head_or_a_thread_of_five_saves_ago_is_damage(table, folder):
    path = folder / f"five-{table}.db"
    with outlive.open(f"sqlite:///{path}") as store:
        thread = store.thread("t")
        for n in range(3):
            thread.save({"n": n}, id=f"c{n}")
        row = next(iter(tables(path)[table].values()))
        for n in range(3, 8):
            thread.save({"n": n}, id=f"c{n}")
        apply(path, "older", table, row)
        save = partial(thread.save, {"n": 9})
        for call in (thread.load, save, partial(save, expect="c2")):
            with pytest.raises(Corrupt, match="older copy of itself"):
                call()
        assert not thread.verify().ok
        assert thread.delete()
        assert thread.save({"n": "new"}).seq == 9
        assert store.verify().ok


def test_a_step_that_was_done_is_not_called_again(folder):
    path = folder / "step.db"
    with outlive.open(f"sqlite:///{path}") as store:
        run = store.run("t", run_id="r").start()
        with pytest.raises(ValueError, match="not paid"):
            run.step("pay", fail)
        (row,) = [row for key, row in tables(path)["entry"].items() if key[1] == "step"]
        run.release()
        run = store.run("t", run_id="r").start()
        assert run.step("pay", lambda: "paid") == "paid"
        run.release()
        apply(path, "older", "entry", row)
        with pytest.raises(Corrupt):
            store.run("t", run_id="r").start()
        assert not store.verify().ok


def fail():
    raise ValueError("not paid")


def test_a_completed_run_does_not_run_again(folder):
    path, called = folder / "run.db", []
    with outlive.open(f"sqlite:///{path}") as store:
        run = store.run("t", run_id="r").start()
        run.release()
        (row,) = [row for key, row in tables(path)["entry"].items() if key[1] == "run"]
        store.run("t", run_id="r").start().complete("done")
        apply(path, "older", "entry", row)
        report = store.recover({None: lambda run: called.append(run.id)})
        assert not called
        assert not report.resumed
        with pytest.raises(Corrupt):
            store.run("t", run_id="r").start()
        assert not store.verify().ok
