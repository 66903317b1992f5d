"""The examples do what they say, and leave no process running."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import outlive
from outlive.testing.patience import eventually

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "examples" / "kill_and_resume.py"


APPROVAL = PROJECT / "examples" / "approval.py"


def run(*arguments, script=DEMO, **options):
    """Run the demo in a session of its own, so that whatever it leaves behind can be found."""
    command = [sys.executable, str(script), *map(str, arguments)]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=error, **options)
        with process:
            try:
                eventually(lambda: _has_ended(process.pid), "the demo does not end")
            finally:
                leftovers = _others_in_session(process.pid)
                os.killpg(process.pid, signal.SIGKILL)  # ours, as long as the demo is not waited for
        output.seek(0)
        error.seek(0)
        assert not leftovers, "the demo left a process behind"
        return process.returncode, output.read().decode(), error.read().decode()


def _has_ended(pid):
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)


def _others_in_session(session):
    """Return the processes of a session that have not ended, but for its leader."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, leader, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if leader == str(session) != stat.parent.name and state not in "ZX":
                found.append(stat.parent.name)
    return found


@pytest.fixture(scope="module")
def output():
    code, output, error = run()
    assert (code, error) == (0, "")
    return output


def test_the_second_process_resumes_where_the_first_was_killed(output):
    first, second = output.split("another process recovers it at once", 1)
    assert re.findall(r": ([a-z ]+): (killed|saved)", first) == [
        ("search ferries", "saved"), ("read timetable", "saved"), ("compare fares", "killed"),
    ]  # fmt: skip
    second = second.split("the same agent in memory")[0]
    assert re.findall(r": ([a-z ]+): (was done|saved)", second) == [
        ("search ferries", "was done"), ("read timetable", "was done"), ("compare fares", "saved"), ("book the ferry", "saved"),
    ]  # fmt: skip
    assert "5 tool calls for 4 steps" in second
    assert "the states are equal" in output


def test_the_demo_shows_history_diff_fork_and_cost(output):
    rows = re.findall(r"^ +(\d+) +(\d+)  (\w+) +([\d,]+) +([\d,]+)$", output, re.MULTILINE)
    assert [(int(seq), int(step)) for seq, step, *_ in rows] == [(n + 1, n) for n in range(4, -1, -1)]
    assert [source for _, _, source, *_ in rows] == ["final", *["loop"] * 3, "input"]
    assert "  + notes['compare fares']: 'done'" in output
    assert "fork of step 2 as thread 'trip-by-night'" in output
    assert "verified every byte of 7 checkpoints in 2 threads" in output
    whole, kept = (
        int(re.search(rf"{line} +([\d,]+) bytes", output)[1].replace(",", ""))
        for line in ("uncompressed", "kept in the store")
    )
    assert kept * 5 < whole


def test_the_output_fits_a_terminal_and_is_the_same_every_time(output):
    assert max(map(len, output.splitlines())) <= 80
    assert [shape(line) for line in run()[1].splitlines()] == [shape(line) for line in output.splitlines()]


def shape(line):
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,]*", "9", line)).strip()


def test_a_folder_keeps_the_store_and_is_not_used_twice(tmp_path):
    folder = tmp_path / "kept"
    assert run(folder)[0] == 0
    with outlive.open(f"sqlite:///{folder / 'agent.db'}") as store:
        assert [info.id for info in store.threads()] == ["trip", "trip-by-night"]
        assert list(store.thread("trip").load()["notes"]) == [
            "search ferries",
            "read timetable",
            "compare fares",
            "book the ferry",
        ]
    code, output, error = run(folder)
    assert (code, output) == (1, "")
    assert "is not empty" in error


def test_a_demo_in_which_something_is_off_says_so_and_fails(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("kill_and_resume", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    start_process = demo.start_process

    def spare(*arguments, **options):  # SIGCONT does nothing, so nobody is killed
        return start_process(*(argument.replace("SIGKILL", "SIGCONT") for argument in arguments), **options)

    monkeypatch.setattr(demo, "start_process", spare)
    with pytest.raises(SystemExit, match="the first process ended with 0, not by SIGKILL"):
        demo.demo(tmp_path)


def test_a_stopped_process_is_refused_when_it_wakes_up(output):
    stopped = output.split("a run is stopped")[1]
    assert re.findall(r": ([a-z ]+): was done before", stopped) == ["search ferries", "read timetable"]
    assert stopped.index("book the ferry: saved as step 4") < stopped.index("woken up, and refused")
    assert "run-2 is completed, attempt 2" in stopped


def test_an_approval_comes_from_another_process_and_the_run_continues():
    code, output, error = run(script=APPROVAL)
    assert (code, error) == (0, ""), error
    lines = [line.strip() for line in output.splitlines()]
    assert "the run is waiting" in lines
    assert "refused: answer.approved: must be boolean, not 'yes'" in lines
    assert "too late: answered by support desk" in lines
    assert lines[-1] == "the run is completed, attempt 1: paid 180 EUR"
