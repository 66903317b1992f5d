"""The number of commits of each log in a folder store, which reveals an older copy of a log.

A log proves that it was not changed, but not that it is the newest copy: a file from a backup, or
one that a sync tool brought, is consistent in itself. So the file `lock`, which every writer opens
anyway, has a slot for each thread with the revision of its last commit, and one for the index with
the number of threads.

A slot is written after the commit is on disk, and without a sync of its own. So after a crash it
may be older than its log, never newer. A slot that is torn or empty says nothing.
"""

from __future__ import annotations

import struct
import zlib

from outlive.backends.file.disk import Disk, WriteLock

_SLOT = struct.Struct("<QI")  # count, checksum
_START = 64  # after what the lock itself keeps there
INDEX = 0  # the slot of the index; a thread has the one after its place in the index


class Marks:
    """The slots in the file `lock`."""

    def __init__(self, disk: Disk, guard: WriteLock) -> None:
        self._disk = disk
        self._guard = guard

    def note(self, slot: int, digest: bytes, count: int) -> None:
        """Write a slot, while the lock is held."""
        self._guard.write(_SLOT.pack(count, _checksum(slot, digest, count)), _START + slot * _SLOT.size)

    def read(self, slot: int, digest: bytes) -> int:
        """Return the least number of commits that a log has had."""
        try:
            fd = self._disk.open("lock")
        except FileNotFoundError:  # somebody deleted it, with all slots
            return 0
        try:
            data = self._disk.read(fd, _SLOT.size, _START + slot * _SLOT.size)
        finally:
            self._disk.close(fd)
        if len(data) < _SLOT.size:
            return 0
        count, check = _SLOT.unpack(data)
        return int(count) if check == _checksum(slot, digest, count) else 0


def _checksum(slot: int, digest: bytes, count: int) -> int:
    return zlib.crc32(b"%d %d " % (slot, count) + digest)
