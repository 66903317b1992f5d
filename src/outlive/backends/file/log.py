"""The framed log: a file that only grows. A crash can tear only its unacknowledged end.

Theory of operation
-------------------
A log is a header of 96 bytes and then frames. A frame is a head, its meta (read at every replay)
and its data (read only when someone asks for it). Each head carries a checksum over the meta and
over the checksum of the frame before: a chain, so that no frame can be flipped, moved, doubled or
taken from another file. The first link is the incarnation, a random token of the file: a log that
was written again is another one, also when the file system gives it the same inode number.

The header holds two marks: how far the log is *acknowledged*. A writer appends, fsyncs, and then
overwrites the older mark, without another fsync: it reaches the disk with the next one. So
- before the mark everything is certain: a bad frame there, or a file that ends there, is damage,
  and the frames before it are never taken for the whole log;
- after the mark a whole frame counts (it was written, maybe fsynced), and what is not whole is the
  torn tail of a write that nobody was told about: a reader stops there and cuts nothing, the next
  writer cuts it;
- a mark that is torn itself leaves the other one.

What a crash leaves, in the order of the code:
    add, write      a torn tail, or whole frames that nobody was told about
    sync            whole frames; the mark is still before them
    acknowledge     the same, or the mark after them
    aside           the old file and a `.tmp` beside it; after the rename the new file, or after a
                    power cut still the old one, until the folder is synced
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence

from outlive.backends.file.disk import Disk, NotAFile
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, NewerFormat

FORMAT = 1
# Where the first frame begins: within one sector, so that a mark is written whole or not at all.
START = 96

_MAGIC = b"outlive\n"
_FIXED = struct.Struct("<8sI4x16s16s")  # magic, format, digest of the thread, incarnation
_MARK = struct.Struct("<Q")
_MARKS_AT = 64
_MARK_BYTES = 16
_LENGTHS = struct.Struct("<IIQ")  # bytes of meta, crc of the data, bytes of data
_HEAD_BYTES = 32
_WINDOW_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Frame:
    """One entry of a log: its meta, and where its data is."""

    meta: bytes
    data_at: int
    data_bytes: int


class Log:
    """What is known of one log: how far it was read, and what waits to be written to it."""

    def __init__(self, disk: Disk, name: str, digest: bytes, thread: str | None = None) -> None:
        self.disk = disk
        self.name = name
        self.digest = digest
        self.thread = thread
        self.end = 0  # after the last frame, those that wait included
        self.acked = 0
        self.is_settled = True  # the last mark is on disk too
        self._incarnation = b""
        self._chain = b""
        self._last = 0  # where the last frame begins
        self._slot = 0  # the mark that holds `acked`
        self._size = 0
        # Where to cut when a write fails; None before anything was written.
        self._sound: int | None = None
        self._waiting: list[bytes] = []

    @property
    def incarnation(self) -> bytes:
        """The token of the file that was read or written: another one is another file."""
        return self._incarnation

    def open(self, *, write: bool = False) -> int:
        self._sound = None  # what others wrote meanwhile is not known yet, and must not be cut
        try:
            return self.disk.open(self.name, write=write)
        except NotAFile as error:
            raise self.corrupt(error.what) from error

    def corrupt(self, problem: str) -> Corrupt:
        return Corrupt(problem, thread=self.thread)

    # Reading

    def resume(self, fd: int) -> bool:
        """Look at the file again. False: it is not what was read before, so a new Log has to begin.

        The mark is read before the size: whatever it covers was in the file by then.
        """
        self._sound = None
        incarnation, marks = self._header(fd)
        size = self.disk.size(fd)
        if not self._incarnation:
            self._incarnation = self._chain = incarnation
            self.end = START
        elif incarnation != self._incarnation or not self._is_where_it_was(fd, size):
            return False
        self.acked, self._slot = max(marks)
        self._size = size
        if size < self.acked:
            raise self.corrupt(f"{self.name} ends after {size} bytes, {self.acked} were acknowledged")
        return True

    def _header(self, fd: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the incarnation and the marks that are whole, each with its slot."""
        raw = self.disk.read(fd, START, 0)
        if len(raw) < START or raw[48:64] != _digest(raw[:48], 16):
            raise self.corrupt(f"the header of {self.name} is damaged")
        magic, version, digest, incarnation = _FIXED.unpack_from(raw)
        if magic != _MAGIC:
            raise self.corrupt(f"{self.name} is not a log")
        if version > FORMAT:
            raise NewerFormat(self.name, version, FORMAT)
        if digest != self.digest:
            raise self.corrupt(f"{self.name} holds the log of another thread")
        marks = [(acked, slot) for slot in (0, 1) if (acked := _marked(raw, incarnation, slot)) is not None]
        if not marks:
            raise self.corrupt(f"both marks of {self.name} are damaged")
        return incarnation, marks

    def has_bad_mark(self, fd: int) -> bool:
        """One of two does no harm, and the next save fixes it; an audit reports it."""
        return len(self._header(fd)[1]) < 2

    def _is_where_it_was(self, fd: int, size: int) -> bool:
        """Compare the last frame: a failed write is cut off, and another may be there now."""
        if size < self.end:
            return False
        return self.end == START or self.disk.read(fd, 16, self._last + _LENGTHS.size) == self._chain

    def frames(self, fd: int) -> Iterator[Frame]:
        """Yield the frames not read yet, up to the end or a torn tail; raise Corrupt for damage."""
        window = _Window(self.disk, fd)
        while self.end < self._size:
            parsed = self._frame(window, self.end)
            if parsed is None:
                # Before the mark it is damage; after it, the torn tail of an unanswered write.
                if self.end < self.acked:
                    raise self.corrupt(f"{self.name} is damaged at byte {self.end}")
                return
            frame, self._chain = parsed
            self._last, self.end = self.end, frame.data_at + frame.data_bytes
            yield frame

    def _frame(self, window: _Window, at: int) -> tuple[Frame, bytes] | None:
        """Return the frame at a place and its checksum, or None when it is not whole."""
        head = window.take(at, _HEAD_BYTES)
        if len(head) < _HEAD_BYTES:
            return None
        meta_bytes, crc, data_bytes = _LENGTHS.unpack_from(head)
        data_at = at + _HEAD_BYTES + meta_bytes
        stop = data_at + data_bytes
        if stop > self._size:
            return None
        meta = window.take(at + _HEAD_BYTES, meta_bytes)
        chain = _digest(self._chain + head[: _LENGTHS.size] + meta, 16)
        if chain != head[_LENGTHS.size :]:
            return None
        # Data before the mark was synced; its checksum is compared when the data is read.
        if stop > self.acked and zlib.crc32(window.take(data_at, data_bytes)) != crc:
            return None
        return Frame(meta, data_at, data_bytes), chain

    # Writing: all of it under the store's lock

    def begin(self) -> None:
        """Start a log that has no file yet."""
        self._incarnation = self._chain = secrets.token_bytes(16)
        self.end = START

    def add(self, meta: bytes, data: Sequence[bytes] = ()) -> None:
        """Append a frame, to be written."""
        joined = b"".join(data)
        lengths = _LENGTHS.pack(len(meta), zlib.crc32(joined), len(joined))
        self._chain = _digest(self._chain + lengths + meta, 16)
        self._waiting += (lengths, self._chain, meta, joined)
        self._last, self.end = self.end, self.data_at(meta) + len(joined)

    def data_at(self, meta: bytes) -> int:
        """Where the data will be of a frame that is added next."""
        return self.end + _HEAD_BYTES + len(meta)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def cut(self, fd: int) -> None:
        """Cut the torn tail that a crash left, before anything is appended."""
        if self._size > self.end:
            self.disk.truncate(fd, self.end)
        self._sound = self.end

    def write(self, fd: int) -> None:
        """Append the frames that wait. A crash leaves a torn tail, or frames after the mark."""
        blob = b"".join(self._waiting)
        if blob:
            self.is_settled = False
            self.disk.write(fd, blob, self.end - len(blob))
            self._waiting.clear()

    def acknowledge(self, fd: int) -> None:
        """Mark all frames as acknowledged.

        They must be on disk: a mark before its frames would turn a torn tail into damage.
        """
        # Overwrite the older mark: if a crash tears this one, the other still holds.
        slot = 1 - self._slot
        self.disk.write(fd, _mark(self._incarnation, slot, self.end), _MARKS_AT + slot * _MARK_BYTES)
        self.acked = self._sound = self.end
        self._slot = slot
        self.is_settled = False

    def settle(self, fd: int) -> None:
        """Bring both frames and mark to the disk."""
        if self.acked < self.end:
            self.disk.sync(fd)  # the frames first: a mark never reaches the disk before them
            self.acknowledge(fd)
        self.disk.sync(fd)
        self.is_settled = True

    def retreat(self, fd: int) -> None:
        """Cut what a failed write left, as far as the disk lets us; never what was acknowledged."""
        if self._sound is None:
            return
        with contextlib.suppress(OSError):
            self.disk.truncate(fd, max(self._sound, self.acked))

    @contextlib.contextmanager
    def aside(self) -> Iterator[int]:
        """Write the whole file under another name, then rename it. The caller syncs the folder."""
        temporary = f"{self.name}.tmp"
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove(temporary)
        fd = self.disk.create(temporary)
        try:
            try:
                yield fd
                self.write(fd)
                self.disk.write(fd, self._first_bytes(), 0)
                self.disk.sync(fd)
            finally:
                self.disk.close(fd)  # Windows renames no open file
            # A crash before this line leaves the old log, and a temporary file that the next
            # holder of the lock deletes. A crash after it leaves the new log.
            self.disk.rename(temporary, self.name)
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.remove(temporary)
            raise
        self.acked = self._sound = self.end
        self.is_settled = True

    def _first_bytes(self) -> bytes:
        fixed = _FIXED.pack(_MAGIC, FORMAT, self.digest, self._incarnation)
        marks = (_mark(self._incarnation, slot, self.end) for slot in (0, 1))
        return b"".join((fixed, _digest(fixed, 16), *marks))


class _Window:
    """Reads ahead, so that small frames cost no system call each; large data is stepped over."""

    def __init__(self, disk: Disk, fd: int) -> None:
        self._disk = disk
        self._fd = fd
        self._at = 0
        self._bytes = b""

    def take(self, at: int, size: int) -> bytes:
        start = at - self._at
        if start < 0 or start + size > len(self._bytes):
            self._bytes = self._disk.read(self._fd, max(size, _WINDOW_BYTES), at)
            self._at, start = at, 0
        return self._bytes[start : start + size]


def _digest(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size, person=b"outlive.log").digest()


def _mark(incarnation: bytes, slot: int, acked: int) -> bytes:
    value = _MARK.pack(acked)
    return value + _digest(incarnation + bytes([slot]) + value, 8)


def _marked(raw: bytes, incarnation: bytes, slot: int) -> int | None:
    at = _MARKS_AT + slot * _MARK_BYTES
    acked: int = _MARK.unpack_from(raw, at)[0]
    return acked if raw[at : at + _MARK_BYTES] == _mark(incarnation, slot, acked) else None
