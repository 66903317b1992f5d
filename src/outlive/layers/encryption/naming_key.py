"""Where the naming key of an encrypted store stands after its keys were rotated."""

from __future__ import annotations

from outlive.backend import Backend, EntryQuery, EntryRecord, reserved
from outlive.backend.entries import NAMING as NAMING

KEYS = reserved("keys")


async def current_naming_key(backend: Backend) -> EntryRecord | None:
    """Return the naming key as the last rotation sealed it; None when there was none."""
    found = await backend.entries(EntryQuery(KEYS.tenant, NAMING, thread=KEYS))
    return found[0][1] if found else None
