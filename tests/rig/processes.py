"""Run the tests in several processes: `-n 4`.

The tests are collected once, and then the process forks. Each fork asks for the next module or class of tests, runs it, and asks
again; what it reports is printed by the process that forked. A module or class stays in one process, which starts the servers
it needs once.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait

import pytest


def add_option(parser):
    # The parser leaves short options in lower case to pytest and its plugins.
    parser.getgroup("outlive")._addoption(
        "-n", dest="processes", metavar="N", type=int, default=0, help="run the tests in N processes"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run the tests in forks; None lets pytest run them in this process."""
    options = session.config.option
    if options.processes < 2 or options.collectonly or session.testsfailed:
        return None
    if options.basetemp is not None:
        raise pytest.UsageError("each process has a temporary folder of its own: --basetemp needs -n 0")
    groups = _grouped(session.items)
    hub = _Hub(session, groups)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, every page that all share
    for _ in range(min(options.processes, len(groups))):
        if (link := hub.fork()) is not None:
            _run(session, groups, link)
            return True
    hub.serve()
    return True


def _grouped(items):
    groups = {}
    for item in items:
        groups.setdefault(item.nodeid.rpartition("::")[0], []).append(item)
    return list(groups.values())


def _run(session, groups, link):
    """Run what the hub hands out; pytest then ends the session of this process as usual."""
    config = session.config
    config.workerinput = {}  # tells plugins that another process writes the cache and the reports
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Reporter(session, link))
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # forks would share the position in its files
    capture.start_global_capturing()
    capture.suspend_global_capture()
    for item, following in _with_following(groups, link):
        config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
    with contextlib.suppress(OSError):
        link.send(("end", None))


def _with_following(groups, link):
    """Yield each test and the one after it: the fixtures of a test end with it unless the next test shares them."""
    item = None
    while (index := _ask(link)) is not None:
        for following in groups[index]:
            if item is not None:
                yield item, following
            item = following
    if item is not None:
        yield item, None


def _ask(link):
    try:
        link.send(("next", None))
        return link.recv()
    except (EOFError, OSError):
        return None


class _Reporter:
    """Passes on what happens in a fork."""

    def __init__(self, session, link):
        self._session = session
        self._link = link

    def pytest_runtest_logstart(self, nodeid, location):
        self._send("start", (nodeid, location))

    def pytest_runtest_logreport(self, report):
        config = self._session.config
        self._send("report", config.hook.pytest_report_to_serializable(config=config, report=report))

    def _send(self, kind, value):
        try:
            self._link.send((kind, value))
        except OSError:
            self._session.shouldstop = "the process that prints the results has ended"


@dataclass
class _Fork:
    pid: int
    running: tuple = ("no test", ("", None, "no test"))
    has_failed: bool = False
    has_ended: bool = False

    @property
    def expected_code(self):
        return int(self.has_failed) if self.has_ended else None


class _Hub:
    """Hands out groups of tests, and reports their results to the plugins of this process."""

    def __init__(self, session, groups):
        self._session = session
        self._waiting = collections.deque(range(len(groups)))
        self._forks: dict[Connection, _Fork] = {}
        self._missing = len(session.items)

    def fork(self):
        """Fork; return None here, and in the fork its link to this process."""
        ours, theirs = Pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            for link in (ours, *self._forks):
                link.close()
            return theirs
        theirs.close()
        self._forks[ours] = _Fork(pid)
        return None

    def serve(self):
        session = self._session
        if terminal := session.config.pluginmanager.getplugin("terminalreporter"):
            terminal.showfspath = False
        try:
            while self._forks and not (session.shouldfail or session.shouldstop):
                for link in wait(self._forks):
                    self._receive(link, self._forks[link])
        finally:
            self._end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop or self._missing:
            raise session.Interrupted(session.shouldstop or f"{self._missing} tests were not run")

    def _receive(self, link, fork):
        try:
            kind, value = link.recv()
        except (EOFError, OSError):
            self._close(link)
            return
        if kind == "next":
            with contextlib.suppress(OSError):
                link.send(self._waiting.popleft() if self._waiting else None)
        elif kind == "start":
            fork.running = value
        elif kind == "end":
            fork.has_ended = True
        else:
            config = self._session.config
            report = config.hook.pytest_report_from_serializable(config=config, data=value)
            fork.has_failed = fork.has_failed or report.failed
            self._log(report)

    def _log(self, report):
        hook = self._session.config.hook
        hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            self._missing -= 1
            hook.pytest_runtest_logfinish(nodeid=report.nodeid, location=report.location)

    def _close(self, link):
        """Wait for a fork; the last test of one that did not end by itself has failed."""
        fork = self._forks.pop(link)
        link.close()
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        if code == fork.expected_code or self._session.shouldfail or self._session.shouldstop:
            return
        nodeid, location = fork.running
        message = f"process {fork.pid} ended with code {code} in or after {nodeid}; the rest of its tests did not run"
        self._session.config.hook.pytest_runtest_logreport(
            report=pytest.TestReport(nodeid, location, {}, "failed", message, "call")
        )

    def _end(self):
        """Let the forks that are left end, each after its test: they have servers and processes to end first."""
        links, self._forks = self._forks, {}
        for link in links:
            link.close()
        for fork in links.values():
            os.waitpid(fork.pid, 0)
