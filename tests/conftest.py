"""What holds for all tests: seeds that are shown, and no process that outlives its test."""

import contextlib
import os
import random
import signal
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from outlive import testing
from outlive.testing.trial import IO_MODES
from rig import processes, program, serving
from rig.watchdog import Watchdog

LONG = bool(os.environ.get("OUTLIVE_LONG"))

# The short mode does the same every time; the long one looks further each time, and can be repeated by its seed.
SEED = int(os.environ.get("OUTLIVE_SEED") or (random.SystemRandom().randrange(1 << 32) if LONG else 1))

BACKENDS = ("memory", "file", "sqlite", "postgres", "redis")
_ENGINES = ("memory", "file", "sqlite", "postgresql", "redis")
# Folders of what is written once, above all engines.
_ABOVE_ENGINES = ("adapters", "api", "cli", "encryption", "runs", "threads")
TESTS = Path(__file__).parent
_SCHEMES = {"postgres": "postgresql"}  # what tests call a backend that has another name in URLs

_COMMON = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", derandomize=True, database=None, max_examples=25, **_COMMON)
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
    config.pluginmanager.register(processes)
    config.pluginmanager.register(Watchdog())
    # A background job of a shell ignores Ctrl-C, and so would every process that a test starts.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if LONG and config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_addoption(parser):
    processes.add_option(parser)
    parser.addoption(
        "--backend", metavar="NAME", choices=BACKENDS, help=f"tests of one backend: {', '.join(BACKENDS)}"
    )


def pytest_collection_modifyitems(config, items):
    """Leave to the long run what repeats a claim in another I/O mode or on another engine; select the tests of one backend.

    Heavy modules come first: whatever is left to do when the first process runs out of work is then short.
    """
    items.sort(key=lambda item: item.get_closest_marker("heavy") is None)
    for item in [*filter(is_of_long_mode, items), *repeated(items)]:
        item.add_marker(pytest.mark.long)
    if backend := config.getoption("--backend"):
        others = [item for item in items if not is_of_backend(item, backend)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if is_of_backend(item, backend)]


def is_of_long_mode(item):
    marker = item.get_closest_marker("long_io_mode")
    return (
        marker is not None
        and hasattr(item, "callspec")
        and item.callspec.params.get("io_mode") in marker.args
        and not hasattr(marker.kwargs.get("apart_from"), item.originalname)
    )


def repeated(items):
    """Return the tests that repeat another one on an engine or in an I/O mode that makes no difference to what they claim.

    One engine is enough for what is written above all engines, and one mode for what is written
    above both; which it is differs from test to test. What each engine promises by itself is in the
    other folders: the contract, its own tests, kills and forks.
    """
    groups = {}
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if not hasattr(item, "callspec") or item.get_closest_marker("each_engine"):
            continue
        parameters = item.callspec.id.split("-")
        engines = [parameter for parameter in parameters if parameter in _ENGINES]
        if folder in _ABOVE_ENGINES and len(engines) == 1:
            choice, choices = engines[0], _ENGINES
        elif (choice := item.callspec.params.get("rig")) in IO_MODES:
            choices = tuple(IO_MODES)
        else:
            continue
        parameters.remove(choice)
        test = item.nodeid.partition("[")[0]
        groups.setdefault((test, *parameters, choices), {})[choice] = item
    for (test, *_), group in groups.items():
        named = sorted(group.keys() - {"memory"}) or ["memory"]
        chosen = named[zlib.crc32(test.encode()) % len(named)]
        yield from (item for choice, item in group.items() if choice != chosen)


def is_of_backend(item, backend):
    """Tell whether the file, the class or a parameter of a test names the backend."""
    class_name = item.cls.__name__.lower() if item.cls else ""
    parameters = item.callspec.id.lower().split("-") if hasattr(item, "callspec") else ()
    return (
        backend in item.path.stem.split("_")
        or class_name.startswith(f"test{backend}")
        or not {backend, _SCHEMES.get(backend)}.isdisjoint(parameters)
    )


@pytest.fixture
def tuned():
    """Change sizes and intervals until the test ends: `tuned(sweep_batch=2)`."""
    with contextlib.ExitStack() as stack:
        yield lambda **values: stack.enter_context(testing.tuned(**values))


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
    pids = {
        pid for task in os.listdir("/proc/self/task") for pid in _read(f"/proc/self/task/{task}/children")
    }
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
        with open(path) as file:
            return file.read().split()
    except OSError:  # a thread that has ended meanwhile
        return ()


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
