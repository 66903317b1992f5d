"""The real command line, run many times for little: a warmed Python forks for each call.

What a test gets is the program with its own standard streams, its own session and environment, on pipes or on a
pseudo-terminal. `fresh` starts a new Python instead, for what is about starting.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import io
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from outlive.testing.patience import PATIENCE_S
from rig.crash import ram_folder

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
# What calls import as they need it; here once, so that no fork has to.
_WARM = (
    "factory",
    "backends.postgres.backend",
    "backends.sqlite.backend",
    "cli.program",
    *(
        f"cli.commands.{name}"
        for name in (
            *("checkpoints", "doctor", "keys", "maintenance", "questions", "recover"),
            *("replication", "runs", "threads", "transfer", "workers"),
        )
    ),
    "view.advice",
    "cli.stores",
    "layers.replication.layer",
    "runs.submit",
)

# The last two measure the coverage of the program too.
_KEPT = ("PATH", "HOME", "TMPDIR", "COVERAGE_PROCESS_CONFIG", "OUTLIVE_COVERAGE_FOLDER")


@dataclass
class Ended:
    """What a call printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def items(self):
        said = json.loads(self.out)
        assert list(said) == ["format", "command", "store", "tenant", "ok", "items", "next"]
        assert said["format"] == 1
        assert said["ok"] is (self.code == 0)
        return said["items"]


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name in _KEPT}
    return {**kept, "PYTHONPATH": SOURCE, "TZ": "UTC", "LANG": "C.UTF-8", "TERM": "xterm-256color", **more}


class Program:
    """Runs `outlive` in a folder."""

    def __init__(self, path, folder):
        self._path = path
        self.folder = folder

    def __call__(self, *arguments, stdin="", is_merged=False, **env):
        """Run it on pipes; with `is_merged` errors stand in between, as a person would see them."""
        (child_in, our_in), (our_out, child_out), (our_err, child_err) = (os.pipe() for _ in range(3))
        if is_merged:
            os.dup2(child_out, child_err)
        with contextlib.closing(self._ask(arguments, env, [child_in, child_out, child_err])) as link:
            with open(our_in, "wb") as file, contextlib.suppress(BrokenPipeError):
                file.write(stdin.encode())
            out, err = _read_both(our_out, our_err)
            return Ended(_code(link), out, err)

    @contextlib.contextmanager
    def on_terminal(self, *arguments, columns=100, **env):
        """Run it on a pseudo-terminal."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        with contextlib.closing(self._ask(arguments, env, [slave] * 3, is_terminal=True)) as link:
            terminal = Terminal(master, link)
            try:
                yield terminal
            finally:
                os.close(master)

    def _ask(self, arguments, env, fds, is_terminal=False):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(PATIENCE_S)
        link.connect(self._path)
        said = {
            "arguments": [str(one) for one in arguments],
            "env": environment(**env),
            "folder": str(self.folder),
        }
        data = json.dumps({**said, "is_terminal": is_terminal}).encode()
        link.sendmsg(
            [struct.pack("I", len(data))],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))],
        )
        link.sendall(data)
        for fd in set(fds):
            os.close(fd)
        return link


def _code(link):
    data = link.recv(4)
    assert len(data) == 4, "the program ended without an exit code"
    return struct.unpack("i", data)[0]


def _read_both(*fds):
    got = dict.fromkeys(fds, b"")
    waiting = set(fds)
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [], PATIENCE_S)
        assert ready, f"the program says nothing more and does not end: {got}"
        for fd in ready:
            data = os.read(fd, 1 << 16)
            got[fd] += data
            if not data:
                waiting.discard(fd)
                os.close(fd)
    return [got[fd].decode() for fd in fds]


class Terminal:
    """The person's side of a pseudo-terminal."""

    def __init__(self, master, link):
        self._master = master
        self._link = link
        self.seen = ""

    def wait_for(self, text):
        end = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < end, f"{text!r} does not come: {self.seen!r}"
            self._read(1.0)
        return self

    def type(self, text):
        os.write(self._master, text.encode())
        return self

    def press(self, key):
        """Press a key until the program has ended: Python loses a Ctrl-C in the instant before it waits for input."""
        end = time.monotonic() + PATIENCE_S
        while not select.select([self._link], [], [], 0.5)[0] and time.monotonic() < end:
            self.type(key)
        return self.end()

    def end(self):
        """Wait for the end of the program; return its exit code."""
        code = _code(self._link)
        while self._read(0.05):
            pass
        return code

    def _read(self, wait_s):
        if not select.select([self._master], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)

    @property
    def text(self):
        """What was printed, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen).replace("\r\n", "\n")


def fresh(*arguments, python=(), folder=None, **env):
    """Run it in a new Python."""
    command = [sys.executable, *python, "-m", "outlive", *arguments]
    done = subprocess.run(
        command,
        env=environment(**env),
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE_S,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


# The warmed Python --------------------------------------------------------------------------------------------


def serve(path):
    """Fork for each call, until the socket's other side, our standard input, is closed."""
    import importlib

    for name in (*(f"outlive.{name}" for name in _WARM), "difflib", "rich.console", "rich.table"):
        importlib.import_module(name)
    "".encode("ascii")  # loads the codec
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page that it shares with this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Always ignored here, as in a background job of a shell: a child sets it again, and Ctrl-C at the tests does not end this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _answer(link)
        link.close()


def _answer(link):
    """Be the program, once."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    data, fds, _, _ = socket.recv_fds(link, 4, 3)
    said = json.loads(_read_all(link, struct.unpack("I", data)[0]))
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in set(fds):
        os.close(fd)
    if said["is_terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(said["folder"])
    os.environ.clear()
    os.environ.update(said["env"])
    time.tzset()
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            io.BufferedReader(io.FileIO(fd, closefd=False)) if fd == 0 else io.BufferedWriter(io.FileIO(fd, "w", closefd=False)),
            encoding="utf-8",
            line_buffering=fd == 2 or said["is_terminal"],
        )
        for fd in (0, 1, 2)
    )  # fmt: skip
    sys.argv = ["outlive", *said["arguments"]]
    code = _run()
    link.sendall(struct.pack("i", code))
    os._exit(0)


def _read_all(link, size):
    data = b""
    while len(data) < size:
        data += link.recv(size - len(data))
    return data


def _run():
    import traceback

    from outlive.cli import main

    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
        code = 1
    else:
        code = 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    return code


@pytest.fixture(scope="session")
def _warm(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("program") / "socket")
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from rig import program; program.serve({path!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield path
        finally:
            process.stdin.close()
            process.wait(PATIENCE_S)


@pytest.fixture
def program(_warm):
    """The program, in an empty folder: in memory, because others may keep the disk busy."""
    with ram_folder() as folder:
        yield Program(_warm, folder)
