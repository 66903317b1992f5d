"""`outlive import-langgraph`: the real program on a database that LangGraph wrote."""

from __future__ import annotations

import pytest

from langgraph_moving import graphs
from langgraph_moving.comparing import assert_same, saver_on, sqlite_saver
from langgraph_moving.graphs import THREADS

TICKET = "langgraph_moving.graphs.Ticket"


@pytest.fixture
def old(program):
    with sqlite_saver(program.folder / "old.db") as saver:
        graphs.fill(saver)
    return program.folder / "old.db"


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_database_is_moved_and_can_be_moved_again(backend, program, old, request):
    target = f"sqlite:///{program.folder}/new.db"
    if backend == "postgresql":
        target = request.getfixturevalue("postgres_store")
    call = ("import-langgraph", f"sqlite:///{old}", target, "--type", TICKET)
    planned = program(*call, "--dry-run")
    assert (planned.code, planned.out.startswith("would move ")) == (0, True), planned.err
    moved = program(*call, "--json")
    assert moved.code == 0, moved.err
    (item,) = moved.items
    assert (item["threads"], item["problems"], item["unknown_types"]) == (len(THREADS), [], [])
    assert item["verified"] == item["checkpoints"] > 0
    assert program("ls", "-q", "--store", target).out.split() == list(THREADS)
    with sqlite_saver(old) as source:
        assert_same(source, saver_on(target), THREADS)
    assert program(*call, "--json").items[0]["present"] == item["checkpoints"]


def test_mistakes_are_told_and_make_no_store(program, old):
    wrong = program("import-langgraph", "sqlite:///nope.db", "sqlite:///new.db")
    assert wrong.code in (2, 3)
    assert not (program.folder / "new.db").exists()
    twice = program("import-langgraph", f"sqlite:///{old}", "sqlite:///new.db", "--store", "sqlite:///new.db")
    assert (twice.code, "name the target once" in twice.err) == (2, True)
