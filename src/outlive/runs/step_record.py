"""A step as it is stored: its value, and when, in which attempt and how often its function was called.

The body of its entry is a list: a digest of the arguments, the value, the error, when the last call
began and ended in microseconds, its attempt, the number of calls, the calls that failed before, and
whether it has an effect.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Self

from outlive.dataclass import dataclass
from outlive.errors import Corrupt
from outlive.runs.effect_keys import effect_key
from outlive.values import micros, moment

STARTED, DONE, RAISED = "started", "done", "raised"
KEPT = 10  # calls that failed
_MAX_ERROR = 300  # characters of each of them
_NUMBERS = (int, int, int, int)


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A call of the function of a step that raised, or that ended with its process (`ended_at` is None)."""

    attempt: int
    began_at: dt.datetime
    ended_at: dt.datetime | None
    error: str


@dataclass(slots=True)
class StepInfo:
    """A stored step of a run.

    `status` is "started", "done" or "raised". `key` is "=KEY", or "#N" for the Nth step without a
    key; inside another step "#N@DIGEST", for the Nth of that step. `began_at`, `ended_at`,
    `attempt` and `error` are those of the last call of its function, `failures` the calls before it
    that failed, the last 10. `tries` counts all calls that are stored: one that ended with its
    process is stored only with effect=True. `effect_key` is the key of its effect; None if it has
    none.
    """

    name: str
    key: str
    status: str
    arguments: bytes | None
    value: Any = None
    error: str | None = None
    attempt: int = 0
    tries: int = 1
    failures: tuple[FailedTry, ...] = ()
    effect_key: str | None = None
    _began: int = 0  # microseconds, which cost less than a datetime for every step
    _ended: int = 0
    kind: str = "step"  # or "ask", "wait", "sleep", "run" (inside this one, and waiting)

    @property
    def began_at(self) -> dt.datetime:
        """When its function was called."""
        return moment(self._began)

    @property
    def ended_at(self) -> dt.datetime | None:
        """When its function returned or raised; None while the step is "started"."""
        return moment(self._ended) if self._ended else None

    @classmethod
    def unpack(cls, name: str, key: str, status: str, fields: Any, seed: bytes) -> Self:
        """Return a step from the body of its entry. Raises Corrupt."""
        arguments, value, error, began, ended, attempt, tries, failures, is_effect, *_ = fields
        if tuple(map(type, (began, ended, attempt, tries))) != _NUMBERS:
            raise Corrupt(f"step {name!r:.100} is damaged")
        moment(began), moment(ended)  # they are times, or this raises
        tried = tuple([_unpack_try(*failed[:4]) for failed in failures])
        effect = effect_key(seed, name, key) if is_effect else None
        return cls(name, key, status, arguments, value, error, attempt, tries, tried, effect, began, ended)

    def pack(self, value: Any, error: str | None, ended: int) -> list[Any]:
        """Return the body of the entry of this step with another outcome."""
        failures = [_pack_try(failed) for failed in self.failures] if self.failures else []
        is_effect = self.effect_key is not None
        return [
            self.arguments, value, error, self._began, ended, self.attempt, self.tries, failures, is_effect
        ]  # fmt: skip

    def again(
        self, arguments: bytes | None, attempt: int, now: int, effect_key: str | None = None
    ) -> StepInfo:
        """Return this step, which was not done, with another call of its function."""
        error = self.error or "its process ended before the call did"
        failed = FailedTry(self.attempt, self.began_at, self.ended_at, error[:_MAX_ERROR])
        failures = (*self.failures, failed)[-KEPT:]
        return StepInfo(
            self.name, self.key, STARTED, arguments, None, None,
            attempt, self.tries + 1, failures, effect_key, now,
        )  # fmt: skip


def _unpack_try(attempt: int, began: int, ended: int, error: str) -> FailedTry:
    if tuple(map(type, (attempt, began, ended, error))) != (int, int, int, str):
        raise Corrupt("a failed try of a step is damaged")
    return FailedTry(attempt, moment(began), moment(ended) if ended else None, error)


def _pack_try(failed: FailedTry) -> list[Any]:
    ended = 0 if failed.ended_at is None else micros(failed.ended_at)
    return [failed.attempt, micros(failed.began_at), ended, failed.error]
