"""A warm process that forks workers on request, so that starting and killing one takes milliseconds.

The server has imported outlive and runs no thread and no store of its own. A worker is a function
`work(report, *args)`; what it sends with `report(value)` arrives in the order of sending, also when it
is killed right after. Each worker leads a process group, and leaving its `with` block ends the whole group.
When the process that started the server dies, the server kills what is left and goes too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
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

import outlive.public  # all of it: `import outlive` alone imports nothing yet, and each worker would do it anew

PATIENCE_S = 40.0  # nothing here takes longer unless it hangs


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
    """The test's end of the warm process."""

    def __enter__(self) -> Self:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tests, source = Path(__file__).parent.parent, Path(outlive.__file__).parent.parent
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crash", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{source}"},
                pass_fds=[theirs.fileno()],
            )
        self._control = ours
        self._control.settimeout(PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._control.close()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()

    def spawn(self, work: Callable[..., None], *args: Any) -> Worker:
        """Start `work(report, *args)` in a process of its own; `work` is a function of a module in tests/."""
        module = work.__module__.removeprefix("tests.")
        read, write = os.pipe()
        try:
            request = pickle.dumps((module, work.__name__, args))
            socket.send_fds(self._control, [request], [write])
        finally:
            os.close(write)
        pid = int(self._control.recv(64))
        return Worker(self, pid, Connection(read, writable=False))

    def _reap(self, pid: int) -> int:
        self._control.send(pickle.dumps(pid))
        return int(self._control.recv(64))


class Worker:
    """The test's end of a worker."""

    def __init__(self, server: ForkServer, pid: int, messages: Connection) -> None:
        self._server = server
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
                os.kill(self.pid, signal.SIGUSR1)  # the stacks of all threads go to stderr
                time.sleep(0.2)
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

    def kill(self) -> None:
        """End the worker and all that it forked, at once, and wait until they are gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._status = self._server._reap(self.pid)

    def finish(self) -> list[Any]:
        """Wait for the end of the worker; return what it said. Raises when it failed."""
        said = list(self)  # until nobody holds the pipe: what it forked has ended too
        self._status = self._server._reap(self.pid)
        if self._status != 0:
            raise WorkerFailed(f"worker {self.pid} ended with status {self._status}")
        return said


# The server itself -------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    workers: set[int] = set()
    while True:
        request, fds, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not request:
            break
        asked = pickle.loads(request)
        if isinstance(asked, int):
            _, status = os.waitpid(asked, 0)
            workers.discard(asked)
            control.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        module, name, args = asked
        work = getattr(importlib.import_module(module), name)  # once: later workers inherit it
        pid = os.fork()
        if pid == 0:
            control.close()
            _work(work, args, fds[0])
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # as the child does: whoever comes first
        os.close(fds[0])
        workers.add(pid)
        control.send(str(pid).encode())
    for pid in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _work(work: Callable[..., None], args: tuple[Any, ...], fd: int) -> None:
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
