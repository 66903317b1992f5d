"""macOS: sysctl names the boot, libproc knows the processes, and only F_FULLFSYNC reaches the disk.

`fsync` there hands the data to the drive, which may keep it in its cache: a power cut can lose it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import time
from typing import Any

from outlive.runtime.platform.posix import Posix

_F_FULLFSYNC = getattr(fcntl, "F_FULLFSYNC", 51)
_NO_FULLFSYNC = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)  # a network drive, or a foreign file system
_BSD_INFO = 3  # of proc_pidinfo: PROC_PIDTBSDINFO
_ZOMBIE = 5
# Counts while the machine sleeps, which CLOCK_UPTIME_RAW does not, and nobody can set it.
_LEASE_CLOCK = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)


class BsdInfo(ctypes.Structure):
    """`struct proc_bsdinfo` of <sys/proc_info.h>."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("flags", "status", "exit_status", "pid", "parent_pid")),
        *((name, ctypes.c_uint32) for name in ("uid", "gid", "ruid", "rgid", "svuid", "svgid", "reserved")),
        ("command", ctypes.c_char * 16),
        ("process_name", ctypes.c_char * 32),
        *((name, ctypes.c_uint32) for name in ("files", "group", "jobs", "terminal", "foreground_group")),
        ("nice", ctypes.c_int32),
        ("started_s", ctypes.c_uint64),
        ("started_us", ctypes.c_uint64),
    )


class MacOS(Posix):
    """macOS. `library` is its libSystem, which has sysctl and libproc."""

    name = "macOS"

    def __init__(self, library: Any = None) -> None:
        self._library = ctypes.CDLL(None, use_errno=True) if library is None else library

    @functools.cache  # noqa: B019  # there is one object
    def boot_id(self) -> str:
        text, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
        name = b"kern.bootsessionuuid"
        if self._library.sysctlbyname(name, text, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
            return ""
        return text.value.decode("ascii", "replace")

    def lease_clock_ns(self) -> int:
        return time.clock_gettime_ns(_LEASE_CLOCK)

    def start_of(self, pid: int) -> int | None:
        info = BsdInfo()
        size = ctypes.sizeof(info)
        found = self._library.proc_pidinfo(pid, _BSD_INFO, ctypes.c_uint64(0), ctypes.byref(info), size)
        if found != size:
            return None
        return 0 if info.status == _ZOMBIE else info.started_s * 1_000_000 + info.started_us

    def sync_file(self, fd: int) -> None:
        try:
            fcntl.fcntl(fd, _F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NO_FULLFSYNC:
                raise
            os.fsync(fd)
