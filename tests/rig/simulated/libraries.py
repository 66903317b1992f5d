"""Stand-ins for the libraries of macOS and Windows, which do with Linux what theirs do."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_flock, _EX, _SH, _NB, _UN = fcntl.flock, fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB, fcntl.LOCK_UN
BOOT_UUID = b"5E0F7C2A-9D7C-4A21-BB0A-3B8F6E0C9A11"


def start_ticks(pid: int) -> int | None:
    """Return when a process started; None when there is none, 0 for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] == "Z" else int(fields[19])


class _Call:
    """A function whose types can be declared, as those of a library."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> Any:
        assert self.argtypes is None or len(arguments) == len(self.argtypes)
        return self._function(*arguments)


class SystemLibrary:
    """What outlive calls of libSystem."""

    def sysctlbyname(self, name: bytes, text: Any, size: Any, new: None, new_size: Any) -> int:
        assert (name, new, new_size.value) == (b"kern.bootsessionuuid", None, 0)
        assert size._obj.value > len(BOOT_UUID)
        text.value = BOOT_UUID
        return 0

    def proc_pidinfo(self, pid: int, flavor: int, argument: Any, info: Any, size: int) -> int:
        assert (flavor, argument.value, size) == (3, 0, 136)
        ticks = start_ticks(pid)
        if not ticks:  # macOS knows nothing of a zombie either
            return 0
        info._obj.started_s, info._obj.started_us, info._obj.status = ticks, 7, 2
        return size


class Ntdll:
    """What outlive calls of ntdll."""

    def NtQuerySystemInformation(self, kind: int, facts: Any, size: int, written: Any) -> int:
        assert (kind, size) == (3, 48)
        facts._obj.boot_time, facts._obj.boot_time_bias = 133_000_000_000_000_500, 500
        return 0


class Kernel:
    """What outlive calls of kernel32. A handle is a pid or a file descriptor."""

    def __init__(self) -> None:
        self.last_error = 0
        self.open_handles: list[int] = []
        for name in dir(type(self)):
            if name[0].isupper():
                setattr(self, name, _Call(getattr(self, name)))

    def _failed(self, code: int) -> int:
        self.last_error = code
        return 0

    def GetTickCount64(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def OpenProcess(self, access: int, inherits: bool, pid: int) -> int:
        assert access & 0x1000
        assert not inherits
        if start_ticks(pid) is None:
            return self._failed(87)
        self.open_handles.append(pid)
        return pid

    def CloseHandle(self, handle: int) -> int:
        self.open_handles.remove(handle)
        return 1

    def WaitForSingleObject(self, handle: int, timeout_ms: int) -> int:
        assert timeout_ms == 0
        return 258 if start_ticks(handle) else 0

    def GetProcessTimes(self, handle: int, created: Any, *others: Any) -> int:
        assert len(others) == 3
        created._obj.value = start_ticks(handle) or 0
        return 1

    def MoveFileExW(self, old: str, new: str, flags: int) -> int:
        assert flags == 9
        try:
            os.replace(old, new)
        except PermissionError:
            return self._failed(5)
        except FileNotFoundError:
            return self._failed(2)
        return 1

    def LockFileEx(self, handle: int, flags: int, reserved: int, low: int, high: int, place: Any) -> int:
        assert (reserved, low, high, place._obj.offset) == (0, 1, 0, 0x7FFFFFFF)
        try:
            _flock(handle, (_EX if flags & 2 else _SH) | (_NB if flags & 1 else 0))
        except BlockingIOError:
            return self._failed(33)
        return 1

    def UnlockFileEx(self, handle: int, reserved: int, low: int, high: int, place: Any) -> int:
        assert place._obj.offset == 0x7FFFFFFF
        _flock(handle, _UN)
        return 1

    def GetDriveTypeW(self, root: str) -> int:
        return 3

    def GetStdHandle(self, number: int) -> int:
        return 0

    def GetConsoleMode(self, handle: int, mode: Any) -> int:
        return 0

    def SetConsoleMode(self, handle: int, mode: int) -> int:
        return 1
