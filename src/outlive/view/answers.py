"""What an answer to a question has to be, by its JSON Schema, and the value that a text stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from outlive.view.escape import escape_terminal


def choices_of(schema: object) -> list[Any] | None:
    """Return all answers that a JSON Schema permits, if it lists them."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("enum"), list):
        return list(schema["enum"])
    if "const" in schema:
        return [schema["const"]]
    return [True, False] if schema.get("type") == "boolean" else None


def describe_schema(schema: object) -> str:
    """Return in a few words what an answer has to be; "" if it may be anything."""
    if not isinstance(schema, Mapping) or not schema:
        return ""
    choices = choices_of(schema)
    if choices is not None:
        return " or ".join(_text_of(choice) for choice in choices)
    kind = schema.get("type")
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        return f"object with {', '.join(map(str, schema['properties']))}"
    if isinstance(kind, str):
        return kind
    return " or ".join(map(str, kind)) if isinstance(kind, list) else "see the schema in --json"


def _text_of(choice: Any) -> str:
    """Return a choice as it can be typed."""
    return escape_terminal(choice if isinstance(choice, str) else json.dumps(choice))


def parse_answer(text: str, schema: object) -> Any:
    """Return the value that a text stands for: JSON, or else the text itself; what fits the schema comes first."""
    if _takes_only_text(schema):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _WORDS.get(text.lower(), text) if choices_of(schema) == [True, False] else text
    choices = choices_of(schema)
    return text if choices is not None and text in choices and value not in choices else value


_WORDS = {"yes": True, "y": True, "no": False, "n": False}


def _takes_only_text(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "string"
