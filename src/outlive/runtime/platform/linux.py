"""Linux: the boot and the processes are read from /proc. What a kernel without it hides is unknown."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

from outlive.runtime.platform.posix import Posix

_PUNCH_HOLE = 0x03  # of fallocate: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


class Linux(Posix):
    """Linux."""

    name = "Linux"

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self.at_fork(after_in_child=self._offset_ns.cache_clear)  # a child may be in another namespace

    @functools.cache  # noqa: B019  # there is one object
    def boot_id(self) -> str:
        return self._read("sys/kernel/random/boot_id") or ""

    def lease_clock_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._offset_ns()

    @functools.cache  # noqa: B019  # there is one object
    def _offset_ns(self) -> int:
        """Return how far the lease clock is shifted here.

        A container with its own time namespace shares leases with processes outside.
        """
        for line in (self._read("self/timens_offsets") or "").splitlines():
            name, seconds, nanos = line.split()
            if name == "boottime":
                return int(seconds) * 1_000_000_000 + int(nanos)
        return 0

    def start_of(self, pid: int) -> int | None:
        fields = (self._read(f"{pid}/stat") or "").rpartition(")")[2].split()
        if len(fields) <= 19:
            return None
        has_ended = fields[0] in ("Z", "X") and int(fields[17]) <= 1  # else only its main thread has ended
        return 0 if has_ended else int(fields[19])

    def namespace(self, kind: str) -> str:
        try:
            return os.readlink(f"{self._proc}/self/ns/{kind}")
        except OSError:
            return "unknown"

    def sync_file(self, fd: int) -> None:
        os.fdatasync(fd)  # covers the size as well

    def free_range(self, fd: int, at: int, size: int) -> bool:
        import ctypes

        fallocate = getattr(ctypes.CDLL(None), "fallocate64", None)
        if fallocate is None:
            return False
        return bool(fallocate(fd, _PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(size)) == 0)

    def file_system(self, path: str) -> str:
        """Return the type of the longest mount point above a path."""
        best, real = ("", ""), f"{os.path.realpath(path)}/"
        for line in (self._read("mounts") or "").splitlines():
            _, point, kind, *_ = line.split(" ")
            point = point.encode().decode("unicode_escape")
            if real.startswith(f"{point.rstrip('/')}/"):
                best = max(best, (point, kind), key=lambda mount: len(mount[0]))
        return best[1]

    def _read(self, name: str) -> str | None:
        try:
            return Path(self._proc, name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None
