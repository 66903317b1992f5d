"""A fan-out as a JSON document, in the format of errata's `checkpoint.json`: its files can be read here, and ours there.

    {"prompt": "...", "timestamp": "2026-02-25T10:00:00.123456789Z", "adapter_ids": ["claude", ...], "verbose": false,
     "responses": [{"model_id": "claude", "text": "...", "latency_ms": 812, ..., "interrupted": false, "completed": true}, ...]}

The fields `status`, `ordinal` and `attempts` of a response are ours, as are `latency_ms_exact` and `is_bytes` where they are needed: errata
leaves out what it does not know, and so does this reader.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlive.errors import BadArgument

_NEVER = "0001-01-01T00:00:00Z"  # Go's zero time
_RESPONSE: dict[str, type | tuple[type, ...]] = {
    "model_id": str, "text": str, "latency_ms": (int, float), "input_tokens": int, "output_tokens": int,
    "reasoning_tokens": int, "cost_usd": (int, float), "tool_calls": dict, "error": str, "interrupted": bool,
    "completed": bool, "status": str, "ordinal": int, "attempts": int, "proposed_writes": list, "latency_ms_exact": float,
}  # fmt: skip
_WRITE: dict[str, type | tuple[type, ...]] = {"path": str, "content": str, "delete": bool, "is_bytes": bool}


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says: `snapshots` are as `ModelResponse.from_snapshot` takes them."""

    prompt: str | None
    created_at: dt.datetime | None
    model_ids: Sequence[str]
    snapshots: Sequence[dict[str, Any]]
    verbose: bool


# Writing --------------------------------------------------------------------------------------------------


def write(document: Document) -> str:
    """Return a document as JSON. Raises BadArgument for a prompt that is not text, which the format cannot hold."""
    if document.prompt is not None and not isinstance(document.prompt, str):
        raise BadArgument(
            f"in JSON a prompt is text, not {type(document.prompt).__name__}: {document.prompt!r:.100}"
        )
    created_at = document.created_at
    content = {
        "prompt": document.prompt,
        "timestamp": _NEVER if created_at is None else created_at.isoformat().replace("+00:00", "Z"),
        "adapter_ids": list(document.model_ids),
        "responses": [_written(snapshot) for snapshot in document.snapshots],
        "verbose": document.verbose,
    }
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2)
        return text if _is_encodable(text) else json.dumps(content, allow_nan=False, indent=2)
    except (ValueError, TypeError) as error:
        raise BadArgument(f"a value of these responses cannot be written as JSON: {error}") from error


def _is_encodable(text: str) -> bool:
    """Tell whether a text can be written to a file: one with a lone surrogate cannot, unless that is escaped."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _written(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in snapshot.items() if value not in (None, "", [], {})}
    latency = snapshot["latency_ms"]
    found["latency_ms"] = round(latency)  # errata reads whole numbers only
    if latency != round(latency):
        found["latency_ms_exact"] = latency
    if snapshot["proposed_writes"]:
        found["proposed_writes"] = [_written_write(one) for one in snapshot["proposed_writes"]]
    return found


def _written_write(write: Mapping[str, Any]) -> dict[str, Any]:
    found, content = dict(write), write["content"]
    if isinstance(content, bytes):
        try:
            found["content"], found["is_bytes"] = content.decode(), True
        except UnicodeDecodeError:
            raise BadArgument(
                f"the content of {write['path']!r} is not text, and cannot be written as JSON"
            ) from None
    return found


# Reading --------------------------------------------------------------------------------------------------


def read(text: str | bytes) -> Document:
    """Return what a document says; raise BadArgument when it is not one."""
    try:
        content = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise BadArgument(f"this is not a fan-out in JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("adapter_ids") or [], list):
        raise BadArgument("a fan-out in JSON is an object with a list of adapter_ids")
    top = _fields(
        "the document", content, {"prompt": str, "timestamp": str, "responses": list, "verbose": bool}
    )
    return Document(
        prompt=top.get("prompt"),
        created_at=_moment(top.get("timestamp", _NEVER)),
        model_ids=content.get("adapter_ids") or [],
        snapshots=[_read(number, one) for number, one in enumerate(top.get("responses", []))],
        verbose=top.get("verbose", False),
    )


def _read(number: int, content: object) -> dict[str, Any]:
    where = f"responses[{number}]"
    found = _fields(where, content, _RESPONSE)
    if "model_id" not in found:
        raise BadArgument(f"{where} has no model_id")
    found["latency_ms"] = found.pop("latency_ms_exact", found.get("latency_ms", 0))
    writes = found.get("proposed_writes", [])
    found["proposed_writes"] = [
        _read_write(f"{where}.proposed_writes[{n}]", one) for n, one in enumerate(writes)
    ]
    return found


def _read_write(where: str, content: object) -> dict[str, Any]:
    found = _fields(where, content, _WRITE)
    if "path" not in found:
        raise BadArgument(f"{where} has no path")
    if found.pop("is_bytes", False):
        found["content"] = found.get("content", "").encode("utf-8", "surrogatepass")
    return found


def _fields(where: str, content: object, kinds: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the known fields of an object; null counts as left out, as in Go."""
    if not isinstance(content, dict):
        raise BadArgument(f"{where} must be an object, not {content!r:.100}")
    found = {name: content[name] for name in kinds if content.get(name) is not None}
    for name, value in found.items():
        is_flag = isinstance(value, bool) and kinds[name] is not bool
        if is_flag or not isinstance(value, kinds[name]):
            raise BadArgument(f"{where}.{name} cannot be {value!r:.100}")
    return found


def _moment(text: str) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(text)
        if found.year == 1:
            return None
        return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found.astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise BadArgument(f"timestamp must be a time like 2026-02-25T10:00:00Z, not {text!r:.100}") from error
