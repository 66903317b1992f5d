"""Reserved space in a folder store, so that deletions work on a full disk.

A deletion appends a frame, and writes a new log before the old one is removed: both need space. The
file `reserve` holds it. On a full disk a deletion truncates that file, under the store's lock, and
the next commit that succeeds fills it again.
"""

from __future__ import annotations

import contextlib

from outlive.backends.file.disk import Disk

NAME = "reserve"
BYTES = 64 << 10


class Reserve:
    """The file `reserve`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._is_whole = False  # as far as this process knows

    def keep(self) -> None:
        """Reserve the space, unless it is reserved. On a full disk the next commit tries again."""
        if self._is_whole:
            return
        with contextlib.suppress(OSError):
            fd = self._disk.open(NAME, create=True)
            try:
                size = self._disk.size(fd)
                if size < BYTES:
                    self._disk.write(fd, bytes(BYTES - size), size)
                    self._disk.sync(fd)
                self._is_whole = True
            finally:
                self._disk.close(fd)

    def release(self) -> bool:
        """Give the space back to the disk; tell whether there was any."""
        self._is_whole = False
        with contextlib.suppress(OSError):
            fd = self._disk.open(NAME, write=True)
            try:
                size = self._disk.size(fd)
                self._disk.truncate(fd, 0)
            finally:
                self._disk.close(fd)
            return size > 0
        return False
