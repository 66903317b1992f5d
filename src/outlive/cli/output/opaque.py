"""Values whose types are not known here, read and written back as they are stored."""

from __future__ import annotations

from typing import Any

import ormsgpack

from outlive.format.codec import Codec
from outlive.format.extensions import Opaque, Raw

_ADAPTERS = range(48, 64)
_NAMED = 6  # of these codes are objects with the name of their class, as LangGraph's serializer writes them


class OpaqueCodec(Codec):
    """Builds no value of a registered type: an Opaque packs to the very bytes that it came from."""

    def unpack(self, data: bytes, *, opaque: bool = True) -> Any:
        return super().unpack(data, opaque=True)


def inside(value: Any) -> Any:
    """Return what a value of an unknown type consists of; any other value as it is."""
    while isinstance(value, Opaque | Raw):
        inner = value.value if isinstance(value, Opaque) else named(value)[1]
        if inner is value:
            break
        value = inner
    return value


def named(value: Raw) -> tuple[str | None, Any]:
    """Return the class and the fields of an object that an adapter stored; (None, itself) when it does not tell.

    Only read, to be shown: nothing is imported and nothing built.
    """
    if value.code - _ADAPTERS.start not in range(_NAMED):
        return None, value
    try:
        parts = ormsgpack.unpackb(value.payload, ext_hook=_moved, option=ormsgpack.OPT_NON_STR_KEYS)
    except (ValueError, RecursionError):
        return None, value
    if not isinstance(parts, list) or len(parts) < 3 or [type(part) for part in parts[:2]] != [str, str]:
        return None, value
    return f"{parts[0]}.{parts[1]}", parts[2]


def _moved(code: int, payload: bytes) -> Raw:
    """Return an extension in LangGraph's own numbering as it stands in outlive's."""
    return Raw(_ADAPTERS.start + code if code in range(_NAMED) else code, payload)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a stored dataclass that is known to have some; {} for anything else."""
    value = inside(value)
    return value if isinstance(value, dict) else {}
