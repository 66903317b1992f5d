"""Waiting for work in a store of this machine.

A commit by this process rings a bell, which wakes at once. What other processes commit is noticed
by a look at the store's version every fifth of a second, which reads no record. Nothing is looked
at where no other process can commit (memory).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from outlive.backend import Commit
from outlive.backend.entries import wakes
from outlive.errors import OutliveError, StoreClosed
from outlive.runtime.platform import system
from outlive.runtime.runtime import Deadline

_LOOK_S = 0.2  # between looks at what other processes did


class Bell:
    """Whom a commit of this process wakes."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[str, Callable[[], None]]] = {}

    def add(self, listener: object, tenant: str, ring: Callable[[], None]) -> None:
        self._listeners[listener] = (tenant, ring)

    def remove(self, listener: object) -> None:
        self._listeners.pop(listener, None)

    def ring(self, commits: Sequence[Commit]) -> None:
        """Wake those who watch a tenant in which work was stored, or might have been."""
        if not self._listeners:
            return
        tenants = {commit.thread.tenant for commit in commits if wakes(commit.entries)}
        for tenant, ring in list(self._listeners.values()) if tenants else ():
            if tenant in tenants:
                ring()


def bell_of(local: Any) -> Bell:
    """Return the bell of a backend, which all its handles share."""
    with _lock:
        return _bells.setdefault(local, Bell())


_bells: weakref.WeakKeyDictionary[Any, Bell] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Alarm(Protocol):
    """What a bell sets, in any thread, and a watch waits for."""

    def set(self) -> None: ...
    async def wait(self, timeout_s: float) -> bool:
        """Return whether it was set, and reset it."""
        ...


class ThreadAlarm:
    """The sync mode: wakes a thread."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        is_set = system.wait_for_event(self._event, timeout_s)
        self._event.clear()
        return is_set


class LocalWatch:
    """Waits for the bell and looks at the version of the store, which is None where that is not needed."""

    def __init__(
        self, bell: Bell, tenant: str, alarm: Alarm, version: Callable[[], Awaitable[object]]
    ) -> None:
        self._bell = bell
        self._alarm = alarm
        self._version = version
        self._seen: object = None
        bell.add(self, tenant, alarm.set)

    async def begin(self) -> LocalWatch:
        """Note the version at which the watch begins."""
        self._seen = await self._version()
        return self

    async def wait(self, timeout_s: float) -> bool:
        """Return True when work was stored, False when the time is over."""
        deadline = Deadline(timeout_s)
        while True:
            left_s = deadline.remaining_s()
            if await self._alarm.wait(left_s if self._seen is None else min(left_s, _LOOK_S)):
                return True
            if await self._has_moved():
                return True
            if not deadline.remaining_s():
                return False

    async def _has_moved(self) -> bool:
        if self._seen is None:
            return False
        try:
            version = await self._version()
        except StoreClosed:
            raise
        except OutliveError:  # the next call of the caller says what is wrong
            return False
        self._seen, before = version, self._seen
        return version != before

    async def close(self) -> None:
        """Stop listening."""
        self._bell.remove(self)
