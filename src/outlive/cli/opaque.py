"""Values whose types are not known here, read and written back as they are stored."""

from __future__ import annotations

from typing import Any

from ..codec import Codec
from ..extension import Opaque


class OpaqueCodec(Codec):
    """Builds no value of a registered type: an Opaque packs to the very bytes that it came from."""

    def unpack(self, data: bytes, *, opaque: bool = True) -> Any:
        return super().unpack(data, opaque=True)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a stored dataclass that is known to have some; {} for anything else."""
    while isinstance(value, Opaque):
        value = value.value
    return value if isinstance(value, dict) else {}
