"""The system calls of the file backend, in one place, and the lock that every write holds."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator

from outlive.errors import Corrupt, OutliveError, StoreBusy, StoreFull, StoreUnavailable
from outlive.runtime.platform import system

THREADS = "threads"  # the folder of the logs
BUSY_S = 30.0
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a symbolic link, a socket, a folder
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BLOCK_BYTES = 4096


class NotAFile(OSError):
    """Something else is where a regular file should be: a link, a FIFO, a folder."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EINVAL, "not a regular file", name)
        self.what = f"{name} is not a regular file"


class Disk:
    """The folder of a store and the system calls on it. Tests record them, or make them fail.

    Names are fixed or made of hex digits, and no step from the root follows a link: nothing outside
    is ever reached. No file stays open between two uses, so that a forked child inherits none.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def make_folder(self, name: str = "") -> None:
        """Create a folder for this user alone, whatever the umask.

        Sync its parent to make it last.
        """
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
        flags = system.file_flags | (os.O_RDWR if write or create else os.O_RDONLY)
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
        fd = self._open(name, system.file_flags | os.O_RDWR | os.O_CREAT | os.O_EXCL)
        system.set_mode(fd, 0o600)
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
        root = system.open_folder(self.root)
        if not folder:
            return root
        try:
            return system.open_folder(folder, at=root)
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
        data = system.read_at(fd, size, at)
        while 0 < len(data) < size and (more := system.read_at(fd, size - len(data), at + len(data))):
            data += more
        return data

    def write(self, fd: int, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            done = system.write_at(fd, view, at)
            view, at = view[done:], at + done

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def punch(self, fd: int, at: int, size: int) -> bool:
        """Free the whole blocks of a range, which then reads as zeros.

        False: not supported here.
        """
        start, stop = -(-at // _BLOCK_BYTES) * _BLOCK_BYTES, (at + size) // _BLOCK_BYTES * _BLOCK_BYTES
        return start >= stop or system.free_range(fd, start, stop - start)

    def sync(self, fd: int) -> None:
        system.sync_file(fd)

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
            system.sync_file(at)
        finally:
            os.close(at)


class PathDisk(Disk):
    """A folder where the system has no handles of folders: every name is a path.

    So a link that is put there between the check and the opening is followed. On Windows, only
    administrators and developers can make one.
    """

    def _path(self, name: str) -> str:
        return os.path.join(self.root, *name.split("/")) if name else self.root

    def names(self, folder: str = "") -> list[str]:
        return os.listdir(self._path(folder))

    def _open(self, name: str, flags: int) -> int:
        path = self._path(name)
        if os.path.islink(path) or os.path.isdir(path):
            raise NotAFile(name)
        return os.open(path, flags, 0o600)

    def is_at(self, fd: int, name: str) -> bool:
        return not system.can_remove_open_files or super().is_at(fd, name)

    def rename(self, old: str, new: str) -> None:
        system.replace(self._path(old), self._path(new))

    def remove(self, name: str) -> None:
        os.unlink(self._path(name))

    def sync_folder(self, folder: str = "") -> None:
        system.sync_folder(self._path(folder))


def disk_at(root: str) -> Disk:
    """Return the calls on a folder that this system has."""
    return Disk(root) if system.has_folder_handles else PathDisk(root)


class WriteLock:
    """The file `lock`: its holder may write. Its one byte says whether a rename is under way."""

    _CLEAN = b"\0"
    _RENAMING = b"\1"

    def __init__(self, disk: Disk, patience_s: float = BUSY_S) -> None:
        self._disk = disk
        self.patience_s = patience_s  # of calls without a timeout
        self._fd = -1
        self._is_repaired = False

    @contextlib.contextmanager
    def held(self, timeout_s: float | None = None) -> Iterator[None]:
        timeout_s = self.patience_s if timeout_s is None else timeout_s
        self.release()  # what an interrupt may have left, on its way out of here
        try:
            self._take(timeout_s, time.monotonic() + timeout_s)
            if not self._is_repaired or self._disk.read(self._fd, 1, 0) != self._CLEAN:
                self._repair()
            yield
        finally:
            self.release()

    def _take(self, timeout_s: float, deadline: float) -> None:
        while True:
            self._fd = self._disk.open("lock", create=True)
            self._wait(self._fd, timeout_s, deadline)
            # If somebody deleted the file, other processes lock another one: try again.
            if self._disk.is_at(self._fd, "lock"):
                return
            self.release()

    def release(self) -> None:
        """Unlock, if this process has the lock."""
        if self._fd >= 0:
            # Unlock explicitly: when another thread forked just now, the child has the file open
            # too, and closing ours would not unlock it.
            system.unlock(self._fd)
            fd, self._fd = self._fd, -1
            self._disk.close(fd)

    def _wait(self, fd: int, timeout_s: float, deadline: float) -> None:
        pause_s = 0.0002
        while True:
            try:
                system.lock(fd)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise busy(timeout_s) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)

    def write(self, data: bytes, at: int) -> None:
        """Write into the file itself, while it is held."""
        self._disk.write(self._fd, data, at)

    def sync(self) -> None:
        self._disk.sync(self._fd)

    def _repair(self) -> None:
        """Finish what a dead process began: delete its temporary files, sync the folders."""
        for folder in ("", THREADS):
            for name in self._disk.names(folder):
                if name.endswith(".tmp"):
                    self._disk.remove(f"{folder}/{name}" if folder else name)
            self._disk.sync_folder(folder)
        self._disk.write(self._fd, self._CLEAN, 0)
        self._is_repaired = True

    @contextlib.contextmanager
    def renaming(self, folder: str) -> Iterator[None]:
        """Mark a rename as under way: if this process dies, the next lock holder repairs it."""
        self._disk.write(self._fd, self._RENAMING, 0)
        yield
        self._disk.sync_folder(folder)
        self._disk.write(self._fd, self._CLEAN, 0)


def is_full(error: BaseException) -> bool:
    """Tell whether the disk, a quota or a limit leaves no space."""
    return isinstance(error, StoreFull) or (isinstance(error, OSError) and error.errno in _FULL)


def busy(timeout_s: float) -> StoreBusy:
    return StoreBusy(f"other processes held the store's lock for {timeout_s} s; raise timeout_s")


# Reads like a function where it is used; as a generator it would cost more.
class translated:  # noqa: N801
    """Translate errors of the system into errors of this library."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotAFile):
            raise Corrupt(error.what) from error
        if isinstance(error, OSError) and not isinstance(error, OutliveError):
            if error.errno in _FULL:
                raise StoreFull(f"no space is left for the store's files ({error.strerror})") from error
            raise StoreUnavailable(f"the store's files: {error}") from error
