"""A fan-out as a JSON document in the `checkpoint.json` format of errata.

    {"prompt": "...", "timestamp": "2026-02-25T10:00:00.123456789Z", "adapter_ids": ["claude", ...],
     "verbose": false, "responses": [{"model_id": "claude", "text": "...", "latency_ms": 812, ...,
     "interrupted": false, "completed": true}, ...]}

outlive adds the fields `status`, `ordinal` and `attempts` to a response, and `latency_ms_exact` and
`is_bytes` where needed. Both readers ignore fields that they do not know.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

from outlive.dataclass import dataclass
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
    """The content of a file; `ModelResponse.from_snapshot` takes each of `snapshots`."""

    prompt: str | None
    created_at: dt.datetime | None
    model_ids: Sequence[str]
    snapshots: Sequence[dict[str, Any]]
    verbose: bool


# Writing ------------------------------------------------------------------------------------------


def write(document: Document) -> str:
    """Return a document as JSON. Raises BadArgument for a prompt that is not text."""
    if document.prompt is not None and not isinstance(document.prompt, str):
        raise BadArgument(
            f"JSON needs a prompt that is text, not {type(document.prompt).__name__}: {document.prompt!r:.100}"
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
    """Tell whether UTF-8 can encode a text: a lone surrogate must be escaped."""
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _written(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    fields = {name: value for name, value in snapshot.items() if value not in (None, "", [], {})}
    latency = snapshot["latency_ms"]
    fields["latency_ms"] = round(latency)  # errata reads whole numbers only
    if latency != round(latency):
        fields["latency_ms_exact"] = latency
    if snapshot["proposed_writes"]:
        fields["proposed_writes"] = [_written_write(write) for write in snapshot["proposed_writes"]]
    return fields


def _written_write(write: Mapping[str, Any]) -> dict[str, Any]:
    fields, content = dict(write), write["content"]
    if isinstance(content, bytes):
        try:
            fields["content"], fields["is_bytes"] = content.decode(), True
        except UnicodeDecodeError:
            raise BadArgument(
                f"the content of {write['path']!r} is not text, and cannot be written as JSON"
            ) from None
    return fields


# Reading ------------------------------------------------------------------------------------------


def read(text: str | bytes) -> Document:
    """Return the document that a text describes. Raises BadArgument."""
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
        snapshots=[_read(number, response) for number, response in enumerate(top.get("responses", []))],
        verbose=top.get("verbose", False),
    )


def _read(number: int, content: object) -> dict[str, Any]:
    where = f"responses[{number}]"
    fields = _fields(where, content, _RESPONSE)
    if "model_id" not in fields:
        raise BadArgument(f"{where} has no model_id")
    fields["latency_ms"] = fields.pop("latency_ms_exact", fields.get("latency_ms", 0))
    writes = fields.get("proposed_writes", [])
    fields["proposed_writes"] = [
        _read_write(f"{where}.proposed_writes[{n}]", write) for n, write in enumerate(writes)
    ]
    return fields


def _read_write(where: str, content: object) -> dict[str, Any]:
    fields = _fields(where, content, _WRITE)
    if "path" not in fields:
        raise BadArgument(f"{where} has no path")
    if fields.pop("is_bytes", False):
        fields["content"] = fields.get("content", "").encode("utf-8", "surrogatepass")
    return fields


def _fields(where: str, content: object, kinds: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    """Return the known fields of an object; null counts as missing, as in Go."""
    if not isinstance(content, dict):
        raise BadArgument(f"{where} must be an object, not {content!r:.100}")
    fields = {name: content[name] for name in kinds if content.get(name) is not None}
    for name, value in fields.items():
        is_flag = isinstance(value, bool) and kinds[name] is not bool
        if is_flag or not isinstance(value, kinds[name]):
            raise BadArgument(f"{where}.{name} cannot be {value!r:.100}")
    return fields


def _moment(text: str) -> dt.datetime | None:
    try:
        moment = dt.datetime.fromisoformat(text)
        if moment.year == 1:
            return None
        return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise BadArgument(f"timestamp must be a time like 2026-02-25T10:00:00Z, not {text!r:.100}") from error
