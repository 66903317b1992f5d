"""Who holds a lease: enough to know, on the same machine and without waiting, that a process is gone.

Nothing but two facts says that it is: the system knows no such process, or the process of that number was started at another moment.
What cannot be seen from here counts as alive, and its lease decides: a process of another user behind `/proc` with hidepid, one of
another machine, or of another pid or time namespace (the moment of a start is told by the clock of the namespace).
"""

from __future__ import annotations

import functools
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from outlive.errors import Corrupt

_MAX_PID = 1 << 30


@dataclass(frozen=True, slots=True)
class Owner:
    """A process. Containers share a boot id and may share a host name, so the namespaces count too."""

    host: str
    boot: str
    pid_namespace: str
    time_namespace: str
    pid: int
    started: int  # clock ticks since the boot: a pid is used again

    @classmethod
    def me(cls) -> Self:
        return cls(*_me(os.getpid()))

    @classmethod
    def unpack(cls, fields: Any) -> Self:
        kinds = (str, str, str, str, int, int)
        is_one = isinstance(fields, list | tuple) and tuple(map(type, fields)) == kinds
        if not is_one or not 0 < fields[4] < _MAX_PID:
            raise Corrupt("the owner of a run or lock is damaged")
        return cls(*fields)

    def pack(self) -> tuple[Any, ...]:
        return astuple(self)

    @property
    def _home(self) -> tuple[str, ...]:
        return (self.host, self.boot, self.pid_namespace, self.time_namespace)

    def is_gone(self) -> bool:
        """Tell whether this process has certainly ended. False when that cannot be known from here."""
        me = Owner.me()
        if not me.started or not self.started or self._home != me._home:
            return False
        started = _started(self.pid)
        return started != self.started if started is not None else not _exists(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(maxsize=1)  # a forked child has another pid
def _me(pid: int) -> tuple[str, str, str, str, int, int]:
    import socket  # who only looks need not know

    boot = _read("/proc/sys/kernel/random/boot_id") or ""
    return (socket.gethostname(), boot, _namespace("pid"), _namespace("time"), pid, _started(pid) or 0)


def _started(pid: int) -> int | None:
    """Return when a process was started, 0 when it has ended and nobody asked for its status; None when that cannot be read."""
    fields = (_read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split()
    if len(fields) <= 19:
        return None
    has_ended = fields[0] in ("Z", "X") and int(fields[17]) <= 1  # else its first thread alone has
    return 0 if has_ended else int(fields[19])


def _exists(pid: int) -> bool:
    """Tell whether the system knows a process of this number, whoever it belongs to."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return "unknown"


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
