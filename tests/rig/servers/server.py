"""A server that a test owns: a child process with a folder, a port and a log, which never outlives its owner.

It ends by its context manager; failing that when the interpreter exits; failing that, on Linux, when the kernel sees
the owner die.
"""

from __future__ import annotations

import atexit
import functools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import IO, ClassVar, Self

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST, free_port
from rig.servers import launch
from rig.servers.folder import new_folder, remove_folders


class ServerFailed(RuntimeError):
    """A server did not do what it was told; the message quotes its log."""


class Server:
    """One process. What it is and how to see that it is ready is told by its subclasses.

    A folder of its own is removed with it; one that was given stays, with the data and the log. `ram=True` puts it
    into memory, where nothing waits for a disk.
    """

    kind: ClassVar[str]

    def __init__(self, *, folder: Path | None = None, ram: bool = False) -> None:
        self._owns_folder = folder is None
        self.folder = folder or new_folder(self.kind, ram=ram)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.host = HOST
        self.port = free_port()
        self.log_path = self.folder / "log"
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        _alive.add(self)

    # For subclasses ---------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make what must be there before the first start."""

    def _command(self) -> list[str]:
        raise NotImplementedError

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def _way(self) -> str:
        """Return whose rights the server has: see launch.py."""
        return "same"

    # Life ---------------------------------------------------------------------------------------------------

    def start(self, *, wait: bool = True) -> Self:
        """Start, and wait until it answers. One that runs already is left alone."""
        if not self.is_running:
            self._prepare()
            with self.log_path.open("ab") as log:
                self._process = spawn(self._command(), log, self._way())
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout_s: float = PATIENCE_S) -> None:
        wait_until(self._is_ready, timeout_s, f"{self!r} is not ready", alive=self)

    def stop(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Ask it to end, and wait until it has."""
        self._end(signal.SIGTERM, timeout_s)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def kill(self) -> None:
        """End it without a chance to tidy up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Freeze it: connections stay open and get no answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its own folder. Done twice, or in a fork, it does nothing."""
        if os.getpid() != self._owner:
            return
        self.kill()
        _alive.discard(self)
        if self._owns_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Looks --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self!r} was never started")
        return self._process.pid

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def log(self, lines: int = 30) -> str:
        """Return the end of what it has said."""
        try:
            text = self.log_path.read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process and self.is_running else "down"
        return f"<{type(self).__name__} {self.address} {state}>"

    # ----------------------------------------------------------------------------------------------------------

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _end(self, number: int, timeout_s: float) -> None:
        if self._process is None:
            return
        self._signal(number)
        self._signal(signal.SIGCONT)  # a frozen process would not hear it
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self!r} did not end within {timeout_s} s:\n{self.log()}") from None


def wait_until(
    happens: Callable[[], bool], timeout_s: float, complaint: str, *, alive: Server | None = None
) -> None:
    """Look again and again; fail when it takes too long, or when the server has ended meanwhile."""
    deadline, pause_s = time.monotonic() + timeout_s, 0.005
    while not happens():
        if alive is not None and not alive.is_running:
            raise ServerFailed(f"{alive!r} ended:\n{alive.log()}")
        if time.monotonic() > deadline:
            raise ServerFailed(f"{complaint} after {timeout_s} s:\n{alive.log() if alive else ''}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.05)


# Starting -------------------------------------------------------------------------------------------------------


class _Starter:
    """A thread that starts processes and stays.

    The kernel's "end when your parent does" means the thread that started the process: a server started by a worker
    thread would end with it.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[list[str], IO[bytes], Future[subprocess.Popen[bytes]]]]
        self._work = queue.SimpleQueue()
        threading.Thread(target=self._run, name="outlive-servers", daemon=True).start()

    def start(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        started: Future[subprocess.Popen[bytes]] = Future()
        self._work.put((command, output, started))
        return started.result()

    def _run(self) -> None:
        while True:
            command, output, started = self._work.get()
            try:
                started.set_result(_popen(command, output))
            except OSError as error:
                started.set_exception(error)


def _popen(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    # Libpq's variables would lead the server's own tools elsewhere. A session of its own: Ctrl-C is for us.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**environment, "LC_ALL": "C"},
        start_new_session=True,
    )


@functools.cache
def _starter(pid: int) -> _Starter:
    """Return the starter of this process; a fork has no threads and needs its own."""
    return _Starter()


def spawn(command: list[str], output: IO[bytes], way: str = "same") -> subprocess.Popen[bytes]:
    """Start a process that ends with this one."""
    prefix = [sys.executable, "-I", "-S", launch.__file__, str(os.getpid()), way]
    return _starter(os.getpid()).start([*prefix, *command], output)


_alive: set[Server] = set()


@atexit.register
def _close_all() -> None:
    for server in list(_alive):
        server.close()
    remove_folders()
