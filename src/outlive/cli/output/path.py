"""Finds a value in a state by a path as `diff` and errors print it: `messages[0].text`, `notes['note 1']`."""

from __future__ import annotations

import ast
import re
from typing import Any

from outlive.cli.output.opaque import unwrap
from outlive.errors import BadArgument

_STEP = re.compile(r"\.?([^\W\d]\w*)|\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"])+)\]")
_LISTED = 12


def pick(state: Any, path: str) -> Any:
    """Return the value at a path; raise BadArgument with the part of the path that has no value."""
    value, at = state, 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise BadArgument(f"invalid path {path!r} at {path[at:]!r}; write it like messages[0].text")
        value = _enter(value, _key(step), path[:at] or "state")
        at = step.end()
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
