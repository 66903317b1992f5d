"""--watch: at a terminal a list is drawn over itself, in a pipe what changes is printed; Ctrl-C ends it cleanly."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S, eventually
from rig.program import environment


@pytest.fixture
def store(program):
    with outlive.open(f"sqlite:///{program.folder}/agent.db") as store:
        yield store


@contextlib.contextmanager
def watching(program, *arguments, url="sqlite:///agent.db"):
    """Run the program with a pipe as its output; yields the process and the lines that it has printed."""
    command = [sys.executable, "-m", "outlive", *arguments, "--watch"]
    with subprocess.Popen(
        command,
        cwd=program.folder,
        env=environment(OUTLIVE_STORE=url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = []
        reader = threading.Thread(target=_collect, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            yield process, lines
        finally:
            if process.poll() is None:
                process.kill()
            reader.join(PATIENCE_S)


def _collect(stream, lines):
    for line in stream:
        lines.append(line.rstrip("\n"))


def ask(store, id, name="approve?"):
    with store.run(f"thread of {id}", run_id=id, agent="refunds") as run:
        run.ask(name, schema=bool)


def without_time(lines):
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines]


def test_in_a_pipe_every_change_is_a_line(program, store):
    ask(store, "r-1")
    with watching(program, "runs") as (process, lines):
        eventually(lambda: len(lines) == 1, "the run is not listed")
        assert re.match(r"\d\d:\d\d:\d\d \+ r-1  waiting  thread of r-1  refunds", lines[0])
        store.answer("r-1", "approve?", True)
        eventually(lambda: len(lines) == 2, "the change is not printed")
        assert without_time(lines)[1].startswith("~ r-1  released")
        store.cancel("r-1")
        eventually(lambda: len(lines) == 3, "the end is not printed")
        assert without_time(lines)[2].startswith("- r-1")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""
    assert len(lines) == 3


def test_questions_are_watched_as_json_lines(program, store):
    with watching(program, "questions", "--json") as (process, lines):
        ask(store, "r-1")
        eventually(lambda: len(lines) == 1, "the question is not printed")
        change = json.loads(lines[0])
        assert list(change) == ["format", "command", "change", "at", "item"]
        assert (change["command"], change["change"]) == ("questions", "added")
        assert (change["item"]["run"], change["item"]["name"]) == ("r-1", "approve?")
        store.answer("r-1", "approve?", True)
        eventually(lambda: len(lines) == 2, "the answer is not printed")
        assert json.loads(lines[1])["change"] == "removed"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_all_runs_and_questions_are_watched_unless_there_is_a_limit(program, store):
    ids = [f"r-{number:03}" for number in range(130)]
    for id in ids:
        store.submit(f"t-{id}", run_id=id, agent="planner")
    with watching(program, "runs", "-q") as (_, lines):
        eventually(lambda: lines == ids)
        store.submit("last", run_id="r-999", agent="planner")
        eventually(lambda: lines == [*ids, "r-999"])
    with watching(program, "runs", "--limit", "5") as (process, lines):
        eventually(lambda: len(lines) == 5)
        assert process.stderr.readline() == "outlive: more: --after r-004\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr.read() == ""
    listed = program("runs", "-q", OUTLIVE_STORE="sqlite:///agent.db").out.splitlines()
    assert listed == ids[:100]


def test_quiet_prints_what_is_new_as_arguments_of_answer(program, store):
    with watching(program, "questions", "-q") as (_, lines):
        ask(store, "r 1")
        eventually(lambda: lines == ["'r 1' 'approve?'"])
        store.answer("r 1", "approve?", True)
        ask(store, "r-2")
        eventually(lambda: lines == ["'r 1' 'approve?'", "r-2 'approve?'"])


def test_threads_are_watched_on_a_server_too(program, postgres_store):
    with (
        outlive.open(postgres_store) as store,
        watching(program, "ls", "trip-", url=postgres_store) as (process, lines),
    ):
        store.thread("trip-1").save({"n": 1}, step=1)
        eventually(lambda: len(lines) == 1)
        store.thread("other").save(1)
        store.thread("trip-1").save({"n": 2}, step=2)
        eventually(lambda: len(lines) == 2)
        store.delete("trip-1")
        eventually(lambda: len(lines) == 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    signs = [line.split()[:3] for line in without_time(lines)]
    assert signs == [["+", "trip-1", "@1"], ["~", "trip-1", "@2"], ["-", "trip-1"]]


def test_what_only_time_changes_is_no_change(program, store):
    store.run("t", run_id="r-1", lease_s=600).start()
    with watching(program, "runs", "--json") as (_, lines):
        eventually(lambda: len(lines) == 1)
        ask(store, "r-2")  # seen by a later look than the first
        eventually(lambda: len(lines) == 2)
        assert [json.loads(line)["item"]["id"] for line in lines] == ["r-1", "r-2"]


def test_it_ends_when_nobody_reads_any_more(program, store):
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "outlive", "runs", "--watch"]
    with subprocess.Popen(
        command, cwd=program.folder, env=environment(), stdout=writing, stderr=subprocess.DEVNULL
    ) as process:
        os.close(writing)
        ask(store, "r-1")
        assert b"r-1" in os.read(reading, 1000)
        os.close(reading)
        assert process.wait(PATIENCE_S) == 141  # nothing more changes: the pipe itself tells


def test_at_a_terminal_the_list_is_drawn_over_itself(program, store):
    ask(store, "r-1")
    with program.on_terminal("runs", "--watch") as terminal:
        terminal.wait_for("Ctrl-C ends").wait_for("waits for 'approve?'")
        store.answer("r-1", "approve?", True)
        terminal.wait_for("released")
        assert terminal.press("\x03") == 0
    assert terminal.seen.count("\x1b[H") >= 2
    last = terminal.seen.split("\x1b[H")[-1]
    assert "waiting" not in last
    assert "Traceback" not in terminal.text


def test_a_long_list_does_not_scroll_the_terminal(program, store):
    for number in range(60):
        store.thread(f"t-{number:02}").save(number)
    with program.on_terminal("ls", "--watch") as terminal:  # 40 lines
        terminal.wait_for("more lines")
        assert terminal.press("\x03") == 0
    frame = terminal.seen.split("\x1b[H")[2]
    assert frame.count("\n") == 39
    assert "24 more lines" in frame


def test_a_terminal_that_cannot_draw_gets_the_changes(program, store):
    ask(store, "r-1")
    with program.on_terminal("runs", "--watch", TERM="dumb") as terminal:
        terminal.wait_for("+ r-1  waiting")
        assert terminal.press("\x03") == 0
    assert "\x1b" not in terminal.seen
