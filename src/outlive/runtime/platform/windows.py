"""Windows, by calls of kernel32 and ntdll.

- `os.kill(pid, 0)` would end the process there: processes are looked up by OpenProcess.
- Locks are mandatory, so the locked byte lies far beyond the content of the file.
- A folder cannot be synced. A rename is written through to the disk instead.
- An open file can be neither renamed nor removed, so a rename waits for readers.
- The mode of a file says little: who may read it is inherited from its folder.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from outlive.runtime.platform.system import READ, WRITE, System

_FAIL_AT_ONCE, _EXCLUSIVE = 1, 2  # of LockFileEx
_LOCKED_AT = 0x7FFFFFFF
_REPLACE, _WRITE_THROUGH = 1, 8  # of MoveFileExW
_QUERY, _SYNCHRONIZE = 0x1000, 0x100000  # of OpenProcess: PROCESS_QUERY_LIMITED_INFORMATION
_TIME_OF_DAY = 3  # of NtQuerySystemInformation
_STDOUT, _ESCAPES = -11, 4  # ENABLE_VIRTUAL_TERMINAL_PROCESSING
_REMOTE = 4  # of GetDriveTypeW
_NOT_FOUND, _DENIED, _SHARED, _LOCKED, _NO_PROCESS, _PENDING = 2, 5, 32, 33, 87, 997
_ERRNO = {_NOT_FOUND: errno.ENOENT, 3: errno.ENOENT, _DENIED: errno.EACCES, _SHARED: errno.EACCES}
_KILLED = 9
_RENAME_S = 10.0  # how long a rename waits for readers of the old file
_SLICE_S = 0.2


class Overlapped(ctypes.Structure):
    """OVERLAPPED: where in a file a lock is."""

    _fields_ = (
        ("internal", ctypes.c_size_t),
        ("internal_high", ctypes.c_size_t),
        ("offset", ctypes.c_uint32),
        ("offset_high", ctypes.c_uint32),
        ("event", ctypes.c_void_p),
    )


class TimeOfDay(ctypes.Structure):
    """SYSTEM_TIMEOFDAY_INFORMATION. The bias is what was added to the boot time when somebody set the clock."""

    _fields_ = (
        ("boot_time", ctypes.c_int64),
        ("current_time", ctypes.c_int64),
        ("zone_bias", ctypes.c_int64),
        ("zone_id", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("boot_time_bias", ctypes.c_uint64),
        ("sleep_time_bias", ctypes.c_uint64),
    )


class Windows(System):
    """Windows. The libraries are arguments for tests."""

    name = "Windows"
    can_fork = False
    has_folder_handles = False
    can_remove_open_files = False
    can_stop_processes = False
    has_unix_sockets = False
    # Without O_BINARY line ends are translated.
    file_flags = getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
    stop_signals = tuple(
        getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)
    )  # the latter by Ctrl-Break, or CTRL_BREAK_EVENT to a process group
    connecting = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK})

    def __init__(
        self,
        kernel: Any = None,
        ntdll: Any = None,
        handle_of: Callable[[int], int] | None = None,
        last_error: Callable[[], int] | None = None,
    ) -> None:
        self._kernel = _typed_kernel(_library("kernel32") if kernel is None else kernel)
        self._ntdll = _library("ntdll") if ntdll is None else ntdll
        self._handle_of = handle_of or _handle_of
        self._last_error = last_error or ctypes.get_last_error  # type: ignore[attr-defined]

    # Processes and clocks

    def at_fork(
        self,
        *,
        before: Callable[[], object] | None = None,
        after_in_parent: Callable[[], object] | None = None,
        after_in_child: Callable[[], object] | None = None,
    ) -> None:
        pass

    @functools.cache  # noqa: B019  # there is one object
    def boot_id(self) -> str:
        """Name the boot by its moment, without what was added when the clock was set."""
        facts, size = TimeOfDay(), ctypes.c_uint32()
        status = self._ntdll.NtQuerySystemInformation(
            _TIME_OF_DAY, ctypes.byref(facts), ctypes.sizeof(facts), ctypes.byref(size)
        )
        return f"windows-{facts.boot_time - facts.boot_time_bias:x}" if status == 0 else ""

    def lease_clock_ns(self) -> int:
        # Not time.monotonic, whose clock depends on the version of Python.
        return int(self._kernel.GetTickCount64()) * 1_000_000

    def start_of(self, pid: int) -> int | None:
        handle = self._kernel.OpenProcess(_QUERY | _SYNCHRONIZE, False, pid)
        if not handle:
            return None
        try:
            if self._kernel.WaitForSingleObject(handle, 0) == 0:  # ended, and somebody has a handle
                return 0
            times = [ctypes.c_uint64() for _ in range(4)]
            found = self._kernel.GetProcessTimes(handle, *map(ctypes.byref, times))
            return times[0].value if found else None
        finally:
            self._kernel.CloseHandle(handle)

    def may_exist(self, pid: int) -> bool:
        handle = self._kernel.OpenProcess(_QUERY, False, pid)
        if handle:
            self._kernel.CloseHandle(handle)
            return True
        return self._last_error() != _NO_PROCESS  # else it belongs to another user

    def namespace(self, kind: str) -> str:
        return "unknown"

    def kill_self(self) -> None:
        os.kill(os.getpid(), _KILLED)  # TerminateProcess, with this as its status

    def is_killed(self, status: int) -> bool:
        return status == _KILLED

    # Files

    def open_folder(self, path: str, at: int | None = None) -> int:
        raise NotADirectoryError(errno.ENOTDIR, "Windows has no handles of folders", path)

    def read_at(self, fd: int, size: int, at: int) -> bytes:
        os.lseek(fd, at, os.SEEK_SET)
        return os.read(fd, size)

    def write_at(self, fd: int, data: bytes | memoryview, at: int) -> int:
        os.lseek(fd, at, os.SEEK_SET)
        return os.write(fd, data)

    def sync_file(self, fd: int) -> None:
        os.fsync(fd)  # FlushFileBuffers

    def sync_folder(self, path: str) -> None:
        pass

    def replace(self, old: str, new: str) -> None:
        """Rename a file and wait until the disk has that. Readers of the old one hold it for a moment."""
        deadline = time.monotonic() + _RENAME_S
        while not self._kernel.MoveFileExW(old, new, _REPLACE | _WRITE_THROUGH):
            code = self._last_error()
            if code not in (_DENIED, _SHARED) or time.monotonic() > deadline:
                raise OSError(_ERRNO.get(code, errno.EIO), f"error {code} of Windows", new)
            time.sleep(0.01)

    def set_mode(self, fd: int, mode: int) -> None:
        pass

    def free_range(self, fd: int, at: int, size: int) -> bool:
        return False

    def lock(self, fd: int, *, is_shared: bool = False, waits: bool = False) -> None:
        flags = (0 if is_shared else _EXCLUSIVE) | (0 if waits else _FAIL_AT_ONCE)
        place = Overlapped(offset=_LOCKED_AT)
        if not self._kernel.LockFileEx(self._handle_of(fd), flags, 0, 1, 0, ctypes.byref(place)):
            code = self._last_error()
            if code in (_LOCKED, _PENDING):
                raise BlockingIOError(errno.EAGAIN, "another process has the lock")
            raise OSError(_ERRNO.get(code, errno.EIO), f"LockFileEx: error {code} of Windows")

    def unlock(self, fd: int) -> None:
        place = Overlapped(offset=_LOCKED_AT)
        self._kernel.UnlockFileEx(self._handle_of(fd), 0, 1, 0, ctypes.byref(place))

    def file_system(self, path: str) -> str:
        drive = os.path.splitdrive(os.path.abspath(path))[0]
        return "network" if self._kernel.GetDriveTypeW(f"{drive}\\") == _REMOTE else ""

    # Threads, sockets and terminals

    def wait_for_event(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait in slices: a handler of Ctrl-C or Ctrl-Break runs between two of them only."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = _SLICE_S if end is None else end - time.monotonic()
            if event.wait(max(0.0, min(left_s, _SLICE_S))):
                return True
            if left_s <= 0:
                return False

    def wait_for_socket(self, fileno: int, want: int, timeout_s: float | None) -> int:
        readers = [fileno] if want & READ else []
        writers = [fileno] if want & WRITE else []
        # A connection that fails is reported as the third kind.
        readable, writable, failed = select.select(readers, writers, [fileno], timeout_s)
        return (READ if readable else 0) | (WRITE if writable else 0) or (want if failed else 0)

    def wait_for_reader(self, fd: int, seconds: float) -> bool:
        time.sleep(seconds)  # the next write to a closed pipe fails
        return True

    def enable_escapes(self) -> None:
        handle, mode = self._kernel.GetStdHandle(_STDOUT), ctypes.c_uint32()
        if self._kernel.GetConsoleMode(handle, ctypes.byref(mode)):
            self._kernel.SetConsoleMode(handle, mode.value | _ESCAPES)


def _library(name: str) -> Any:
    return ctypes.WinDLL(name, use_last_error=True)  # type: ignore[attr-defined]


def _handle_of(fd: int) -> int:
    import msvcrt

    return msvcrt.get_osfhandle(fd)  # type: ignore[attr-defined,no-any-return]


def _typed_kernel(kernel: Any) -> Any:
    """Declare what is wider than an int: ctypes would cut it."""
    handle, number, pointer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "GetTickCount64": (ctypes.c_uint64, ()),
        "OpenProcess": (handle, (number, ctypes.c_int, number)),
        "CloseHandle": (ctypes.c_int, (handle,)),
        "WaitForSingleObject": (number, (handle, number)),
        "GetProcessTimes": (ctypes.c_int, (handle, pointer, pointer, pointer, pointer)),
        "MoveFileExW": (ctypes.c_int, (ctypes.c_wchar_p, ctypes.c_wchar_p, number)),
        "LockFileEx": (ctypes.c_int, (handle, number, number, number, number, pointer)),
        "UnlockFileEx": (ctypes.c_int, (handle, number, number, number, pointer)),
        "GetDriveTypeW": (number, (ctypes.c_wchar_p,)),
        "GetStdHandle": (handle, (ctypes.c_int,)),
        "GetConsoleMode": (ctypes.c_int, (handle, pointer)),
        "SetConsoleMode": (ctypes.c_int, (handle, number)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(kernel, name)
        function.restype, function.argtypes = result, arguments
    return kernel
