"""The warm process of the crash tests: an answer that does not come does no harm to what follows, nor to anybody else."""

from __future__ import annotations

import os
import signal
import time

import pytest

from outlive.testing.patience import eventually
from rig.crash import ForkServer
from rig.crash.server import WorkerFailed


def say(report, what):
    report(what)


def wait_for_ever(report):
    report(os.getpid())
    while True:
        signal.pause()


@pytest.fixture
def server():
    with ForkServer() as server:
        yield server


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_after_a_question_without_an_answer_the_next_worker_gets_its_own(server, monkeypatch):
    with server.spawn(wait_for_ever) as worker:
        (pid,) = worker.receive()
        monkeypatch.setattr("rig.crash.server.PATIENCE_S", 0.2)
        channel = server._channel
        channel._process.send_signal(signal.SIGSTOP)
        channel._control.settimeout(0.2)
        with pytest.raises(WorkerFailed, match="did not spawn within"):
            server.spawn(say, "late")
        monkeypatch.undo()
        assert channel.is_closed
        assert server.spawn(say, "new").finish() == [("new",)], "not the answer that came late"
        eventually(lambda: not is_running(pid), "the workers of a server that was given up still run")
        worker.kill()  # which is gone: nobody else is killed in its place
        with pytest.raises(WorkerFailed, match="was closed"):
            channel.ask("reap", pid)


def test_what_was_reaped_is_never_signalled_again(workers, monkeypatch):
    worker = workers.spawn(say, 1)
    assert worker.finish() == [(1,)]
    asked = []
    monkeypatch.setattr(type(workers._channel), "ask", lambda *question: asked.append(question))
    worker.signal(signal.SIGTERM)
    worker.kill()
    assert asked == [], "its number may be that of another process by now"


def test_the_server_signals_only_what_it_has_not_reaped(workers):
    """Also when it is told otherwise: until it has reaped a worker, its number belongs to nobody else."""
    worker = workers.spawn(say, 1)
    worker.finish()
    with workers.spawn(wait_for_ever) as other:
        other.receive()
        assert workers._channel.ask("kill", worker.pid) == 0, "the status that it ended with"
        assert workers._channel.ask("signal", (worker.pid, signal.SIGKILL)) == 0
        time.sleep(0.05)
        assert is_running(other.pid)


def test_a_worker_that_does_not_end_keeps_the_server_from_nothing(server, monkeypatch):
    """Its status is asked for, and does not come: the test may give up, and everything ends."""
    worker = server.spawn(wait_for_ever)
    (pid,) = worker.receive()
    server._channel._control.settimeout(0.2)
    with pytest.raises(WorkerFailed, match="did not reap within"):
        server._channel.ask("reap", pid)
    eventually(lambda: not is_running(pid))
    worker.__exit__()
