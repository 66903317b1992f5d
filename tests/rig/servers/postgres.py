"""A PostgreSQL server of the test's own, and a replica that follows it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

from outlive.testing.patience import PATIENCE_S
from rig.port import HOST
from rig.servers.binary import postgres_folder
from rig.servers.folder import new_folder
from rig.servers.launch import NOBODY
from rig.servers.server import Server, ServerFailed, spawn, wait_until

Mode = Literal["smart", "fast", "immediate"]
_SIGNALS: dict[Mode, int] = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
USER = "outlive"
_IPC_RMID = 0


class PostgresServer(Server):
    """PostgreSQL on a loopback port, with its Unix socket in `folder`.

    `fsync=False` is for speed: what is committed survives a killed server all the same, because the system keeps what
    was written, but not a power cut. `settings` are those of postgresql.conf; they may be changed before a restart.
    """

    kind = "postgres"

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        binaries: Path | None = None,
        folder: Path | None = None,
        ram: bool = False,
    ) -> None:
        self.binaries = binaries or postgres_folder()
        super().__init__(folder=folder, ram=ram)
        self.data = self.folder / "data"
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.password = password
        self._primary: PostgresServer | None = None

    @classmethod
    def replica(
        cls, primary: PostgresServer, *, settings: Mapping[str, str] | None = None, ram: bool = False
    ) -> Self:
        """Return a hot standby that streams from a running primary; it copies the primary at its first start."""
        made = cls(
            fsync=primary.fsync,
            settings=settings,
            password=primary.password,
            binaries=primary.binaries,
            ram=ram,
        )
        made._primary = primary
        return made

    # Addresses ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return self._url("postgres")

    def url_with(self, *others: PostgresServer, database: str = "postgres", **options: str) -> str:
        """Return a URL that names several servers; `target_session_attrs="read-write"` finds the primary."""
        addresses = ",".join(server.address for server in (self, *others))
        query = "&".join(f"{name}={quote(value)}" for name, value in options.items())
        return f"postgresql://{self._user}@{addresses}/{database}" + (f"?{query}" if query else "")

    def database(self, name: str) -> str:
        """Create an empty database and return its URL."""
        # By copying files, which is twice as fast as the default of newer versions, a copy by way of the log.
        major = int((self.data / "PG_VERSION").read_text())
        self._execute(f'create database "{name}"' + (" strategy file_copy" if major >= 15 else ""))
        return self._url(name)

    def drop(self, name: str) -> None:
        """Remove a database, even while clients are connected to it."""
        self._execute(f'drop database if exists "{name}" with (force)')

    def _url(self, database: str) -> str:
        return f"postgresql://{self._user}@{self.address}/{quote(database, safe='')}"

    @property
    def _user(self) -> str:
        return USER if self.password is None else f"{USER}:{quote(self.password, safe='')}"

    # Life -----------------------------------------------------------------------------------------------------

    def stop(self, mode: Mode = "fast", *, timeout_s: float = PATIENCE_S) -> None:
        """Shut down. "smart" waits for all clients to leave, "fast" throws them out, "immediate" is like a crash."""
        self.resume()
        self._end(_SIGNALS[mode], timeout_s)

    def restart(self, mode: Mode = "fast") -> Self:
        self.stop(mode)
        return self.start()

    def kill(self) -> None:
        """End all of its processes at once; nothing remains but what they had written."""
        if not self.is_running:
            return
        super().pause()  # so that it makes no more
        with _children(self.pid) as children:
            _send(signal.SIGKILL, children)
            super().kill()
            wait_until(lambda: _have_ended(children), PATIENCE_S, f"processes of {self!r} live on")
        self._remove_lock()

    def pause(self) -> None:
        super().pause()
        with _children(self.pid) as children:
            _send(signal.SIGSTOP, children)

    def resume(self) -> None:
        if self.is_running:
            with _children(self.pid) as children:
                _send(signal.SIGCONT, children)
            super().resume()

    def _remove_lock(self) -> None:
        """Remove what keeps a second server off the data: with nobody left it protects nothing.

        Its pid may soon be that of another process, and its piece of shared memory stays until the machine is restarted.
        """
        path = self.data / "postmaster.pid"
        lines = path.read_text().splitlines() if path.exists() else []
        # A namespace has shared memory of its own, which ends with it; its numbers mean nothing here.
        if len(lines) > 6 and self._way() != "namespace":
            ctypes.CDLL(None).shmctl(int(lines[6].split()[1]), _IPC_RMID, None)
        path.unlink(missing_ok=True)

    def promote(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Make a replica a primary."""
        (self.data / "promote").touch()
        self._signal(signal.SIGUSR1)
        done = "select not pg_is_in_recovery()"
        wait_until(lambda: bool(self._execute(done)), timeout_s, f"{self!r} is not promoted", alive=self)

    def catch_up(self, *, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a replica shows everything that its primary has."""
        if self._primary is None:
            raise ServerFailed(f"{self!r} is not a replica")
        position = self._primary._execute("select pg_current_wal_lsn()")
        seen = f"select pg_last_wal_replay_lsn() >= '{position}'"
        wait_until(lambda: bool(self._execute(seen)), timeout_s, f"{self!r} lags behind", alive=self)

    # ------------------------------------------------------------------------------------------------------------

    def _way(self) -> str:
        return unprivileged_way()

    def _prepare(self) -> None:
        if self.data.exists():
            return
        if self._primary is not None:
            self._copy_primary(self._primary)
        else:
            shutil.copytree(_template(self.binaries), self.data, copy_function=shutil.copyfile)
        (self.data / "pg_hba.conf").write_text(self._access())
        _give(self.folder, self._way())

    def _access(self) -> str:
        """The socket lies in a folder of ours, so that it asks nobody for a password."""
        how = "trust" if self.password is None else "scram-sha-256"
        lines = ["local all all trust"]
        lines += [f"host {what} all {HOST}/32 {how}" for what in ("all", "replication")]
        return "\n".join(lines) + "\n"

    def _copy_primary(self, primary: PostgresServer) -> None:
        options = ["-R", "-X", "stream", "--checkpoint=fast", "--no-sync", "-d", primary.url]
        _give(self.folder, self._way())
        run([str(self.binaries / "pg_basebackup"), "-D", str(self.data), *options], self._way())

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": str(self.folder),
            "fsync": "on" if self.fsync else "off",
            "dynamic_shared_memory_type": "mmap",  # in the data folder, so that a killed server leaves nothing
            # A replica that has just lost its primary would not hear of a promotion before that: 5 s.
            **({"wal_retrieve_retry_interval": "100ms"} if self._primary else {}),
            **self.settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self.binaries / "postgres"), "-D", str(self.data), *options]

    def _status(self) -> str:
        """Return what the server says of itself in the file by which pg_ctl waits too."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return ""
        return lines[7].strip() if len(lines) > 7 and lines[0].strip() == str(self.pid) else ""

    def _is_ready(self) -> bool:
        return self._status() in ("ready", "standby")

    def wait_until_ready(self, timeout_s: float = PATIENCE_S) -> None:
        super().wait_until_ready(timeout_s)
        if self.password is not None and self._primary is None:
            self._execute(f"alter role {USER} password '{self.password.replace(chr(39), chr(39) * 2)}'")

    def _execute(self, sql: str) -> Any:
        """Run one statement over the Unix socket and return the first value of its result."""
        try:
            import psycopg
        except ImportError:
            raise ServerFailed("psycopg is not installed: `pip install 'psycopg[binary]'`") from None
        where = f"host={self.folder} port={self.port} user={USER} dbname=postgres"
        with psycopg.connect(where, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


# Making a data folder -------------------------------------------------------------------------------------------


@functools.cache
def _template(binaries: Path) -> Path:
    """Return a data folder as initdb makes it: copying one is ten times as fast as making another."""
    folder = new_folder("template", ram=True)
    _give(folder, unprivileged_way())
    data = folder / "data"
    options = ["-U", USER, "-A", "trust", "--no-sync", "--locale=C", "--encoding=UTF8"]
    run([str(binaries / "initdb"), "-D", str(data), *options], unprivileged_way())
    return data


def run(command: list[str], way: str) -> None:
    """Run a program to its end."""
    with tempfile.TemporaryFile() as output:
        status = spawn(command, output, way).wait(PATIENCE_S)
        output.seek(0)
        if status != 0:
            said = output.read().decode(errors="replace")
            raise ServerFailed(f"{Path(command[0]).name} ended with status {status}:\n{said}")


@functools.cache
def unprivileged_way() -> str:
    """Return how to run a server that root may not run: see launch.py."""
    if os.geteuid() != 0:
        return "same"
    try:
        run([sys.executable, "-I", "-S", "-c", ""], "namespace")
    except ServerFailed:
        return "nobody"
    return "namespace"


def _give(folder: Path, way: str) -> None:
    """Let a folder belong to whom the server runs as."""
    if way == "nobody":
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


# Its processes --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _children(parent: int) -> Iterator[dict[int, int | None]]:
    """Yield pid → pidfd of the children of a process; where the system has no pidfds, pid → None.

    The server reaps its children whenever they end, and then their numbers may go to any process: a signal goes to a
    handle that was seen to belong to one of them.
    """
    children: dict[int, int | None] = {}
    try:
        for pid in _child_pids(parent):
            if sys.platform != "linux":
                children[pid] = None
                continue
            with contextlib.suppress(ProcessLookupError):
                children[pid] = os.pidfd_open(pid)
        there = {pid for pid in _child_pids(parent) if pid in children}  # these are what the handles refer to
        yield {pid: handle for pid, handle in children.items() if pid in there}
    finally:
        for handle in children.values():
            if handle is not None:
                os.close(handle)


def _child_pids(parent: int) -> list[int]:
    if Path("/proc/self/stat").exists():
        listed: Iterable[str] = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    else:
        table = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
        rows = [line.split() for line in table.splitlines()]
        listed = [pid for pid, its_parent in rows if int(its_parent) == parent]
    return [int(pid) for pid in listed]


def _send(number: int, children: Mapping[int, int | None]) -> None:
    for pid, handle in children.items():
        with contextlib.suppress(ProcessLookupError):
            if sys.platform == "linux" and handle is not None:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(pid, number)


def _have_ended(children: Mapping[int, int | None]) -> bool:
    handles = [handle for handle in children.values() if handle is not None]
    return len(select.select(handles, [], [], 0)[0]) == len(handles)  # a pidfd is readable once it has ended
