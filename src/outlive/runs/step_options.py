"""The options of a step: its key, what an effect needs, and when its function is called again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from outlive.arguments import check_count, check_seconds, check_timeout
from outlive.dataclass import dataclass
from outlive.errors import BadArgument

RetryOn = type[Exception] | tuple[type[Exception], ...]
_LONGEST_PAUSE_S = 60.0


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The options of one step."""

    key: str | None = None
    effect: bool = False
    on_unfinished: Any = "retry"
    retries: int = 0
    backoff_s: float = 1.0
    retry_on: RetryOn = Exception
    timeout_s: float | None = None

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> StepOptions:
        """Check the options of a decorator. Raises BadArgument."""
        known = [field.name for field in fields(cls)]
        for option in options:
            if option not in known:
                raise BadArgument(
                    f"step {name!r} has no option {option!r}, only {', '.join(known)}; "
                    "pass arguments of the function after the function"
                )
        checked = cls(**options)
        check_count("retries", checked.retries)
        check_seconds("backoff_s", checked.backoff_s, 0.0)
        if checked.timeout_s is not None:
            check_timeout(checked.timeout_s)
        _check_retry_on(checked.retry_on)
        if not callable(checked.on_unfinished):
            check_policy(checked.on_unfinished)
        if "on_unfinished" in options and not checked.effect:
            raise BadArgument(
                f"on_unfinished of step {name!r} needs effect=True: only then is it known that a step has begun"
            )
        return checked

    def pause_s(self, failures: int) -> float:
        """Return how long to wait after that many failures: twice as long each time, within a third."""
        longest = min(_LONGEST_PAUSE_S, self.backoff_s * 2.0 ** min(failures - 1, 30))
        return longest * random.uniform(0.67, 1.0)


DEFAULTS = StepOptions()


def check_policy(policy: object) -> None:
    """Raise BadArgument unless this says what to do about an effect that had begun."""
    is_value = isinstance(policy, tuple) and len(policy) == 2 and policy[0] == "value"
    if not is_value and not (isinstance(policy, str) and policy in ("retry", "skip", "ask")):
        raise BadArgument(
            'on_unfinished must be "retry", "skip", "ask" or ("value", x), or a function that returns one of '
            f"these, not {policy!r:.100}"
        )


def _check_retry_on(value: object) -> None:
    classes = value if isinstance(value, tuple) else (value,)
    if not classes or not all(isinstance(item, type) and issubclass(item, Exception) for item in classes):
        raise BadArgument(f"retry_on must be a class of exceptions or a tuple of them, not {value!r:.100}")
