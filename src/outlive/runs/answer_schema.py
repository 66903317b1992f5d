"""The schema of an answer: from a type or a JSON Schema, checked without the type.

A question is stored with a JSON Schema, so that a process without the agent's code can check an
answer. The keywords of draft 2020-12 that describe data are checked; others, such as "format" and
"title", are notes and are ignored. The run that asked gets the type that it named back.
"""

from __future__ import annotations

import dataclasses
import decimal
import enum
import json
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from outlive.errors import BadArgument
from outlive.runs.schema_check import check_schema

_DEPTH = 64
_JSON_TYPES: dict[Any, str] = {
    bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object", type(None): "null",
}  # fmt: skip


class Mismatch(Exception):
    """A value does not fit a schema: where, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def schema_of(schema: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a schema, a pydantic model, a dataclass or a plain type."""
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        if not all(isinstance(key, str) for key in schema):
            raise BadArgument("a JSON Schema must be a mapping with str keys")
        check_schema(schema)
        return dict(schema)
    if callable(made := getattr(schema, "model_json_schema", None)):  # a pydantic model
        return dict(made())
    defs: dict[str, Any] = {}
    made_here = _schema_of_type(schema, 0, defs)
    return {**made_here, "$defs": defs} if defs else made_here


def _schema_of_type(hint: Any, depth: int, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; what the schemas of models in it define goes to `defs`."""
    if depth > _DEPTH:
        raise BadArgument("the type of an answer must not refer to itself; pass a JSON Schema with $ref")
    inner: Callable[[Any], dict[str, Any]] = lambda part: _schema_of_type(part, depth + 1, defs)  # noqa: E731
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if callable(getattr(hint, "model_json_schema", None)):
        return _schema_of_model(hint, defs)
    if hint in _JSON_TYPES:
        return {"type": _JSON_TYPES[hint]}
    if origin in (Union, types.UnionType):
        return {"anyOf": [inner(part) for part in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is list and args:
        return {"type": "array", "items": inner(args[0])}
    if origin is dict and args:
        return {"type": "object", "additionalProperties": inner(args[1])}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [plain(member) for member in hint]}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _schema_of_fields(hint, inner)
    raise BadArgument(
        f"schema must be a JSON Schema, a pydantic model, a dataclass, or a type made of bool, int, float, str, "
        f"list, dict, Literal, Enum and None, not {hint!r:.100}"
    )


def _schema_of_model(model: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a model inside another type, with its references from the root of the whole."""
    number = 0
    while True:
        prefix = f"{model.__name__}{number or ''}."
        made = dict(model.model_json_schema(ref_template=f"#/$defs/{prefix}{{model}}"))
        inside = {f"{prefix}{name}": part for name, part in made.pop("$defs", {}).items()}
        if all(defs.get(name, part) == part for name, part in inside.items()):
            defs.update(inside)
            return made
        number += 1  # another model has this name


def _schema_of_fields(cls: Any, inner: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    missing = dataclasses.MISSING
    return {
        "type": "object",
        "title": cls.__name__,
        "properties": {field.name: inner(hints[field.name]) for field in fields},
        "required": [
            field.name for field in fields if field.default is missing and field.default_factory is missing
        ],
        "additionalProperties": False,
    }


_NOTES = {
    "title",
    "description",
    "examples",
    "default",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
    "$schema",
}
_BY_NAME = {"properties", "patternProperties", "$defs", "definitions"}
_PARTS = {"items", "prefixItems", "additionalProperties", "propertyNames", "not", "allOf", "anyOf", "oneOf"}


def essence(schema: Any) -> Any:
    """Return what a schema demands, without what it only notes for readers."""
    if isinstance(schema, list):
        return [essence(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: {name: essence(part) for name, part in value.items()}
        if key in _BY_NAME and isinstance(value, Mapping)
        else essence(value)
        if key in _PARTS
        else sorted(value, key=repr)
        if key == "required" and isinstance(value, list)
        else value
        for key, value in schema.items()
        if key not in _NOTES
    }


def plain(value: Any) -> Any:
    """Return an answer in the form that a JSON Schema describes."""
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json", by_alias=True)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def revive(schema: Any, value: Any) -> Any:
    """Return an answer as the type that the run named as its schema."""
    if schema is None or isinstance(schema, Mapping):
        return value
    if callable(getattr(schema, "model_validate", None)):
        return _revive_model(schema, value)
    if schema in (int, float) and isinstance(value, int | float) and not isinstance(value, bool):
        return schema(value)  # 3.0 is an integer in JSON
    origin, args = get_origin(schema), get_args(schema)
    if isinstance(schema, type) and issubclass(schema, enum.Enum):
        return next((member for member in schema if _equal(plain(member), value)), None) or schema(value)
    if isinstance(schema, type) and dataclasses.is_dataclass(schema) and isinstance(value, Mapping):
        hints = get_type_hints(schema)
        return schema(**{name: revive(hints.get(name), item) for name, item in value.items()})
    if origin is list and args and isinstance(value, list):
        return [revive(args[0], item) for item in value]
    if origin is dict and args and isinstance(value, Mapping):
        return {key: revive(args[1], item) for key, item in value.items()}
    if origin in (Union, types.UnionType):
        return _revive_one_of(args, value)
    return value


def _revive_model(model: Any, value: Any) -> Any:
    """Return an instance, from JSON: a strict model takes a date as text only from there."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        return model.model_validate(value)
    return model.model_validate_json(text)


def _revive_one_of(choices: Sequence[Any], value: Any) -> Any:
    for choice in choices:
        try:
            check(schema_of(choice) or {}, value)
        except Mismatch:
            continue
        return revive(choice, value)
    return value


def check(schema: Any, value: Any) -> None:
    """Raise Mismatch unless a value fits a JSON Schema."""
    for path, reason in _Check(schema).problems(schema, value, "answer", 0):
        raise Mismatch(path, reason)


class _Check:
    def __init__(self, root: Any) -> None:
        self._root = root

    def problems(self, schema: Any, value: Any, path: str, depth: int) -> Iterator[tuple[str, str]]:
        if schema is True or schema == {}:
            return
        if schema is False:
            yield path, "nothing is allowed here"
            return
        if not isinstance(schema, Mapping) or depth > _DEPTH:
            yield path, "its schema is not a JSON Schema, or refers to itself"
            return
        if "$ref" in schema:
            yield from self.problems(self._resolve(schema["$ref"]), value, path, depth + 1)
        if "type" in schema:
            yield from _type_problems(schema["type"], value, path)
        if "enum" in schema and not any(_equal(value, choice) for choice in schema["enum"]):
            yield path, f"must be one of {', '.join(map(repr, schema['enum']))}, not {value!r:.100}"
        if "const" in schema and not _equal(value, schema["const"]):
            yield path, f"must be {schema['const']!r:.100}, not {value!r:.100}"
        yield from self._combined(schema, value, path, depth)
        if isinstance(value, str):
            yield from _text_problems(schema, value, path)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _number_problems(schema, value, path)
        elif isinstance(value, list | tuple):
            yield from self._items(schema, value, path, depth)
        elif isinstance(value, Mapping):
            yield from self._properties(schema, value, path, depth)

    def _resolve(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            return False  # only references inside the schema are followed
        target = self._root
        for part in ref[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            target = target.get(part, False) if isinstance(target, Mapping) else False
        return target

    def _fits(self, schema: Any, value: Any, path: str, depth: int) -> bool:
        return next(self.problems(schema, value, path, depth + 1), None) is None

    def _combined(
        self, schema: Mapping[str, Any], value: Any, path: str, depth: int
    ) -> Iterator[tuple[str, str]]:
        for part in schema.get("allOf", ()):
            yield from self.problems(part, value, path, depth + 1)
        if "anyOf" in schema and not any(self._fits(part, value, path, depth) for part in schema["anyOf"]):
            yield path, f"fits none of the {len(schema['anyOf'])} allowed forms"
        if "oneOf" in schema:
            fitting = sum(self._fits(part, value, path, depth) for part in schema["oneOf"])
            if fitting != 1:
                yield path, f"must fit exactly one of {len(schema['oneOf'])} forms, and fits {fitting}"
        if "not" in schema and self._fits(schema["not"], value, path, depth):
            yield path, "has a form that is excluded"

    def _items(
        self, schema: Mapping[str, Any], value: Sequence[Any], path: str, depth: int
    ) -> Iterator[tuple[str, str]]:
        if len(value) < schema.get("minItems", 0):
            yield path, f"must have at least {schema['minItems']} items"
        if len(value) > schema.get("maxItems", math.inf):
            yield path, f"must have at most {schema['maxItems']} items"
        if schema.get("uniqueItems") and any(
            _equal(item, other) for at, item in enumerate(value) for other in value[:at]
        ):
            yield path, "must not have an item twice"
        first = schema.get("prefixItems", ())
        for at, item in enumerate(value):
            part = first[at] if at < len(first) else schema.get("items", True)
            yield from self.problems(part, item, f"{path}[{at}]", depth + 1)

    def _properties(
        self, schema: Mapping[str, Any], value: Mapping[str, Any], path: str, depth: int
    ) -> Iterator[tuple[str, str]]:
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}.{name}", "is missing"
        known = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name, item in value.items():
            parts = [known[name]] if name in known else []
            parts += [part for pattern, part in patterns.items() if re.search(pattern, str(name))]
            for part in parts or [schema.get("additionalProperties", True)]:
                if part is False:
                    yield f"{path}.{name}", "is not a known property"
                else:
                    yield from self.problems(part, item, f"{path}.{name}", depth + 1)
            yield from self.problems(schema.get("propertyNames", True), name, f"{path}.{name}", depth + 1)
        if len(value) < schema.get("minProperties", 0):
            yield path, f"must have at least {schema['minProperties']} properties"
        if len(value) > schema.get("maxProperties", math.inf):
            yield path, f"must have at most {schema['maxProperties']} properties"


def _type_problems(types_: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    wanted = [types_] if isinstance(types_, str) else list(types_)
    if not any(_is_a(name, value) for name in wanted):
        yield path, f"must be {' or '.join(wanted)}, not {value!r:.100}"


def _is_a(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, float) and not math.isfinite(value):
        return False  # JSON has no such number
    kinds: dict[str, Any] = {
        "number": (int, float), "string": str, "array": (list, tuple), "object": Mapping, "null": type(None),
    }  # fmt: skip
    return name in kinds and isinstance(value, kinds[name])


def _equal(first: Any, second: Any) -> bool:
    """Compare as JSON does: true is not 1."""
    return isinstance(first, bool) == isinstance(second, bool) and first == second


def _text_problems(schema: Mapping[str, Any], value: str, path: str) -> Iterator[tuple[str, str]]:
    if len(value) < schema.get("minLength", 0):
        yield path, f"must have at least {schema['minLength']} characters"
    if len(value) > schema.get("maxLength", math.inf):
        yield path, f"must have at most {schema['maxLength']} characters"
    if "pattern" in schema:
        try:
            fits = re.search(schema["pattern"], value) is not None
        except (re.error, TypeError):
            fits = False
        if not fits:
            yield path, f"must match {schema['pattern']!r:.100}"


def _number_problems(schema: Mapping[str, Any], value: float, path: str) -> Iterator[tuple[str, str]]:
    bounds: tuple[tuple[str, str, typing.Callable[[float, float], bool]], ...] = (
        ("minimum", "at least", lambda number, limit: number >= limit),
        ("maximum", "at most", lambda number, limit: number <= limit),
        ("exclusiveMinimum", "more than", lambda number, limit: number > limit),
        ("exclusiveMaximum", "less than", lambda number, limit: number < limit),
    )
    for keyword, words, fits in bounds:
        if keyword in schema and not fits(value, schema[keyword]):
            yield path, f"must be {words} {schema[keyword]}, not {value!r}"
    if "multipleOf" in schema and not _is_multiple(value, schema["multipleOf"]):
        yield path, f"must be a multiple of {schema['multipleOf']}, not {value!r}"


def _is_multiple(value: float, of: float) -> bool:
    """Tell whether a number is a multiple of another in decimal, as JSON writes both."""
    return math.isfinite(value) and decimal.Decimal(repr(value)) % decimal.Decimal(repr(of)) == 0
