"""A later version may add an item to a stored list, or a field to a stored map: this version reads what it knows."""

import datetime as dt
from dataclasses import replace

import ormsgpack
import pytest

import outlive
from outlive.backend import Commit, EntryQuery, EntryRecord, ThreadKey, commit
from outlive.errors import Corrupt, NewerFormat
from outlive.format import manifest
from outlive.format.codec import Codec
from outlive.runs import attempts, stream_entry, tickets, wait_entry
from outlive.runs.budget import Budget
from outlive.runs.owner import Owner
from outlive.runs.responses import _Shared
from outlive.runs.step_record import StepInfo
from outlive.runs.waiting import Group, Outer, Waiting
from outlive.runtime.runtime import run_now

CODEC = Codec()
THREAD = ThreadKey.of("", "t")
NOW = dt.datetime(2026, 11, 18, tzinfo=dt.UTC)
MORE = {"of": "a later version"}


def test_an_owner():
    assert Owner.unpack([*Owner.me().pack(), MORE]) == Owner.me()


def test_the_attempts_of_a_run():
    done = attempts.end(attempts.begin((), 1, Owner.me(), NOW), "completed", NOW)
    assert attempts.unpack([[*packed, MORE] for packed in attempts.pack(done)]) == done


def test_what_a_run_waits_for():
    waiting = Waiting("answers", NOW, None, (Group(("a", "b"), "any"),), ("inner",))
    packed = waiting.pack()
    packed[3] = [[*group, MORE] for group in packed[3]]
    assert Waiting.unpack([*packed, MORE]) == waiting
    outer = Outer("t", "r", "run=x")
    assert Outer.unpack([*outer.pack(), MORE]) == outer


def test_a_step():
    fields = [None, 7, None, 1, 2, 1, 2, [[1, 1, 2, "reset", MORE]], False]
    step = StepInfo.unpack("ask", "#1", "done", [*fields, MORE], b"")
    assert (step.value, step.failures[0].error) == (7, "reset")


def test_a_ticket_and_a_piece_of_a_stream():
    errand = tickets.Errand("planner", 3, "", "v1")
    _, ticket = tickets.released(CODEC, EntryRecord("run", "r", b"x"), errand, 5)
    longer = EntryRecord("ticket", ticket.key, CODEC.pack([*CODEC.unpack(ticket.body), MORE]))
    assert tickets._ticket(CODEC, THREAD, longer, "planner").code_version == "v1"
    piece = EntryRecord("stream", "r\nk", CODEC.pack([1, [b"x"], MORE]))
    assert stream_entry.unpack_entry(CODEC, piece) == (1, [b"x"])


def test_a_run_whose_body_has_a_code_of_a_later_version_is_refused_and_hides_no_other():
    with outlive.open("memory:") as store:
        store.run("t1", run_id="later", agent="a").start().release()
        store.run("t2", run_id="ours", agent="a").start().release()
        backend = store._store._engine.backend
        for key, entry in run_now(backend.entries(EntryQuery("", "run", prefix="later"))):
            body = ormsgpack.packb(ormsgpack.Ext(100, b""))
            run_now(commit(backend, Commit(key, entries=(replace(entry, body=body, revision=9),))))
        assert [(run.id, run.is_readable) for run in store.runs()] == [("later", False), ("ours", True)]
        report = store.recover({"a": lambda run: "done"})
        assert [run.id for run in report.resumed] == ["ours"]
        assert [(skip.run.id, skip.code) for skip in report.skipped] == [("later", "unreadable")]
        for look in (store.steps, store.attempts):
            with pytest.raises(NewerFormat):
                look("later")
        with pytest.raises(NewerFormat):
            store.run("t1", run_id="later", agent="a").start()
        assert store.verify().problems == ()


def test_a_wait_and_what_responses_share():
    put = wait_entry.put(CODEC, "r", wait_entry.Wait("ok?", "question"))
    longer = EntryRecord("wait", put.key, CODEC.pack({**CODEC.unpack(put.body), "more": MORE}), put.status)
    assert wait_entry.unpack_wait(CODEC, "t", longer).type == "question"
    assert _Shared.unpack({"prompt": "p", "more": MORE}).prompt == "p"


def test_the_body_of_a_checkpoint():
    asked = CODEC.pack([["i", "node", None, MORE]])
    body = ormsgpack.packb([1, [b"\x01"], {"interrupts": asked, "more": b"\x01"}, "more"])
    assert manifest.decode(CODEC, body).interrupts[0].id == "i"


def test_an_unknown_item_of_a_budget_is_refused_for_it_may_be_a_limit():
    with pytest.raises(Corrupt):
        Budget.unpack([*Budget(cost_usd=1).pack(), 5])


def stored_metadata(body):
    """Return what a store says of a thread whose metadata are these bytes."""
    with outlive.open("memory:") as store:
        thread = store.thread("t")
        thread.save({"n": 1})
        engine = store._store._engine
        run_now(
            commit(
                engine.backend, Commit(ThreadKey.of("", "t"), metadata=CODEC.pack(body), metadata_version=0)
            )
        )
        return thread.metadata()


def test_the_metadata_of_a_thread():
    assert stored_metadata([1, {"title": "x"}, None, MORE]) == {"title": "x"}
    with pytest.raises(NewerFormat):
        stored_metadata([2, {"title": "x"}, None])
    with pytest.raises(Corrupt):
        stored_metadata(["1", {"title": "x"}, None])
