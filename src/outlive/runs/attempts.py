"""The attempts of a run: which process worked on it, from when until when, and how that ended.

They are part of the record of the run, so an attempt begins in the commit that claims the run and
ends in the commit that ends it. A process that dies writes no end: its successor does, with the
last moment at which the lease was renewed. The record keeps the last attempts (`KEPT`), as it is
stored again by every save.
"""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import replace
from typing import Any

from outlive.dataclass import dataclass
from outlive.errors import Corrupt
from outlive.runs.owner import Owner
from outlive.values import micros, moment

KEPT = 20
DIED, LAPSED = "died", "lapsed"
_MAX_ERROR = 300  # characters
_TYPES = (int, str, str, int, int, str, str)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run.

    `outcome` is None while it is under way, then the status in which it left the run: "completed",
    "failed", "released", "waiting", "cancelled" or "parked". "died" means that its process has
    certainly ended, "lapsed" that its lease expired: the process died on another machine, hung, or
    lost contact. Then `ended_at` is the last sign of life. A run that waited keeps its number.
    """

    number: int
    owner: str
    host: str
    began_at: dt.datetime
    ended_at: dt.datetime | None = None
    outcome: str | None = None
    error: str | None = None


Attempts = tuple[Attempt, ...]


def begin(attempts: Attempts, number: int, owner: Owner, at: dt.datetime) -> Attempts:
    """Return the attempts with one that begins; the oldest is dropped when there are too many."""
    return (*attempts, Attempt(number, str(owner), owner.host, at))[-KEPT:]


def end(attempts: Attempts, outcome: str, at: dt.datetime | None, error: str | None = None) -> Attempts:
    """Return the attempts with the end of the last one, unless it has ended before."""
    if not attempts or attempts[-1].outcome is not None:
        return attempts
    text = None if error is None else error[:_MAX_ERROR]
    return (*attempts[:-1], replace(attempts[-1], ended_at=at, outcome=outcome, error=text))


def count_releases(attempts: Attempts) -> int:
    """Return how many of the last attempts that have ended, in a row, were released."""
    outcomes = [attempt.outcome for attempt in reversed(attempts) if attempt.outcome is not None]
    return sum(1 for _ in itertools.takewhile(lambda outcome: outcome == "released", outcomes))


def pack(attempts: Attempts) -> list[list[Any]]:
    """Return the attempts as the record of a run stores them."""
    return [
        [
            attempt.number,
            attempt.owner,
            attempt.host,
            micros(attempt.began_at),
            0 if attempt.ended_at is None else micros(attempt.ended_at),
            attempt.outcome or "",
            attempt.error or "",
        ]
        for attempt in attempts
    ]


def unpack(stored: Any) -> Attempts:
    """Return the attempts of a stored record. Raises Corrupt."""
    if not isinstance(stored, list):
        raise Corrupt("the attempts of a run are damaged")
    return tuple([_unpack_one(fields) for fields in stored])


def _unpack_one(fields: Any) -> Attempt:
    if not isinstance(fields, list) or tuple(map(type, fields[: len(_TYPES)])) != _TYPES:
        raise Corrupt("an attempt of a run is damaged")
    number, owner, host, began, ended, outcome, error, *_ = fields
    return Attempt(
        number, owner, host, moment(began), moment(ended) if ended else None, outcome or None, error or None
    )
