"""Folders of servers: all of a process lie in one, which goes when the process exits.

A process that was killed cannot remove its own. The next one does: it knows by a lock, which the system lifts, that the owner
has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "outlive-servers-"
_LOCK = "owner"
_RAM = "/dev/shm"
_ROOM_BYTES = 1 << 30  # containers often have 64 MiB, which one PostgreSQL fills
_number = itertools.count(1)
_homes: list[tuple[Path, int]] = []


def new_folder(kind: str, *, ram: bool) -> Path:
    """Make a folder with a short path: that of a Unix socket inside may have no more than about 100 bytes."""
    place = _RAM if ram and _has_room(_RAM) else tempfile.gettempdir()
    folder = _home(place, os.getpid()) / f"{kind}-{next(_number)}"
    folder.mkdir(mode=0o700)
    return folder


def _has_room(place: str) -> bool:
    return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= _ROOM_BYTES


@functools.cache
def _home(place: str, pid: int) -> Path:
    """Return the folder of this process; a fork makes its own."""
    _sweep(place)
    home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    home.chmod(0o711)  # a server that runs as nobody passes through
    lock = os.open(home / "new", os.O_CREAT | os.O_WRONLY, 0o600)  # open as long as the process lives
    fcntl.flock(lock, fcntl.LOCK_EX)
    (home / "new").rename(home / _LOCK)  # locked before anybody can see it
    _homes.append((home, pid))
    return home


def remove_folders() -> None:
    """Remove the folders of this process, whose servers have ended."""
    for home, pid in _homes:
        if pid == os.getpid():
            shutil.rmtree(home, ignore_errors=True)


def _sweep(place: str) -> None:
    """Remove what killed processes have left."""
    for lock in Path(place).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open() as file:  # not ours, or in use
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
