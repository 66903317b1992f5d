"""Keys for a store that is encrypted, and the encryption of one record with them. Pure, no I/O.

An encrypted record is a header and what AES-256-GCM makes of the bytes:

    0xC1   a byte that msgpack never begins with: no plaintext of ours looks encrypted
    0x01   the format
    n      the length of the key's id, and the id
    13     the nonce: one byte chooses one of 256 keys derived from yours, twelve go to AES-GCM
    ...    ciphertext and tag

The nonce is a keyed hash of what is encrypted and of its associated data (AAD): where it belongs.
So the same record is encrypted to the same bytes. A retry or a second copy offers what is there,
and neither a fork nor a machine restored from a snapshot can use a nonce twice. A reader of the
store can tell that the very same record was written again at the very same place, and nothing else.
With 256 derived keys 2**38 records may be encrypted under one key of yours.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from outlive.errors import (
    BadArgument,
    ExtraMissing,
    KeyMissing,
    NewerFormat,
    PlainRecord,
    StoreError,
    Undecryptable,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MARK = 0xC1
FORMAT = 1
KEY_BYTES = 32
_NONCE = 13
_TAG = 16
_MAX_ID = 64
# Bytes in a key; 32 random ones have fewer once in 10**14 keys, passwords nearly always.
_LEAST_DISTINCT = 12


class KeyRing:
    """The keys of a store, by id: `KeyRing({"2026-01": old, "2026-07": new})`, 32 random bytes
    each.

    New records are encrypted under the newest: the last one, or the one that `newest` names. A ring
    without keys opens a store that is encrypted, for `verify`, `delete` and the list of threads
    alone.
    """

    def __init__(self, keys: Mapping[str, bytes] | None = None, *, newest: str | None = None) -> None:
        if keys is not None and not isinstance(keys, Mapping):
            raise BadArgument("KeyRing takes a mapping of ids to keys: KeyRing({'2026-07': key})")
        checked = [
            (_check_id(number, id), _check_key(number, key))
            for number, (id, key) in enumerate((keys or {}).items(), 1)
        ]
        if len({key for _, key in checked}) < len(checked):
            raise BadArgument(
                "two ids of the ring have the same key; each has a key of its own: KeyRing.new_key()"
            )
        self._keys = {id: _Key(id, key) for id, key in checked}
        if newest is not None and newest not in self.ids:
            raise BadArgument(f"newest must be the id of a key in the ring, one of {', '.join(self._keys)}")
        self.newest: str | None = newest if newest is not None else next(reversed(self._keys), None)

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read a ring from text, as an environment variable holds it: `id:base64`, several with
        spaces between, newest last.
        """
        if not isinstance(text, str) or not text.strip():
            raise BadArgument("there is no key in this text: it takes id:base64, several with spaces between")
        keys: dict[str, bytes] = {}
        for number, word in enumerate(text.split(), 1):
            id, colon, key = word.rpartition(":")
            if id in keys:
                raise BadArgument(f"word {number} of the ring has the id of an earlier one")
            try:
                keys[id] = base64.b64decode(key, validate=True)
            except ValueError:
                colon = ""
            if not colon:  # what the word is never appears in an error
                raise BadArgument(f"word {number} of the ring is no id:key with a key in base64")
        return cls(keys)

    @staticmethod
    def new_key() -> bytes:
        """Return a new random key."""
        return os.urandom(KEY_BYTES)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the keys, in their order."""
        return tuple(self._keys)

    def __repr__(self) -> str:
        return f"<KeyRing {', '.join(self._keys) or 'without keys'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a KeyRing is not pickled: its keys would lie wherever that goes")

    def encrypt(self, aad: bytes, data: bytes, *, is_named: bool = False) -> bytes:
        """Encrypt data with its AAD. `is_named`: the AAD names the data itself, as for a chunk."""
        if self.newest is None:
            raise KeyMissing(None)
        return self._keys[self.newest].encrypt(aad, data, is_named)

    def decrypt(self, aad: bytes, encrypted: bytes) -> bytes:
        """Return what was encrypted; raise PlainRecord, KeyMissing, Undecryptable or NewerFormat."""
        id = key_of(encrypted)
        key = self._keys.get(id)
        if key is None:
            raise KeyMissing(id)
        return key.decrypt(aad, encrypted)

    def is_current(self, encrypted: bytes) -> bool:
        """Tell whether a record is encrypted, and under the newest key."""
        try:
            return key_of(encrypted) == self.newest
        except StoreError:
            return False


def is_encrypted(naming_key: bytes) -> bool:
    """Tell whether a naming key is encrypted: a clear one is 32 bytes, with any beginning."""
    return len(naming_key) > KEY_BYTES and naming_key[0] == _MARK


def key_of(encrypted: bytes) -> str:
    """Return the id of the key that a record was encrypted under; needs no key."""
    if not encrypted or encrypted[0] != _MARK:
        raise PlainRecord("a record is not encrypted, where only encrypted ones may be")
    if len(encrypted) < 3 or encrypted[1] < FORMAT:
        raise Undecryptable("the header of an encrypted record is damaged")
    if encrypted[1] > FORMAT:
        raise NewerFormat("an encrypted record", encrypted[1], FORMAT)
    start = 3 + encrypted[2]
    if len(encrypted) < start + _NONCE + _TAG:
        raise Undecryptable("an encrypted record was cut short")
    try:
        return encrypted[3:start].decode("ascii")
    except UnicodeDecodeError:
        raise Undecryptable("the header of an encrypted record is damaged") from None


class _Key:
    """One key of a ring, with those that are derived from it."""

    def __init__(self, id: str, secret: bytes) -> None:
        name = id.encode("ascii")
        self.header = bytes((_MARK, FORMAT, len(name))) + name
        self._secret = secret
        self._cipher = _aes_gcm()
        self._ciphers: list[AESGCM | None] = [None] * 256
        derived = hashlib.blake2b(b"nonces", key=secret, digest_size=32, person=b"outlive.seal").digest()
        self._nonces = hashlib.blake2b(digest_size=_NONCE, key=derived, person=b"outlive.nonce")

    def encrypt(self, aad: bytes, data: bytes, is_named: bool) -> bytes:
        hasher = self._nonces.copy()
        # What is authenticated as a whole, the header too: one nonce never goes with two texts,
        # were it for two ids of one key.
        hasher.update(b"".join((self.header, len(aad).to_bytes(4, "big"), aad)))
        if not is_named:
            hasher.update(data)
        nonce = hasher.digest()
        return b"".join((self.header, nonce, self._of(nonce[0]).encrypt(nonce[1:], data, self.header + aad)))

    def decrypt(self, aad: bytes, encrypted: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        start = len(self.header)
        nonce, rest = encrypted[start : start + _NONCE], encrypted[start + _NONCE :]
        try:
            return self._of(nonce[0]).decrypt(nonce[1:], rest, self.header + aad)
        except InvalidTag:
            raise Undecryptable("an encrypted record cannot be decrypted") from None

    def _of(self, number: int) -> AESGCM:
        cipher = self._ciphers[number]
        if cipher is None:
            label = b"key" + bytes((number,))
            key = hashlib.blake2b(label, key=self._secret, digest_size=32, person=b"outlive.seal").digest()
            cipher = self._ciphers[number] = self._cipher(key)
        return cipher


def _aes_gcm() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ExtraMissing("an encrypted store", "crypto") from error
    return AESGCM


# A caller that exchanges a key and its id gives a key where an id belongs: an error names neither.


def _check_id(number: int, id: object) -> str:
    if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID or not id.isascii() or not id.isprintable():
        raise BadArgument(
            f"the id of key {number} of the ring must be 1 to {_MAX_ID} printable ASCII characters"
        )
    return id


def _check_key(number: int, key: object) -> bytes:
    if not isinstance(key, bytes | bytearray) or len(key) != KEY_BYTES:
        size = f" of {len(key)}" if isinstance(key, bytes | bytearray) else ""
        raise BadArgument(
            f"key {number} of the ring must be {KEY_BYTES} random bytes, as KeyRing.new_key() makes them, "
            f"not {type(key).__name__}{size}"
        )
    if len(set(key)) < _LEAST_DISTINCT:
        raise BadArgument(f"key {number} of the ring is not random: use KeyRing.new_key()")
    return bytes(key)
