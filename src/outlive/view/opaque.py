"""Values of types that this process does not know, read and written back as they are stored."""

from __future__ import annotations

import contextlib
from typing import Any

import ormsgpack

from outlive.errors import Corrupt
from outlive.format.codec import Codec
from outlive.format.extensions import ADAPTERS, Opaque, Raw

_NAMED = 6  # as many codes of LangGraph's serializer hold objects with the name of their class
_TYPED = ADAPTERS.start + 8  # [type, bytes] as LangGraph's serializer returned them
# A value of a graph as another serializer returned it, which alone can read it.
SEALED = ADAPTERS.start + 9
_PACKED = ["langgraph", "open"]  # how a record begins whose bytes can be read


class OpaqueCodec(Codec):
    """Builds no value of a registered type: an Opaque packs to the very bytes that it came from."""

    def unpack(self, data: bytes, *, opaque: bool = True) -> Any:
        return super().unpack(data, opaque=True)


def read_packed(value: Any) -> Any:
    """Return the input of a graph, or an answer to it, that `run_graph` packed into a record; any other value as it is."""
    if not (isinstance(value, list) and len(value) == 3 and value[:2] == _PACKED and type(value[2]) is bytes):
        return value
    with contextlib.suppress(Corrupt):
        return OpaqueCodec().unpack(value[2])
    return value


def unwrap(value: Any) -> Any:
    """Return the content of a value of an unknown type; any other value as it is."""
    while isinstance(value, Opaque | Raw):
        inner = unwrap_once(value)
        if inner is value:
            break
        value = inner
    return value


def unwrap_once(value: Opaque | Raw) -> Any:
    return value.value if isinstance(value, Opaque) else read_named(value)[1]


def read_named(value: Raw) -> tuple[str | None, Any]:
    """Return the class and fields of an object that an adapter stored, or (None, value).

    The result is only for display: nothing is imported and no object is built.
    """
    if value.code - ADAPTERS.start not in range(_NAMED) and value.code != _TYPED:
        return None, value
    try:
        parts = _unpack(value.payload)
        if value.code == _TYPED:
            return ("msgpack", _unpack(parts[1])) if parts[0] == "msgpack" else (None, value)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None, value
    if not isinstance(parts, list) or len(parts) < 3 or [type(part) for part in parts[:2]] != [str, str]:
        return None, value
    return f"{parts[0]}.{parts[1]}", parts[2]


def _unpack(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_renumber, option=ormsgpack.OPT_NON_STR_KEYS)


def _renumber(code: int, payload: bytes) -> Raw:
    """Return an extension of LangGraph's serializer with the code that outlive gives it."""
    return Raw(ADAPTERS.start + code if code in range(_NAMED) else code, payload)


_MODEL = {"fields", "set", "extra", "private"}  # the parts of a pydantic model


def flatten_models(value: Any) -> Any:
    """Return a value in which pydantic models have their fields instead of their parts."""
    if isinstance(value, Opaque):
        return Opaque(value.tag, value.version, flatten_models(_model_fields(value.value)))
    if isinstance(value, dict):
        return {key: flatten_models(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(flatten_models, value))
    return value


def _model_fields(parts: Any) -> Any:
    is_model = isinstance(parts, dict) and {"fields", "set"} <= parts.keys() <= _MODEL
    if not is_model or not all(isinstance(parts.get(name, {}), dict) for name in _MODEL - {"set"}):
        return parts
    return {**parts["fields"], **parts.get("extra", {}), **parts.get("private", {})}
