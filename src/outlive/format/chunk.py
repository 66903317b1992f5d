"""Chunks: what they are called and how they are packed.

A chunk is immutable and named by a keyed hash of its bytes. Chunks of one thread only are shared:
the same text in two threads is stored twice, so that deleting a thread deletes everything of it.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

from outlive.errors import Corrupt, NewerFormat

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

FORMAT = 1
MIN_ZSTD = 512  # below this zstd saves less than its time is worth
MAX_RAW = 128 << 20  # engines have limits, and so has what a reader should expand: larger pieces are cut

_RAW, _ZSTD = 0, 1


class Namer:
    """Names chunks by 16 bytes of keyed blake2b.

    Without the key, nobody can probe for content or craft a collision.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._fresh = hashlib.blake2b(digest_size=16, key=key, person=b"outlive.chunk")

    def name(self, data: bytes) -> bytes:
        hasher = self._fresh.copy()
        hasher.update(data)
        return hasher.digest()


_compressors: list[zstd.ZstdCompressor] = []


def encode(raw: bytes) -> bytes:
    """Return the stored form of a chunk: format, compression, raw length, bytes."""
    lead = len(raw).to_bytes(4, "big")
    if len(raw) < MIN_ZSTD:
        return bytes((FORMAT, _RAW)) + lead + raw
    # A compressor keeps its tables between frames: a fifth of the time of a fresh one for a short
    # chunk. Idle ones wait in a list and not with their thread: some callers have a new thread for
    # every save.
    try:
        compressor = _compressors.pop()
    except IndexError:
        compressor = zstd.ZstdCompressor(level=1)
    packed = compressor.compress(raw, zstd.ZstdCompressor.FLUSH_FRAME)
    _compressors.append(compressor)  # not after an error: it would be in the middle of a frame
    is_smaller = len(packed) < len(raw) * 0.9
    return bytes((FORMAT, _ZSTD if is_smaller else _RAW)) + lead + (packed if is_smaller else raw)


def decode(data: bytes) -> bytes:
    """Return the raw bytes of a stored chunk.

    Raises Corrupt or NewerFormat; never expands beyond the declared size.
    """
    if len(data) < 6:
        raise Corrupt("a chunk is too short")
    if data[0] > FORMAT:
        raise NewerFormat("a chunk", data[0], FORMAT)
    size = int.from_bytes(data[2:6], "big")
    if data[0] != FORMAT or data[1] not in (_RAW, _ZSTD) or size > MAX_RAW:
        raise Corrupt("a chunk has no valid header")
    raw = data[6:] if data[1] == _RAW else _expand(memoryview(data)[6:], size)
    if len(raw) != size:
        raise Corrupt(f"a chunk holds {len(raw)} bytes instead of {size}")
    return raw


def _expand(data: memoryview, size: int) -> bytes:
    decompressor = zstd.ZstdDecompressor()
    try:
        raw: bytes = decompressor.decompress(data, max_length=size + 1)
    except zstd.ZstdError as error:
        raise Corrupt(f"a chunk does not decompress ({error})") from error
    if len(raw) > size or not decompressor.eof or decompressor.unused_data:
        raise Corrupt("a chunk decompresses to something else than it declares")
    return raw
