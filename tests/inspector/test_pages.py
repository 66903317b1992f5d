"""Pages over HTTP, and that their JSON is that of the command line."""

from __future__ import annotations

import html
import json
import re
import shlex
from urllib.parse import quote

import pytest

from outlive.view.checkup import Finding
from rig.inspected import HOSTILE, client_of, write_graph


@pytest.mark.parametrize(
    "path, line",
    [
        ("/threads.json?order=id", ["ls"]),
        ("/history.json?id=trip-42", ["history", "trip-42"]),
        ("/show.json?id=trip-42", ["show", "trip-42"]),
        ("/runs.json?all=1", ["runs", "--all"]),
        ("/run.json?id=sum-1", ["runs", "show", "sum-1"]),
        ("/questions.json", ["questions"]),
        ("/now.json", ["runs"]),
        ("/diff.json?id=trip-42", ["diff", "trip-42"]),
        ("/stats.json", ["stats"]),
        ("/sweep.json?keep_last=1", ["sweep", "--keep-last", "1", "--dry-run"]),
    ],
)
def test_json_is_that_of_the_command_line(program, client, tmp_path, path, line):
    page = client.get(path).json()
    printed = json.loads(program(*line, "--json", "--store", tmp_path / "agent.db").out)
    assert page.keys() == printed.keys()
    assert [item.keys() for item in page["items"]] == [item.keys() for item in printed["items"]]
    assert [item.get("id") for item in page["items"]] == [item.get("id") for item in printed["items"]]


def test_json_of_a_graph_says_what_each_step_did_as_the_command_line_does(program, store, client, tmp_path):
    write_graph(store)
    page = client.get("/history.json?id=graph-1").json()
    printed = json.loads(program("history", "graph-1", "--json", "--store", tmp_path / "agent.db").out)
    assert page["items"] == printed["items"]
    assert page["items"][0]["next_nodes"] == ["book"]


def test_json_says_when_something_is_wrong(client, monkeypatch):
    for level, is_ok in (("note", True), ("warning", False)):
        finding = Finding("runs", level, "1 dead run")
        monkeypatch.setattr(
            "outlive.inspector.pages.store.check_store", lambda *_, said=finding, **__: [said]
        )
        assert client.get("/doctor.json").json()["ok"] is is_ok


PAGES = [
    "/", "/threads", "/threads?prefix=trip", "/threads?filter=user%3Dada", "/threads?order=id&after=secrets", "/runs?all=1",
    "/runs?status=waiting&agent=refunds", "/run?id=refund-7", "/thread?id=trip-42&view=diff", "/thread?id=trip-42&view=writes",
    "/thread?id=trip-42&view=state&path=notes.seen", "/thread?id=graph-1&view=raw", "/thread?id=-dash", "/ask/edit?id=trip-42&path=notes",
    f"/thread?id={quote(HOSTILE)}&view=state&path=messages", "/ask/prune?id=-dash&keep=1",
]  # fmt: skip


def test_the_command_of_a_page_works(program, store, writer, tmp_path):
    store.thread("-dash").save({"n": 1})
    write_graph(store)
    for path in PAGES:
        text = writer.get(path).text
        shown = html.unescape(re.search("<code data-command>(.*?)</code>", text)[1])
        copied = html.unescape(re.search('data-copy="([^"]*)" aria-label="copy the command"', text)[1])
        words = shlex.split(copied)[1:]
        assert words[0] == f"--store=sqlite:///{tmp_path}/agent.db", path
        assert words[1:] == shlex.split(shown)[1:], path
        ended = program(*words[:2], *(["--dry-run"] if "prune" in path else []), *words[2:])
        assert ended.code == 0, (path, ended.err)


