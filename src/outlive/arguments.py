"""Arguments of the public calls: the valid value, or BadArgument with the sentence that mends it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlive.errors import BadArgument
from outlive.values import CONTROL, SOURCES, Interrupt, PendingWrite

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


def check_writes(writes: object) -> tuple[PendingWrite, ...]:
    """Return the pending writes of a save: those of (task, channel, value) get the position that they have among the task's."""
    items = (
        list(writes) if isinstance(writes, Iterable) and not isinstance(writes, str | Mapping) else [writes]
    )
    found: list[PendingWrite] = []
    counts: dict[str, int] = {}
    for item in items:
        if isinstance(item, PendingWrite):
            found.append(_check_write(item))
        elif isinstance(item, tuple | list) and len(item) == 3:
            task, channel = check_id("task", item[0]), check_text("channel", item[1])
            position = counts.get(task, 0)
            counts[task] = position + 1
            found.append(PendingWrite(task, CONTROL.get(channel, position), channel, item[2]))
        else:
            raise BadArgument(
                f"writes must be (task, channel, value) or outlive.PendingWrite, not {item!r:.100}"
            )
    return tuple(found)


def _check_write(write: PendingWrite) -> PendingWrite:
    check_id("task", write.task)
    check_text("path", write.path)
    expected, index = CONTROL.get(check_text("channel", write.channel)), write.index
    is_number = isinstance(index, int) and not isinstance(index, bool)
    if not is_number or (index != expected if expected is not None else not 0 <= index < 1 << 31):
        raise BadArgument(
            f"the index of a write to {write.channel!r} must be {expected or '0 or more'}, not {index!r}"
        )
    return write


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


def check_iteration(value: object) -> int:
    """Return how often a run went round, or raise BadArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise BadArgument(f"iteration must be an int of 0 or more, not {value!r:.100}")
    return value


def check_phase(value: object) -> str:
    """Return the name of a phase of a run, or raise BadArgument."""
    return check_text("phase", value)


def check_usage(value: object) -> dict[str, Any]:
    """Return what a run used, or raise BadArgument."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise BadArgument(f"usage must be a mapping with str keys, not {value!r:.100}")
    return dict(value)


def check_attributes(value: object) -> dict[str, Any]:
    """Return attributes of runs, or raise BadArgument."""
    if value is not None and (
        not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value)
    ):
        raise BadArgument(f"attributes must be a mapping with str keys, not {value!r:.100}")
    return dict(value or {})


def check_handlers(value: object) -> Mapping[Any, Any]:
    """Return who goes on with the runs of which agent, or raise BadArgument."""
    if not isinstance(value, Mapping) or not all(map(callable, value.values())):
        hint = (
            f'; for all agents write {{"*": {getattr(value, "__name__", "handler")}}}'
            if callable(value)
            else ""
        )
        raise BadArgument(f"handlers must be a dict of agent → function of a run, not {value!r:.100}{hint}")
    return value
