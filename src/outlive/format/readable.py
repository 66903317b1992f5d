r"""Packed values as JSON that a person can read, and back to the same bytes. Pure, no I/O.

What JSON has is written as it is. All else is an object with one key that begins with `$`:

    {"$tuple": [...]}  {"$set": [...]}  {"$frozenset": [...]}  {"$map": [[key, value], ...]}: a dict with keys that are no str
    {"$bytes": base64}  {"$bytearray": base64}  {"$int": "0x..."}  {"$float": "nan"}  {"$text": a str with \udXXX for lone surrogates}
    {"$datetime": "2026-11-16T08:30:00.000000", "zone": ..., "fold": 1}  {"$date": ...}  {"$time": ...}  {"$timedelta": [days, s, µs]}
    {"$uuid": ...}  {"$decimal": ...}  {"$complex": [...]}  {"$ndarray": [dtype, shape, bytes]}  {"$numpy": ...}
    {"$type": tag, "version": n, "value": ...}: a registered type   {"$dict": [[key, value], ...]}: a dict with a key that begins with $
    {"$extension": code, "value": ...}, or "bytes": a value that only an adapter can build, as that has packed it
    {"$packed": base64}: bytes that have no such form

Two values of a history are mostly the same, so the second can be told as changes of the first.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Callable
from typing import Any

import ormsgpack

from outlive.backend import escape, unescape
from outlive.errors import BadArgument, Corrupt
from outlive.format.extensions import (
    ADAPTERS,
    BIG_INT,
    BYTEARRAY,
    COMPLEX,
    DATE,
    DATETIME,
    DECIMAL,
    FROZENSET,
    MAP,
    NDARRAY,
    NUMPY_SCALAR,
    SET,
    SURROGATES,
    TAGGED,
    TIME,
    TIMEDELTA,
    TUPLE,
    UUID,
    Raw,
)

_LISTS = {
    TUPLE: "$tuple", SET: "$set", FROZENSET: "$frozenset", TIMEDELTA: "$timedelta", COMPLEX: "$complex",
    NDARRAY: "$ndarray", NUMPY_SCALAR: "$numpy",
}  # fmt: skip
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_TIME = re.compile(r"(\d\d):(\d\d):(\d\d)\.(\d{6})")
Json = Any
# What reading a malformed form raises.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, Corrupt)


def readable(data: bytes) -> Json:
    """Return packed bytes as JSON; what has no readable form is kept as it is."""
    try:
        form = _form(ormsgpack.unpackb(data, ext_hook=Raw))
        if packed(form) == data:
            return form
    except _WRONG:
        pass
    return {"$packed": _base64(data)}


def packed(form: Json) -> bytes:
    """Return the bytes that `readable` made a form of; raise BadArgument for what is none."""
    try:
        if isinstance(form, dict) and form.keys() == {"$packed"}:
            return _bytes(form["$packed"])
        return ormsgpack.packb(_plain(form))
    except _WRONG as error:
        raise BadArgument(f"this is no value that was exported ({error})") from None


def readable_text(text: str) -> Json:
    """Return a str as JSON can hold it in any encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"$text": escape(text)}
    return text


def text_of(form: Json) -> str:
    """Undo `readable_text`."""
    if isinstance(form, dict) and form.keys() == {"$text"} and isinstance(form["$text"], str):
        try:
            return unescape(form["$text"])
        except Corrupt as error:
            raise BadArgument(f"{form!r:.60} is no str that was exported ({error.what})") from None
    if not isinstance(form, str):
        raise BadArgument(f"a str is missing: {form!r:.60} is in its place")
    return form


# To JSON ------------------------------------------------------------------------------------------


