"""A store that is damaged: pages show what can be read, and say what cannot."""

from __future__ import annotations

import contextlib
import json
import random

import apsw
import pytest

import outlive
from rig.inspected import client_of, fill


def damage(path, sql):
    connection = apsw.Connection(str(path))
    connection.execute(sql)
    connection.close()


@pytest.fixture
def damaged(tmp_path):
    """Return a function that damages a filled store and yields a client of it."""
    path = tmp_path / "agent.db"
    with outlive.open(path) as store:
        fill(store)
        store.thread("large").save({"text": random.Random(1).randbytes(50_000)})
        store.thread("large").save({"text": "small"})
        store.thread("newest").save({"text": "needle in the newest"})
    with outlive.open(path) as store:

        def by(sql):
            damage(path, sql)
            return client_of(store)

        yield by


METADATA = "update thread set metadata = zeroblob(length(metadata)) where length(metadata) > 3"


def test_one_damaged_thread_hides_no_other(damaged, program, tmp_path):
    client = damaged(METADATA)
    for path in ("/threads", "/threads?order=id", "/store"):
        page = client.get(path)
        assert page.status_code == 200, path
        assert "metadata is damaged" in page.text, path
    answer = client.get("/threads.json").json()
    ids = [item["id"] for item in answer["items"]]
    assert (answer["ok"], ids[0], "secrets" in ids, "trip-42" in ids) == (False, "newest", True, False)
    assert "<mark>needle</mark>" in client.get("/search?q=needle&states=1").text
    printed = program("ls", "--sort", "age", "--json", "--store", tmp_path / "agent.db")
    assert printed.code == 1
    assert [item["id"] for item in json.loads(printed.out)["items"]] == ids


def test_the_newest_threads_go_on_after_a_damaged_one_in_pages(damaged, monkeypatch):
    client = damaged(METADATA)
    whole = [item["id"] for item in client.get("/threads.json").json()["items"]]
    monkeypatch.setattr("outlive.inspector.pages.threads.PAGE", 2)
    ids, after = [], ""
    while after is not None:
        answer = client.get("/threads.json", params={"after": after}).json()
        ids += [item["id"] for item in answer["items"]]
        after = answer["next"]
    assert ids == whole


ZEROED = "update entry set body = zeroblob(length(body)) where kind = '{}' and key like '{}%'"
RUN_PAGES, THREAD_PAGES = ("/", "/runs", "/runs?all=1"), ("/threads?order=id",)
DAMAGE = {  # what → how, and the pages that name it
    "run": (ZEROED.format("run", "sum-2"), (*RUN_PAGES, "/threads", *THREAD_PAGES)),
    "row of a run": ("delete from entry where kind = 'run' and key = 'sum-2'", RUN_PAGES),
    "status of a run": ("update entry set status = 'x' where kind = 'run' and key = 'sum-2'", RUN_PAGES),
    "question": (ZEROED.format("wait", "refund-8"), ("/",)),
    "row of a question": ("delete from entry where kind = 'wait' and key like 'refund-8%'", ("/",)),
    "response": (ZEROED.format("response", ""), RUN_PAGES),
    "sum of a thread": (
        "update thread set checksum = zeroblob(8) where id = 'sums'",
        (*RUN_PAGES, *THREAD_PAGES),
    ),
    "row of a thread": ("delete from thread where id = 'sums'", (*RUN_PAGES, *THREAD_PAGES)),
}


def add_runs(path):
    """Add a second question, a run with a response, and one that saved the head of its thread."""
    with outlive.open(path) as store:
        with contextlib.suppress(outlive.RunSuspended), store.run("refund-2", run_id="refund-8") as run:
            run.ask("again?")
        with store.run("talks", run_id="talk-1") as run:
            run.responses.open(["model"]).complete("model", {"text": "hello", "input_tokens": 1})
            run.release()
        with store.run("sums", run_id="sum-2") as run:
            run.save({})
            run.release()


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_question_or_thread_hides_no_other(damaged, program, tmp_path, what):
    path = tmp_path / "agent.db"
    add_runs(path)
    sql, naming = DAMAGE[what]
    client = damaged(sql)
    pages = (*RUN_PAGES, *THREAD_PAGES, "/threads", "/store", "/search?q=refund")
    texts = {page: client.get(page) for page in pages}
    assert {page: answer.status_code for page, answer in texts.items()} == dict.fromkeys(pages, 200)
    for page in naming:
        assert "corrupt store" in texts[page].text, page
        assert "outlive verify</code>" in texts[page].text, page
    assert "trip-42" in texts["/threads?order=id"].text
    runs, questions = client.get("/runs.json").json(), client.get("/questions.json").json()
    assert [item["id"] for item in runs["items"]] == ["refund-7", "refund-8", "sum-1", "sum-2", "talk-1"]
    assert {item["name"] for item in questions["items"]} == {"approve?", "again?"}
    assert (runs["ok"], questions["ok"]) == ("question" in what, "question" not in what)
    for command, answer in (("runs", runs), ("questions", questions)):
        printed = program(command, "--json", "--store", path)
        assert printed.code == (0 if answer["ok"] else 1), command
        named = [[item.get("id"), item.get("name")] for item in json.loads(printed.out)["items"]]
        assert named == [[item.get("id"), item.get("name")] for item in answer["items"]]
        assert ("outlive verify lists all damage" in printed.err) == (not answer["ok"]), command


def test_a_damaged_question_is_shown_with_the_reason_and_cannot_be_answered(damaged, tmp_path):
    damaged(ZEROED.format("wait", "refund-7"))
    with outlive.open(tmp_path / "agent.db") as store:
        client = client_of(store, write=True)
        page = client.get("/")
        assert page.status_code == 200
        assert "it cannot be read: corrupt store" in page.text
        assert "/ask/answer" not in page.text
        answer = client.get("/ask/answer?run=refund-7&name=approve%3F&thread=refund")
        assert (answer.status_code, "corrupt store" in answer.text) == (503, True)


def test_a_damaged_state_leaves_the_tree_to_choose_another(damaged):
    client = damaged("update chunk set data = zeroblob(length(data))")
    assert "small" in client.get("/thread?id=large").text
    older = client.get("/history.json?id=large").json()["items"][1]["id"]
    page = client.get(f"/thread?id=large&at={older}")
    assert page.status_code == 200
    assert page.text.count("<li data-at=") == 2
    assert "corrupt store" in page.text
    assert "outlive verify" in page.text
    assert "corrupt store" in client.get("/thread?id=large&view=diff").text  # with its parent
    assert client.get(f"/show.json?id=large&at={older}").status_code == 503
