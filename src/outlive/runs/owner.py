"""The process that holds a lease, and how its own machine knows without waiting that it has ended.

It has ended if the system knows no process with its number, or if the process with that number
started at another moment. What cannot be seen from here counts as alive until its lease expires: a
process of another user where these are hidden (`/proc` with hidepid), one on another machine, or
one in another pid or time namespace. (The time namespace matters because its clock gives the moment
of the start.)
"""

from __future__ import annotations

import functools
import os
from typing import Any, Self

from outlive.dataclass import dataclass
from outlive.errors import Corrupt
from outlive.runtime.platform import system

_MAX_PID = 1 << 30


@dataclass(frozen=True, slots=True)
class Owner:
    """A process.

    Containers share a boot id and may share a host name, so the namespaces count too.
    """

    host: str
    boot: str
    pid_namespace: str
    time_namespace: str
    pid: int
    started: int  # on Linux, clock ticks since the boot: the system reuses pids

    @classmethod
    def me(cls) -> Self:
        return cls(*_me(os.getpid()))

    @classmethod
    def unpack(cls, fields: Any) -> Self:
        kinds = (str, str, str, str, int, int)
        is_valid = isinstance(fields, list | tuple) and tuple(map(type, fields[:6])) == kinds
        if not is_valid or not 0 < fields[4] < _MAX_PID:
            raise Corrupt("the owner of a run or lock is damaged")
        return cls(*fields[:6])

    def pack(self) -> tuple[Any, ...]:
        return (*self._home, self.pid, self.started)

    @property
    def _home(self) -> tuple[str, ...]:
        return (self.host, self.boot, self.pid_namespace, self.time_namespace)

    def is_gone(self) -> bool:
        """Tell whether this process has certainly ended; False if that cannot be known."""
        me = Owner.me()
        if not me.boot or not me.started or not self.started or self._home != me._home:
            return False
        started = system.start_of(self.pid)
        return started != self.started if started is not None else not system.may_exist(self.pid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@functools.lru_cache(maxsize=1)  # by pid: a forked child has another one
def _me(pid: int) -> tuple[str, str, str, str, int, int]:
    import socket  # slow to import, and a reader of runs does not need it

    kinds = (system.namespace("pid"), system.namespace("time"))
    return (socket.gethostname(), system.boot_id(), *kinds, pid, system.start_of(pid) or 0)
