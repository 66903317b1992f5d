"""The command `outlive import-langgraph`."""

from __future__ import annotations

import json

import pytest

import outlive
from langgraph_moving import graphs
from langgraph_moving.comparing import assert_same, saver_on, sqlite_saver
from langgraph_moving.graphs import THREADS, Ticket
from outlive.cli.langgraph import import_langgraph

TYPE = f"{Ticket.__module__}.Ticket"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A function that runs the command beside a database old.db; returns (exit code, output, what it said beside)."""
    monkeypatch.chdir(tmp_path)
    with sqlite_saver("old.db") as saver:
        graphs.fill(saver, turns=1)

    def start(*arguments):
        code = import_langgraph.main(list(arguments), standalone_mode=False)
        return code, *capsys.readouterr()

    return start


def test_it_moves_a_database(run):
    code, out, said = run("sqlite:///old.db", "sqlite:///new.db", "--type", TYPE)
    assert (code, out.split(",")[0]) == (0, "moved 6 threads")
    assert "outlive: " in said.splitlines()[-1]
    assert said.endswith(" checkpoints\n")
    with sqlite_saver("old.db") as source, outlive.open("sqlite:///new.db") as store:
        assert_same(source, saver_on(store), THREADS)


def test_it_says_what_it_left_out(run):
    code, out, _ = run("sqlite:///old.db", "sqlite:///new.db", "--skip")
    assert code == 1
    assert out.splitlines()[-2].startswith("moved 5 threads")
    assert out.splitlines()[-1] == f"name the classes: --type {TYPE}"
    code, out, said = run("sqlite:///old.db", "--store", "sqlite:///new.db", "--dry-run", "--json")
    item = json.loads(out)["items"][0]
    assert (code, said) == (1, "")
    assert (item["unknown_types"], item["problems"][0]["thread"], item["ahead"]) == ([TYPE], "ticket", 0)


def test_a_mistake_leaves_no_store_behind(run, tmp_path):
    with pytest.raises(outlive.StoreUnavailable, match="there is no file"):
        run("sqlite:///older.db", "sqlite:///new.db")
    with pytest.raises(outlive.BadArgument, match="there is no such module"):
        run("sqlite:///old.db", "sqlite:///new.db", "--type", "nowhere.Ticket")
    with pytest.raises(outlive.BadArgument, match="name the target once"):
        run("sqlite:///old.db", "sqlite:///new.db", "--store", "sqlite:///new.db")
    assert run("sqlite:///old.db", "sqlite:///new.db", "--dry-run", "--thread", "chat")[0] == 0
    assert not (tmp_path / "new.db").exists()
