"""The framed log: one file that only grows, and of which a crash can tear nothing but an unacknowledged end.

Theory of operation
-------------------
A log is a header of 96 bytes and then frames. A frame is a head, its meta (read at every replay) and its data
(read only when someone asks for it). Each head carries a checksum over the meta and over the checksum of the
frame before: a chain, so that no frame can be flipped, moved, doubled or taken from another file. The first
link is the incarnation, a random token of the file: a log that was written anew is another one, also when the
file system gives it the same inode number.

The header holds two marks: how far the log is *acknowledged*. A writer appends, fsyncs, and then overwrites
the older mark, without another fsync: it reaches the disk with the next one. So
- before the mark everything is certain: a bad frame there, or a file that ends there, is damage, and what
  stands before it is never taken for the whole log;
- behind the mark a whole frame counts (it was written, maybe fsynced), and what is not whole is the torn tail
  of a write that nobody was told about: a reader stops there and cuts nothing, the next writer cuts it;
- a mark that is torn itself leaves the other one.

What a crash leaves behind, in the order of the code:
    add, write      a torn tail, or whole frames that nobody was told about
    sync            whole frames; the mark is still before them
    acknowledge     the same, or the mark behind them
    aside           the old file and a `.tmp` beside it; after the rename the new file, or after a power cut
                    still the old one, until the folder is synced
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..errors import Corrupt, NewerFormat, StoreBusy

FORMAT = 1
THREADS = "threads"  # the folder of the logs
BUSY_S = 30.0
START = 96  # where the first frame begins: within one sector, so that a mark is written whole or not at all

_MAGIC = b"outlive\n"
_FIXED = struct.Struct("<8sI4x16s16s")  # magic, format, digest of the thread, incarnation
_MARK = struct.Struct("<Q")
_MARKS_AT = 64
_MARK_BYTES = 16
_LENGTHS = struct.Struct("<IIQ")  # bytes of meta, crc of the data, bytes of data
_HEAD_BYTES = 32
_WINDOW_BYTES = 64 << 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: opening a planted FIFO must not hang
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a symbolic link, a socket, a folder


class NotAFile(OSError):
    """Something else stands where a regular file should be: a link, a FIFO, a folder."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", name)
        self.what = f"{name} is not a regular file"


class Disk:
    """The folder of a store and the system calls on it, in one place: a test records them, or lets them fail.

    Names are fixed or made of hex digits, and no step from the root follows a link: nothing outside is ever
    reached. No file stays open between two uses, so that a forked child inherits none.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def make_folder(self, name: str = "") -> None:
        """Create a folder for this user alone, whatever the umask; lasting, once its parent is synced."""
        path = os.path.join(self.root, name) if name else self.root
        os.mkdir(path, 0o700)
        os.chmod(path, 0o700)

    def names(self, folder: str = "") -> list[str]:
        at = self._enter(folder)
        try:
            return os.listdir(at)
        finally:
            os.close(at)

    def open(self, name: str, *, write: bool = False, create: bool = False) -> int:
        """Open a regular file; anything else is refused, and nothing is waited for."""
        flags = _FILE | (os.O_RDWR if write or create else os.O_RDONLY)
        try:
            return self._checked(self._open(name, flags), name)
        except FileNotFoundError:
            if not create:
                raise
        with contextlib.suppress(FileExistsError):  # of two who create it, both open it
            return self.create(name)
        return self.open(name, write=True)

    def create(self, name: str) -> int:
        """Make a new file for this user alone, whatever the umask."""
        fd = self._open(name, _FILE | os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.fchmod(fd, 0o600)
        return fd

    def _open(self, name: str, flags: int) -> int:
        folder, _, leaf = name.rpartition("/")
        at = self._enter(folder)
        try:
            return os.open(leaf, flags, 0o600, dir_fd=at)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise NotAFile(name) from error
            raise
        finally:
            os.close(at)

    def _checked(self, fd: int, name: str) -> int:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotAFile(name)
        return fd

    def _enter(self, folder: str) -> int:
        root = os.open(self.root, _FOLDER)
        if not folder:
            return root
        try:
            return os.open(folder, _FOLDER, dir_fd=root)
        finally:
            os.close(root)

    def is_at(self, fd: int, name: str) -> bool:
        """Tell whether the open file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(os.path.join(self.root, name)))
        except FileNotFoundError:
            return False

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def read(self, fd: int, size: int, at: int) -> bytes:
        """Return as many bytes as there are, up to `size`."""
        data = os.pread(fd, size, at)
        while 0 < len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
            data += more
        return data

    def write(self, fd: int, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(fd, view, at)
            view, at = view[done:], at + done

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)  # covers the size as well

    def rename(self, old: str, new: str) -> None:
        """Give a file of the same folder another name, in place of what had it before."""
        folder, _, leaf = new.rpartition("/")
        at = self._enter(folder)
        try:
            os.rename(old.rpartition("/")[2], leaf, src_dir_fd=at, dst_dir_fd=at)
        finally:
            os.close(at)

    def remove(self, name: str) -> None:
        folder, _, leaf = name.rpartition("/")
        at = self._enter(folder)
        try:
            os.unlink(leaf, dir_fd=at)
        finally:
            os.close(at)

    def sync_folder(self, folder: str = "") -> None:
        """Make the names in a folder last."""
        at = self._enter(folder)
        try:
            os.fsync(at)
        finally:
            os.close(at)


