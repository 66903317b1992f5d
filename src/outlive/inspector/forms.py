"""Forms for answers, made from the JSON Schema of a question, and the value that a filled form stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outlive.errors import BadArgument
from outlive.view.answers import choices_of, describe_schema, parse_answer

_RADIOS = 6  # more choices are a list
_MOST_FIELDS = 40


@dataclass(frozen=True, slots=True)
class Input:
    """One control of a form. `kind` is choices, list, text, json, number or line."""

    name: str
    label: str
    kind: str = "line"
    value: str = ""
    hint: str = ""
    required: bool = False
    rows: int = 4
    options: list[dict[str, str]] = field(default_factory=list)


def inputs_for(schema: object) -> list[Input]:
    """Return the controls for an answer: one for each property of an object, else one for the whole."""
    properties = _properties(schema)
    if properties is None:
        return [_input("value", "Your answer", schema, is_needed=True)]
    needed = _needed(schema)
    return [
        _input(f"field{number}", name, inner, is_needed=name in needed)
        for number, (name, inner) in enumerate(properties.items())
    ]


def read_answer(form: Mapping[str, str], schema: object) -> Any:
    """Return the value of a filled form. Raises BadArgument for a field that does not fit."""
    properties = _properties(schema)
    if properties is None or "value" in form:
        return _read("the answer", form.get("value", ""), schema)
    needed, values = _needed(schema), dict[str, Any]()
    for number, (name, inner) in enumerate(properties.items()):
        text = form.get(f"field{number}", "")
        if text or (name in needed and _type(inner) == "string"):
            values[name] = _read(repr(name), text, inner)
    return values


def _properties(schema: object) -> dict[str, Any] | None:
    """Return the properties of an object that a form can have; None if it is better written as JSON."""
    if not isinstance(schema, Mapping) or _type(schema) != "object":
        return None
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not 0 < len(properties) <= _MOST_FIELDS:
        return None
    return dict(properties) if all(isinstance(name, str) for name in properties) else None


def _needed(schema: object) -> list[Any]:
    needed = schema.get("required") if isinstance(schema, Mapping) else None
    return needed if isinstance(needed, list) else []


def _type(schema: object) -> object:
    return schema.get("type") if isinstance(schema, Mapping) else None


def _input(name: str, label: str, schema: object, *, is_needed: bool) -> Input:
    own = schema if isinstance(schema, Mapping) else {}
    title, hint = own.get("title"), own.get("description")
    label = title if isinstance(title, str) and title and name != "value" else label
    choices, kind, default = choices_of(schema), _type(schema), own.get("default")
    common: dict[str, Any] = {"required": is_needed, "hint": hint if isinstance(hint, str) else ""}
    if choices is not None:
        options = [{"value": json.dumps(choice), "label": _label(choice)} for choice in choices]
        shape = "choices" if len(choices) <= _RADIOS else "list"
        chosen = json.dumps(default) if "default" in own else ""
        return Input(name, label, shape, chosen, options=options, **common)
    if kind == "string":
        value = default if isinstance(default, str) else ""
        return Input(name, label, "text", value, rows=4 if name == "value" else 2, **common)
    value = json.dumps(default) if "default" in own else ""
    if kind in ("number", "integer"):
        return Input(name, label, "number", value, **common)
    takes = describe_schema(schema)
    common["hint"] = common["hint"] or (f"JSON: {takes}" if takes else "JSON, or else text")
    return Input(name, label, "json", value, **common)


def _label(choice: Any) -> str:
    if isinstance(choice, bool):
        return "yes" if choice else "no"
    return choice if isinstance(choice, str) else json.dumps(choice)


def _read(what: str, text: str, schema: object) -> Any:
    if choices_of(schema) is not None or _type(schema) in ("number", "integer"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise BadArgument(
                f"{what} takes {describe_schema(schema)}, not {text[:100]!r}; nothing was answered"
            ) from None
    return parse_answer(text, schema)
