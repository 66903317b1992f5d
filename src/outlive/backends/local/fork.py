"""Forks and local backends.

A fork waits until no backend is in the middle of a call: the forking thread takes every lock first,
and each backend closes what a child must not inherit. Worker threads stay in the parent.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from outlive.backends.local.protocol import Local
from outlive.runtime.fork import hold_while_forking

_locals: weakref.WeakSet[Any] = weakref.WeakSet()
_stopped: list[Local] = []
_forking = threading.Lock()  # one fork at a time takes the locks


def keep_for_fork(local: Local) -> None:
    """Let forks wait for this backend."""
    _locals.add(local)


def _before_fork() -> None:
    _forking.acquire()
    for local in list(_locals):
        local.lock.acquire()
        _stopped.append(local)
        local.before_fork()


def _after_fork() -> None:
    while _stopped:
        _stopped.pop().lock.release()
    _forking.release()


hold_while_forking(_before_fork, _after_fork, _after_fork)
