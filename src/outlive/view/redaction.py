"""Hides values by the names of the keys that lead to them: `api_key`, `user.email`, `messages.content`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outlive.format.extensions import Opaque, Raw
from outlive.view.opaque import unwrap_once
from outlive.view.values import kind_of

HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Redaction:
    """Patterns of names. One that has dots must match the last names of a path; positions in lists do not count."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: str | None) -> Redaction:
        """Read the names of an option, with commas between them."""
        return cls(tuple(name.strip() for name in (names or "").split(",") if name.strip()))

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def clean(self, value: Any) -> Any:
        """Return a value in which what matches is hidden; values of unknown types stay readable."""
        ends = tuple(tuple(pattern.split(".")) for pattern in self.patterns if pattern)
        return _clean(value, (), ends) if ends else value


Ends = tuple[tuple[str, ...], ...]


def _clean(value: Any, names: tuple[str, ...], ends: Ends) -> Any:
    if any(names[-len(end) :] == end for end in ends):
        return HIDDEN
    if isinstance(value, dict):
        return _clean_dict(value, names, ends)
    if type(value) in (list, tuple):
        return type(value)(_clean(item, names, ends) for item in value)
    if isinstance(value, Opaque | Raw):
        inner = unwrap_once(value)
        if inner is value:
            return HIDDEN  # nobody can look into it here
        tag, version = (value.tag, value.version) if isinstance(value, Opaque) else (kind_of(value), 1)
        return Opaque(tag, version, _clean(inner, names, ends))
    return value


def _clean_dict(value: dict[Any, Any], names: tuple[str, ...], ends: Ends) -> dict[Any, Any]:
    """Clean a dict; also one that is JSON already, whose marks such as `$tuple` are no names."""
    pairs = next((value[mark] for mark in ("$map", "$dict") if value.keys() == {mark}), None)
    if isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return {
            mark: [[key, _clean(item, (*names, str(key)), ends)] for key, item in pairs] for mark in value
        }
    if "$packed" in value or ("$extension" in value and "bytes" in value):
        return dict.fromkeys(value, HIDDEN)
    is_tagged = "$type" in value or "$extension" in value
    return {
        key: _clean(item, names if str(key)[:1] == "$" or is_tagged else (*names, str(key)), ends)
        for key, item in value.items()
    }
