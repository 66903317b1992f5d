"""Finds a value in a state by a path as `diff` and errors print it: `messages[0].text`, `notes['note 1']`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from outlive.errors import BadArgument
from outlive.format.extensions import Opaque
from outlive.view.opaque import unwrap

_STEP = re.compile(r"\.?([^\W\d]\w*)|\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"])+)\]")
_LISTED = 12


def pick(state: Any, path: str) -> Any:
    """Return the value at a path; raise BadArgument with the part of the path that has no value."""
    value = state
    for step in split_path(path):
        value = _enter(value, _key(step), path[: step.start()] or "state")
    return value


def _key(step: re.Match[str]) -> Any:
    if step[1] is not None:
        return step[1]
    try:
        return ast.literal_eval(step[2].strip())
    except (ValueError, SyntaxError):
        return step[2]


def _enter(value: Any, key: Any, where: str) -> Any:
    value = unwrap(value)
    if isinstance(value, dict):
        if key in value:
            return value[key]
        raise BadArgument(f"{where} has no {key!r}; it has {_list_keys(value)}")
    if isinstance(value, list | tuple) and isinstance(key, int):
        if -len(value) <= key < len(value):
            return value[key]
        raise BadArgument(f"{where} has {len(value)} elements, no [{key}]")
    raise BadArgument(f"{where} is a {type(value).__name__}, which has no {key!r}")


def _list_keys(value: dict[Any, Any]) -> str:
    names = [repr(key) for key in list(value)[:_LISTED]]
    return ", ".join(names) + (", …" if len(value) > _LISTED else "") if names else "no keys"


def replace_at(state: Any, path: str, value: Any) -> Any:
    """Return a copy of a state with another value at a path that exists; all else is shared."""
    steps = [_key(step) for step in split_path(path)]
    return _replace(state, steps, value)


def split_path(path: str) -> Iterator[re.Match[str]]:
    """Split a path into its steps; raise BadArgument where it is none."""
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise BadArgument(f"invalid path {path!r} at {path[at:]!r}; write it like messages[0].text")
        yield step
        at = step.end()


def _replace(state: Any, keys: list[Any], value: Any) -> Any:
    if not keys:
        return value
    if isinstance(state, Opaque):
        return Opaque(state.tag, state.version, _replace(state.value, keys, value))
    key, inner = keys[0], _enter(state, keys[0], "state")
    changed = _replace(inner, keys[1:], value)
    if isinstance(state, dict):
        return {**state, key: changed}
    if isinstance(state, list | tuple):
        items = list(state)
        items[key] = changed
        return type(state)(items)
    raise BadArgument("a value inside an object of an adapter cannot be edited here")
