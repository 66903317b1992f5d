"""Reads the keys of an encrypted store from a file or from OUTLIVE_KEYS."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.layers.encryption.keyring import KeyRing


def read_key_ring(path: str | None) -> KeyRing | None:
    """Return the keys in a file, else those in OUTLIVE_KEYS, else None: id:base64, the newest last."""
    text = os.environ.get("OUTLIVE_KEYS") or None
    if path is not None:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not contain id:base64"
            raise BadArgument(f"cannot read the key file {path!r}: {reason}") from None
    return None if text is None else parse_key_ring(text)


def parse_key_ring(text: str) -> KeyRing:
    """Return the keys in a text. An empty ring opens a store for what needs no key."""
    from outlive.layers.encryption.keyring import KeyRing

    return KeyRing.parse(text) if text.strip() else KeyRing({})
