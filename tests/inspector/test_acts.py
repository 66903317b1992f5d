"""Acts of the inspector: each asks with a page that says what will happen, then does it once."""

from __future__ import annotations

import json

import pytest

import outlive
from rig.inspected import act, fill


@pytest.fixture(params=["sqlite", "postgres"])
def store(request, tmp_path):
    url = tmp_path / "agent.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with outlive.open(url) as store:
        fill(store)
        yield store


def test_an_answer_by_the_form_wakes_a_worker(store, writer):
    page = writer.get("/ask/answer?run=refund-7&name=approve%3F").text
    assert "The first answer counts" in page
    assert 'type="radio"' in page  # a boolean has two choices
    answer = act(writer, "answer", run="refund-7", name="approve?", value="true", by="ada")
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/run?id=refund-7")
    answers = []

    def refund(run):
        run.step("look up the order", lambda: {"order": 7})
        answers.append(run.ask("approve?", {"amount": 120}, schema={"type": "boolean"}))

    store.recover({"refunds": refund})
    assert answers == [True]
    assert store.find_run("refund-7").status == "completed"
    assert [question.by for question in store.questions(status=None) if question.run == "refund-7"] == ["ada"]


def test_an_answer_that_does_not_fit_is_refused(store, writer):
    answer = act(writer, "answer", run="refund-7", name="approve?", value='"perhaps"')
    assert answer.status_code == 400
    assert [question.name for question in store.questions()] == ["approve?"]


def test_runs_are_given_back_parked_and_cancelled(store, writer):
    for name, standing, act_name in (
        ("sum-1", "released", "give-back"),
        ("refund-7", "parked", "park"),
        ("sum-1", "cancelled", "cancel"),
    ):
        assert name in writer.get(f"/ask/{act_name}?id={name}").text
        assert act(writer, act_name, id=name).status_code == 303
        assert store.find_run(name).status == standing


def test_an_edit_is_a_branch_and_overwrites_nothing(store, writer):
    thread = store.thread("trip-42")
    at = list(thread.history())[-1]
    page = writer.get(f"/ask/edit?id=trip-42&at={at.id}&path=notes").text
    assert "$tuple" in page
    edited = {"seen": {"$tuple": [3, 4]}}
    answer = act(writer, "edit", id="trip-42", at=at.id, path="notes", value=json.dumps(edited))
    assert answer.status_code == 303
    assert thread.load()["notes"] == {"seen": (3, 4)}
    head = next(iter(thread.history()))
    assert (head.parent, head.source, head.metadata["edited"]) == (at.id, "update", "notes")
    assert thread.load(at.id)["notes"] == {"seen": (1, 2)}
    assert "notes.seen" in writer.get(answer.headers["location"]).text


def test_an_edit_into_a_new_thread_leaves_the_old_one(store, writer):
    before = store.thread("trip-42").load()
    assert act(writer, "edit", id="trip-42", path="notes", value="{}", new="what-if").status_code == 303
    assert store.thread("what-if").load()["notes"] == {}
    assert store.thread("trip-42").load() == before


def test_an_edit_that_is_no_json_changes_nothing(store, writer):
    count = store.thread("trip-42").info().checkpoints
    for text in ("{", '{"$tuple": 1}', "[" * 100_000):
        assert act(writer, "edit", id="trip-42", path="notes", value=text).status_code == 400
    assert store.thread("trip-42").info().checkpoints == count


def test_fork_prune_and_delete(store, writer):
    assert act(writer, "fork", id="trip-42", new="copy").status_code == 303
    assert store.thread("copy").load() == store.thread("trip-42").load()
    assert "Deletes" in writer.get("/ask/prune?id=trip-42&keep=1").text
    assert act(writer, "prune", id="trip-42", keep="1").status_code == 303
    assert store.thread("trip-42").info().checkpoints == 1
    assert act(writer, "delete", id="trip-42", confirm="trip-4").status_code == 400
    assert store.thread("trip-42").exists()
    assert act(writer, "delete", id="trip-42", confirm="trip-42").status_code == 303
    assert not store.thread("trip-42").exists()


def test_what_is_not_there_cannot_be_acted_on(writer):
    assert act(writer, "cancel", id="nobody").status_code == 404
    assert act(writer, "explode", id="refund-7").status_code == 404
    assert act(writer, "fork", new="x").status_code == 400
    assert act(writer, "prune", id="trip-42", keep="0").status_code == 400


def test_a_live_run_is_not_given_back(store, writer):
    with store.run("busy", run_id="busy-1", agent="a"):
        answer = act(writer, "give-back", id="busy-1")
        assert (answer.status_code, outlive.RunBusy.__name__ in answer.text) == (400, False)
        assert store.find_run("busy-1").status == "running"
