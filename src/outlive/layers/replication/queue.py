"""What this process knows of the notes that it made: which are under way, done, or still to be carried over."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from outlive.backend import ThreadKey
from outlive.runtime.runtime import Runtime

SavedId: TypeAlias = tuple[bytes, str, str]  # thread's digest, namespace, id


class Queue:
    """Notes of one process. The queue itself is in the store that is active."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._count = 0
        self._lock = threading.Lock()
        self.mine = os.urandom(4).hex()  # in the key of every note of this process
        self.in_flight: set[str] = set()  # their commits are under way: they are not to be taken off
        self.done: dict[ThreadKey, list[str]] = {}  # the other store has what they tell of
        # By the store that has it, and alone: notes, with the checkpoints that their commits saved.
        self.left: tuple[dict[str, list[SavedId]], dict[str, list[SavedId]]] = ({}, {})
        self.is_dirty = True  # something may be queued
        self.in_step = True  # the other store answers, so that commits go there directly

    def has_forked(self) -> bool:
        """Begin anew in a forked child: the parent goes on with what it has queued."""
        if self._pid == os.getpid():
            return False
        self._begin()
        return True

    def new_key(self) -> str:
        """Return the key of a note: keys are sorted by the moment at which they were made."""
        with self._lock:
            self._count += 1
            key = f"{self._runtime.now():016x}{self.mine}{self._count:08x}"
            self.in_flight.add(key)
        return key

    def finished(self, keys: Iterable[str]) -> None:
        """Their commits are over, in whichever way."""
        with self._lock:
            self.in_flight.difference_update(keys)

    def finish(self, thread: ThreadKey, keys: Iterable[str]) -> None:
        """They can be taken off."""
        with self._lock:
            self.done.setdefault(thread, []).extend(keys)

    def take_done(self, thread: ThreadKey) -> tuple[str, ...]:
        """Return those of a thread that can be taken off, to do so."""
        with self._lock:
            return tuple(self.done.pop(thread, ()))

    def done_of(self, thread: ThreadKey) -> set[str]:
        """Return those of a thread that can be taken off."""
        with self._lock:
            return set(self.done.get(thread, ()))

    def take_idle(self, least_s: float) -> dict[ThreadKey, list[str]]:
        """Return those of threads that had no commit for so long: the next one would have taken them off by the way."""
        before = f"{self._runtime.now() - int(least_s * 1e6):016x}"
        with self._lock:
            idle = {key: names for key, names in self.done.items() if names[-1][:16] <= before}
            for key in idle:
                del self.done[key]
        return idle

    def leave(self, role: int, notes: Mapping[str, list[SavedId]]) -> None:
        """They are to be carried over from that store, which has them: their commits are over."""
        with self._lock:
            self.in_flight.difference_update(notes)
            self.left[role].update(notes)
        self.is_dirty = True

    def has_carried(self, role: int, keys: Iterable[str]) -> None:
        with self._lock:
            for key in keys:
                self.left[role].pop(key, None)

    def left_in(self, role: int) -> set[str]:
        """Return the keys of those that are to be carried over from a store."""
        with self._lock:
            return set(self.left[role])

    def is_left_in(self, role: int, ids: Iterable[SavedId]) -> bool:
        """Tell whether a store has one of these checkpoints, and has it alone."""
        wanted = set(ids)
        with self._lock:
            return any(not wanted.isdisjoint(saved) for saved in self.left[role].values())

    def done_keys(self) -> set[str]:
        with self._lock:
            return {key for keys in self.done.values() for key in keys}
