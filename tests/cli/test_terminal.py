"""The command line at a terminal: width, colours, questions, Ctrl-C, and text that would like to steer it."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest

import outlive
from rig.world import ESCAPES, build

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
        store.thread(WIDE).set_metadata({"title": "a rather long title"})
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
    assert {"ormsgpack", "cryptography", "survives", "monotonic"} <= set(words)
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
        store.thread("[red]x[/red]").set_metadata({"title": ESCAPES})
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


UNSEEN = ESCAPES.replace("\ud800", "") + "\x7f\u200b\u200d\u2066\u2069\ufeff\xad\u2060\u180e\ufe0f\U000e0041"
SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[mKAhl]")  # ours: colours, and of a bar that moves


def test_no_command_passes_on_what_a_terminal_obeys_or_nobody_sees(program):
    """Ids, states, metadata, errors, questions and JSON; also of commands that fail."""
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        thread = store.thread(f"t{UNSEEN}")
        for n in range(2):
            thread.save(
                {"text": UNSEEN, UNSEEN: n}, id=f"i{n}{UNSEEN}", metadata={UNSEEN: UNSEEN}, source="update"
            )
        thread.write(f"task{UNSEEN}", [(f"c{UNSEEN}", UNSEEN)])
        thread.set_metadata({"title": UNSEEN})
        store.run("u", run_id=f"r{UNSEEN}", agent=UNSEEN, prompt=UNSEEN).start().fail(UNSEEN)
        store.run("v", run_id=f"dead{UNSEEN}", agent=UNSEEN).start().release()
        with store.run(f"w{UNSEEN}", run_id=f"asks{UNSEEN}", agent=UNSEEN) as asking:
            choices = {"enum": [UNSEEN, f"b{UNSEEN}"]}
            name = UNSEEN.replace("\n", "")
            asking.ask_all({name: outlive.Question(UNSEEN, schema=choices), "other": UNSEEN})
    wrong = f"nobody{UNSEEN}"
    for command in (
        ["ls"], ["ls", "-q"], ["ls", "--json"], ["stats"], ["show", "t"], ["show", "t", "--json"], ["show", "t", "--path", "text"],
        ["history", "t"], ["history", "t", "-q"], ["tips", "t"], ["tips", "t", "-q"], ["writes", "t"], ["diff", "t"], ["export", "t"],
        ["export", "t", "-"], ["export", "t", "--json"], ["runs", "--all"], ["runs", "--all", "-q"], ["runs", "show", "r"], ["runs", "show", "r", "--json"],
        ["questions"], ["questions", "-q"], ["questions", "--json"], ["runs", "show", "asks"], ["answer", "asks", name, "no"],
        ["answer", "asks", f"x{UNSEEN}", "1"], ["answer", "asks", name, UNSEEN, "--by", UNSEEN], ["answer", "asks", name, UNSEEN],
        ["questions", "--status", "all"], ["submit", f"s{UNSEEN}", "--agent", UNSEEN, "--run-id", f"s{UNSEEN}", "--prompt", UNSEEN],
        ["submit", f"s{UNSEEN}", "--run-id", f"s{UNSEEN}", "--json"], ["workers"], ["worker", "--handlers", f"nowhere{UNSEEN}:X"],
        ["recover", "--dry-run"], ["verify"], ["fork", "t", f"fork{UNSEEN}"], ["copy-thread", "t", f"copy{UNSEEN}"],
        ["export", "t", f"file{UNSEEN}"], ["rm", "copy", "--yes"], ["cancel", "dead", "--yes"], ["show", wrong], ["runs", "show", wrong],
        [wrong], ["ls", f"--{wrong}"], ["ls", "--store", f"sqlite:///{wrong}.db"], ["show", wrong, "--json"],
    ):  # fmt: skip
        with program.on_terminal(*command, columns=200) as terminal:
            terminal.end()
        seen = SEQUENCES.sub("", terminal.seen)
        assert seen.strip(), command
        found = {
            hex(ord(char))
            for char in seen
            if char not in "\r\n" and (char in UNSEEN and not char.isprintable())
        }
        assert not found | {hex(ord(char)) for char in seen if char == "\ufe0f"}, (command, found)
    with program.on_terminal("rm", "fork") as terminal:
        terminal.wait_for("Continue?").type("n\n")
        assert terminal.end() == 1
    assert "fork\\x1b[31mred" in terminal.text
    assert not {"\u202e", "\u200b"} & {*terminal.seen}
    assert program("show", "t\\x1b[31mred", "--json").items[0]["thread"] == thread.id, (
        "what is shown is found"
    )
    exported = json.loads(program("export", "t").out)
    assert exported["thread"] == thread.id
    assert exported["checkpoints"], "what is piped is the JSON of it all"


def test_export_writes_to_no_device(here):
    """To put a file in its place would replace it."""
    assert "is not a regular file" in here("export", "trip-42", "/dev/stdout", "--yes").err
    assert json.loads(here("export", "trip-42", "-").out)
    assert not (here.folder / "-").exists()


def test_columns_are_left_out_before_an_id_is_cut(program):
    """At 80 columns an id of 36 characters is whole, whatever else there is to say."""
    ids = [f"{number:08}-0000-4000-8000-{number:012}" for number in range(3)]
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        for id in ids:
            store.thread(id).set_metadata(
                {"title": "a long title of a thread", "user": "somebody with a name"}
            )
            store.thread(id).save({"n": 1, "text": "x" * 2000}, step=1)
        runs = [store.run(id, run_id=f"run-{id}", agent="assistant").start() for id in ids]
        for run_ in runs:
            run_.fail("broken")
    text = run(program, "ls", columns=80).text
    assert all(id in text for id in ids)
    assert "CHECKPOINTS" not in text
    assert "CHECKPOINTS" in run(program, "ls", columns=140).text
    text = run(program, "runs", "--all", columns=100).text
    assert all(f"run-{id}" in text for id in ids)
    assert all(id in run(program, "stats", columns=80).text for id in ids)
    narrow = run(program, "ls", columns=30).text
    assert "…" in narrow
    assert (
        max(map(columns_of, [line for line in narrow.splitlines() if not line.startswith("outlive:")])) <= 30
    )


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
        ["tips", "t"],
        ["history", "t", "--limit", 1],
    ):  # others, which are not shown, begin alike
        short = run(program, *command).text.splitlines()[2].split()[-1]
        assert program("show", "t", short, "--json").items[0]["id"] == saved[-1].id


def test_a_destructive_command_says_what_it_will_do_and_asks(here):
    with here.on_terminal("rm", "trip-4") as terminal:  # a prefix will do: the whole id is shown before
        terminal.wait_for("Continue? [y/N]").type("n\n")
        assert terminal.end() == 1
    assert "This will delete thread trip-42 with its 5 checkpoints" in terminal.text
    assert terminal.text.endswith("Nothing was changed.\n")
    assert "trip-42" in here("ls", "-q").out
    with here.on_terminal("rm", "trip-4") as terminal:
        terminal.wait_for("Continue? [y/N]").type("y\n")
        assert terminal.end() == 0
    assert "deleted thread trip-42: 5 checkpoints" in terminal.text
    assert "trip-42" not in here("ls", "-q").out


@pytest.mark.parametrize("key", ["\x03", "\x04"])
def test_ctrl_c_at_a_question_does_nothing(here, key):
    with here.on_terminal("prune", "trip-42", "--keep-last", 1) as terminal:
        assert terminal.wait_for("Continue? [y/N]: ").press(key) == 130
    assert "Traceback" not in terminal.seen
    assert len(here("history", "trip-42", "-q").out.split()) == 4


@pytest.mark.parametrize("name", ["wait", "wait_async"])
def test_ctrl_c_in_a_handler_leaves_the_run_to_be_recovered(program, name):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        store.run("t", run_id="r-1").start().release()
    (program.folder / "slow.py").write_text(SLOW)
    with program.on_terminal("recover", "--handlers", f"slow:{name}") as terminal:
        assert terminal.wait_for("at work").press("\x03") == 130
    assert "Traceback" not in terminal.seen
    (item,) = program("runs", "--json").items
    assert (item["standing"], item["attempt"]) == ("released", 2)


def test_progress_is_shown_on_a_terminal_only(here):
    assert "verifying" in run(here, "verify").seen
    assert "copying" in run(here, "copy", "file:copy").seen
    assert "verifying" not in run(here, "verify", "--quiet").seen
    assert here("verify", "-q").err == ""
