"""Names of threads and checkpoints, and the text form in which every engine stores them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from outlive.errors import Corrupt

CheckpointKey = tuple[str, str]  # (namespace, id) of a checkpoint in its thread


def escape(text: str) -> str:
    """Write any str as text that every engine can hold: no NUL, no lone surrogate; reversible."""
    if text.isascii() and "\\" not in text and "\0" not in text:
        return text
    return "".join(
        _ESCAPES.get(char) or (f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char)
        for char in text
    )


_ESCAPES = {"\\": "\\\\", "\0": "\\0"}
_SURROGATE = re.compile(r"\\u[0-9a-f]{4}")


def unescape(text: str) -> str:
    """Undo `escape`; raise Corrupt when the text was not made by it."""
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
            raise Corrupt("a stored id is not escaped as it should be")
    return "".join(out)


@dataclass(frozen=True, slots=True)
class ThreadKey:
    """A thread's identity: (tenant, id), and the 16 bytes by which every backend finds it."""

    tenant: str
    id: str
    digest: bytes

    @classmethod
    def of(cls, tenant: str, id: str) -> ThreadKey:
        text = f"{escape(tenant)}\0{escape(id)}".encode()
        return cls(tenant, id, hashlib.blake2b(text, digest_size=16, person=b"outlive.thread").digest())


RESERVED = "\0outlive"  # a tenant that nobody can open: what belongs to the store itself


def reserved(name: str) -> ThreadKey:
    """Return a thread that holds records of the store's own; it is in no list."""
    return ThreadKey.of(RESERVED, name)
