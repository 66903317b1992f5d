"""What a forked child has to replace: locks that a thread of the parent may have held, and threads.

A child has only the thread that forked. A lock that another thread held at that moment stays locked
in the child, and threads, timers and queues of the parent do not run there. So every object that
has such things is registered here, and makes new ones in the child before any other code runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

from outlive.runtime.platform import system


class Resettable(Protocol):
    """An object with locks, threads or queues of this process."""

    def after_fork_in_child(self) -> None:
        """Replace them. It must not wait: nothing else runs in the child yet."""
        ...


_objects: dict[int, weakref.ref[Resettable]] = {}  # in the order in which they were made
_functions: list[Callable[[], object]] = []


def reset_in_child(target: Resettable) -> None:
    """Reset an object in forked children, after the objects that were registered before it."""
    key = id(target)
    _objects[key] = weakref.ref(target, lambda _: _objects.pop(key, None))


def call_in_child(function: Callable[[], object]) -> None:
    """Call a function in forked children, before any object is reset."""
    _functions.append(function)


def hold_while_forking(
    before: Callable[[], None], after_in_parent: Callable[[], None], after_in_child: Callable[[], None]
) -> None:
    """Let a module take its locks before a fork and release them after it, on both sides."""
    system.at_fork(before=before, after_in_parent=after_in_parent)
    _functions.insert(0, after_in_child)


def _reset() -> None:
    for function in _functions:
        function()
    for reference in list(_objects.values()):
        if (target := reference()) is not None:
            target.after_fork_in_child()


system.at_fork(after_in_child=_reset)
