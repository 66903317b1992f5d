"""What holds for all tests: seeds that are shown, and no process that outlives its test."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rig import program, serving

LONG = bool(os.environ.get("OUTLIVE_LONG"))

# The short mode does the same every time; the long one looks further each time, and can be repeated by its seed.
SEED = int(os.environ.get("OUTLIVE_SEED") or (random.SystemRandom().randrange(1 << 32) if LONG else 1))

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", derandomize=True, database=None, max_examples=100, **_COMMON)
settings.register_profile("long", max_examples=2_000, **_COMMON)
settings.load_profile("long" if LONG else "short")


def pytest_report_header():
    how = "" if LONG else ", Hypothesis derandomized"
    return f"outlive: OUTLIVE_SEED={SEED}{how}{' (long)' if LONG else ''}"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Let one seed repeat everything: Hypothesis takes it as if it stood on the command line."""
    config.pluginmanager.register(serving)  # its fixtures
    config.pluginmanager.register(program)
    if LONG and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


# The other mode of these is the same code above the same engine, which other classes run in both.
_IN_ONE_COLOUR = {
    "TestMemory": "async", "TestFile": "sync", "TestRedisCluster": "sync", "TestSQLiteInMemory": "async",
    "TestEncryptedMemory": "async",
}  # fmt: skip


# Modules with few tests that take long: begun last, one of them would keep a single worker busy in the end.
_FIRST = (
    "test_redis", "test_replicate", "test_faults", "test_runs", "test_replicate_chaos", "test_replicate_history", "test_corruption", "test_kill",
    "test_replicate_losses", "test_cli_pairs", "test_postgres", "test_cancellation", "test_processes", "test_servers",
    "test_replicate_moments", "test_fork", "test_file_power_cut", "test_chaos", "test_retain", "test_damage_fuzz", "test_run_endings",
    "test_encrypt",
)  # fmt: skip


def pytest_collection_modifyitems(items):
    """Begin with what takes longest, and leave to the long mode what says little that is new."""
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))
    for item in items:
        left_out = _IN_ONE_COLOUR.get(item.cls.__name__) if getattr(item, "cls", None) else None
        if left_out and getattr(item, "callspec", None) and item.callspec.params.get("io_mode") == left_out:
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def _seeded():
    print(f"OUTLIVE_SEED={SEED}")  # shown when the test fails
    random.seed(SEED)


# Servants of multiprocessing's, which live as long as the interpreter.
_SERVANTS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


def _look(pid):
    """Return (parent, process group, command) of a process, or None when it has ended."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None
    state, parent, group, *_ = rest.split()
    if state in "ZX" or any(servant in command for servant in _SERVANTS):
        return None
    return int(parent), int(group), command or name.partition("(")[2]


def _children():
    """Return pid → command of our children; cheap enough for every test."""
    pids = {pid for task in Path("/proc/self/task").iterdir() for pid in _read(task / "children").split()}
    pids -= serving.shared_pids()  # a test may be the first to ask for one of these, or restart it
    return {pid: found[2] for pid in pids if (found := _look(pid))}


def _orphans():
    """Return pid → command of what our children left behind when they ended."""
    running = {folder.name: found for folder in Path("/proc").glob("[0-9]*") if (found := _look(folder.name))}
    return {
        pid: command
        for pid, (parent, group, command) in running.items()
        if (parent, group) == (1, os.getpgrp())
    }


def _read(path):
    try:
        return path.read_text()
    except OSError:  # a thread that has ended meanwhile
        return ""


def _check(name, before, after):
    if left := {pid: command for pid, command in after.items() if pid not in before}:
        pytest.fail(f"{name} left processes behind: {left}")


@pytest.fixture(autouse=True)
def _leaves_no_child(request):
    """Fail a test that leaves a process behind: the next one would share the machine with it."""
    before = _children()  # servers that a whole module shares are running already
    yield
    _check(request.node.name, before, _children())


@pytest.fixture(autouse=True, scope="module")
def _leaves_no_orphan(request):
    before = _orphans()
    yield
    _check(request.node.name, before, _orphans())
