"""A mover that is killed leaves whole threads and nothing else; repeated, it brings the rest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlive
from adapters.langgraph_importer import graphs
from adapters.langgraph_importer.comparing import assert_same, saver_on, sqlite_saver
from adapters.langgraph_importer.graphs import THREADS, Ticket
from conftest import LONG
from outlive.adapters.langgraph.importer import batch as cargo
from outlive.adapters.langgraph.importer.importer import import_langgraph, main


def move_and_die(source, target, last):
    """Move in a process that is killed when it has read so many checkpoints; return how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            cargo._CHUNK_BYTES = 2_000  # so that chunks go ahead of their records
            import_langgraph(
                source, target, types=[Ticket], progress=lambda done, total: done >= last and die()
            )
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


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
            assert move_and_die(f"sqlite:///{old}", url, last) in (-signal.SIGKILL, 0)
            with outlive.open(url) as store:
                arrived.append(check_whole(source, store))
        assert arrived == sorted(arrived, key=len)
        assert arrived[1] == ["asked"] or LONG
        with outlive.open(url) as store:
            import_langgraph(f"sqlite:///{old}", store, types=[Ticket])
            assert check_whole(source, store) == list(THREADS)
            assert import_langgraph(f"sqlite:///{old}", store, types=[Ticket]).checkpoints == 0


# The command without a command line ------------------------------------------------------------------------

TYPE = f"{Ticket.__module__}.Ticket"


def test_it_says_what_it_does(old, tmp_path, capsys):
    places = f"sqlite:///{old}", f"sqlite:///{tmp_path}/new.db"
    assert main(places) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert f"--type {TYPE}" in told.err
    assert main([*places, "--dry-run"]) == 1
    assert "would move 5 threads" in capsys.readouterr().out
    assert main([*places, "--type", TYPE]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("moved 6 threads")
    assert "checkpoints compared with the source" in told.out
    assert told.err.count("\n") == 10
    with sqlite_saver(old) as source, outlive.open(places[1]) as store:
        assert check_whole(source, store) == list(THREADS)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["sqlite:///none.db", "memory:"], 3, "there is no file"),
        (["sqlite:///none.db", "memory:", "--type", "Ticket"], 2, "--type takes MODULE.CLASS"),
        (["sqlite:///none.db", "memory:", "--type", "nowhere.Ticket"], 2, "there is no such module"),
        (["sqlite:///none.db", "memory:", "--type", "os.path"], 2, "has no class of that name"),
        (["sqlite:///none.db", "memory:", "--serde", "serde"], 2, "--serde takes MODULE.NAME"),
        (["sqlite:///none.db", "memory:", "--serde", "nowhere.serde"], 2, "there is no such module"),
        (["sqlite:///none.db", "memory:", "--serde", "os.sep"], 2, "neither a serializer nor a function"),
        (["sqlite:///none.db", "memory:", "--serde", "os.abort_"], 2, "neither a serializer nor a function"),
        (["sqlite:///none.db", "memory:", "--serde", "os.remove"], 2, "calling it failed"),
        (["mysql://host", "memory:"], 2, "no database of LangGraph's"),
    ],
)
def test_a_wrong_call_is_told(arguments, code, said, capsys):
    assert main(arguments) == code
    assert said in capsys.readouterr().err


def test_it_can_be_started_as_a_module(old, tmp_path):
    source = str(Path(outlive.__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": source, "PYTHONWARNINGS": "error::RuntimeWarning"}
    command = [
        sys.executable,
        "-m",
        "outlive.adapters.langgraph.importer.importer",
        f"sqlite:///{old}",
        f"sqlite:///{tmp_path}/new.db",
    ]
    ended = subprocess.run(
        [*command, "--thread", "chat"], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("moved 1 thread,")
