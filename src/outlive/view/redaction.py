"""Hides values by the names of the keys that lead to them: `api_key`, `user.email`, `messages.content`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outlive.dataclass import dataclass
from outlive.format.extensions import Opaque, Raw
from outlive.values import Checkpoint
from outlive.view.opaque import unwrap_once
from outlive.view.values import kind_of

if TYPE_CHECKING:
    from outlive.values import PendingWrite

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

    def clean_checkpoint(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return a checkpoint whose state and pending writes are clean; the name of a channel is that of its value."""
        if not self:
            return checkpoint
        writes = tuple(self._clean_write(write) for write in checkpoint.pending_writes)
        return Checkpoint.of(checkpoint, self.clean(checkpoint.state), writes)

    def _clean_write(self, write: PendingWrite) -> PendingWrite:
        return replace(write, value=self.clean({write.channel: write.value})[write.channel])


Ends = tuple[tuple[str, ...], ...]


def _clean(value: Any, names: tuple[str, ...], ends: Ends) -> Any:
    if any(names[-len(end) :] == end for end in ends):
        return HIDDEN
    if isinstance(value, dict):
        return _clean_dict(value, names, ends)
    if isinstance(value, str):
        return _clean_text(value, names, ends)
    if type(value) in (list, tuple):
        return type(value)(_clean(item, names, ends) for item in value)
    if isinstance(value, Opaque | Raw):
        inner = unwrap_once(value)
        if inner is value:
            return HIDDEN  # nobody can look into it here
        tag, version = (value.tag, value.version) if isinstance(value, Opaque) else (kind_of(value), 1)
        return Opaque(tag, version, _clean(inner, names, ends))
    return value


def _clean_text(text: str, names: tuple[str, ...], ends: Ends) -> str:
    """Clean a text that is JSON, such as the arguments of a tool as models write them; any other text has no names."""
    if text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        value = json.loads(text)
        cleaned = _clean(value, names, ends)
    except ValueError:
        return text
    except RecursionError:
        return HIDDEN  # nested too deeply to look into
    return text if cleaned == value else json.dumps(cleaned, ensure_ascii=False)


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
