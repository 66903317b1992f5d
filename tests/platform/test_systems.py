"""The calls of macOS and Windows, with stand-ins for their libraries that check what they are given."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import inspect
import ntpath
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import outlive
from outlive.backend import clock as clock_module
from outlive.backend.clock import clock, has_lapsed
from outlive.backend.records import EntryRecord
from outlive.backends.sqlite.backend import SQLiteBackend
from outlive.runs.owner import Owner
from outlive.runtime.platform import READ, WRITE, System, choose, system
from outlive.runtime.platform.linux import Linux
from outlive.runtime.platform.macos import BsdInfo, MacOS
from outlive.runtime.platform.posix import Posix
from outlive.runtime.platform.windows import Overlapped, TimeOfDay, Windows
from rig.simulated.libraries import BOOT_UUID, Kernel, Ntdll, SystemLibrary

METHODS = [name for name, value in vars(System).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def windows(kernel: Kernel) -> Windows:
    return Windows(kernel, Ntdll(), lambda fd: fd, lambda: kernel.last_error)


@pytest.fixture
def macos() -> MacOS:
    return MacOS(SystemLibrary())


@pytest.fixture(params=["windows", "macos", "linux"])
def each(request: pytest.FixtureRequest, windows: Windows, macos: MacOS) -> System:
    return {"windows": windows, "macos": macos, "linux": Linux()}[request.param]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_each_system_has_its_class() -> None:
    assert type(system) is Linux
    assert type(choose("freebsd14")) is Posix


@pytest.mark.parametrize("name", METHODS)
def test_the_systems_have_the_same_calls(name: str) -> None:
    expected = inspect.signature(getattr(System, name))
    calls = [getattr(kind, name) for kind in (Linux, MacOS, Windows)]
    written = [call for call in calls if not inspect.isbuiltin(call)]  # one of os itself has other names
    assert {inspect.signature(call) for call in written} == {expected}


def test_structures_have_the_size_that_the_systems_document() -> None:
    assert ctypes.sizeof(BsdInfo) == 136
    assert BsdInfo.started_s.offset == 120
    assert ctypes.sizeof(Overlapped) == 32
    assert Overlapped.offset.offset == 16
    assert ctypes.sizeof(TimeOfDay) == 48
    assert TimeOfDay.boot_time_bias.offset == 32


# Boots and clocks


def test_a_boot_has_a_name(each: System) -> None:
    assert each.boot_id()
    assert each.boot_id() == each.boot_id()


def test_the_boot_of_macos_is_its_session(macos: MacOS) -> None:
    assert macos.boot_id() == BOOT_UUID.decode()


def test_a_clock_that_is_set_is_no_other_boot_of_windows(kernel: Kernel, windows: Windows) -> None:
    class Set(Ntdll):
        def NtQuerySystemInformation(self, kind: int, facts: Any, size: int, written: Any) -> int:
            super().NtQuerySystemInformation(kind, facts, size, written)
            facts._obj.boot_time += 36_000_000_000
            facts._obj.boot_time_bias += 36_000_000_000
            return 0

    assert Windows(kernel, Set(), lambda fd: fd, lambda: 0).boot_id() == windows.boot_id()


def test_a_failed_call_is_an_unknown_boot(kernel: Kernel) -> None:
    class Refuses:
        def NtQuerySystemInformation(self, *_: Any) -> int:
            return -1

        def sysctlbyname(self, *_: Any) -> int:
            return -1

    assert Windows(kernel, Refuses(), lambda fd: fd, lambda: 0).boot_id() == ""
    assert MacOS(Refuses()).boot_id() == ""
    assert Linux("/nowhere").boot_id() == ""


def test_the_lease_clock_advances(each: System) -> None:
    before = each.lease_clock_ns()
    time.sleep(0.05)
    assert each.lease_clock_ns() - before >= 40_000_000


def test_a_lease_of_an_unknown_boot_ends_after_a_reboot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock since the boot starts again at 0, and the lease must not last as long as the boot before."""
    monkeypatch.setattr(clock_module, "system", Linux("/nowhere"))
    now = clock()
    until, name = now.end_of(30.0, "")
    entry = EntryRecord("lock", "l", until=until, clock=name)
    assert not has_lapsed(entry, now)
    monkeypatch.setattr(Linux, "lease_clock_ns", lambda self: 0)  # after the reboot
    monkeypatch.setattr(time, "time_ns", lambda: (until + 1) * 1000)
    assert has_lapsed(entry, clock())


def test_an_unknown_boot_holds_no_mark_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlive.backends.sqlite import connection

    monkeypatch.setattr(connection, "system", Linux("/nowhere"))
    with outlive.open(tmp_path / "a.db") as store:
        store.thread("t").save({"n": 1})
        assert Path(f"{tmp_path}/a.db-ack").read_bytes()[8:16] == bytes(8)


# Processes


def test_a_process_is_known_by_its_start(each: System, child: subprocess.Popen[bytes]) -> None:
    started = each.start_of(child.pid)
    assert started
    assert each.may_exist(child.pid)
    child.kill()
    child.wait()
    assert each.start_of(child.pid) is None
    assert not each.may_exist(child.pid)


def test_looking_at_a_process_leaves_no_handle(kernel: Kernel, windows: Windows) -> None:
    windows.start_of(os.getpid())
    windows.may_exist(os.getpid())
    assert kernel.open_handles == []


def test_a_process_of_another_user_may_exist(
    kernel: Kernel, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel.OpenProcess, "_function", lambda *_: kernel._failed(5))
    assert windows.start_of(1) is None
    assert windows.may_exist(1)


