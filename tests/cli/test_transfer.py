"""The command line on what goes and what travels: sweeping, copies, and threads as JSON."""

from __future__ import annotations

import datetime as dt
import json
import os
import stat

import pytest

import outlive
from rig.world import ODD_ID, Plan, build, open_knowing


@pytest.fixture(params=["sqlite", "postgresql"])
def cli(request, program):
    """The program on a store of either kind, which OUTLIVE_STORE names."""
    url = f"sqlite:///{program.folder}/agent.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_store")
    build(url)

    def run(*arguments, **options):
        return program(*arguments, **{"OUTLIVE_STORE": url, **options})

    run.url, run.folder, run.program = url, program.folder, program
    return run


# Sweeping


def test_a_sweep_says_what_goes_asks_and_then_deletes_it(cli):
    planned = cli("sweep", "--keep-last", 2, "--dry-run")
    assert (planned.code, planned.err) == (0, "")
    first, heading, row = planned.out.splitlines()[:3]
    assert first.startswith("would delete 2 checkpoints (")
    assert heading.split() == ["REASON", "THREADS", "CHECKPOINTS", "SIZE"]
    assert row.split()[:4] == ["beyond", "--keep-last", "1", "2"]
    asked = cli("sweep", "--keep-last", 2)
    assert (asked.code, asked.out) == (2, "")
    assert asked.err.startswith("outlive: this would delete 2 checkpoints (")
    assert cli("history", "trip-42", "-q").out.split() == ["branch", "c3", "c2", "c1"]
    (item,) = cli("sweep", "--keep-last", 2, "--yes", "--json").items
    assert (item["checkpoints"], item["keep_last"]["checkpoints"], item["dry_run"]) == (2, 2, False)
    assert cli("history", "trip-42", "-q").out.split() == ["branch", "c3"]
    assert cli("sweep", "--keep-last", 2).out == "nothing to delete in 5 threads\n"


def test_threads_that_nobody_uses_go_as_a_whole_but_for_open_questions(cli):
    assert cli("sweep", "--ttl", "1h", "--max-age", "30d").out == "nothing to delete in 5 threads\n"
    swept = cli("sweep", "--ttl", "0.001s", "--yes")
    assert ", including 4 whole threads" in swept.out
    assert "kept although a rule applies: 1 open interrupt" in swept.out
    assert cli("ls", "-q").out == "trip-7\n"


@pytest.mark.parametrize("arguments", [[], ["--ttl", "soon"], ["--max-age", "0"], ["--keep-last", "0"]])
def test_a_sweep_without_a_sound_rule_is_refused(program, arguments):
    build(f"sqlite:///{program.folder}/agent.db")
    ended = program("sweep", *arguments, "--yes")
    assert ended.code == 2
    assert len(program("ls", "-q").out.splitlines()) == 5


def test_a_person_may_say_no_to_a_sweep(program):
    build(f"sqlite:///{program.folder}/agent.db")
    with program.on_terminal("sweep", "--keep-last", 1) as terminal:
        terminal.wait_for("This will delete 3 checkpoints").wait_for("Continue?").type("n\n")
        assert terminal.end() == 1
    assert len(program("history", "trip-42", "-q").out.split()) == 4


# Copies


def test_some_threads_are_copied_by_name(cli):
    target = f"sqlite:///{cli.folder}/some.db"
    said = cli("copy", target, "--thread", "trip-4", "--threads", "typ", "--verify")
    assert said.out == f"copied 2 threads to {target}; the target has no damage\n"
    assert cli("ls", "--store", target, "-q").out.split() == ["trip-42", "types"]
    with open_knowing(target) as store:
        assert store.thread("trip-42").load("c3")["plan"] == Plan("Lisbon", 3)
    assert cli("copy", target, "--thread", "nope").code == 2


def test_a_store_is_not_copied_into_itself(cli):
    others = ["sqlite:///agent.db", "sqlite:agent.db"] if cli.url.startswith("sqlite") else []
    for target in (cli.url, *others):
        ended = cli("copy", target)
        assert (ended.code, ended.err) == (
            2,
            "outlive: source and target are the same store; name another target\n",
        )


def test_threads_that_changed_since_a_moment_are_copied(cli):
    target = f"sqlite:///{cli.folder}/since.db"
    before = dt.datetime.now(dt.UTC).isoformat()
    with outlive.open(cli.url) as store:
        store.thread("new").save({"n": 1})
    assert cli("copy", target, "--since", before, "--json").items[0]["threads"] == 1
    assert cli("ls", "--store", target, "-q").out == "new\n"
    assert cli("copy", target, "--since", "2020-01-01", "--json").items[0]["threads"] == 6
    assert cli("copy", target, "--since", "yesterday").code == 2


# Threads as JSON


def test_a_thread_goes_through_a_file_and_is_the_same(cli):
    file = cli.folder / "trip.json"
    assert cli("export", "trip-4", file).out == f"exported thread trip-42 to {file}\n"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    with outlive.open(cli.url) as store:
        assert file.read_text() == store.thread("trip-42").export() + "\n"
    new = f"sqlite:///{cli.folder}/new.db"
    made = cli("import", file, "--store", new)
    assert made.out == f"imported thread trip-42 with 5 checkpoints into {new}\n"
    assert cli("export", "trip-42", "--store", new).out == file.read_text()
    assert cli("import", file).err.startswith("outlive: thread 'trip-42' already has checkpoints;")
    assert cli("import", file, "--as", "again", "--json").items == [{"thread": "again", "checkpoints": 5}]
    assert not [name for name in os.listdir(cli.folder) if name.endswith(".part")]


def test_an_export_is_piped_into_an_import(cli):
    text = cli("export", "types").out
    assert cli("import", "-", "--as", "piped", stdin=text).code == 0
    assert (
        cli("show", "piped", "--json").items[0]["state"] == cli("show", "types", "--json").items[0]["state"]
    )
    assert cli("export", "types", "--json").items == [json.loads(text)]


def test_a_file_is_not_overwritten_without_being_asked(cli):
    file = cli.folder / "trip.json"
    file.write_text("mine")
    refused = cli("export", "trip-42", file)
    assert (refused.code, file.read_text()) == (2, "mine")
    assert f"this would overwrite {file}" in refused.err
    assert cli("export", "trip-42", file, "--yes").code == 0
    assert json.loads(file.read_text())["thread"] == "trip-42"


@pytest.mark.parametrize("text", ["", "{}", "nonsense"])
def test_what_is_no_export_is_refused_and_makes_no_thread(program, text):
    build(f"sqlite:///{program.folder}/agent.db")
    ended = program("import", "-", stdin=text)
    assert (ended.code, "this is not an exported thread" in ended.err) == (2, True)
    assert program("import", "nope.json").err.endswith("cannot read 'nope.json': No such file or directory\n")
    assert len(program("ls", "-q").out.splitlines()) == 5


def test_an_export_does_not_steer_the_terminal(program):
    build(f"sqlite:///{program.folder}/agent.db")
    with program.on_terminal("export", "odd") as terminal:
        assert terminal.end() == 0
    assert "\x1b[31m" not in terminal.seen
    assert "\u202e" not in terminal.seen
    assert json.loads(terminal.text.partition("\n")[2])["thread"] == ODD_ID
