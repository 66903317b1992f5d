"""Who holds a lease: enough to know, on the same machine and without waiting, that a process is gone."""

from __future__ import annotations

import functools
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. Containers share a boot id and may share a host name, so the pid namespace counts too."""

    host: str
    boot: str
    namespace: str  # of pids
    pid: int
    started: int  # clock ticks since the boot: a pid is used again

    @classmethod
    def me(cls) -> Self:
        return cls(*_me(os.getpid()))

    @classmethod
    def unpack(cls, fields: Any) -> Self:
        return cls(*fields)

    def pack(self) -> tuple[Any, ...]:
        return astuple(self)

    def is_gone(self) -> bool:
        """Tell whether this process has certainly ended. False when that cannot be known from here."""
        me = Owner.me()
        if not me.started or (self.host, self.boot, self.namespace) != (me.host, me.boot, me.namespace):
            return False
        return _started(self.pid) != self.started

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(maxsize=1)  # a forked child has another pid
def _me(pid: int) -> tuple[str, str, str, int, int]:
    import socket  # who only looks need not know

    return (
        socket.gethostname(),
        _read("/proc/sys/kernel/random/boot_id"),
        _pid_namespace(),
        pid,
        _started(pid),
    )


def _started(pid: int) -> int:
    """Return when a process was started; 0 when there is none, also when it has ended and nobody asked for its status."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else 0


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
