"""What a tool takes: its JSON Schema for the client, and the check of what a client sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from outlive.dataclass import dataclass
from outlive.errors import BadArgument

_TYPES: dict[str, Any] = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list}
_SHOWN = 80  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool. Without a kind it takes any JSON value; an array has texts."""

    help: str
    kind: Literal["string", "integer", "boolean", "object", "array"] | None = "string"
    is_required: bool = False
    default: Any = None
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 1 << 53

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"description": self.help}
        if self.kind is not None:
            schema["type"] = self.kind
        if self.kind == "integer":
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.kind == "array":
            schema["items"] = {"type": "string", **({"enum": list(self.choices)} if self.choices else {})}
        elif self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = self.default
        return schema

    def check(self, name: str, value: Any) -> Any:
        """Return a value as the tool takes it; raise BadArgument if it is none."""
        if self.kind == "integer" and isinstance(value, str) and value.isascii() and value.isdigit():
            value = int(value[:20])  # `next` is a text
        if self.kind is None:
            return value
        if not isinstance(value, _TYPES[self.kind]) or (self.kind == "integer" and isinstance(value, bool)):
            raise BadArgument(f"{name} must be {_article(self.kind)}, not {_shown(value)}")
        if self.kind == "integer" and not self.least <= value <= self.most:
            raise BadArgument(f"{name} must be from {self.least} to {self.most}, not {value}")
        for choice in value if isinstance(value, list) else [value] if self.choices else []:
            self._check_choice(name, choice)
        return value

    def _check_choice(self, name: str, value: Any) -> None:
        if not isinstance(value, str):
            raise BadArgument(f"{name} must be an array of texts, not with {_shown(value)}")
        if self.choices and value not in self.choices:
            raise BadArgument(f"{name} takes {', '.join(self.choices)}, not {_shown(value)}")


Parameters = Mapping[str, Parameter]


def input_schema(parameters: Parameters) -> dict[str, Any]:
    """Return the JSON Schema of the arguments of a tool."""
    return {
        "type": "object",
        "properties": {name: parameter.schema() for name, parameter in parameters.items()},
        "required": [name for name, parameter in parameters.items() if parameter.is_required],
        "additionalProperties": False,
    }


def check_arguments(parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a tool, with defaults for those that were not given."""
    if unknown := sorted(arguments.keys() - parameters.keys()):
        raise BadArgument(f"unknown argument {_shown(unknown[0])}; the tool takes {_names(parameters)}")
    return {name: _argument(name, parameter, arguments) for name, parameter in parameters.items()}


def _argument(name: str, parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    value = arguments.get(name)
    # Clients send null for what they leave out; only an argument of any type can mean it.
    if name in arguments and (value is not None or parameter.kind is None):
        return parameter.check(name, value)
    if parameter.is_required:
        raise BadArgument(f"{name} is missing: {parameter.help}")
    return parameter.default


def _names(parameters: Parameters) -> str:
    return ", ".join(parameters) or "no arguments"


def _article(kind: str) -> str:
    return {"string": "a text", "array": "an array", "object": "an object", "integer": "an integer"}.get(
        kind, f"a {kind}"
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
