"""Where the naming key of an encrypted store stands after its keys were rotated."""

from __future__ import annotations

from outlive.backend.entries import NAMING as NAMING
from outlive.backend.protocol import Backend, EntryRecord, reserved

KEYS = reserved("keys")


async def current_naming_key(backend: Backend) -> EntryRecord | None:
    """Return the naming key as the last rotation sealed it; None when there was none."""
    found = await backend.entries(KEYS.tenant, NAMING, thread=KEYS)
    return found[0][1] if found else None
