"""What Linux and macOS have in common, and other systems of their kind."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from outlive.runtime.platform.system import READ, WRITE, System


class Posix(System):
    """A system with POSIX calls. What is not known of it is as it is where it is unknown."""

    name = "POSIX"
    can_fork = True
    has_folder_handles = True
    can_remove_open_files = True
    can_stop_processes = True
    has_unix_sockets = True
    # Non-blocking: opening a planted FIFO must not hang.
    file_flags = os.O_NOFOLLOW | os.O_NONBLOCK
    stop_signals = (signal.SIGTERM,)
    connecting = frozenset({errno.EINPROGRESS})

    def at_fork(
        self,
        *,
        before: Callable[[], object] | None = None,
        after_in_parent: Callable[[], object] | None = None,
        after_in_child: Callable[[], object] | None = None,
    ) -> None:
        hooks = {"before": before, "after_in_parent": after_in_parent, "after_in_child": after_in_child}
        os.register_at_fork(**{name: hook for name, hook in hooks.items() if hook is not None})

    def boot_id(self) -> str:
        return ""

    def lease_clock_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def start_of(self, pid: int) -> int | None:
        return None

    def may_exist(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return True  # it belongs to another user
        return True

    def namespace(self, kind: str) -> str:
        return "unknown"

    def kill_self(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def is_killed(self, status: int) -> bool:
        return status == -signal.SIGKILL

    def open_folder(self, path: str, at: int | None = None) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)

    # The call itself, without a function around it: every commit to SQLite makes it.
    read_at = staticmethod(os.pread)  # type: ignore[assignment]

    def write_at(self, fd: int, data: bytes | memoryview, at: int) -> int:
        return os.pwrite(fd, data, at)

    def sync_file(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.sync_file(fd)
        finally:
            os.close(fd)

    def replace(self, old: str, new: str) -> None:
        os.replace(old, new)

    def set_mode(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def free_range(self, fd: int, at: int, size: int) -> bool:
        return False

    def lock(self, fd: int, *, is_shared: bool = False, waits: bool = False) -> None:
        fcntl.flock(fd, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    def file_system(self, path: str) -> str:
        return ""

    def wait_for_event(self, event: threading.Event, timeout_s: float | None) -> bool:
        return event.wait(timeout_s)

    def wait_for_socket(self, fileno: int, want: int, timeout_s: float | None) -> int:
        poller = select.poll()
        poller.register(
            fileno, (select.POLLIN if want & READ else 0) | (select.POLLOUT if want & WRITE else 0)
        )
        events = poller.poll(None if timeout_s is None else timeout_s * 1000)
        if not events:
            return 0
        event = events[0][1]
        ready = (READ if event & select.POLLIN else 0) | (WRITE if event & select.POLLOUT else 0)
        return ready or want  # hung up

    def wait_for_reader(self, fd: int, seconds: float) -> bool:
        poller, end = select.poll(), time.monotonic() + seconds
        poller.register(fd, 0)  # only errors
        events = poller.poll(seconds * 1000)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in events):
            return False
        time.sleep(max(0.0, end - time.monotonic()))  # some terminals cannot be polled, and return at once
        return True

    def enable_escapes(self) -> None:
        pass
