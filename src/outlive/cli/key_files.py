"""The keys of an encrypted store: read, and made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.layers.encryption.keyring import KeyRing


def read_ring(path: str | None) -> KeyRing | None:
    """Return the keys in a file, else those of OUTLIVE_KEYS, else None: words of id:base64, the newest last."""
    text = os.environ.get("OUTLIVE_KEYS") or None
    if path is not None:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text of id:base64"
            raise BadArgument(f"the key file {path!r} cannot be read: {reason}") from None
    return None if text is None else ring_of(text)


def ring_of(text: str) -> KeyRing:
    """Return the keys in a text; an empty one opens a store for what needs none."""
    from outlive.layers.encryption.keyring import KeyRing

    return KeyRing.parse(text) if text.strip() else KeyRing({})
