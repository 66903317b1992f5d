"""Becomes a server that ends with its parent. Run as a script: launch.py PARENT WAY PROGRAM [ARGUMENT ...]

In a process of its own, because running Python between fork and exec is not safe in a process with threads.
WAY tells whose rights the server has: "same", or for servers that refuse to be run by root "namespace" (a user
namespace in which root is nobody) or "nobody" (that user).
"""

import ctypes
import os
import signal
import sys

_NEWUSER, _NEWIPC = 0x10000000, 0x08000000
_PDEATHSIG = 1
NOBODY = 65534


def _drop_rights(way: str, libc: ctypes.CDLL) -> None:
    # An IPC namespace takes the shared memory along that a killed PostgreSQL leaves behind.
    if way == "namespace" and libc.unshare(_NEWUSER | _NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "a user namespace cannot be made")
    if way == "nobody":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _end_with(parent: int, libc: ctypes.CDLL) -> None:
    if not sys.platform.startswith("linux"):
        return  # there the parent's own atexit has to do
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before it could be tied to us
        sys.exit(1)


def main(parent: str, way: str, *command: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    os.umask(0o077)
    _drop_rights(way, libc)  # first: a change of rights unties from the parent
    _end_with(int(parent), libc)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
