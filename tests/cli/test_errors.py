"""What the command line says when something is in the way: one line, what fixes it, and the right exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys

import pytest

import outlive
from rig.program import environment
from rig.world import build


@pytest.fixture
def here(program):
    build(f"sqlite:///{program.folder}/agent.db")
    return program


def told(ended, code):
    """Return the one line that a call ended with."""
    assert (ended.code, ended.out) == (code, "")
    (line,) = ended.err.splitlines()
    return line.removeprefix("outlive: ")


def test_looking_at_an_empty_file_makes_no_store_of_it(program):
    (program.folder / "empty.db").touch()
    for command in (
        ["ls"],
        ["show", "t"],
        ["verify"],
        ["stats"],
        ["rm", "t", "--yes"],
        ["copy", "file:copy"],
    ):
        assert "no store at" in told(program(*command, "--store", "sqlite:///empty.db"), 3)
    assert program("doctor", "--store", "sqlite:///empty.db").code == 1
    assert os.listdir(program.folder) == ["empty.db"]
    assert os.path.getsize(program.folder / "empty.db") == 0


def test_a_path_means_a_sqlite_file_and_a_folder_is_refused_with_its_url(program):
    (program.folder / "folder").mkdir()
    build(f"sqlite:///{program.folder}/some.db")
    assert len(program("ls", "-q", "--store", "some.db").out.splitlines()) == 5
    assert "no store at" in told(program("ls", "--store", "a.db"), 3)
    assert told(program("ls", "--store", "folder"), 2).endswith("write file:folder")
    assert "'typo:x' has no scheme" in told(program("ls", "--store", "typo:x"), 2)


def test_a_length_of_time_of_nothing_is_told_by_its_option(here):
    assert told(here("ls", "--timeout", "0", "-q"), 2) == "--timeout takes a duration above 0, not '0'"
    assert told(here("sweep", "--ttl", "0d", "-q"), 2).startswith("--ttl takes a duration above 0")


def test_what_is_missing_in_a_call_stands_on_one_line(program):
    assert "Choose from: bash, fish, zsh" in told(program("completion"), 2)


def test_with_yes_an_id_is_written_out_and_the_error_says_so(here):
    assert "with --yes the id must be complete" in told(here("rm", "trip-4", "--yes", "-q"), 2)
    assert "with --yes the id" not in told(here("rm", "nothing", "-q"), 2)


def test_doctor_mends_what_is_wrong_and_nothing_else(program):
    items = json.loads(program("doctor", "--json", "--store", "sqlite:///typo.db").out)["items"]
    found = next(item for item in items if item["check"] == "store")
    assert found["fix"] == "check the URL, or save something first"
    assert found["fix"] not in found["message"]


def test_a_file_that_is_no_database_or_is_damaged_says_what_to_do(here):
    (here.folder / "text.db").write_text("hello " * 1000)
    assert told(here("ls", "--store", "sqlite:///text.db"), 3).endswith(
        "this file is not a store; check the path"
    )
    path = here.folder / "agent.db"
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 64] = bytes(64)
    path.write_bytes(data)
    for command in (["ls"], ["show", "trip-42"], ["runs"], ["rm", "trip-42", "--yes"]):
        assert "restore the file from a backup" in told(here(*command, "--store", "sqlite:///agent.db"), 3)
    found = here("doctor", "--store", "sqlite:///agent.db", "--json")
    assert {item["fix"] for item in found.items if item["level"] == "problem"} == {
        "restore the file from a backup, or save what is left with the .recover command of sqlite3"
    }


def test_a_file_that_others_hold_is_waited_for_as_long_as_one_says(here):
    with contextlib.closing(sqlite3.connect(here.folder / "agent.db", isolation_level=None)) as db, db:
        db.execute("begin immediate")
        store = ("--store", "sqlite:///agent.db")
        assert here("ls", "-q", *store).code == 0
        for command in (
            ["rm", "trip-42", "--yes"],
            ["fork", "trip-42", "new"],
            ["copy-thread", "trip-42", "new"],
        ):
            busy = told(here(*command, *store, "--timeout", "0.2s"), 3)
        db.execute("rollback")
    db.close()
    assert busy.endswith("try again, or wait longer: --timeout 5min")
    assert told(here("ls", *store, "--timeout", "soon"), 2).startswith("--timeout takes a duration")
    twice = here("ls", "--store", "sqlite:///agent.db?timeout_s=1", "--timeout", "1s")
    assert "is in the URL and beside it" in told(twice, 2)


def test_a_server_that_is_not_there_is_given_up_after_the_timeout(program):
    for url in ("postgresql://localhost:1/none", "redis://localhost:1"):
        assert "within 0.3 s" in told(program("ls", "--store", url, "--timeout", "0.3s"), 3)


def test_waiting_for_a_server_is_told_and_ended_by_ctrl_c(program):
    url = "postgresql://me:secret@localhost:1/none"
    with program.on_terminal("ls", "--store", url, "--timeout", "60s", columns=200) as terminal:
        terminal.wait_for("Ctrl-C ends it")
        assert terminal.press("\x03") == 130
    (said, *rest) = terminal.text.replace("^C", "").splitlines()
    assert said == (
        "outlive: still trying to open postgresql://localhost:1/none; --timeout limits the wait, Ctrl-C ends it"
    )
    assert not any(rest)


def test_a_call_without_a_command_shows_the_help(program):
    ended = program()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == program("--help").out


def test_an_id_that_looks_like_an_option_says_where_it_goes(here):
    assert "put -- before an id that begins with -" in here("show", "-dash").err
    assert "put --" not in here("show", "--dash").err
    assert here("show", "--", "--json").err.splitlines()[-1].startswith("outlive: no thread '--json'")


def test_notes_come_behind_what_they_are_about(here):
    rows = here("ls", "--limit", 1, "--store", "sqlite:///agent.db", is_merged=True).out.splitlines()
    assert rows[-1] == "outlive: more: --after -dash"
    assert here("ls", "--limit", 1, "--after", "-dash", "-q").out == "odd\\x1b[2J\\nid\n"


def test_a_reader_that_goes_is_told_from_a_finding(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        store.thread("t").save({"lines": [f"line {number}" for number in range(50_000)]})
    command = f"{sys.executable} -m outlive show t --full --path lines | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=program.folder, env=environment(), capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("[\n", 141)
    assert done.stderr == "outlive: using sqlite:///agent.db, found in this folder\n"


def test_a_message_of_several_lines_becomes_one(here):
    (here.folder / "agents.py").write_text("def go_on(run):\n    return run.load()\n")
    with outlive.open(f"sqlite:///{here.folder}/agent.db") as store:
        store.run("plain", run_id="r-1").start().fail("broken")
    assert here("retry", "r-1", "--handlers", "agents:go_on").code == 0
    for command in (
        ["import", "agents.py"],
        ["show", "trip-42", "--path", "a\nb"],
        ["ls", "--after", "x\ny", "--sort", "age"],
    ):
        assert len(here(*command, "--store", "sqlite:///agent.db").err.splitlines()) == 1


@pytest.mark.parametrize(
    "code", ["def f(:", "1 / 0", "import sys; sys.exit(5)", "import nothing_of_this_name"]
)
def test_a_module_of_handlers_that_cannot_be_imported_is_told(program, code):
    (program.folder / "agents.py").write_text(code)
    assert told(program("recover", "--handlers", "agents:x"), 2).startswith(
        "cannot import the module 'agents': "
    )


def test_streams_that_are_closed_or_full_are_no_traceback(here):
    def shell(call):
        command = f"{sys.executable} -m outlive --store sqlite:///agent.db {call}"
        done = subprocess.run(
            ["bash", "-c", command], cwd=here.folder, env=environment(), capture_output=True, text=True
        )
        return done.returncode, done.stdout, done.stderr

    assert shell("ls >&-") == (0, "", "")
    assert shell("show nope 2>&-") == (2, "", "")
    assert shell("ls > /dev/full") == (
        3,
        "",
        "outlive: cannot write the output: No space left on device\n",
    )
    assert shell("rm trip-7 <&-")[2].endswith("add --yes to confirm\n")


def test_an_id_that_is_not_there_is_named_as_it_can_be_given_again(here):
    assert (
        here("show", "a\x1bb").err.splitlines()[-1]
        == "outlive: no thread 'a\\x1bb'; outlive ls lists all threads"
    )


def test_places_where_nothing_can_be_written_are_told(here):
    store = ("--store", "sqlite:///agent.db")
    (here.folder / "file").touch()
    assert told(here("demo", "file"), 2) == "cannot create 'file': File exists; name another folder"
    assert told(here("export", "trip-42", ".", *store), 2) == "'.' is a folder; name a file in it"
    assert told(here("export", "trip-42", "none/x", *store), 2).startswith("cannot write 'none/x': ")
    assert told(here("import", ".", *store), 2).startswith("cannot read '.': ")
