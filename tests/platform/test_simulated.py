"""outlive on macOS and on Windows, both simulated: what they lack is taken away in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlive.testing.patience import PATIENCE_S

TESTS = Path(__file__).parents[1]
RIG = TESTS / "rig" / "simulated"
LONG = bool(os.environ.get("OUTLIVE_LONG"))

pytestmark = [pytest.mark.heavy, pytest.mark.parametrize("name", ["macos", "windows"])]


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "rig.simulated", name, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, cwd=TESTS, env=environment, stdout=subprocess.PIPE, text=True)


def run(name: str, *arguments: object) -> list[str]:
    with start(name, *arguments) as process:
        try:
            output, _ = process.communicate(timeout=10 * PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, output
    return output.splitlines()


def scenario(name: str, command: str, folder: Path) -> list[str]:
    return run(name, RIG / "scenario.py", command, folder)


def test_every_module_can_be_imported(name: str, tmp_path: Path) -> None:
    assert scenario(name, "import", tmp_path) == [{"macos": "macOS", "windows": "Windows"}[name]]


def test_a_killed_run_is_resumed_at_once(name: str, tmp_path: Path) -> None:
    with start(name, RIG / "scenario.py", "work", tmp_path) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        finally:
            process.kill()
    assert scenario(name, "recover", tmp_path) == ["[('r', 'completed')] {'n': 2} 1"]
    assert (tmp_path / "first").read_text() == "x"  # the completed step was not repeated


def test_a_checkpoint_file_has_several_writers(name: str, tmp_path: Path) -> None:
    answers = [(model, "completed", f"answer of {model}") for model in "abc"]
    assert scenario(name, "checkpoint", tmp_path) == [str(answers), "{'n': 1}", "None"]


def test_stores_of_this_machine(name: str, tmp_path: Path) -> None:
    refusal = "file: needs what Windows does not have; use sqlite:///agent.db"
    *lines, last = scenario(name, "stores", tmp_path)
    assert lines == ["{'n': 1}"]
    assert last == "{'n': 2}" if name == "macos" else last.startswith(refusal)


def test_the_contract_in_memory_and_on_sqlite(name: str) -> None:
    """A part of it in the normal run: what touches locks, files and clocks."""
    names = "(Commit or lease or lock or entr or watch or reopen)"
    chosen = [] if LONG else ["-k", f"TestSQLite and not async and {names}"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:langsmith_plugin"]
    options = [
        "-q",
        "--noconftest",
        *plugins,
        "-c",
        os.devnull,
        f"--rootdir={TESTS}",
        "--import-mode=importlib",
    ]
    lines = run(name, "-m", "pytest", *options, *chosen, RIG / "contract.py")
    assert " passed" in lines[-1]
    assert "failed" not in lines[-1]
