"""The command line at a terminal: width, colours, questions, Ctrl-C, and text that would like to steer it."""

from __future__ import annotations

import re
import unicodedata

import pytest

import outlive
from world import ESCAPES, build

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
WIDE = "旅行" * 20


SLOW = """
import asyncio, time

def wait(run):
    print('at work', flush=True)
    time.sleep(60)

async def wait_async(run):
    print('at work', flush=True)
    await asyncio.sleep(60)
"""


@pytest.fixture
def here(program):
    build(f"sqlite:///{program.folder}/agent.db")
    return program


def run(program, *arguments, **options):
    with program.on_terminal(*arguments, **options) as terminal:
        assert terminal.end() == 0, terminal.seen
        return terminal


def columns_of(line):
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in line)


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_table_is_as_wide_as_the_terminal_at_most(here, columns):
    with outlive.open(f"sqlite:///{here.folder}/agent.db") as store:
        store.thread(WIDE).update({"title": "a rather long title"})
        store.thread(WIDE).save({"n": 1}, step=1)
    text = run(here, "ls", columns=columns).text
    assert max(columns_of(line) for line in text.splitlines() if not line.startswith("outlive:")) <= columns
    for part in ("THREAD", "just now", "@4"):
        assert part in text
    assert ("…" in text) == (columns < 200)


def test_what_is_short_stays_whole_in_a_narrow_terminal(here):
    assert "HEAD" in run(here, "ls", columns=40).text
    assert re.search(r"types +\d+ B +\d\.\d×", run(here, "stats", columns=40).text)
    with here.on_terminal("doctor", columns=50) as terminal:
        assert terminal.end() == 0
    words = terminal.text.split()
    assert {"ormsgpack", "cryptography", "survives", "nobody"} <= set(words)
    assert max(map(columns_of, terminal.text.splitlines())) <= 50 or "outlive:" in terminal.text


def test_colours_are_for_terminals_that_want_them(here):
    with outlive.open(f"sqlite:///{here.folder}/agent.db") as store:
        store.run("t", run_id="r-1").start().fail("broken")
    for command in (("runs",), ("diff", "trip-42")):
        assert COLOURS.search(run(here, *command).seen)
        assert "\x1b" not in run(here, *command, NO_COLOR="1").seen.replace("\x1b[1m", "").replace(
            "\x1b[0m", ""
        )
        assert "\x1b" not in run(here, *command, TERM="dumb").seen
        assert "\x1b" not in here(*command).out


def test_text_of_a_state_does_not_steer_the_terminal(here):
    with outlive.open(f"sqlite:///{here.folder}/agent.db") as store:
        store.thread("[red]x[/red]").update({"title": ESCAPES})
        store.thread("t").save({"text": "a"})
        store.thread("t").save({"text": ESCAPES, ESCAPES: 1})
    for command in (
        ("ls",),
        ("show", "odd"),
        ("diff", "t"),
        ("show", "t", "--path", "text"),
        ("history", "odd"),
    ):
        seen = COLOURS.sub("", run(here, *command).seen)
        assert not [
            char for char in seen if char not in "\r\n" and unicodedata.category(char) in ("Cc", "Cs")
        ], command
        assert "\u202e" not in seen
    assert "[red]x[/red]" in run(here, "ls").text


def test_ids_are_shortened_to_what_tells_them_apart(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        saved = [store.thread("t").save(number) for number in range(3)]
    rows = [row.split()[-1] for row in run(program, "history", "t").text.splitlines()[2:]]
    assert all(full.id.startswith(short) for full, short in zip(reversed(saved), rows, strict=True))
    assert len(rows[0]) < 36
    assert program("history", "t").out.splitlines()[1].split()[-1] == saved[-1].id
    for full, short in zip(reversed(saved), rows, strict=True):
        assert program("show", "t", short, "--json").items[0]["id"] == full.id
    for command in (
        ["heads", "t"],
        ["history", "t", "--limit", 1],
    ):  # others, which are not shown, begin alike
        short = run(program, *command).text.splitlines()[2].split()[-1]
        assert program("show", "t", short, "--json").items[0]["id"] == saved[-1].id


def test_a_destructive_command_says_what_it_will_do_and_asks(here):
    with here.on_terminal("rm", "trip-4") as terminal:  # a prefix will do: the whole id is shown before
        terminal.wait_for("Go on? [y/N]").type("n\n")
        assert terminal.end() == 1
    assert "This will delete thread trip-42 with its 5 checkpoints" in terminal.text
    assert terminal.text.endswith("Nothing was done.\n")
    assert "trip-42" in here("ls", "-q").out
    with here.on_terminal("rm", "trip-4") as terminal:
        terminal.wait_for("Go on? [y/N]").type("y\n")
        assert terminal.end() == 0
    assert "deleted thread trip-42: 5 checkpoints" in terminal.text
    assert "trip-42" not in here("ls", "-q").out


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_at_a_question_does_nothing(here, key):
    with here.on_terminal("prune", "trip-42", "--keep-last", 1) as terminal:
        assert terminal.wait_for("Go on? [y/N]: ").press(key) == 130
    assert "Traceback" not in terminal.seen
    assert len(here("history", "trip-42", "-q").out.split()) == 4


@pytest.mark.parametrize("name", ["wait", "wait_async"])
def test_ctrl_c_in_a_handler_leaves_the_run_to_be_recovered(program, name):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        store.run("t", run_id="r-1").start().interrupt()
    (program.folder / "slow.py").write_text(SLOW)
    with program.on_terminal("recover", "--handlers", f"slow:{name}") as terminal:
        assert terminal.wait_for("at work").press("\x03") == 130
    assert "Traceback" not in terminal.seen
    (item,) = program("runs", "--json").items
    assert (item["standing"], item["attempt"]) == ("interrupted", 2)


def test_progress_is_shown_on_a_terminal_only(here):
    assert "verifying" in run(here, "verify").seen
    assert "copying" in run(here, "backup", "file:copy").seen
    assert "verifying" not in run(here, "verify", "--quiet").seen
    assert here("verify", "-q").err == ""
