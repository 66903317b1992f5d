"""The write-ahead log that a killed process leaves: which commits of it were acknowledged.

When SQLite recovers a log, it stops at the first frame with a wrong checksum, because a crash in
the middle of a write looks like that. A damaged frame looks the same: every acknowledged commit
after it would be lost silently. Two things tell the difference, both checked before any write:

- The mark. After each commit its place in the log (the log's salts and the number of frames) is
  written into a small file beside the database, without a sync of its own. A log with these salts
  and fewer sound frames has lost something. With `fsync=normal` this holds only until the machine
  restarts, because a power cut may remove the last commits.
- The frames. Each checksum continues that of the frame before, and is stored with it. So frames
  after the damage can still be compared with their predecessor. Without a mark, a sound commit
  after the last one that SQLite can read was lost. A power cut may also lose the mark: then it
  takes two such commits, because the last one may be torn and was not acknowledged.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from outlive.dataclass import dataclass
from outlive.runtime.platform import system

_MAGIC = 0x377F0682  # the last bit: big-endian checksums
_HEADER = struct.Struct(">8I")  # magic, version, page size, checkpoint, salts, checksum
_FRAME = struct.Struct(">6I")  # page, pages of the database after a commit or 0, salts, checksum
# Name and version, boot, salts, frames, whether they were synced.
_MARK = struct.Struct(">8s8s8sII")
_SIZE = _MARK.size + 4  # with a CRC-32
_NAME = b"outlive1"


@dataclass(frozen=True, slots=True)
class Mark:
    """The last commit that was acknowledged, as far as its process could write that down."""

    boot: bytes
    salts: bytes
    frames: int
    is_synced: bool


class MarkFile:
    """The file with the mark.

    It exists while a process has the database open, and after a crash.
    """

    def __init__(self, database: str, boot: str, *, is_synced: bool) -> None:
        self._path = f"{database}-ack"
        self._log = f"{database}-wal"
        self._log_index = f"{database}-shm"
        self._boot = zlib.crc32(boot.encode()).to_bytes(8) if boot else bytes(8)
        self._is_synced = is_synced
        self._fd = self._log_fd = -1
        # Which files these are: no other one gets their inode while they are open.
        self._log_state: os.stat_result | None = None
        self._index_state: os.stat_result | None = None
        self._map: mmap.mmap | None = None
        self.existed = os.path.exists(self._path)
        with contextlib.suppress(OSError):  # without a mark the frames alone have to tell
            self._fd = self._open(os.stat(database))
            self._map = self._mapped()

    def _open(self, like: os.stat_result) -> int:
        """Open or create the file, with the mode of the database.

        A shared lock says it is in use.
        """
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | system.file_flags, 0o600)
            try:
                system.lock(fd, is_shared=True, waits=True)
                state = os.fstat(fd)
                if state.st_nlink:  # else the last process to close it has just removed it
                    if state.st_mode & 0o777 != like.st_mode & 0o777 and state.st_size == 0:
                        system.set_mode(fd, like.st_mode & 0o777)
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _mapped(self) -> mmap.mmap:
        """Map the mark, so that writing it takes no system call.

        The bytes must exist before that.
        """
        if os.fstat(self._fd).st_size != _SIZE:
            os.ftruncate(self._fd, 0)
            system.write_at(self._fd, self._packed(bytes(8), 0), 0)
        return mmap.mmap(self._fd, _SIZE)

    def read(self) -> Mark | None:
        """Return the mark; None when nothing is written there, or something else."""
        raw = self._map[:] if self._map is not None else b""
        if len(raw) != _SIZE or zlib.crc32(raw[:-4]).to_bytes(4) != raw[-4:]:
            return None
        name, boot, salts, frames, is_synced = _MARK.unpack(raw[:-4])
        return Mark(boot, salts, frames, bool(is_synced)) if name == _NAME else None

    def holds(self, mark: Mark) -> bool:
        """Tell whether everything marked must be in the log: no power cut can have removed it."""
        return mark.is_synced or self.is_this_boot(mark)

    def is_this_boot(self, mark: Mark) -> bool:
        return mark.boot == self._boot and any(self._boot)

    def open_log(self) -> bool:
        """Open the log that SQLite has open; False when it is not there."""
        with contextlib.suppress(FileNotFoundError):
            # Opening it here would drop SQLite's locks.
            self._index_state = os.stat(self._log_index)
            self._log_fd = os.open(self._log, os.O_RDONLY | system.file_flags)
            self._log_state = os.fstat(self._log_fd)
        return self._log_fd >= 0

    def acknowledge(self, frames: int, page_size: int) -> None:
        """Write down that the log is acknowledged up to this frame.

        The salts are those of the last frame itself: should another process have begun the log
        again meanwhile, its frames are not taken for acknowledged ones.
        """
        if self._map is None or not frames:
            return
        # A crash before the last line leaves the mark of an earlier commit: it vouches for less.
        place = _HEADER.size + (frames - 1) * (_FRAME.size + page_size)
        header = system.read_at(self._log_fd, _FRAME.size, place)
        if len(header) == _FRAME.size and header[4:8] != b"\0\0\0\0":
            # As `_packed` does, without a call: every save comes here.
            raw = _MARK.pack(_NAME, self._boot, header[8:16], frames, self._is_synced)
            self._map[:] = raw + zlib.crc32(raw).to_bytes(4)

    def forget(self) -> None:
        """Write down that nothing of the log is acknowledged."""
        if self._map is not None:
            self._map[:] = self._packed(bytes(8), 0)

    def discard(self) -> None:
        """Remove a file that was not there before, so that the next process sees the same as this
        one.
        """
        if not self.existed:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def _packed(self, salts: bytes, frames: int) -> bytes:
        raw = _MARK.pack(_NAME, self._boot, salts, frames, self._is_synced)
        return raw + zlib.crc32(raw).to_bytes(4)

    @property
    def log_is_gone(self) -> bool:
        """Tell whether somebody deleted, moved or replaced the log or its index under this process.

        The index holds the locks: a process that finds another one there writes over the commits of
        this one.
        """
        if not system.can_remove_open_files:
            return False
        try:
            log, index = os.stat(self._log), os.stat(self._log_index)
        except (FileNotFoundError, NotADirectoryError):
            return True
        if self._log_state is None or self._index_state is None:
            return True
        old_log, old_index = self._log_state, self._index_state
        return not (
            (log.st_ino, log.st_dev) == (old_log.st_ino, old_log.st_dev)
            and (index.st_ino, index.st_dev) == (old_index.st_ino, old_index.st_dev)
        )

    def close(self) -> None:
        """Close the file.

        The last process to close the database removes it, as SQLite removes the log.
        """
        self.close_log()
        if self._map is not None:
            self._map.close()
        fd, self._fd, self._map = self._fd, -1, None
        if fd >= 0 and system.can_remove_open_files:
            self._remove_unused(fd)
            os.close(fd)
        elif fd >= 0:
            os.close(fd)
            with contextlib.suppress(OSError):  # another process has it open
                if not os.path.exists(self._log):
                    os.unlink(self._path)

    def close_log(self) -> None:
        """Close the log, before SQLite closes it: some systems remove no open file."""
        if self._log_fd >= 0:
            os.close(self._log_fd)
        self._log_fd = -1

    def _remove_unused(self, fd: int) -> None:
        # The exclusive lock fails while another process has the database open. A crash before
        # the unlink leaves a mark without a log, which says nothing about the next log.
        with contextlib.suppress(OSError):
            system.lock(fd)
            if not os.path.exists(self._log) and os.fstat(fd).st_nlink:
                os.unlink(self._path)


def find_loss(log: str, page_size: int, frames: int, marks: MarkFile, mark: Mark | None) -> str | None:
    """Say what was acknowledged and is lost, when SQLite can read so many frames of a log."""
    try:
        with open(log, "rb") as file:
            return _find_loss(_Log(file, page_size), frames, marks, mark)
    except FileNotFoundError:
        return None


def _find_loss(log: _Log, frames: int, marks: MarkFile, mark: Mark | None) -> str | None:
    """Ask the mark, then the frames, as the module says. Nothing is changed."""
    # 1. A mark that must hold: the log has at least its frames, unless it was started again since.
    if mark is not None and mark.frames and marks.holds(mark):
        if log.is_cut:
            return f"it is shorter than its header, and {mark.frames} of its frames were acknowledged"
        # A killed process does not tear a header.
        if log.has_bytes and not log.is_sound and marks.is_this_boot(mark):
            return f"its header is damaged, and {mark.frames} of its frames were acknowledged"
        if mark.salts == log.salts and frames < mark.frames:
            return f"SQLite can read {frames} of its frames, and {mark.frames} were acknowledged"
    if not log.salts:
        return None
    # 2. Where the mark already answers, or nothing was acknowledged, the frames add nothing.
    if mark is not None:
        if mark.boot == marks._boot or not mark.is_synced:
            return None
    elif marks.existed:
        return None  # nothing was acknowledged, or a power cut came before the mark was on disk
    # 3. Else look for sound commits after the last one that SQLite can read.
    if log.commits_after(frames if log.is_sound else 0) >= (1 if mark is None else 2):
        return f"SQLite can read {frames} of its frames, and there are sound commits after that"
    return None


class _Log:
    """The frames of a log, read without SQLite."""

    def __init__(self, file: BinaryIO, page_size: int) -> None:
        self._file = file
        self._size = _FRAME.size + page_size
        raw = file.read(_HEADER.size)
        self.has_bytes = bool(raw)
        # SQLite itself leaves it empty, or with a whole header.
        self.is_cut = 0 < len(raw) < _HEADER.size
        self.salts, self.is_sound, self._order, self._start = b"", False, "<", (0, 0)
        if len(raw) < _HEADER.size:
            return
        magic, *_, first, second = _HEADER.unpack(raw)
        self._order = ">" if magic == _MAGIC + 1 else "<"
        self._start = (first, second)
        self.is_sound = (
            magic in (_MAGIC, _MAGIC + 1) and _continue((0, 0), raw[:24], self._order) == self._start
        )
        if not self.is_sound:
            self._order = "<" if sys.byteorder == "little" else ">"
        self.salts = raw[16:24] if self.is_sound else file.read(_FRAME.size)[8:16]

    def _frames(self, start: int) -> Iterator[tuple[bytes, bytes]]:
        self._file.seek(_HEADER.size + start * self._size)
        while len(raw := self._file.read(self._size)) == self._size:
            yield raw[: _FRAME.size], raw[_FRAME.size :]

    def commits_after(self, start: int) -> int:
        """Return the greatest number of commits in a row of frames that each continue the one
        before.
        """
        most = count = 0
        before: tuple[int, int] | None = None
        for header, page in self._frames(start):
            _, size, _, _, first, second = _FRAME.unpack(header)
            is_sound = header[8:16] == self.salts and (
                before is not None and _continue(before, header[:8] + page, self._order) == (first, second)
            )
            count = count + (size > 0) if is_sound else 0
            most = max(most, count)
            before = (first, second)
        return most

    def sound_frames(self, most: int) -> int:
        """Return how many frames from the start on are sound, of so many."""
        count, before = 0, self._start
        for header, page in self._frames(0):
            after = _FRAME.unpack(header)[4:]
            if count == most or header[8:16] != self.salts or not self.is_sound:
                break
            if _continue(before, header[:8] + page, self._order) != after:
                break
            count, before = count + 1, (after[0], after[1])
        return count


def sound_frames(log: str, page_size: int, most: int) -> int:
    """Return how many of the frames that SQLite believes committed are sound on disk."""
    with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
        return _Log(file, page_size).sound_frames(most)
    return 0


def _continue(before: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return SQLite's checksum over data that follows data with this checksum."""
    first, second = before
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return first, second
