"""What tests of adapters have in common: four stores, agents that are killed in a tool, and processes that append at once.

An agent counts its calls in a file, so that a test sees what its killed process had called.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import outlive
from outlive.testing.patience import eventually
from rig.crash import ram_folder

LEASE_S = 3.0  # on this machine a dead process is noticed at once
PROCESSES, APPENDS = 2, 40


class Calls:
    """What an agent has called, in a file that survives its process; `dies_in` a call kills it."""

    def __init__(self, folder, dies_in=None):
        self._file = Path(folder) / "calls"
        self._dies_in = dies_in

    def __call__(self, name):
        with self._file.open("a") as file:
            file.write(f"{name}\n")
        if name == self._dies_in:
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def names(self):
        """All calls of all processes, in order."""
        return self._file.read_text().split() if self._file.exists() else []


def die(workers, work, *args):
    """Call `work(report, *args)` in a process, which must be killed in it; `work` is a function of the test's module."""
    with workers.spawn(work, *args) as worker:
        assert worker.receive() is None


def recover(url, handlers):
    """Resume the dead run of a store in this process, and return its record."""
    with outlive.open(url) as store:
        resumed = []

        def is_recovered():
            report = store.recover(handlers)
            assert not report.failed, report.failed
            resumed.extend([*report.resumed, *report.suspended])
            return resumed

        eventually(is_recovered)
        return store.find_run(resumed[0].id)


def append_at_once(workers, work, url, folder):
    """Call `work(report, url, number, wait)` in processes; each calls `wait(report)` when it is ready, then appends APPENDS times."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(workers.spawn(work, url, number, Gate(folder))) for number in range(PROCESSES)
        ]
        for process in processes:
            assert process.receive() == ("ready",)
        Gate(folder).open()
        for process in processes:
            assert process.finish() == []


class Gate:
    """Where processes wait for each other, to begin at once."""

    def __init__(self, folder):
        self._file = Path(folder) / "open"

    def __call__(self, report):
        report("ready")
        eventually(self._file.exists)

    def open(self):
        self._file.touch()


@pytest.fixture
def folder():
    with ram_folder() as name:
        yield name


@pytest.fixture(params=["memory", "sqlite", "postgresql", "redis"])
def each_url(request, url_for, folder):
    """The URL of a store of each kind."""
    return "memory:" if request.param == "memory" else url_for(request.param, folder)


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def shared_url(request, url_for, folder):
    """The URL of a store that several processes can share, of each kind."""
    return url_for(request.param, folder)


@pytest.fixture
def each_store(each_url):
    """An open store of each kind."""
    with outlive.open(each_url) as store:
        yield store
