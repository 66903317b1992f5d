"""How the command line starts: quickly, also without its extra, and in a shell that completes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pty
import re
import select
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import outlive
from outlive.testing.patience import PATIENCE_S
from outlive.view import checkup as doctor
from rig.crash import ram_folder
from rig.program import SOURCE, environment, fresh
from rig.world import build

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder():
    with ram_folder() as folder:
        build(f"sqlite:///{folder}/agent.db")
        with (
            outlive.open(f"sqlite:///{folder}/agent.db") as store,
            store.run("order-7", run_id="refund-7", agent="refunds") as run,
        ):
            run.ask("approve?", schema=bool)
        yield folder


def imported(*arguments, folder=None):
    """Return the modules that a call imports."""
    ended = fresh(*arguments, python=("-X", "importtime"), folder=folder)
    assert ended.code == 0
    return {
        line.rpartition("|")[2].strip() for line in ended.err.splitlines() if line.startswith("import time:")
    }


# Each of these takes longer to import than a listing takes to do.
HEAVY = {
    "asyncio", "concurrent.futures", "ctypes", "importlib.resources", "logging", "numpy", "psycopg", "pydantic", "redis", "rich", "ssl",
    "subprocess",
}  # fmt: skip


def test_help_imports_nothing_that_takes_time():
    found = imported("--help")
    assert "click" in found
    assert not found & (HEAVY | {"apsw", "backports.zstd", "hashlib", "ormsgpack", "socket", "outlive.store"})


@pytest.mark.parametrize("command", ["runs", "questions", "workers"])
def test_lists_of_runs_import_nothing_that_takes_time(folder, command):
    assert not imported(command, folder=folder) & HEAVY


def test_a_listing_imports_only_what_it_needs(folder):
    found = imported("ls", folder=folder)
    assert "outlive.store" in found
    unneeded = {f"outlive.{name}" for name in (
        "runs.run", "runs.recovery", "view.graph", "view.messages", "runs.response_values", "runtime.loop", "backends.local.async_local", "backends.postgres.urls",
        "backends.redis.urls", "layers.replication.layer", "layers.encryption.rotation", "cli.commands.doctor", "cli.pair_state",
    )}  # fmt: skip
    assert all(importlib.util.find_spec(name) for name in unneeded)
    assert not found & (HEAVY | unneeded)


def test_the_program_has_a_name_and_a_version():
    scripts = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["outlive"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    assert fresh("--version").out == f"outlive {outlive.__version__}\n"


def test_every_public_name_is_there_when_it_is_asked_for():
    code = (
        "import outlive, sys\n"
        "assert 'outlive.store' not in sys.modules\n"
        "from outlive import Store\n"
        "for name in outlive.__all__: assert getattr(outlive, name) is not None\n"
        "assert set(outlive.__all__) <= set(dir(outlive))\n"
    )
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
    for private in ("factory", "store", "threads"):
        with pytest.raises(AttributeError, match=f"has no attribute {private!r}"):
            outlive.__getattr__(private)
    with pytest.raises(AttributeError, match="has no attribute 'Nope'"):
        outlive.Nope  # noqa: B018


def test_without_its_extra_a_sentence_says_what_to_install():
    code = "import sys; sys.modules['click'] = None; from outlive.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "outlive: the command line needs an optional part of outlive: pip install 'outlive[cli]'\n"
    )


def test_a_terminal_without_utf_8_still_gets_its_answer(folder):
    ended = fresh("ls", folder=folder, PYTHONIOENCODING="ascii")
    assert ended.code == 0
    assert "trip-42" in ended.out
    assert fresh("show", "trip-42", folder=folder, PYTHONIOENCODING="ascii").code == 0


@pytest.mark.parametrize(
    "words, expected",
    [
        ("outlive sh", {"show"}),
        ("outlive show tri", {"trip-42", "trip-7"}),
        ("outlive show trip-42 @", {"@4", "@3", "@2", "@1"}),
        ("outlive diff trip-42 @3 @", {"@4", "@3", "@2", "@1"}),
        ("outlive history trip-42 --before @", {"@4", "@3", "@2", "@1"}),
        ("outlive ls --so", {"--sort"}),
        ("outlive --tenant acme show ", {"secret"}),
        ("outlive qu", {"questions"}),
        ("outlive answer refund-7 ", {"approve?"}),
        ("outlive answer refund-7 approve? ", {"true", "false"}),
        ("outlive answer refund-7 approve? t", {"true"}),
        ("outlive questions --agent re", {"refunds"}),
    ],
)
def test_the_shell_completes_commands_options_and_ids(folder, words, expected):
    ended = fresh(folder=folder, _OUTLIVE_COMPLETE="bash_complete", COMP_WORDS=words)
    assert {line.partition(",")[2] for line in ended.out.splitlines()} == expected


def test_completion_without_a_store_completes_nothing(tmp_path):
    ended = fresh(folder=tmp_path, _OUTLIVE_COMPLETE="bash_complete", COMP_WORDS="outlive show ")
    assert (ended.out.strip(), ended.err) == ("", "")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_are_printed(program, shell):
    script = program("completion", shell).out
    assert f"_OUTLIVE_COMPLETE={shell}_complete" in script
    assert program("completion", "tcsh").code == 2


def test_bash_completes_urls_ids_with_colons_and_ids_that_need_quotes(tmp_path):
    with outlive.open(f"sqlite:///{tmp_path}/agent.db") as store:
        for id in ("user:42", "my thread", "odd\nid"):
            store.thread(id).save(1)
    with bash(tmp_path) as press:
        for typed, completed in (
            ("outlive hist", "outlive history "),
            ("outlive --store sqlite:///agent.db show use", "outlive --store sqlite:///agent.db show user:42 "),
            ("outlive show user:4", "outlive show user:42 "),
            ("outlive show my", "outlive show my\\ thread "),
            ("outlive show odd", "outlive show odd\\\\nid "),
            ("outlive import agent", "outlive import agent.db "),
            ("outlive runs --thread use", "outlive runs --thread user:42 "),
        ):  # fmt: skip
            assert press(typed) == completed


@contextlib.contextmanager
def bash(folder):
    """An interactive bash in a folder; yields a function that types, presses the tabulator and returns the line."""
    (folder / "bin").mkdir()
    (folder / "bin" / "outlive").write_text(f'#!/bin/sh\nexec {sys.executable} -m outlive "$@"\n')
    (folder / "bin" / "outlive").chmod(0o755)
    env = environment(PATH=f"{folder}/bin:{os.environ['PATH']}", OUTLIVE_STORE="sqlite:///agent.db")
    env |= {"PS1": "", "TERM": "dumb", "INPUTRC": "/dev/null", "HISTFILE": ""}
    master, slave = pty.openpty()
    command = ["bash", "--norc", "--noprofile", "-i"]
    with subprocess.Popen(
        command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as shell:
        os.close(slave)
        try:
            os.write(master, b'PS1="> "; eval "$(outlive completion bash)"; echo rea"dy"\n')
            _read_until(master, "ready\r\n> ")
            yield lambda text: _press(master, text)
        finally:
            shell.kill()
            os.close(master)


def _press(master, text):
    os.write(master, f"{text}\t".encode())
    seen = _read_until(master, " ", after=text)
    os.write(master, b"\x15")  # forget the line
    while select.select([master], [], [], 0.5)[0]:
        os.read(master, 1 << 16)
    return seen


def _read_until(fd, end, after=""):
    """Read until what comes behind a text ends so."""
    seen, until = "", time.monotonic() + PATIENCE_S
    while not (after in seen and seen[seen.index(after) + len(after) :].endswith(end)):
        assert time.monotonic() < until, seen
        if select.select([fd], [], [], 0.2)[0]:
            seen += os.read(fd, 1 << 16).decode()
    return seen


def test_the_demo_kills_and_recovers_and_leaves_a_store_to_look_at(tmp_path):
    ended = fresh("demo", folder=tmp_path)
    assert ended.code == 0, ended.err
    assert re.findall(r"process (\d+): (.+?): (killed|saved|was done)", ended.out)[2][1:] == (
        "compare fares",
        "killed",
    )
    assert len(set(re.findall(r"process (\d+)", ended.out))) == 2
    commands = [line for line in ended.out.splitlines() if line.startswith("outlive --store")]
    assert len(commands) == 6
    shown = fresh(*commands[2].split()[1:], folder=tmp_path)
    assert re.search(r"^status +completed$", shown.out, re.MULTILINE)
    again = fresh("demo", folder=tmp_path)
    assert (again.code, "is not empty" in again.err) == (2, True)


@pytest.mark.parametrize(
    "version, is_affected",
    [
        ("3.54.1", False), ("3.51.3", False), ("3.51.2", True), ("3.50.7", False), ("3.50.6", True), ("3.44.6", False),
        ("3.44.5", True), ("3.45.9", True), ("3.40.1", True), ("3.6.23", False),
    ],
)  # fmt: skip
def test_versions_of_sqlite_with_the_wal_reset_bug_are_known(version, is_affected):
    assert doctor.has_wal_bug(version) is is_affected
    assert (doctor.sqlite_finding(version).level == "problem") is is_affected


def test_a_clock_that_is_off_is_a_finding():
    assert doctor.skew_finding(0.5).level == "ok"
    off = doctor.skew_finding(-90)
    assert (off.level, off.message) == ("warning", "the server's clock is 90.00 s behind")


def test_the_source_is_the_one_under_test():
    assert Path(outlive.__file__).is_relative_to(SOURCE)
