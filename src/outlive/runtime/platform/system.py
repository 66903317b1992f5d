"""What an operating system has to offer here, and under which conditions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

READ, WRITE = 1, 2  # of `wait_for_socket`; the values of psycopg's Wait and Ready


class System(Protocol):
    """An operating system: `outlive.runtime.platform.system` is the one of this process."""

    name: str
    can_fork: bool
    has_folder_handles: bool  # files are opened relative to an open folder, without following links
    can_remove_open_files: bool  # and rename them; else their names are safe while they are open
    can_stop_processes: bool  # with SIGSTOP, until SIGCONT
    has_unix_sockets: bool
    file_flags: int  # of os.open, for a file that may be something else
    stop_signals: tuple[int, ...]  # with which a deployment asks a process to end
    connecting: frozenset[int]  # what a socket that does not block answers while it connects

    # Processes and clocks

    def at_fork(
        self,
        *,
        before: Callable[[], object] | None = None,
        after_in_parent: Callable[[], object] | None = None,
        after_in_child: Callable[[], object] | None = None,
    ) -> None:
        """Call functions around every fork, where processes fork."""
        ...

    def boot_id(self) -> str:
        """Name this boot of the machine: "" if it is unknown."""
        ...

    def lease_clock_ns(self) -> int:
        """Return the time since the boot, with the time that the machine was suspended."""
        ...

    def start_of(self, pid: int) -> int | None:
        """Return when a process started, in units of the system; 0 if it has ended and somebody has yet
        to collect it; None if there is no such process, or it cannot be seen.
        """
        ...

    def may_exist(self, pid: int) -> bool:
        """Tell whether the system knows a process with this number, of any user. It sends no signal."""
        ...

    def namespace(self, kind: str) -> str:
        """Name the pid or time namespace of this process, which containers have of their own."""
        ...

    def kill_self(self) -> None:
        """End this process at once: nothing is flushed, and no handler runs."""
        ...

    def is_killed(self, status: int) -> bool:
        """Tell whether the status of a child is that of `kill_self`."""
        ...

    # Files

    def open_folder(self, path: str, at: int | None = None) -> int:
        """Open a folder that is not a link, relative to another one. Only with `has_folder_handles`."""
        ...

    def read_at(self, fd: int, size: int, at: int) -> bytes:
        """Return up to `size` bytes from a place of a file."""
        ...

    def write_at(self, fd: int, data: bytes | memoryview, at: int) -> int:
        """Write at a place of a file, and return how many bytes were written."""
        ...

    def sync_file(self, fd: int) -> None:
        """Bring the content and the size of a file to the disk, past the disk's own cache."""
        ...

    def sync_folder(self, path: str) -> None:
        """Bring the names in a folder to the disk, where a rename alone does not."""
        ...

    def replace(self, old: str, new: str) -> None:
        """Rename a file, in place of what had that name before."""
        ...

    def set_mode(self, fd: int, mode: int) -> None:
        """Set who may read and write a file, where the mode of a file says that."""
        ...

    def free_range(self, fd: int, at: int, size: int) -> bool:
        """Free the blocks of a range, which then reads as zeros. False: not supported here."""
        ...

    def lock(self, fd: int, *, is_shared: bool = False, waits: bool = False) -> None:
        """Lock a file, until it is unlocked or its process dies. Raises BlockingIOError without `waits`."""
        ...

    def unlock(self, fd: int) -> None:
        """Unlock a file."""
        ...

    def file_system(self, path: str) -> str:
        """Return the type of the file system of a path: "" if it is unknown."""
        ...

    # Threads, sockets and terminals

    def wait_for_event(self, event: threading.Event, timeout_s: float | None) -> bool:
        """Wait for an event of a thread, so that handlers of signals run meanwhile."""
        ...

    def wait_for_socket(self, fileno: int, want: int, timeout_s: float | None) -> int:
        """Wait until a socket is ready, and return what for: 0 when the time is over.

        One that was closed by the other side is ready: the next operation fails with the reason.
        """
        ...

    def wait_for_reader(self, fd: int, seconds: float) -> bool:
        """Wait, and return at once with False when nobody reads from a pipe any more."""
        ...

    def enable_escapes(self) -> None:
        """Let the terminal of stdout understand escape sequences."""
        ...
