"""What a run waits for, as its own record says: groups of names, or a time.

A run with several branches may wait for several groups at once. It can continue when one of them
is met, because then one of its branches can.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal


class _Missing:
    """No default was given."""

    def __repr__(self) -> str:
        return "<no default>"


MISSING: Final = _Missing()

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
class Waiting:
    """Why a run waits. `reason` is "answers", "backoff" (after a failure) or "start" (not before)."""

    reason: Reason
    since: dt.datetime
    until: dt.datetime | None = None  # the earliest time at which it continues by itself
    groups: tuple[Group, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the questions, events and sleeps that the run waits for."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group.names))

    @property
    def is_pause(self) -> bool:
        """Tell whether the same attempt continues after the wait."""
        return self.reason == "answers"

    def joined(self, other: Waiting) -> Waiting:
        """Return what a run waits for when another branch of it waits too."""
        until = min([at for at in (self.until, other.until) if at is not None], default=None)
        groups = tuple(dict.fromkeys((*self.groups, *other.groups)))
        return Waiting(self.reason, self.since, until, groups)

    def pack(self) -> list[Any]:
        """Return it as the record of the run stores it."""
        groups = [[list(group.names), group.mode] for group in self.groups]
        return [self.reason, self.since, self.until, groups]

    @classmethod
    def unpack(cls, packed: Any) -> Waiting:
        """Return what `pack` made a list of."""
        reason, since, until, groups = packed
        return cls(reason, since, until, tuple(Group(tuple(names), mode) for names, mode in groups))