@pytest.mark.parametrize("name", ["windows", "macos"])
def test_an_owner_that_ended_is_gone(
    name: str, windows: Windows, macos: MacOS, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    import outlive.runs.owner as owner

    monkeypatch.setattr(owner, "system", windows if name == "windows" else macos)
    owner._me.cache_clear()
    try:
        me = Owner.me()
        other = Owner(*me._home, child.pid, owner.system.start_of(child.pid) or 0)
        assert not me.is_gone()
        assert not other.is_gone()
        assert Owner(*me._home, child.pid, other.started + 1).is_gone()  # the number was given again
        child.kill()
        child.wait()
        assert other.is_gone()
    finally:
        owner._me.cache_clear()


def test_windows_kills_by_a_status(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: calls.append((pid, number)))
    windows.kill_self()
    assert calls == [(os.getpid(), 9)]
    assert windows.is_killed(9)
    assert not windows.is_killed(1)


def test_ctrl_break_stops_a_worker_of_windows(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlive.runs import sigterm

    monkeypatch.setattr(windows, "stop_signals", (signal.SIGTERM, signal.SIGUSR1), raising=False)
    monkeypatch.setattr(sigterm, "system", windows)
    terminator, drained = sigterm.Terminator(), threading.Event()
    terminator.add_drain(1, drained.set)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert drained.wait(10)
    finally:
        terminator.discard(1)
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


# Files


def test_a_place_of_a_file_is_written_and_read(each: System, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT | each.file_flags, 0o600)
    each.write_at(fd, b"\r\nabc", 3)
    assert each.read_at(fd, 100, 5) == b"abc"
    each.sync_file(fd)
    each.set_mode(fd, 0o600)
    os.close(fd)
    each.sync_folder(str(tmp_path))


def test_macos_syncs_past_the_cache_of_the_drive(macos: MacOS, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, code: calls.append((fd, code)))
    monkeypatch.setattr(os, "fsync", lambda fd: pytest.fail("fsync is not enough"))
    macos.sync_file(7)
    assert calls == [(7, 51)]


@pytest.mark.parametrize("code, is_raised", [(errno.ENOTSUP, False), (errno.EIO, True)])
def test_macos_falls_back_to_fsync_only_where_there_is_no_better_call(
    macos: MacOS, monkeypatch: pytest.MonkeyPatch, code: int, is_raised: bool
) -> None:
    def refuse(fd: int, number: int) -> None:
        raise OSError(code, "refused")

    calls: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", calls.append)
    if is_raised:
        with pytest.raises(OSError, match="refused"):
            macos.sync_file(7)
    else:
        macos.sync_file(7)
    assert calls == ([] if is_raised else [7])


def test_sqlite_syncs_past_the_cache_of_the_drive(tmp_path: Path) -> None:
    backend = SQLiteBackend(str(tmp_path / "a.db"))
    db: apsw.Connection = backend._connection.db()
    for name in ("fullfsync", "checkpoint_fullfsync"):
        assert db.execute(f"pragma {name}").fetchall() == [(1,)]
    backend.close()


def test_locks_exclude_each_other(each: System, tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "l", os.O_RDWR | os.O_CREAT) for _ in range(2))
    each.lock(first, is_shared=True)
    each.lock(second, is_shared=True, waits=True)
    with pytest.raises(BlockingIOError):
        each.lock(first)
    each.unlock(second)
    each.lock(first)
    with pytest.raises(BlockingIOError):
        each.lock(second, is_shared=True)
    os.close(first)
    os.close(second)


def test_a_rename_waits_for_readers(
    kernel: Kernel, windows: Windows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [32, 5]
    move = kernel.MoveFileExW._function
    monkeypatch.setattr(
        kernel.MoveFileExW, "_function", lambda *a: kernel._failed(codes.pop()) if codes else move(*a)
    )
    (tmp_path / "old").write_text("new")
    (tmp_path / "new").write_text("old")
    windows.replace(str(tmp_path / "old"), str(tmp_path / "new"))
    assert (tmp_path / "new").read_text() == "new"
    assert not codes
    with pytest.raises(FileNotFoundError):
        windows.replace(str(tmp_path / "missing"), str(tmp_path / "new"))


@pytest.mark.parametrize("where", ["C:/x/a.db", r"C:\x\a.db", "sqlite:///C:/x/a.db", r"sqlite:C:\x\a.db"])
def test_a_path_may_begin_with_a_drive(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlive import urls
    from outlive.cli.stores import to_url

    monkeypatch.setattr(urls.os, "path", ntpath)
    monkeypatch.setattr(ntpath, "abspath", lambda path: path)
    assert str(urls.local_path(where)).replace("\\", "/") == "C:/x/a.db"
    assert to_url(where).startswith("sqlite:")


# Sockets


def test_a_socket_is_waited_for(each: System) -> None:
    one, other = socket.socketpair()
    with one, other:
        assert each.wait_for_socket(one.fileno(), READ, 0) == 0
        assert each.wait_for_socket(one.fileno(), READ | WRITE, 10) == WRITE
        other.send(b"x")
        assert each.wait_for_socket(one.fileno(), READ, None) == READ
        other.close()
        assert each.wait_for_socket(one.fileno(), READ, 10) == READ


def test_an_event_is_waited_for(each: System) -> None:
    event = threading.Event()
    assert not each.wait_for_event(event, 0.3)
    threading.Timer(0.3, event.set).start()
    assert each.wait_for_event(event, 60)
    assert each.wait_for_event(event, None)
