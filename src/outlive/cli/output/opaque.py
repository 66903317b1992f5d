"""Values of types that this process does not know, read and written back as they are stored."""

from __future__ import annotations

from typing import Any

import ormsgpack

from outlive.format.codec import Codec
from outlive.format.extensions import ADAPTERS, Opaque, Raw

_NAMED = 6  # as many codes of LangGraph's serializer hold objects with the name of their class


class OpaqueCodec(Codec):
    """Builds no value of a registered type: an Opaque packs to the very bytes that it came from."""

    def unpack(self, data: bytes, *, opaque: bool = True) -> Any:
        return super().unpack(data, opaque=True)


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
    if value.code - ADAPTERS.start not in range(_NAMED):
        return None, value
    try:
        parts = ormsgpack.unpackb(value.payload, ext_hook=_renumber, option=ormsgpack.OPT_NON_STR_KEYS)
    except (ValueError, RecursionError):
        return None, value
    if not isinstance(parts, list) or len(parts) < 3 or [type(part) for part in parts[:2]] != [str, str]:
        return None, value
    return f"{parts[0]}.{parts[1]}", parts[2]


def _renumber(code: int, payload: bytes) -> Raw:
    """Return an extension of LangGraph's serializer with the code that outlive gives it."""
    return Raw(ADAPTERS.start + code if code in range(_NAMED) else code, payload)
