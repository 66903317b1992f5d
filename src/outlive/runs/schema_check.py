"""Whether a JSON Schema is one, before a question is stored with it: later nobody could answer it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outlive.errors import BadArgument

_DEPTH = 64
_TYPES = ("boolean", "integer", "number", "string", "array", "object", "null")
_UNCHECKED = (
    "if", "contains", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "additionalItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip


def _is_type(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(name, str) and name in _TYPES for name in value)
    return isinstance(value, str) and value in _TYPES


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and re.compile(value) is not None
    except (re.error, RecursionError, OverflowError):
        return False


_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (lambda value: isinstance(value, list | tuple), "a list"),
    "required": (
        lambda value: isinstance(value, list | tuple) and all(isinstance(name, str) for name in value),
        "a list of names",
    ),
    "pattern": (_is_pattern, "a regular expression"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "$ref": (
        lambda value: isinstance(value, str) and value.startswith("#"),
        'a reference that begins with "#"',
    ),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), (_is_number, "a number")),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        (_is_count, "a whole number of at least 0"),
    ),
}
_PARTS = ("items", "additionalProperties", "propertyNames", "not")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_BY_NAME = ("properties", "patternProperties", "$defs", "definitions")


def check_schema(schema: Any) -> None:
    """Raise BadArgument unless this is a JSON Schema of which every demand is checked."""
    for path, reason in _problems(schema, "schema", 0):
        raise BadArgument(f"{path} of a question {reason}")


def _problems(schema: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        yield path, f"must be a JSON Schema of at most {_DEPTH} levels, not {schema!r:.100}"
        return
    for keyword, value in schema.items():
        where = f"{path}.{keyword}"
        if keyword in _UNCHECKED:
            yield where, "is not supported: no answer would be checked against it; leave it out"
        elif keyword in _RULES and not _RULES[keyword][0](value):
            yield where, f"must be {_RULES[keyword][1]}, not {value!r:.100}"
        elif keyword in _PARTS:
            yield from _problems(value, where, depth + 1)
        elif keyword in _LISTS:
            yield from _all_problems(
                enumerate(value) if isinstance(value, list | tuple) else None, where, depth
            )
        elif keyword in _BY_NAME:
            yield from _all_problems(value.items() if isinstance(value, Mapping) else None, where, depth)
            if keyword == "patternProperties" and not all(map(_is_pattern, value)):
                yield where, "must have regular expressions as keys"


def _all_problems(parts: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
    if parts is None:
        yield path, "must hold JSON Schemas"
        return
    for name, part in parts:
        yield from _problems(part, f"{path}.{name}", depth + 1)
