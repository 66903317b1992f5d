"""What a run may use, and what it has used.

`run.save(usage=...)` says what was used since the save before: numbers are added, so the record has
the sum over all attempts. A run also adds what it uses to the usage of its parent, if that is live
in the same store object. The parent stores it with its next save or heartbeat: a crash before that
loses it there, not in the child.

The write that crosses a budget is stored, as what was used cannot be taken back. Then BudgetSpent
is raised, and the run is parked when its block is left. A process may die before that: so a run
that has used too much is parked when it is resumed, and none of its steps is called.

With `on_spent="ask"` the run asks the question "budget" instead, and waits. The answer raises the
limits. It is stored as the answer to a question is, and every later start of the run reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, Literal, Self

from outlive.arguments import check_choice
from outlive.dataclass import dataclass
from outlive.errors import BadArgument, BudgetSpent, Corrupt

_FIELDS = ("cost_usd", "tokens", "steps")
_COUNTED = ("cost_usd", "tokens", "input_tokens", "output_tokens")
Usage = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use: `store.run("trip", budget=outlive.Budget(cost_usd=2, tokens=200_000))`.

    cost_usd:  the sum of `usage["cost_usd"]`
    tokens:    the sum of `usage["tokens"]`, or of `usage["input_tokens"]` and `usage["output_tokens"]`
    steps:     how many steps it may have; one more is not called
    on_spent:  "park" (default): the run is parked. "ask": it waits for the answer to the question "budget", such as
               `store.answer(run_id, "budget", {"cost_usd": 5})`; None parks it

    None: no limit. Raises BadArgument.
    """

    cost_usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    on_spent: Literal["park", "ask"] = "park"

    def __post_init__(self) -> None:
        check_choice("the on_spent of a budget", self.on_spent, ("park", "ask"))
        for name in _FIELDS:
            limit = getattr(self, name)
            is_whole = name != "cost_usd"
            if limit is not None and not (_is_number(limit) and limit >= 0):
                raise BadArgument(f"the {name} of a budget must be a number, 0 or more, not {limit!r:.100}")
            if limit is not None and is_whole and not isinstance(limit, int):
                raise BadArgument(f"the {name} of a budget must be a whole number, not {limit!r:.100}")

    def check(self, run: str, usage: Usage) -> None:
        """Raise BudgetSpent if a run has used more."""
        for what, used, limit in (
            ("cost_usd", _number(usage, "cost_usd"), self.cost_usd),
            ("tokens", tokens(usage), self.tokens),
        ):
            if limit is not None and used > limit:
                raise BudgetSpent(run, what, used, limit)

    def check_step(self, run: str, count: int) -> None:
        """Raise BudgetSpent if a run that has this many steps may have no other one."""
        if self.steps is not None and count >= self.steps:
            raise BudgetSpent(run, "steps", count, self.steps)

    @property
    def asks(self) -> bool:
        """Tell whether a run that has spent it asks for more."""
        return self.on_spent == "ask"

    @property
    def limits(self) -> dict[str, float]:
        """The limits by name, without those that there are not."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of an answer: greater limits, or null for none."""
        types = {name: "number" if name == "cost_usd" else "integer" for name in self.limits}
        properties = {name: {"type": kind, "minimum": 0} for name, kind in types.items()}
        return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}

    def raised(self, more: Any) -> Self:
        """Return the budget with the greater limits of an answer. Raises Corrupt."""
        if not isinstance(more, Mapping):
            raise Corrupt("an answer to the question 'budget' of a run is damaged")
        try:
            limits: dict[str, Any] = {name: more.get(name, limit) for name, limit in self.limits.items()}
            answered = type(self)(**limits)
        except BadArgument as error:
            raise Corrupt(f"an answer to the question 'budget' of a run is damaged: {error}") from None
        limits = {name: max(limit, answered.limits[name]) for name, limit in self.limits.items()}
        return replace(self, **limits)

    def pack(self) -> list[Any]:
        """Return the budget as the record of a run stores it."""
        return [*(getattr(self, name) for name in _FIELDS), self.on_spent]

    @classmethod
    def unpack(cls, stored: Any) -> Self:
        """Return the budget of a stored record. Raises Corrupt."""
        if not isinstance(stored, list) or len(stored) != len(_FIELDS) + 1:
            raise Corrupt("the budget of a run is damaged")
        try:
            return cls(*stored)
        except BadArgument as error:
            raise Corrupt(f"the budget of a run is damaged: {error}") from None


def check_budget(value: object) -> Budget | None:
    """Return a budget, or raise BadArgument."""
    if value is not None and not isinstance(value, Budget):
        raise BadArgument(f"budget must be an outlive.Budget(...), not {value!r:.100}")
    return value


def tokens(usage: Usage) -> float:
    """Return how many tokens were used."""
    if _is_number(usage.get("tokens")):
        return _number(usage, "tokens")
    return _number(usage, "input_tokens") + _number(usage, "output_tokens")


def check_used(usage: Usage) -> None:
    """Raise BadArgument if something that a budget counts is no amount, or if a sum could not be told any more."""
    for name, value in usage.items():
        if _is_real(value) and not math.isfinite(value):
            raise BadArgument(
                f"usage[{name!r}] must be finite, not {value!r:.100}; leave out what is not known"
            )
        if name in _COUNTED and not (_is_number(value) and value >= 0):
            raise BadArgument(
                f"usage[{name!r}] must be a number, 0 or more, not {value!r:.100}; leave out what is not known"
            )


def add(before: Usage, used: Usage) -> dict[str, Any]:
    """Return the sum: numbers are added, of other values the later one counts."""
    return {
        **before,
        **{
            name: _sum(before[name], value) if _is_number(value) and _is_number(before.get(name)) else value
            for name, value in used.items()
        },
    }


def numbers(usage: Usage) -> dict[str, Any]:
    """Return what can be added."""
    return {name: value for name, value in usage.items() if _is_number(value)}


def _is_real(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_real(value) and value == value  # no NaN


def _sum(before: Any, used: Any) -> Any:
    if Decimal in (type(before), type(used)) and float in (type(before), type(used)):
        return float(before) + float(used)  # Python adds no Decimal to a float
    return before + used


def _number(usage: Usage, name: str) -> float:
    value = usage.get(name)
    return value if _is_number(value) else 0  # type: ignore[return-value]
