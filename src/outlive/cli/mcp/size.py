"""Keeps answers small: what is too long is cut, and says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

ANSWER = 40_000  # characters of an answer
VALUE = 2_000  # characters of a value in a list
PAGE, MOST = 20, 100  # items of a list
MAX_STATE_BYTES = 32 << 20  # a larger state is not loaded
_ENTRIES = 100  # of a container that is cut entry by entry


def length(value: Any) -> int:
    """Return the characters of a JSON value."""
    return len(json.dumps(value, ensure_ascii=False))


def fit(value: Any, room: int = VALUE, depth: int = 1) -> Any:
    """Return a JSON value in which what has more characters than `room` is `{"$cut": beginning, "characters": n}`.

    The containers of the first `depth` levels are kept, and cut entry by entry.
    """
    count = length(value)
    if count <= room:
        return value
    if depth and isinstance(value, dict) and len(value) <= _ENTRIES:
        return {key[:room]: fit(item, room, depth - 1) for key, item in value.items()}
    if depth and isinstance(value, list) and len(value) <= _ENTRIES:
        return [fit(item, room, depth - 1) for item in value]
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return {"$cut": text[: room // 2], "characters": len(text)}


def count_fitting(items: Sequence[Any], room: int = ANSWER) -> int:
    """Return how many items fit in an answer; at least one does."""
    used = 0
    for number, item in enumerate(items):
        used += length(item)
        if used > room and number:
            return number
    return len(items)
