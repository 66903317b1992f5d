"""Checks of arguments and options: each returns the valid value or raises BadArgument.

Options that a URL can carry raise BadURL instead, and may be text: "30", "true".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from outlive.errors import BadArgument, CallerError
from outlive.values import CONTROL, SOURCES, Interrupt, PendingWrite, parse_thread_cursor

MAX_ID = 1000
MAX_TIMEOUT_S = 1_000_000
MAX_SECONDS = 1_000_000_000
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
Refusal = type[CallerError]


def check_choice(name: str, value: object, choices: Sequence[str], error: Refusal = BadArgument) -> str:
    """Return one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise error(f"{name} must be {' or '.join(map(repr, choices))}, not {value!r:.100}")
    return value


def check_flag(name: str, value: object, error: Refusal = BadArgument, *, is_text: bool = False) -> bool:
    """Return True or False; as text also "yes", "no", "1" and "0"."""
    flag = _FLAGS.get(value.lower()) if is_text and isinstance(value, str) else value
    if not isinstance(flag, bool):
        raise error(f"{name} must be True or False, not {value!r:.100}")
    return flag


def check_count(
    name: str, value: object, least: int = 0, error: Refusal = BadArgument, *, is_text: bool = False
) -> int:
    """Return a whole number."""
    is_digits = is_text and isinstance(value, str) and value.isascii() and value.isdigit()
    count = int(value) if is_digits else value  # type: ignore[call-overload]
    if not isinstance(count, int) or isinstance(count, bool) or count < least:
        raise error(f"{name} must be a whole number, {least} or more, not {value!r:.100}")
    return count


def check_seconds(
    name: str,
    value: object,
    least: float | None = None,
    error: Refusal = BadArgument,
    *,
    is_text: bool = False,
) -> float:
    """Return a duration: `least` or more, or above 0."""
    try:
        seconds = float(value) if isinstance(value, int | float | (str if is_text else int)) else None
    except (ValueError, OverflowError):
        seconds = None
    is_valid = seconds is not None and not isinstance(value, bool) and seconds <= MAX_SECONDS
    if seconds is None or not is_valid or not (seconds > 0 if least is None else seconds >= least):
        valid = "more than 0" if least is None else f"{least:g} or more"
        raise error(
            f"{name} must be a number of seconds, {valid} and at most {MAX_SECONDS:,}, not {value!r:.100}"
        )
    return seconds


def check_timeout(value: object, name: str = "timeout_s") -> float:
    """Return a valid timeout."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= MAX_TIMEOUT_S:
        raise BadArgument(f"{name} must be more than 0 s and at most {MAX_TIMEOUT_S:,} s, not {value!r}")
    return float(value)


def check_durability(value: object) -> str:
    """Return the durability of a store or a save."""
    if value not in ("sync", "async"):
        hint = ' ("exit" is for runs: store.run(..., durability="exit"))' if value == "exit" else ""
        raise BadArgument(f'durability must be "sync" or "async", not {value!r}{hint}')
    return str(value)


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
    """Return the pending writes of a save.

    A (task, channel, value) gets the next position of its task.
    """
    items = (
        list(writes) if isinstance(writes, Iterable) and not isinstance(writes, str | Mapping) else [writes]
    )
    checked: list[PendingWrite] = []
    counts: dict[str, int] = {}
    for item in items:
        if isinstance(item, PendingWrite):
            checked.append(_check_write(item))
        elif isinstance(item, tuple | list) and len(item) == 3:
            task, channel = check_id("task", item[0]), check_text("channel", item[1])
            position = counts.get(task, 0)
            counts[task] = position + 1
            checked.append(PendingWrite(task, CONTROL.get(channel, position), channel, item[2]))
        else:
            raise BadArgument(
                f"writes must be (task, channel, value) or outlive.PendingWrite, not {item!r:.100}"
            )
    return tuple(checked)


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


def check_order(value: object, prefix: str) -> str:
    """Return the order of a listing of threads, or raise BadArgument."""
    if value not in ("id", "updated"):
        raise BadArgument(f'order must be "id" or "updated", not {value!r:.100}')
    if value == "updated" and prefix:
        raise BadArgument('a prefix is for threads by id: leave it out, or leave out order="updated"')
    return str(value)


def thread_cursor(text: str) -> tuple[int, str]:
    """Return the place that the cursor of a thread names, or raise BadArgument."""
    place = parse_thread_cursor(text)
    if place is None:
        raise BadArgument(f'with order="updated", after is the cursor of a ThreadInfo, not {text!r:.100}')
    return place


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
    """Return the handlers by the name of their agent. Raises BadArgument."""
    if not isinstance(value, Mapping) or not all(map(callable, value.values())):
        hint = (
            f'; for all agents write {{"*": {getattr(value, "__name__", "handler")}}}'
            if callable(value)
            else ""
        )
        raise BadArgument(f"handlers must be a dict of agent → function of a run, not {value!r:.100}{hint}")
    return value


def is_async(handler: object) -> bool:
    """Tell whether calling this returns a coroutine: a coroutine function, a partial of one, or an object with such a `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def check_plain(handlers: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Refuse coroutine functions: a sync store cannot await them."""
    for agent, handler in handlers.items():
        if is_async(handler):
            raise BadArgument(
                f"the handler of {agent!r} is a coroutine function; use outlive.open_async, or a plain function"
            )
    return handlers


def check_worker(handlers: Mapping[Any, Any], limits: Mapping[Any, Any]) -> None:
    """Refuse a worker without handlers, and limits of agents that it has no handler for."""
    if not handlers:
        raise BadArgument(
            'handlers is empty, so the worker would have nothing to do; give {"agent": function}'
        )
    unknown = [agent for agent in limits if agent != "*" and agent not in handlers]
    if unknown and "*" not in handlers:
        raise BadArgument(f"limits has {unknown[0]!r}, for which there is no handler")


def check_agent(value: object) -> str:
    """Return the name of the agent of a run. "*" stands for all agents where handlers are given."""
    if check_text("agent", value) in ("", "*"):
        raise BadArgument(f"agent must be a name, not {value!r}; leave it out for a run without an agent")
    return check_text("agent", value)


def check_run(lease_s: object, throttle_s: object, max_attempts: object, clock: object = None) -> None:
    """Refuse options that no run can have."""
    if clock is not None and not callable(clock):
        raise BadArgument(f"clock must be a function that returns seconds, not {clock!r:.100}")
    for name, value, least in (("lease_s", lease_s, 0.1), ("throttle_s", throttle_s, 0.0)):
        if check_seconds(name, value, least) > 86_400:
            raise BadArgument(f"{name} must be at most a day, not {value!r}")
    check_count("max_attempts", max_attempts, 1)


def check_priority(value: object) -> int:
    """Return the priority of a run: 0 to 999."""
    if check_count("priority", value) > 999:
        raise BadArgument(f"priority must be 0 to 999, not {value!r:.100}")
    return check_count("priority", value)


def check_run_durability(value: object) -> str:
    """Return when saves of a run are stored."""
    if value not in ("sync", "async", "exit"):
        raise BadArgument(f'durability of a run must be "sync", "async" or "exit", not {value!r}')
    return str(value)


def check_options(call: str, options: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse a keyword that a call does not have. Raises BadArgument."""
    for name in options.keys() - known:
        raise BadArgument(f"{call} takes no {name}=; its options are {', '.join(sorted(known))}")
