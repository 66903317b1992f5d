"""A thread that waits for the sockets of event loops that cannot, such as the default one of Windows."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable

from outlive.dataclass import dataclass
from outlive.runtime.fork import reset_in_child
from outlive.runtime.platform import READ, WRITE


@dataclass(frozen=True, slots=True, eq=False)
class _Watched:
    want: int
    on_ready: Callable[[int], None]


class SocketThread:
    """Waits for all sockets with one `select`. The thread starts with the first of them."""

    def __init__(self) -> None:
        self._begin()
        reset_in_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[int, _Watched] = {}
        self._bell: socket.socket | None = None  # interrupts `select`

    def after_fork_in_child(self) -> None:
        """Start again: the thread and the loops it works for are the parent's."""
        self._begin()

    def watch(self, fileno: int, want: int, on_ready: Callable[[int], None]) -> Callable[[], None]:
        """Call `on_ready` once with what a socket is ready for; return what ends the watch.

        End it before the socket is closed.
        """
        watched = _Watched(want, on_ready)
        with self._lock:
            self._watched[fileno] = watched
            self._ring()

        def end() -> None:
            with self._lock:
                if self._watched.get(fileno) is watched:
                    del self._watched[fileno]
                    self._ring()

        return end

    def _ring(self) -> None:
        if self._bell is None:
            listener, self._bell = socket.socketpair()
            for end in (listener, self._bell):
                end.setblocking(False)
            threading.Thread(target=self._work, args=(listener,), name="outlive-sockets", daemon=True).start()
        with contextlib.suppress(BlockingIOError):  # it rings already
            self._bell.send(b"\0")

    def _work(self, listener: socket.socket) -> None:
        while True:
            with self._lock:
                watched = dict(self._watched)
            for fileno, ready in _select(watched, listener).items():
                with self._lock:
                    # Another socket may have that number by now.
                    if self._watched.get(fileno) is not watched[fileno]:
                        continue
                    del self._watched[fileno]
                watched[fileno].on_ready(ready)


def _select(watched: dict[int, _Watched], listener: socket.socket) -> dict[int, int]:
    """Return what the sockets are ready for; none when the bell rang."""
    bell = listener.fileno()
    readers = [fileno for fileno, one in watched.items() if one.want & READ]
    writers = [fileno for fileno, one in watched.items() if one.want & WRITE]
    try:
        readable, writable, failed = select.select([*readers, bell], writers, list(watched))
    except (OSError, ValueError):  # one was closed while this thread waited
        return {fileno: one.want for fileno, one in watched.items() if not _is_open(fileno)}
    if bell in readable:
        readable.remove(bell)
        listener.recv(4096)
    ready = {fileno: watched[fileno].want for fileno in failed}
    for kind, filenos in ((READ, readable), (WRITE, writable)):
        for fileno in filenos:
            ready[fileno] = ready.get(fileno, 0) | kind
    return ready


def _is_open(fileno: int) -> bool:
    try:
        select.select([fileno], [], [], 0)
    except (OSError, ValueError):
        return False
    return True