def _form(value: Any, is_foreign: bool = False) -> Json:
    kind = type(value)
    if kind is dict:
        pairs = [(key, _form(item, is_foreign)) for key, item in value.items()]
        if any(key[:1] == "$" for key in value):
            return {"$dict": [list(pair) for pair in pairs]}
        return dict(pairs)
    if kind is list:
        return [_form(item, is_foreign) for item in value]
    if kind is float:
        return value if value - value == 0 else {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": _base64(value)}
    if kind is Raw:
        return _foreign(value.code, value.payload) if is_foreign else _extension(value.code, value.payload)
    return value


def _extension(code: int, payload: bytes) -> Json:
    if code in _SCALARS:
        return _SCALARS[code](payload)
    if code in ADAPTERS:
        return _foreign(code, payload)
    inside = ormsgpack.unpackb(payload, ext_hook=Raw)
    if code == TAGGED:
        return {"$type": inside[0], "version": inside[1], "value": _form(inside[2])}
    if code == MAP:
        items = [_form(item) for item in inside]
        return {"$map": [list(pair) for pair in zip(items[::2], items[1::2], strict=True)]}
    if code == DATETIME:
        date, moment = _date(inside[:3]), _clock(inside[3:7])
        return {"$datetime": f"{date}T{moment}", **_zone(*inside[7:])}
    if code == DATE:
        return {"$date": _date(inside)}
    if code == TIME:
        return {"$time": _clock(inside[:4]), **_zone(*inside[4:])}
    return {_LISTS[code]: _form(inside)}


def _foreign(code: int, payload: bytes) -> Json:
    """Tell what an adapter has packed, in which extensions have another meaning."""
    try:
        form = _form(ormsgpack.unpackb(payload, ext_hook=Raw), is_foreign=True)
        if ormsgpack.packb(_plain(form)) == payload:
            return {"$extension": code, "value": form}
    except _WRONG:
        pass
    return {"$extension": code, "bytes": _base64(payload)}


_SCALARS: dict[int, Callable[[bytes], Json]] = {
    UUID: lambda payload: {"$uuid": str(uuid.UUID(bytes=payload))},
    DECIMAL: lambda payload: {"$decimal": payload.decode("ascii")},
    BIG_INT: lambda payload: {"$int": hex(int.from_bytes(payload, "big", signed=True))},
    SURROGATES: lambda payload: {"$text": escape(payload.decode("utf-8", "surrogatepass"))},
    BYTEARRAY: lambda payload: {"$bytearray": _base64(payload)},
}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _date(parts: list[int]) -> str:
    return "{:04}-{:02}-{:02}".format(*parts)


def _clock(parts: list[int]) -> str:
    return "{:02}:{:02}:{:02}.{:06}".format(*parts)


def _zone(fold: int, zone: Any) -> dict[str, Any]:
    return {**({} if zone is None else {"zone": zone}), **({"fold": fold} if fold else {})}


# From JSON ----------------------------------------------------------------------------------------


def _plain(form: Json) -> Any:
    if isinstance(form, list):
        return [_plain(item) for item in form]
    if not isinstance(form, dict):
        return form
    mark = next((key for key in form if key[:1] == "$"), None)
    if mark is None:
        return {key: _plain(item) for key, item in form.items()}
    if mark in _READERS:
        return _READERS[mark](form, form[mark])
    raise ValueError(f"{mark!r} is not known")


def _ext(code: int, inside: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(code, ormsgpack.packb(inside))


def _bytes(text: Any) -> bytes:
    return base64.b64decode(text, validate=True)


def _numbers(pattern: re.Pattern[str], text: str) -> list[int]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is no date or time")
    return [int(part) for part in match.groups()]


def _read_datetime(form: Json, text: str) -> ormsgpack.Ext:
    date, _, clock = text.partition("T")
    return _ext(
        DATETIME, [*_numbers(_DATE, date), *_numbers(_TIME, clock), form.get("fold", 0), form.get("zone")]
    )


def _read_extension(form: Json, code: int) -> ormsgpack.Ext:
    data = ormsgpack.packb(_plain(form["value"])) if "value" in form else _bytes(form["bytes"])
    return ormsgpack.Ext(code, data)


def _read_time(form: Json, text: str) -> ormsgpack.Ext:
    return _ext(TIME, [*_numbers(_TIME, text), form.get("fold", 0), form.get("zone")])


def _read_int(form: Json, text: str) -> ormsgpack.Ext:
    value = int(text, 16)
    size = ((value if value >= 0 else ~value).bit_length() + 8) // 8
    return ormsgpack.Ext(BIG_INT, value.to_bytes(size, "big", signed=True))


_READERS: dict[str, Callable[[Json, Any], Any]] = {
    "$type": lambda form, tag: _ext(TAGGED, [tag, form["version"], _plain(form["value"])]),
    "$map": lambda form, pairs: _ext(MAP, [_plain(part) for key, item in pairs for part in (key, item)]),
    "$dict": lambda form, pairs: {key: _plain(item) for key, item in pairs},
    "$float": lambda form, text: float(text),
    "$bytes": lambda form, text: _bytes(text),
    "$bytearray": lambda form, text: ormsgpack.Ext(BYTEARRAY, _bytes(text)),
    "$int": _read_int,
    "$text": lambda form, text: ormsgpack.Ext(SURROGATES, unescape(text).encode("utf-8", "surrogatepass")),
    "$datetime": _read_datetime,
    "$extension": _read_extension,
    "$date": lambda form, text: _ext(DATE, _numbers(_DATE, text)),
    "$time": _read_time,
    "$uuid": lambda form, text: ormsgpack.Ext(UUID, uuid.UUID(text).bytes),
    "$decimal": lambda form, text: ormsgpack.Ext(DECIMAL, text.encode("ascii")),
    **{
        name: lambda form, inside, code=code: _ext(code, _plain(inside))  # type: ignore[misc]
        for code, name in _LISTS.items()
    },
}


# Changes ------------------------------------------------------------------------------------------


def changes(old: Json, new: Json) -> list[Json]:
    """Return the edits that turn one form into another.

    `set` or `remove` at a path, or `splice` [position, count removed, new items] in a list.
    """
    edits: list[Json] = []
    _compare(old, new, [], edits)
    return edits


def _exact(form: Json) -> bytes:
    """Return bytes that differ for all that JSON distinguishes: 1, 1.0 and true, order of keys."""
    return ormsgpack.packb(form)


def _compare(old: Json, new: Json, path: list[str | int], edits: list[Json]) -> None:
    if type(old) is dict and type(new) is dict and _keeps_order(old, new):
        edits += [{"at": [*path, key], "remove": True} for key in old if key not in new]
        for key, item in new.items():
            if key not in old:
                edits.append({"at": [*path, key], "set": item})
            elif _exact(old[key]) != _exact(item):
                _compare(old[key], item, [*path, key], edits)
    elif type(old) is list and type(new) is list:
        _compare_lists(old, new, path, edits)
    elif _exact(old) != _exact(new):
        edits.append({"at": path, "set": new})


def _keeps_order(old: dict[str, Json], new: dict[str, Json]) -> bool:
    """Tell whether removing keys and adding some at the end gives the new order.

    A form with a mark is written as a whole.
    """
    if any(key[:1] == "$" for form in (old, new) for key in form):
        return False
    return [*(key for key in old if key in new), *(key for key in new if key not in old)] == list(new)


def _compare_lists(old: list[Json], new: list[Json], path: list[str | int], edits: list[Json]) -> None:
    a, b = [_exact(item) for item in old], [_exact(item) for item in new]
    least = min(len(a), len(b))
    start = next((n for n in range(least) if a[n] != b[n]), least)
    end = next((n for n in range(least - start) if a[-1 - n] != b[-1 - n]), least - start)
    gone, come = len(a) - start - end, len(b) - start - end
    if gone == come <= 2:
        for n in range(start, start + gone):
            _compare(old[n], new[n], [*path, n], edits)
    elif gone or come:
        edits.append({"at": path, "splice": [start, gone, new[start : start + come]]})


def changed(form: Json, changes: Any) -> Json:
    """Return a form with changes made; the old one stays as it is.

    Raises BadArgument when they do not fit.
    """
    if not isinstance(changes, list):
        raise BadArgument("changes must be a list")
    for change in changes:
        try:
            form = _made(form, change["at"], change)
        except _WRONG as error:
            raise BadArgument(f"a change does not fit what it changes ({error!r})") from None
    return form


def _made(form: Json, path: list[str | int], change: Json) -> Json:
    if path and not ("remove" in change and len(path) == 1):
        head, *rest = path
        copy: Any = dict(form) if isinstance(head, str) else list(form)
        copy[head] = _made(copy.get(head) if isinstance(head, str) else copy[head], rest, change)
        return copy
    if "remove" in change:
        return {key: item for key, item in form.items() if key != path[0]}
    if "splice" in change:
        start, gone, come = change["splice"]
        return [*form[:start], *come, *form[start + gone :]]
    return change["set"]
