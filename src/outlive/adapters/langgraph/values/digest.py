"""A digest over values, to tell whether two are the same.

It does not use the codec that stores values, so it shows what the codec changed or a chunk lost.
Equal values of equal types have equal digests; the order of a dict counts, that of a set does not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

_OPTIONS = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_serializer = JsonPlusSerializer(allowed_msgpack_modules=None)


def digest(value: Any) -> bytes:
    """Return 16 bytes over a value."""
    return hashlib.blake2b(_packed(value), digest_size=16).digest()


def _packed(value: Any) -> bytes:
    try:
        return ormsgpack.packb(value, default=_taken_apart, option=_OPTIONS)
    except (TypeError, ValueError):  # big ints, lone surrogates, deep nesting: the slow path handles them
        return repr(_spelled(value)).encode("utf-8", "surrogatepass")


def _taken_apart(value: Any) -> Any:
    """Return the name of an object's class and its contents, in types that msgpack has."""
    kind: type = type(value)
    way = _ways.get(kind)
    if way is None:
        way = _ways[kind] = _way_of(kind)
    return way(value)


_ways: dict[type, Callable[[Any], Any]] = {}


def _way_of(kind: type) -> Callable[[Any], Any]:
    name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(kind, "model_fields"):  # a pydantic model
        return lambda value: [name, value.__dict__, value.__pydantic_extra__ or None]
    if issubclass(kind, tuple | list):
        return lambda value: [name, *value]
    if issubclass(kind, set | frozenset):
        return lambda value: [name, *sorted(map(_packed, value))]
    if issubclass(kind, dict):
        return lambda value: [name, list(map(list, value.items()))]
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return lambda value: [name, {field: getattr(value, field, None) for field in names}]
    return lambda value: [name, *_otherwise(value)]


def _otherwise(value: Any) -> Any:
    """Return what LangGraph's serializer makes of an object, or what a pickle of it would contain."""
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return [f"{value.__module__}.{value.__qualname__}"]
    try:
        return _serializer.dumps_typed(value)
    except TypeError:
        parts = value.__reduce_ex__(4)
        return [part if part is None or isinstance(part, str) else _whole(part) for part in parts]


def _whole(part: Any) -> Any:
    return list(part) if isinstance(part, Iterator) else part


def _spelled(value: Any) -> Any:
    """Return a value as nested tuples whose repr is unambiguous."""
    if isinstance(value, dict) and type(value) is dict:
        return ("dict", *((_spelled(key), _spelled(item)) for key, item in value.items()))
    if type(value) is list:
        return ("list", *map(_spelled, value))
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    return ("object", _spelled(_taken_apart(value)))
