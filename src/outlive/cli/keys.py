"""The keys of an encrypted store, and what to say when they are missing."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import BadArgument, KeyMissing, NotSealed, OutliveError, WrongKey

if TYPE_CHECKING:
    from ..layers.keyring import KeyRing

_GIVE = "give the file that holds it by --key-file PATH, or the keys themselves in OUTLIVE_KEYS"


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
    if text is None:
        return None
    from ..layers.keyring import KeyRing

    return KeyRing.parse(text)


def mended(error: OutliveError) -> str:
    """Return what an error says, with what mends it here rather than in a program."""
    said = str(error)
    if isinstance(error, KeyMissing):
        which = (
            "a key is needed"
            if error.id is None
            else f"this is sealed under key {error.id!r}, which was not given"
        )
        return f"{which}; {_GIVE}"
    if isinstance(error, WrongKey):
        return f"{said}; {_GIVE}"
    if isinstance(error, NotSealed) and "this store is not encrypted" in said:
        return (
            "this store is not encrypted; leave --key-file and OUTLIVE_KEYS out, or copy it into a new one that is: "
            "outlive copy SOURCE_URL TARGET_URL --target-key-file PATH"
        )
    return said
