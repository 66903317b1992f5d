"""Formats values of a state for people and as JSON. Their types need not be known here."""

from __future__ import annotations

import datetime as dt
from typing import Any

import ormsgpack

from outlive.format.extensions import NDARRAY, NUMPY_SCALAR, Opaque, Raw
from outlive.format.readable import readable
from outlive.view.escape import escape_terminal
from outlive.view.opaque import SEALED, OpaqueCodec, read_named, unwrap, unwrap_once

_TEXT_LIMIT, _ITEM_LIMIT = 160, 40
_LINE_LIMIT = 4_000  # characters of a line before it is cut
_CODEC = OpaqueCodec()


def to_json(value: Any) -> Any:
    """Return a value as `outlive export` writes it: what JSON does not have is an object with a $ key."""
    return readable(_CODEC.pack(value))


def one_line(value: Any, room: int = 60) -> str:
    """Return a value on one line of about `room` characters."""
    text = _inline(value, _LINE_LIMIT)
    return _cut(_summary(value) if text is None else text, room)


def lines(
    value: Any, *, width: int = 100, full: bool = False, indent: str = "", before: int = 0
) -> list[str]:
    """Return a value on as many lines as it needs; the first one follows `before` characters.

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


def kind_of(value: Any) -> str:
    """Return the name of a value's type."""
    if isinstance(value, Opaque):
        return f"{escape_terminal(value.tag)}/{value.version}"
    if isinstance(value, Raw):
        if _array(value) is not None:
            return "ndarray" if value.code == NDARRAY else "numpy scalar"
        return escape_terminal(read_named(value)[0] or f"extension {value.code}")
    return "null" if value is None else type(value).__name__


def count_of(value: Any) -> int | None:
    """Return the number of elements of a container or text."""
    value = unwrap(value)
    return len(value) if isinstance(value, dict | list | tuple | set | frozenset | str | bytes) else None


Items = list[tuple[str | None, Any]]


def _open(value: Any) -> tuple[str, Items | None, str]:
    """Return the text before the brackets, the elements each with its key, and the brackets."""
    if isinstance(value, Opaque | Raw) and (inner := unwrap_once(value)) is not value:
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
    if isinstance(value, Opaque | Raw) and (inner := unwrap_once(value)) is not value:
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
            return escape_terminal(f"{kind_of(value)} {array[0]} {'×'.join(map(str, array[1]))}".rstrip())
        kind = "sealed by its serializer" if value.code == SEALED else f"extension {value.code}"
        return f"{kind} ({len(value.payload):,} bytes)"
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return f"{type(value).__name__} {value.isoformat()}"
    return f"{type(value).__name__} {escape_terminal(str(value))}"


def _text(value: str, full: bool, room: int) -> str:
    """Return a text in quotes; of a long one only the beginning and the end."""
    if full or len(value) <= _TEXT_LIMIT:
        return _quoted(value)
    count = f"({len(value):,} characters)"
    end = max(4, min(_TEXT_LIMIT // 8, (room - len(count) - 8) // 3))
    return f"{_quoted(value[: 2 * end])} … {_quoted(value[-end:])} {count}"


def _quoted(value: str) -> str:
    """Return a text in quotes as in JSON, but only unsafe characters are escaped."""
    return '"' + escape_terminal(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _summary(value: Any) -> str:
    count = count_of(value)
    if isinstance(value, str):
        return _quoted(value)
    return kind_of(value) + (f" of {count:,}" if count is not None else "")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"
