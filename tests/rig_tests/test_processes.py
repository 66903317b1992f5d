"""`-n 4` runs every test once, in forks, and what happens to a fork is not lost."""

import os
import subprocess
import sys

import pytest

_PLUGIN = "from rig.processes import pytest_runtestloop, add_option as pytest_addoption\n"

_FIRST = """
import os, pytest

@pytest.fixture(scope="session")
def log(tmp_path_factory):
    with open("log", "a") as file:
        yield file
        file.write(f"closed by {os.getpid()}\\n")

@pytest.mark.parametrize("number", range(3))
def test_passes(number, log):
    print("captured")
    log.write(f"first {number} {os.getpid()}\\n")

def test_fails():
    print("the output of a failure")
    assert 1 == 2

def test_is_skipped():
    pytest.skip("no reason")
"""

_SECOND = """
from test_first import log

def test_passes_too(log):
    log.write("second\\n")
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "conftest.py").write_text(_PLUGIN)

    def run(*arguments, **modules):
        for name, text in modules.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            "--rootdir",
            tmp_path,
        ]
        folder = os.path.dirname(os.path.dirname(__file__))
        ended = subprocess.run(
            [*command, "-ra", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{folder}:{tmp_path}"},
            capture_output=True,
            text=True,
            check=False,
        )
        return ended.returncode, ended.stdout + ended.stderr

    return run


def test_every_test_runs_once_and_a_module_stays_in_one_process(run, tmp_path):
    code, output = run("-n", "2", first=_FIRST, second=_SECOND)
    assert code == 1
    assert "1 failed, 4 passed, 1 skipped" in output
    assert "assert 1 == 2" in output
    assert "the output of a failure" in output
    lines = (tmp_path / "log").read_text().splitlines()
    first = [line.split() for line in lines if line.startswith("first")]
    assert [number for _, number, _ in first] == ["0", "1", "2"]
    assert len({pid for *_, pid in first}) == 1
    assert lines.count("second") == 1
    assert f"closed by {first[0][-1]}" in lines  # what a session shares ends with its process


def test_a_process_that_is_killed_is_a_failure_of_its_test(run):
    killed = "import os\ndef test_dies(): os.kill(os.getpid(), 9)\ndef test_after(): pass\n"
    code, output = run("-n", "2", first=killed, second="def test(): pass")
    assert code != 0
    assert "ended with code -9 in or after test_first.py::test_dies" in output
    assert "were not run" in output


def test_the_first_failure_ends_all_processes_if_you_like(run):
    slow = "import time\nimport pytest\n@pytest.mark.parametrize('n', range(1000))\ndef test(n): time.sleep(0.1)\n"
    code, output = run("-n", "2", "-x", first="def test(): assert 0", second=slow)
    assert code == 1
    assert "stopping after 1 failures" in output