class WriteLock:
    """The file `lock`: who holds it may write. Its one byte says whether the folders are as they seem."""

    _CLEAN = b"\0"
    _RENAMING = b"\1"

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._fd = -1
        self._is_mended = False

    @contextlib.contextmanager
    def held(self, timeout_s: float = BUSY_S) -> Iterator[None]:
        self._release()  # what an interrupt may have left, on its way out of here
        try:
            self._take(timeout_s, time.monotonic() + timeout_s)
            if not self._is_mended or self._disk.read(self._fd, 1, 0) != self._CLEAN:
                self._mend()
            yield
        finally:
            self._release()

    def _take(self, timeout_s: float, deadline: float) -> None:
        while True:
            self._fd = self._disk.open("lock", create=True)
            self._wait(self._fd, timeout_s, deadline)
            if self._disk.is_at(self._fd, "lock"):  # else someone removed it, and others hold another
                return
            self._release()

    def _release(self) -> None:
        if self._fd >= 0:
            # Said aloud: closing is not enough when another thread forked just now and the child has it too.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
            fd, self._fd = self._fd, -1
            self._disk.close(fd)

    def _wait(self, fd: int, timeout_s: float, deadline: float) -> None:
        pause_s = 0.0002
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise busy(timeout_s) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)

    def _mend(self) -> None:
        """Do what a process that died may not have done: sync the folders, sweep what it wrote aside."""
        for folder in ("", THREADS):
            for name in self._disk.names(folder):
                if name.endswith(".tmp"):
                    self._disk.remove(f"{folder}/{name}" if folder else name)
            self._disk.sync_folder(folder)
        self._disk.write(self._fd, self._CLEAN, 0)
        self._is_mended = True

    @contextlib.contextmanager
    def renaming(self, folder: str) -> Iterator[None]:
        """Around whatever gives a file its name: when it ends half-way, the next holder of the lock mends."""
        self._disk.write(self._fd, self._RENAMING, 0)
        yield
        self._disk.sync_folder(folder)
        self._disk.write(self._fd, self._CLEAN, 0)


def busy(timeout_s: float) -> StoreBusy:
    return StoreBusy(f"other processes held the store's lock for {timeout_s} s; give timeout_s more room")


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
        self.end = 0  # behind the last frame, those that wait included
        self.acked = 0
        self.is_settled = True  # the last mark is on disk too
        self._incarnation = b""
        self._chain = b""
        self._last = 0  # where the last frame begins
        self._slot = 0  # the mark that holds `acked`
        self._size = 0
        self._sound = 0  # where to cut when a write fails
        self._waiting: list[bytes] = []

    def open(self, *, write: bool = False) -> int:
        try:
            return self.disk.open(self.name, write=write)
        except NotAFile as error:
            raise self.corrupt(error.what) from error

    def corrupt(self, what: str) -> Corrupt:
        return Corrupt(what, thread=self.thread)

    # Reading

    def resume(self, fd: int) -> bool:
        """Look at the file again. False: it is not what was read before, so a new Log has to begin.

        The mark is read before the size: whatever it covers was in the file by then.
        """
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
        """One of two does no harm, and the next save mends it; an audit tells."""
        return len(self._header(fd)[1]) < 2

    def _is_where_it_was(self, fd: int, size: int) -> bool:
        """A write that failed is cut off again, and another may stand in its place by now."""
        if size < self.end:
            return False
        return self.end == START or self.disk.read(fd, 16, self._last + _LENGTHS.size) == self._chain

    def frames(self, fd: int) -> Iterator[Frame]:
        """Yield the frames that were not read yet, up to the end or a torn tail; raise Corrupt for damage."""
        window = _Window(self.disk, fd)
        while self.end < self._size:
            found = self._frame(window, self.end)
            if found is None:
                if self.end < self.acked:
                    raise self.corrupt(f"{self.name} is damaged at byte {self.end}")
                return
            frame, self._chain = found
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
        if stop > self.acked and zlib.crc32(window.take(data_at, data_bytes)) != crc:
            return None
        return Frame(meta, data_at, data_bytes), chain

    # Writing: all of it under the store's lock

    def begin(self) -> None:
        """Start a log that has no file yet."""
        self._incarnation = self._chain = secrets.token_bytes(16)
        self.end = START

    def add(self, meta: bytes, data: Sequence[bytes] = ()) -> None:
        """Put a frame behind the others, to be written."""
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
        blob = b"".join(self._waiting)
        if blob:
            self.is_settled = False
            self.disk.write(fd, blob, self.end - len(blob))
            self._waiting.clear()

    def acknowledge(self, fd: int) -> None:
        """Write that all is on disk. It must be: a mark before its frames would make a torn tail damage."""
        slot = 1 - self._slot
        self.disk.write(fd, _mark(self._incarnation, slot, self.end), _MARKS_AT + slot * _MARK_BYTES)
        self.acked = self._sound = self.end
        self._slot = slot
        self.is_settled = False

    def settle(self, fd: int) -> None:
        """Bring frames and mark to the disk, both."""
        if self.acked < self.end:
            self.disk.sync(fd)
            self.acknowledge(fd)
        self.disk.sync(fd)
        self.is_settled = True

    def retreat(self, fd: int) -> None:
        """Cut what a failed write left, as far as the disk lets us; never what was acknowledged."""
        with contextlib.suppress(OSError):
            self.disk.truncate(fd, max(self._sound, self.acked))

    @contextlib.contextmanager
    def aside(self) -> Iterator[int]:
        """Write the whole file under another name, then put it in place. The caller syncs the folder."""
        temporary = f"{self.name}.tmp"
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove(temporary)
        fd = self.disk.create(temporary)
        try:
            yield fd
            self.write(fd)
            self.disk.write(fd, self._first_bytes(), 0)
            self.disk.sync(fd)
            self.disk.rename(temporary, self.name)  # a crash before leaves the old log, and a file to sweep
        except BaseException:
            with contextlib.suppress(OSError):
                self.disk.remove(temporary)
            raise
        finally:
            self.disk.close(fd)
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
