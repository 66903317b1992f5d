"""Names of threads and checkpoints, and the text form in which every engine stores them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from outlive.errors import Corrupt

CheckpointKey = tuple[str, str]  # (namespace, id) of a checkpoint in its thread


def escape(text: str) -> str:
    """Return any str as text that every engine can store: no NUL, no lone surrogate; reversible."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    return "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char)
        for char in text
    )


_ESCAPES = {"\\": "\\\\", "\0": "\\0"}
_SURROGATE = re.compile(r"\\u[0-9a-f]{4}")


def unescape(text: str) -> str:
    """Undo `escape`. Raises Corrupt if `escape` cannot have written the text."""
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] in ("\\", "0"):
            out.append("\\" if text[at + 1] == "\\" else "\0")
            at += 2
        elif _SURROGATE.match(text, at):
            out.append(chr(int(text[at + 2 : at + 6], 16)))
            at += 6
        else:
            raise Corrupt("a stored id has an invalid escape")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """The identity of a thread: (tenant, id), and the 16 bytes by which backends find it."""

    tenant: str
    id: str
    digest: bytes

    @classmethod
    def of(cls, tenant: str, id: str) -> ThreadKey:
        text = f"{escape(tenant)}\0{escape(id)}".encode()
        return cls(tenant, id, hashlib.blake2b(text, digest_size=16, person=b"outlive.thread").digest())


RESERVED = "\0outlive"  # a tenant that no caller can open: for records of the store itself


def reserved(name: str) -> ThreadKey:
    """Return a thread for records of the store itself; no listing shows it."""
    return ThreadKey.of(RESERVED, name)


NAMING_THREAD = reserved("keys")  # has the naming key of an encrypted store after its keys were rotated