def test_two_threads_are_compared_by_the_command_too(program, store, client, tmp_path):
    store.thread("other").save({"notes": {}}, id="first")
    text = client.get("/thread?id=trip-42&view=diff&with=first&thread=other").text
    command = html.unescape(re.search("<code data-command>(.*?)</code>", text)[1])
    printed = program(*shlex.split(command)[1:], "--json", "--store", tmp_path / "agent.db")
    page = client.get("/diff.json?id=trip-42&with=first&thread=other").json()
    assert page["items"] == json.loads(printed.out)["items"] != []


def test_now_shows_what_waits_and_what_failed_with_the_reason(client):
    text = client.get("/").text
    for part in ("approve?", "120", "true or false", "sum-1", "ZeroDivisionError"):
        assert part in text
    assert "/ask/" not in text  # read-only


def test_a_thread_shows_its_chat_tree_and_difference(client):
    text = client.get("/thread?id=trip-42").text
    assert "By train then" in text
    assert text.count("<li data-at=") == 3
    assert "outlive show trip-42" in text
    older = client.get("/history.json?id=trip-42").json()["items"][1]["id"]
    text = client.get(f"/thread?id=trip-42&at={older}&view=chat").text
    assert "ferries" in text
    assert "a night ferry" in text
    text = client.get(f"/thread?id=trip-42&at={older}&view=diff").text
    assert "notes.ferry" in text
    text = client.get(f"/thread?id=trip-42&view=diff&with={older}").text
    assert "Compare with the parent" in text


def test_a_state_opens_by_path_a_page_at_a_time(store, client):
    store.thread("long").save({"numbers": list(range(250))})
    level = client.get("/state.json?id=long&path=numbers&from=100").json()
    assert [child["preview"] for child in level["children"]] == [str(at) for at in range(100, 200)]
    assert (level["count"], level["more"]) == (250, 200)
    assert client.get("/state.json?id=long&path=nowhere").status_code == 400


def test_a_run_shows_its_steps_attempts_and_question(client):
    text = client.get("/run?id=refund-7").text
    for part in ("look up the order", "approve?", "waiting", "waits for"):
        assert part in text


def test_lists_have_pages_and_filters(store, client):
    for number in range(150):
        store.thread(f"many-{number:03}").save({"n": number})
    assert client.get("/threads.json").json()["items"][0]["id"] == "many-149"
    first = client.get("/threads.json?prefix=many").json()
    second = client.get(f"/threads.json?prefix=many&after={first['next']}").json()
    ids = [item["id"] for page in (first, second) for item in page["items"]]
    assert ids == [f"many-{number:03}" for number in range(150)]
    assert second["next"] is None
    assert [item["id"] for item in client.get("/threads.json?filter=user=ada").json()["items"]] == ["trip-42"]
    assert client.get("/threads?filter=nonsense").status_code == 400


def test_search_finds_ids_metadata_and_on_request_states(client):
    assert "trip-42" in client.get("/search?q=rip-4").text
    assert "trip-42" in client.get("/search?q=ada").text
    assert "By train" not in client.get("/search?q=train").text
    assert "By <mark>train</mark> then" in client.get("/search?q=train&states=1").text


def test_the_store_page_says_what_a_sweep_would_delete(store, client):
    count = store.thread("trip-42").info().checkpoints
    text = client.get("/store?keep_last=1").text
    assert "Would delete 1 checkpoint" in text or "Would delete 2 checkpoints" in text
    assert "outlive sweep --keep-last=1" in text
    assert store.thread("trip-42").info().checkpoints == count


@pytest.mark.parametrize(
    "path, status",
    [
        ("/nowhere", 404),
        ("/thread?id=none", 404),
        ("/run?id=none", 404),
        ("/thread", 400),
        ("/show.json?id=none", 404),
    ],
)
def test_what_is_not_there_is_said(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("application/json" if ".json" in path else "text/html")


def test_an_empty_store_has_all_pages(tmp_path):
    import outlive

    with outlive.open(tmp_path / "empty.db") as store:
        client = client_of(store)
        for path in ("/", "/threads", "/runs", "/store", "/search", "/search?q=x&states=1"):
            assert client.get(path).status_code == 200
