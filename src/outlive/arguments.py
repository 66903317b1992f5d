"""Arguments of the public calls: the valid value, or BadArgument with the sentence that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .checkpoint import SOURCES, Interrupt
from .errors import BadArgument

MAX_ID = 1000


def check_id(name: str, value: object) -> str:
    """Return a valid id or raise BadArgument: any str of 1 to 1,000 characters."""
    if not isinstance(value, str):
        raise BadArgument(f"{name} must be a str, not {type(value).__name__} {value!r}")
    if not 0 < len(value) <= MAX_ID:
        raise BadArgument(f"{name} must have 1 to {MAX_ID:,} characters, not {len(value):,}")
    return str(value)


def optional_id(name: str, value: object) -> str | None:
    return None if value is None else check_id(name, value)


def check_text(name: str, value: object) -> str:
    """Return a str of up to 1,000 characters or raise BadArgument."""
    if not isinstance(value, str) or len(value) > MAX_ID:
        raise BadArgument(f"{name} must be a str of at most {MAX_ID:,} characters, not {value!r:.100}")
    return value


def check_namespace(value: object) -> str:
    """Return a valid namespace: any str of up to 1,000 characters; "" is the root."""
    return check_text("namespace", value)


def check_pairs(writes: object) -> list[tuple[str, Any]]:
    pairs = list(writes) if isinstance(writes, Iterable) and not isinstance(writes, str | Mapping) else None
    if pairs is None or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise BadArgument(f"writes must be pairs of (channel, value), not {writes!r:.100}")
    return [(pair[0], pair[1]) for pair in pairs]


def check_filter(value: object) -> dict[str, Any]:
    """Return a filter by metadata, or raise BadArgument."""
    if value is not None and not isinstance(value, Mapping):
        raise BadArgument(f"filter must be a mapping of metadata, not {value!r:.100}")
    return dict(value or {})


def check_step(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 62):
        raise BadArgument(f"step must be an int, not {value!r}")
    return value


def check_source(value: object) -> str:
    if not isinstance(value, str) or value not in SOURCES:
        raise BadArgument(f"source must be one of {', '.join(sorted(SOURCES))}, not {value!r:.100}")
    return value


def check_metadata(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadArgument(f"metadata must be a mapping with str keys, not {value!r:.100}")
    return dict(value)


def check_names(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if (
        isinstance(value, str)
        or not isinstance(value, Iterable)
        or not all(isinstance(item, str) for item in value)
    ):
        raise BadArgument(f"{name} must be a sequence of str, not {value!r:.100}")
    return tuple(value)


def check_interrupts(value: Sequence[Interrupt]) -> tuple[Interrupt, ...]:
    if not isinstance(value, Iterable) or not all(isinstance(item, Interrupt) for item in value):
        raise BadArgument("interrupts must be outlive.Interrupt(id, node, payload)")
    return tuple(value)


def check_limit(value: object) -> int | None:
    """Return a valid limit or raise BadArgument."""
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise BadArgument(f"limit must be None or 0 and more, not {value!r}")
    return value
