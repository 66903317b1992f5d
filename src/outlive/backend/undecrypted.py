"""Bytes that stand for a record which a layer could not decrypt, so that one bad record hides no others.

A layer that lists records puts a marker in place of each that it cannot decrypt. Reading that
record, or storing it again, raises the error of the marker. No codec writes bytes that begin like
a marker.
"""

from __future__ import annotations

from outlive.errors import KeyMissing, NewerFormat, OutliveError, PlainRecord, Undecryptable

# The id of the key follows `NO_KEY`; the format of the record and the newest known one follow
# `NEWER`.
MARK = b"\xc1"
BROKEN, PLAIN, NO_KEY, NEWER = (MARK + why for why in (b"broken", b"plain", b"key ", b"newer "))


def undecrypted(error: OutliveError) -> bytes:
    """Return the marker for bytes that a layer could not decrypt."""
    if isinstance(error, KeyMissing):
        return NO_KEY + (error.id or "").encode()
    if isinstance(error, NewerFormat):
        return NEWER + f"{error.found} {error.known}".encode()
    return PLAIN if isinstance(error, PlainRecord) else BROKEN


def is_undecrypted(data: bytes) -> bool:
    return data[:1] == MARK


def refuse_undecrypted(data: bytes) -> None:
    """Raise the error of a marker, when its record is read or stored again."""
    if data[:1] == MARK:
        if data == PLAIN:
            raise PlainRecord("a record of this encrypted store is not encrypted")
        if data.startswith(NO_KEY):
            raise KeyMissing(data[len(NO_KEY) :].decode())
        if data.startswith(NEWER):
            stored, known = data[len(NEWER) :].split()
            raise NewerFormat("an encrypted record", int(stored), int(known))
        raise Undecryptable(
            "an encrypted record cannot be decrypted: it was changed, cut short, moved, or encrypted under "
            "another key with the same id"
        )
