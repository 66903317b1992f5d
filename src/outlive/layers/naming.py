"""Where the naming key of an encrypted store stands after its keys were rotated."""

from __future__ import annotations

from ..backend import Backend, Entry, reserved
from ..entry_kind import NAMING as NAMING

KEYS = reserved("keys")


async def sealed_anew(backend: Backend) -> Entry | None:
    """Return the naming key as the last rotation sealed it; None when there was none."""
    found = await backend.entries(KEYS.tenant, NAMING, thread=KEYS)
    return found[0][1] if found else None
