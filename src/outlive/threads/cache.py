"""The bases in memory: the pieces of the state that each thread saved or loaded last.

The memory is bounded; the least recently used base is dropped first. A base is only a shortcut:
losing one costs the next save a read, nothing else.
"""

from __future__ import annotations

import threading

from outlive.backend import CachedHead, CheckpointRecord, Cursor
from outlive.dataclass import dataclass
from outlive.format.codec import Codec
from outlive.format.composite import Composite
from outlive.format.manifest import layout_of
from outlive.format.outline import split_state
from outlive.format.planner import place
from outlive.format.splitter import SplitState
from outlive.runtime.fork import reset_in_child

_COMPOSED_SPAN = 200  # bytes of memory for a span of a composite
Key = tuple[bytes, str]  # (thread's digest, namespace)


@dataclass(slots=True)
class Base:
    """A checkpoint whose bytes are in memory: split into pieces, or as the stream that was read."""

    record: CheckpointRecord
    generation: int
    pieces: SplitState | None = None
    stream: bytes | None = None
    composite: bytes | None = None  # the raw bytes of the composite that the stream was made with
    save: object | None = None  # the delayed save that brought it, when it may not be stored yet

    @property
    def known(self) -> CachedHead:
        return CachedHead(self.record.id, self.record.chunks)

    def bytes_of(self, codec: Codec) -> bytes:
        """Return the stream of the state."""
        stream, pieces = self.stream, self.pieces
        if stream is not None or pieces is None:
            return stream or b""
        return b"".join([part.bytes_of(codec) for part in pieces.parts])

    def split(self, codec: Codec) -> SplitState | None:
        """Return the pieces, made from the stream when they are asked for first.

        Two threads may do so at the same time: each makes its own, and one of them stays.
        """
        pieces, stream = self.pieces, self.stream
        if pieces is not None or stream is None:
            return pieces
        pieces = split_state(codec, codec.outline(codec.unpack(stream, opaque=True), self.record.id))
        if b"".join([part.bytes_of(codec) for part in pieces.parts]) != stream:
            return None  # another version of outlive packed it differently: nothing to share
        names = self.record.chunks
        composite = Composite.read(names, self.composite) if self.composite is not None else None
        place(pieces, layout_of(self.record.body), names, composite)
        self.pieces = pieces  # before the stream is dropped: a reader sees one of the two
        self.stream = None
        self.composite = None
        return pieces


class Cursors:
    """The cursors of checkpoints that this process listed or deleted.

    A listing continues there when they are deleted.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._cursors: dict[tuple[bytes, str | None, str], Cursor] = {}
        self._lock = threading.Lock()

    def note(self, digest: bytes, record: CheckpointRecord) -> None:
        with self._lock:
            for namespace in (record.namespace, None):
                key = (digest, namespace, record.id)
                self._cursors.pop(key, None)
                self._cursors[key] = record.order
            while len(self._cursors) > 2 * self._limit:
                del self._cursors[next(iter(self._cursors))]

    def find(self, digest: bytes, namespace: str | None, id: str) -> Cursor | None:
        """Return the last known cursor of a checkpoint; with None, in any namespace."""
        with self._lock:
            return self._cursors.get((digest, namespace, id))


class Cache:
    """Bases by thread and namespace."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._bases: dict[Key, tuple[Base, int]] = {}
        self._total = 0
        self._lock = threading.Lock()
        self.cursors = Cursors()
        reset_in_child(self)

    def get(self, key: Key) -> Base | None:
        with self._lock:
            weighed = self._bases.pop(key, None)
            if weighed is None:
                return None
            self._bases[key] = weighed  # the most recently used comes last
            return weighed[0]

    def put(self, key: Key, base: Base) -> None:
        # About how much memory it holds.
        weight = 1000 + len(base.stream or b"") + len(base.composite or b"")
        composites = set[Composite]()
        for part in base.pieces.parts if base.pieces is not None else ():
            weight += part.size + 40 * len(part.ends) + 200
            for chunk, _, _ in part.spans or ():
                if type(chunk) is Composite:
                    composites.add(chunk)
        weight += _COMPOSED_SPAN * sum(map(len, composites))
        with self._lock:
            if key in self._bases:
                self._total -= self._bases.pop(key)[1]
            if weight > self.limit_bytes:
                return
            self._bases[key] = (base, weight)
            self._total += weight
            while self._total > self.limit_bytes:
                self._total -= self._bases.pop(next(iter(self._bases)))[1]

    def drop(self, digest: bytes, namespace: str | None = None) -> None:
        """Forget a thread, or one of its namespaces."""
        with self._lock:
            for key in [key for key in self._bases if key[0] == digest and namespace in (None, key[1])]:
                self._total -= self._bases.pop(key)[1]

    def after_fork_in_child(self) -> None:
        self._lock = threading.Lock()
        self.cursors = Cursors()
