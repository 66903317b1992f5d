"""A store that is damaged: pages show what can be read, and say what cannot."""

from __future__ import annotations

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
