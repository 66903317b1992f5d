"""One place in a state, by the path that `diff` and errors print: `messages[0].text`, `notes['note 1']`."""

from __future__ import annotations

import ast
import re
from typing import Any

from outlive.errors import BadArgument

_STEP = re.compile(r"\.?([^\W\d]\w*)|\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]'\"])+)\]")


def pick(state: Any, path: str) -> Any:
    """Return what stands at a path; raise BadArgument saying where it ends."""
    value, at = state, 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise BadArgument(
                f"the path {path!r} is not understood at {path[at:]!r}; write it like messages[0].text"
            )
        value = _enter(value, _key(found), path[:at] or "state")
        at = found.end()
    return value


def _key(found: re.Match[str]) -> Any:
    if found[1] is not None:
        return found[1]
    try:
        return ast.literal_eval(found[2].strip())
    except (ValueError, SyntaxError):
        return found[2]


def _enter(value: Any, key: Any, where: str) -> Any:
    from outlive.cli.output.opaque import inside

    value = inside(value)
    if isinstance(value, dict):
        if key in value:
            return value[key]
        raise BadArgument(f"{where} has no {key!r}; it has {_some(value)}")
    if isinstance(value, list | tuple) and isinstance(key, int):
        if -len(value) <= key < len(value):
            return value[key]
        raise BadArgument(f"{where} has {len(value)} elements, no [{key}]")
    raise BadArgument(f"{where} is a {type(value).__name__}, which has no {key!r}")


def _some(value: dict[Any, Any]) -> str:
    names = [repr(key) for key in list(value)[:12]]
    return ", ".join(names) + (", …" if len(value) > 12 else "") if names else "nothing"
