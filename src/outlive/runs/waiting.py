"""What a run waits for, as its own record says: groups of names, or a time.

A run with several branches may wait for several groups at once. It can continue when one of them
is met, because then one of its branches can.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from typing import Any, Final, Literal

from outlive.dataclass import dataclass


class _Missing:
    """No default was given."""

    def __repr__(self) -> str:
        return "<no default>"


MISSING: Final = _Missing()

INNER_PREFIX = "run="  # of the names of events of runs inside a run
Mode = Literal["all", "any"]
Reason = Literal["answers", "backoff", "start"]


@dataclass(frozen=True, slots=True)
class Group:
    """Names that are waited for together."""

    names: tuple[str, ...]
    mode: Mode = "all"

    def is_met(self, answered: Collection[str], expired: Collection[str]) -> bool:
        """Tell whether the wait is over: all are settled, or with "any" one is answered."""
        if self.mode == "any" and any(name in answered for name in self.names):
            return True
        return all(name in answered or name in expired for name in self.names)


@dataclass(frozen=True, slots=True)
class Outer:
    """The run around a run, which waits for it, and the event by which it learns that it can continue."""

    thread: str
    run: str
    event: str

    def pack(self) -> list[str]:
        """Return it as the record of the inner run stores it."""
        return [self.thread, self.run, self.event]

    @classmethod
    def unpack(cls, packed: Any) -> Outer:
        """Return what `pack` made a list of. Raises ValueError, TypeError."""
        thread, run, event, *_ = packed
        if not all(isinstance(part, str) for part in (thread, run, event)) or not event.startswith(
            INNER_PREFIX
        ):
            raise ValueError("an outer run is a thread, an id and an event")
        return cls(thread, run, event)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why a run waits. `reason` is "answers", "backoff" (after a failure) or "start" (not before)."""

    reason: Reason
    since: dt.datetime
    until: dt.datetime | None = None  # the earliest time at which it continues by itself
    groups: tuple[Group, ...] = ()
    runs: tuple[str, ...] = ()  # the ids of runs inside it that it waits for

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the questions, events and sleeps that the run waits for."""
        return tuple(name for name in self._all_names if not name.startswith(INNER_PREFIX))

    @property
    def _all_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for group in self.groups for name in group.names))

    @property
    def is_pause(self) -> bool:
        """Tell whether the same attempt continues after the wait."""
        return self.reason == "answers"

    def joined(self, other: Waiting) -> Waiting:
        """Return what a run waits for when another branch of it waits too."""
        until = min([at for at in (self.until, other.until) if at is not None], default=None)
        groups = tuple(dict.fromkeys((*self.groups, *other.groups)))
        runs = tuple(dict.fromkeys((*self.runs, *other.runs)))
        return Waiting(self.reason, self.since, until, groups, runs)

    def pack(self) -> list[Any]:
        """Return it as the record of the run stores it."""
        groups = [[list(group.names), group.mode] for group in self.groups]
        return [self.reason, self.since, self.until, groups, list(self.runs)]

    @classmethod
    def unpack(cls, packed: Any) -> Waiting:
        """Return what `pack` made a list of."""
        reason, since, until, groups, runs, *_ = packed
        return cls(
            reason, since, until, tuple(Group(tuple(names), mode) for names, mode, *_ in groups), tuple(runs)
        )
