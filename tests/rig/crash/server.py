"""A warm process that forks workers on request, so that starting and killing one takes milliseconds.

The server has imported outlive and runs no thread and no store of its own. A worker is a function
`work(report, *args)`; what it sends with `report(value)` arrives in the order of sending, also when it
is killed right after. Each worker leads a process group, and leaving its `with` block ends the whole group.
When the process that started the server dies, the server kills what is left and goes too.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import outlive
from outlive.testing.patience import PATIENCE_S

_PR_SET_PDEATHSIG = 1

for _name in outlive.__all__:  # `import outlive` alone imports nothing yet: each worker would import it again
    getattr(outlive, _name)


class WorkerFailed(AssertionError):
    """A worker raised, hung or died of something else than the test."""


class _Raised:
    """The last message of a worker that raised."""

    def __init__(self, text: str) -> None:
        self.text = text


class Report:
    """The worker's end: send a value to the test."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, *value: Any) -> None:
        with self._lock:
            self._connection.send(value)

    def fileno(self) -> int:
        return self._connection.fileno()


class ForkServer:
    """The test's end of the warm process. One that failed to answer is ended, and the next worker gets a new one."""

    def __enter__(self) -> Self:
        self._channel = _Channel()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    @property
    def is_running(self) -> bool:
        return not self._channel.is_closed

    @property
    def pid(self) -> int:
        return self._channel.pid

    def spawn(self, work: Callable[..., None], *args: Any) -> Worker:
        """Start `work(report, *args)` in a process of its own; `work` is a function of a module in tests/."""
        module = work.__module__.removeprefix("tests.")
        if self._channel.is_closed:
            self._channel = _Channel()
        read, write = os.pipe()
        try:
            pid = self._channel.ask("spawn", (module, work.__name__, args), write)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
        return Worker(self._channel, pid, Connection(read, writable=False))


class _Channel:
    """A warm process and the line to it: one question at a time, and one answer to each.

    Whatever keeps an answer from being read closes the channel, with all of its workers: the next question would take
    that answer for its own, and a pid in it for the pid of another worker.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tests, source = Path(__file__).parents[2], Path(outlive.__file__).parent.parent
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rig.crash", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{source}"},
                pass_fds=[theirs.fileno()],
            )
        self._control = ours
        self._control.settimeout(PATIENCE_S)
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        return self._control.fileno() == -1

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, kind: str, value: Any, *fds: int) -> int:
        with self._lock:
            if self.is_closed:
                raise WorkerFailed("the fork server was closed because an earlier question got no answer")
            try:
                socket.send_fds(self._control, [pickle.dumps((kind, value))], fds)
                if answer := self._control.recv(64):
                    return int(answer)
                raise WorkerFailed(f"the fork server ended when it was asked to {kind}")
            except TimeoutError:
                self.close()
                raise WorkerFailed(f"the fork server did not {kind} within {PATIENCE_S} s") from None
            except BaseException:  # also Ctrl-C
                self.close()
                raise

    def close(self) -> None:
        """End the process, which ends its workers first; one that hangs is killed, and the kernel ends its workers."""
        self._control.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()


class Worker:
    """The test's end of a worker."""

    def __init__(self, channel: _Channel, pid: int, messages: Connection) -> None:
        self._channel = channel
        self._messages = messages
        self._status: int | None = None
        self.pid = pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is None:
            self.kill()
        self._messages.close()

    def receive(self, timeout_s: float = PATIENCE_S) -> Any:
        """Return the next message; None when the worker is gone."""
        try:
            if not self._messages.poll(timeout_s):
                self.signal(signal.SIGUSR1)  # the stacks of all threads go to stderr
                time.sleep(1)
                raise WorkerFailed(f"worker {self.pid} said nothing for {timeout_s} s")
            message = self._messages.recv()
        except EOFError:  # also in the middle of a message: it was killed while it sent it
            return None
        if isinstance(message, _Raised):
            raise WorkerFailed(message.text)
        return message

    def __iter__(self) -> Iterator[Any]:
        while (message := self.receive()) is not None:
            yield message

    def signal(self, number: int) -> None:
        """Send a signal to the worker, if it has not ended."""
        if self._status is None:  # else its number may be that of another process by now
            self._channel.ask("signal", (self.pid, number))

    def kill(self) -> None:
        """End the worker and all that it forked, at once, and wait until it is gone."""
        if self._channel.is_closed:  # which has ended them
            self._status = -signal.SIGKILL
        elif self._status is None:
            self._status = self._channel.ask("kill", self.pid)

    def finish(self) -> list[Any]:
        """Wait for the end of the worker; return what it said. Raises when it failed."""
        said = list(self)  # until nobody holds the pipe: what it forked has ended too
        self._status = self._channel.ask("reap", self.pid)
        if self._status != 0:
            raise WorkerFailed(f"worker {self.pid} ended with status {self._status}")
        return said


