"""Values of a graph in records of the core, which knows none of its types: bytes of the serializer's codec, marked."""

from __future__ import annotations

from typing import Any

from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.errors import BadArgument

MARK = "langgraph"  # [mark, kind, bytes]


def pack(codec: ValueCodec, value: Any, path: str) -> list[Any]:
    """Return a value in a form that every store takes."""
    kind = "open" if codec.is_open else "sealed"
    return [MARK, kind, codec.pack(value if codec.is_open else codec.seal(value, None, path), path)]


def is_packed(stored: Any) -> bool:
    """Tell whether a value was packed."""
    is_marked = isinstance(stored, list) and len(stored) == 3 and stored[0] == MARK
    return is_marked and isinstance(stored[2], bytes)


def unpack(codec: ValueCodec, stored: Any) -> Any:
    """Return the value that was packed."""
    if not is_packed(stored):
        raise BadArgument("this run was not started by outlive.adapters.langgraph.run_graph")
    return codec.unpack(stored[2])
