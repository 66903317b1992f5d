"""Shortens generated ids for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from outlive.cli.output.table import is_terminal

_UUID_LENGTH = 36
_GENERATED = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def shorten_ids(ids: Iterable[str], least: int = 18) -> dict[str, str]:
    """Map ids to their short forms: at a terminal, generated ids lose the end that is not needed.

    At least the timestamp stays, because checkpoints that are not listed share the beginning.
    """
    unique = set(ids)
    if not is_terminal():
        return {id: id for id in unique}
    length = least
    while length < _UUID_LENGTH and len({id[:length] for id in unique}) < len(unique):
        length += 1
    return {id: id[:length] if _GENERATED.fullmatch(id) else id for id in unique}