# The server itself -------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Answer until the other side is closed, then end all workers."""
    forks = _Forks(control)
    try:
        while True:
            # While a worker is being waited for, nobody asks anything; but the test may give up and close.
            ready, _, _ = select.select([control], [], [], 0.001 if forks.awaited else None)
            if ready and not forks.answer_next():
                break
            forks.reap()
    finally:
        forks.kill_all()


class _Forks:
    """The workers. Only this process, their parent, signals them, and only those that it has not reaped.

    Until then the kernel gives their number to no other process and no other group.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._status: dict[int, int | None] = {}  # pid → exit status, None until it is reaped
        self.awaited: int | None = None  # the pid that the test waits for

    def answer_next(self) -> bool:
        request, fds, _, _ = socket.recv_fds(self._control, 1 << 20, 1)
        if not request:
            return False
        match pickle.loads(request):
            case "spawn", (module, name, args):
                self._answer(self._spawn(module, name, args, fds[0]))
            case "signal", (pid, number):
                if self._status[pid] is None:
                    os.kill(pid, number)
                self._answer(0)
            case "kill", pid:
                self._kill(pid)
                self.awaited = pid
            case "reap", pid:
                self.awaited = pid
        return True

    def reap(self) -> None:
        """Answer the test that waits for the end of a worker, if it has ended."""
        if (pid := self.awaited) is None:
            return
        if self._status[pid] is None:
            found, status = os.waitpid(pid, os.WNOHANG)
            self._status[pid] = os.waitstatus_to_exitcode(status) if found else None
        if (code := self._status[pid]) is not None:
            self.awaited = None
            self._answer(code)

    def kill_all(self) -> None:
        for pid, status in self._status.items():
            if status is None:
                self._kill(pid)
                os.waitpid(pid, 0)

    def _answer(self, number: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has given up: the next read tells
            self._control.send(str(number).encode())

    def _spawn(self, module: str, name: str, args: tuple[Any, ...], fd: int) -> int:
        work = getattr(importlib.import_module(module), name)  # once: later workers inherit it
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _work(work, args, fd)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as the child does: the first of the two counts
        os.close(fd)
        self._status[pid] = None
        return pid

    def _kill(self, pid: int) -> None:
        if self._status[pid] is None:
            with contextlib.suppress(ProcessLookupError):  # it has left its group
                os.killpg(pid, signal.SIGKILL)


def _work(work: Callable[..., None], args: tuple[Any, ...], fd: int) -> None:
    _end_with_parent()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    connection = Connection(fd, readable=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        work(Report(connection), *args)
        status = 0
    except BaseException:
        with contextlib.suppress(OSError):
            connection.send(_Raised(traceback.format_exc()))
    finally:
        sys.stdout.flush()
        os._exit(status)


def _end_with_parent() -> None:
    """Let the kernel end this worker when its server is killed; elsewhere than on Linux it stays."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
