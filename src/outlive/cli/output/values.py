"""Values of a state for people, and as JSON. Types need not be known here.

As JSON, what JSON has stands for itself, and everything else is an object with "$type". A dict that has keys other than str, or the
key "$type" itself, is written as {"$type": "dict", "items": [[key, value], ...]}: so nothing can be taken for something else.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from typing import Any

import ormsgpack

from outlive.cli.output.escape import shown
from outlive.cli.output.opaque import inside, named
from outlive.format.extensions import NDARRAY, NUMPY_SCALAR, Opaque, Raw

_TEXT_LIMIT, _ITEM_LIMIT = 160, 40
_LONG = 4_000  # characters of a line that is cut


# As JSON ------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """Return a value as what `json.dumps` takes."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$type": "float", "text": repr(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and "$type" not in value:
            return {key: to_json(item) for key, item in value.items()}
        return {"$type": "dict", "items": [[to_json(key), to_json(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return _special(value)


def _special(value: Any) -> dict[str, Any]:
    if isinstance(value, Opaque):
        return {"$type": "tagged", "tag": value.tag, "version": value.version, "value": to_json(value.value)}
    if isinstance(value, Raw):
        return _raw_json(value)
    kind = type(value).__name__
    if isinstance(value, bytes | bytearray):
        return {"$type": kind, "base64": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"$type": "tuple", "items": [to_json(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"$type": kind, "items": [to_json(item) for item in sorted(value, key=repr)]}
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return {"$type": kind, "text": value.isoformat()}
    if isinstance(value, dt.timedelta):
        return {"$type": kind, "microseconds": value // dt.timedelta(microseconds=1)}
    return {"$type": kind, "text": str(value)}


def _raw_json(value: Raw) -> dict[str, Any]:
    array = _array(value)
    if array is None:
        return {
            "$type": "extension",
            "code": value.code,
            "base64": base64.b64encode(value.payload).decode(),
        }
    dtype, shape, data = array
    return {
        "$type": "ndarray" if value.code == NDARRAY else "numpy scalar",
        "dtype": dtype,
        "shape": shape,
        "base64": base64.b64encode(data).decode(),
    }


def _array(value: Raw) -> tuple[str, list[int], bytes] | None:
    """Read the bytes of a numpy array or scalar without numpy."""
    if value.code not in (NDARRAY, NUMPY_SCALAR):
        return None
    try:
        parts = ormsgpack.unpackb(value.payload)
    except ValueError:
        return None
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, list, bytes]:
        return None
    return parts[0], parts[1], parts[2]


# For people ---------------------------------------------------------------------------------------------------


def one_line(value: Any, room: int = 60) -> str:
    """Return a value on one line that is about as long as there is room."""
    text = _inline(value, _LONG)
    return _cut(_summary(value) if text is None else text, room)


def lines(
    value: Any, *, width: int = 100, full: bool = False, indent: str = "", before: int = 0
) -> list[str]:
    """Return a value on as many lines as it needs, the first of which stands behind so many characters.

    Long texts and lists are cut in the middle, unless `full`.
    """
    room = width - len(indent) - before
    text = _inline(value, room, full)
    if text is not None:
        return [text]
    prefix, items, brackets = _open(value)
    if items is None:
        return [_scalar(value, full, room)]
    inner = indent + "  "
    out = [f"{prefix}{brackets[0]}"]
    for key, item in _shortened(items, full):
        if key is None:
            out.append(f"{inner}{item}")
            continue
        first, *rest = lines(item, width=width, full=full, indent=inner, before=len(key))
        out += [f"{inner}{key}{first}", *rest]
    out.append(f"{indent}{brackets[1]}")
    return out


def kind_of(value: Any) -> str:
    """Return what a value is, in a word or two."""
    if isinstance(value, Opaque):
        return f"{shown(value.tag)}/{value.version}"
    if isinstance(value, Raw):
        if _array(value) is not None:
            return "ndarray" if value.code == NDARRAY else "numpy scalar"
        return shown(named(value)[0] or f"extension {value.code}")
    return "null" if value is None else type(value).__name__


def count_of(value: Any) -> int | None:
    """Return how many elements a value has, if it is a container or text."""
    value = inside(value)
    return len(value) if isinstance(value, dict | list | tuple | set | frozenset | str | bytes) else None


def _inner(value: Opaque | Raw) -> Any:
    """Return what is one level below the name of a type."""
    return value.value if isinstance(value, Opaque) else named(value)[1]


Items = list[tuple[str | None, Any]]


def _open(value: Any) -> tuple[str, Items | None, str]:
    """Return what stands before the bracket, the elements with what stands before each, and the brackets."""
    if isinstance(value, Opaque | Raw) and (inner := _inner(value)) is not value:
        prefix, items, brackets = _open(inner)
        return f"{kind_of(value)} {prefix}", items, brackets
    if isinstance(value, dict):
        return "", [(f"{_scalar_key(key)}: ", item) for key, item in value.items()], "{}"
    if isinstance(value, list):
        return "", [("", item) for item in value], "[]"
    if isinstance(value, tuple):
        return "tuple ", [("", item) for item in value], "[]"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} ", [("", item) for item in sorted(value, key=repr)], "{}"
    return "", None, ""


def _shortened(items: Items, full: bool) -> Items:
    if full or len(items) <= _ITEM_LIMIT:
        return items
    kept = _ITEM_LIMIT // 2
    note = f"… {len(items) - 2 * kept:,} more"
    return [*items[:kept], (None, note), *items[-kept:]]


def _inline(value: Any, room: int, full: bool = False) -> str | None:
    """Return a value on one line, or None when there is too little room."""
    prefix, items, brackets = _open(value)
    if items is None:
        text = _scalar(value, full)
        return (
            text if len(text) <= max(room, 1) or not isinstance(value, str | bytes | Opaque | Raw) else None
        )
    parts, used = [], len(prefix) + 2
    if len(items) * 2 > room:
        return None
    for key, item in items:
        part = _inline(item, room - used - len(key or ""), full)
        if part is None or used + len(part) > room:
            return None
        parts.append(f"{key}{part}")
        used += len(parts[-1]) + 2
    return f"{prefix}{brackets[0]}{', '.join(parts)}{brackets[1]}"


def _scalar_key(key: Any) -> str:
    return _quoted(key) if isinstance(key, str) else one_line(key, 80)


def _scalar(value: Any, full: bool, room: int = _TEXT_LIMIT) -> str:
    if isinstance(value, Opaque | Raw) and (inner := _inner(value)) is not value:
        kind = kind_of(value)
        return f"{kind} {_scalar(inner, full, room - len(kind) - 1)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _text(value, full, room)
    if isinstance(value, int | float):
        return str(value) if not isinstance(value, int) or abs(value) < 1 << 512 else f"{value:#x}"
    if isinstance(value, bytes | bytearray):
        head = bytes(value if full else value[:24]).hex()
        return (
            f"{type(value).__name__} {head}{'' if full or len(value) <= 24 else f'… ({len(value):,} bytes)'}"
        )
    if isinstance(value, Raw):
        if (array := _array(value)) is not None:
            return shown(f"{kind_of(value)} {array[0]} {'×'.join(map(str, array[1]))}".rstrip())
        return f"extension {value.code} ({len(value.payload):,} bytes)"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return f"{type(value).__name__} {value.isoformat()}"
    return f"{type(value).__name__} {shown(str(value))}"


def _text(value: str, full: bool, room: int) -> str:
    """Return a text in quotes; of a long one the beginning and the end, on one line where that can be."""
    if full or len(value) <= _TEXT_LIMIT:
        return _quoted(value)
    count = f"({len(value):,} characters)"
    end = max(4, min(_TEXT_LIMIT // 8, (room - len(count) - 8) // 3))
    return f"{_quoted(value[: 2 * end])} … {_quoted(value[-end:])} {count}"


def _quoted(value: str) -> str:
    """Return a text in quotes, as JSON would write it, but readable: only what would harm is escaped."""
    return '"' + shown(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _summary(value: Any) -> str:
    count = count_of(value)
    if isinstance(value, str):
        return _quoted(value)
    return kind_of(value) + (f" of {count:,}" if count is not None else "")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"
