"""The bases that this process has at hand: the pieces of the state that each thread saved or loaded last.

Bounded by the memory it holds, least recently used first to go. A base is only ever a shortcut: losing one
costs the next save a read, never anything else.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass, field

from outlive.backend import CachedHead, CheckpointRecord, Cursor
from outlive.format import planner as planning
from outlive.format.codec import Codec
from outlive.format.manifest import layout_of
from outlive.format.splitter import Pieces, split

Key = tuple[bytes, str]  # (thread's digest, namespace)


@dataclass(slots=True)
class Base:
    """A checkpoint whose bytes are at hand: split into pieces, or as the stream that was read."""

    record: CheckpointRecord
    generation: int
    pieces: Pieces | None = None
    stream: bytes | None = None
    save: object | None = None  # the delayed save that brought it, when it may not be stored yet
    stored_pieces: dict[bytes, tuple[bytes, bytes, int]] = field(
        default_factory=dict
    )  # what tasks wrote since (planning.Loose)

    @property
    def known(self) -> CachedHead:
        return CachedHead(self.record.id, self.record.chunks)

    def weight(self) -> int:
        return self.pieces.weight() if self.pieces is not None else len(self.stream or b"") + 1000

    def bytes_of(self, codec: Codec) -> bytes:
        """Return the stream of the state."""
        stream, pieces = self.stream, self.pieces
        if stream is not None or pieces is None:
            return stream or b""
        return b"".join([part.bytes_of(codec) for part in pieces.parts])

    def split(self, codec: Codec) -> Pieces | None:
        """Return the pieces, made from the stream when they are asked for first.

        Two threads may do so at the same time: each makes its own, and one of them stays.
        """
        pieces, stream = self.pieces, self.stream
        if pieces is not None or stream is None:
            return pieces
        pieces = split(codec, codec.unpack(stream, opaque=True))
        if b"".join([part.bytes_of(codec) for part in pieces.parts]) != stream:
            return None  # written in another way than this version writes: nothing to share
        planning.place(pieces, layout_of(self.record.body), list(self.record.chunks))
        self.pieces = pieces  # before the stream goes: a reader finds one of the two
        self.stream = None
        return pieces


class Places:
    """Where checkpoints were that this process listed or deleted: a listing continues there when they are gone."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._places: dict[tuple[bytes, str | None, str], Cursor] = {}
        self._lock = threading.Lock()

    def note(self, digest: bytes, record: CheckpointRecord) -> None:
        with self._lock:
            for namespace in (record.namespace, None):
                key = (digest, namespace, record.id)
                self._places.pop(key, None)
                self._places[key] = record.order
            while len(self._places) > 2 * self._limit:
                del self._places[next(iter(self._places))]

    def find(self, digest: bytes, namespace: str | None, id: str) -> Cursor | None:
        """Return the last known place of a checkpoint; with None, in any namespace."""
        with self._lock:
            return self._places.get((digest, namespace, id))


class Cache:
    """Bases by thread and namespace."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._bases: dict[Key, tuple[Base, int]] = {}
        self._total = 0
        self._lock = threading.Lock()
        self.places = Places()
        _caches.add(self)

    def get(self, key: Key) -> Base | None:
        with self._lock:
            held = self._bases.pop(key, None)
            if held is None:
                return None
            self._bases[key] = held  # the newest stands last
            return held[0]

    def put(self, key: Key, base: Base) -> None:
        weight = base.weight()
        with self._lock:
            self._forget(key)
            if weight > self.limit_bytes:
                return
            self._bases[key] = (base, weight)
            self._total += weight
            while self._total > self.limit_bytes:
                self._forget(next(iter(self._bases)))

    def drop(self, digest: bytes, namespace: str | None = None) -> None:
        """Forget a thread, or one of its namespaces."""
        with self._lock:
            for key in (
                [key for key in self._bases if key[0] == digest]
                if namespace is None
                else [(digest, namespace)]
            ):
                self._forget(key)

    def _forget(self, key: Key) -> None:
        held = self._bases.pop(key, None)
        if held is not None:
            self._total -= held[1]


_caches: weakref.WeakSet[Cache] = weakref.WeakSet()


def _new_locks() -> None:
    for cache in list(_caches):
        cache._lock = threading.Lock()
        cache.places = Places()


os.register_at_fork(after_in_child=_new_locks)
