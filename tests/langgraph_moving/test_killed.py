"""A mover that is killed leaves whole threads and nothing else; repeated, it brings the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlive
from conftest import LONG
from langgraph_moving import graphs
from langgraph_moving.comparing import assert_same, saver_on, sqlite_saver
from langgraph_moving.graphs import THREADS, Ticket
from outlive.adapters.langgraph.moving import import_langgraph

SOURCE = str(Path(outlive.__file__).resolve().parent.parent)
TESTS = str(Path(__file__).resolve().parent.parent)


def start(*arguments):
    path = os.pathsep.join((SOURCE, TESTS))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "error::RuntimeWarning"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "old.db"
    with sqlite_saver(path) as saver:
        graphs.fill(saver)
    return path


def check_whole(source, store):
    """Make sure that the threads of a store are all there, or not at all; return them."""
    threads = [info.id for info in store.threads()]
    assert_same(source, saver_on(store), threads)
    assert store.verify().ok
    return threads


@pytest.mark.parametrize("backend", ["sqlite", "file", "postgresql", "redis"])
def test_killed_in_the_middle_it_leaves_whole_threads(backend, old, tmp_path, url_for):
    url, arrived = url_for(backend, tmp_path), [[]]
    with sqlite_saver(old) as source:
        # asked has 2 checkpoints, chat a dozen: in the middle of it, at its end before it is stored, and later
        for last in range(1, 40) if LONG else (9, 25):
            ended = start("langgraph_moving.killed", f"sqlite:///{old}", url, str(last))
            assert ended.returncode in (-signal.SIGKILL, 0), ended.stderr
            with outlive.open(url) as store:
                arrived.append(check_whole(source, store))
        assert arrived == sorted(arrived, key=len)
        assert arrived[1] == ["asked"] or LONG
        with outlive.open(url) as store:
            import_langgraph(f"sqlite:///{old}", store, types=[Ticket])
            assert check_whole(source, store) == list(THREADS)
            assert import_langgraph(f"sqlite:///{old}", store, types=[Ticket]).checkpoints == 0


# The command without a command line ------------------------------------------------------------------------

MODULE = "outlive.adapters.langgraph.moving"
TYPE = f"{Ticket.__module__}.Ticket"


def test_it_can_be_started_as_a_module(old, tmp_path):
    places = f"sqlite:///{old}", f"sqlite:///{tmp_path}/new.db"
    stopped = start(MODULE, *places)
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert f"--type {TYPE}" in stopped.stderr
    looked = start(MODULE, *places, "--dry-run")
    assert looked.returncode == 1
    assert "would move 5 threads" in looked.stdout
    done = start(MODULE, *places, "--type", TYPE)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "moved 6 threads")
    assert "checkpoints compared with the source" in done.stdout
    assert done.stderr.count("\n") == 10
    with sqlite_saver(old) as source, outlive.open(places[1]) as store:
        assert check_whole(source, store) == list(THREADS)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["sqlite:///none.db", "memory:"], 3, "there is no file"),
        (["sqlite:///none.db", "memory:", "--type", "Ticket"], 2, "--type takes MODULE.CLASS"),
        (["mysql://host", "memory:"], 2, "no database of LangGraph's"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_told(arguments, code, said):
    ended = start(MODULE, *arguments)
    assert ended.returncode == code
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
