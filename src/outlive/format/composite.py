"""A composite in memory: the spans behind a range of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from outlive.format.layout import Span, cut_spans, ends_of, unpack

INLINED = b""  # in place of a chunk's name: these bytes are in the checkpoint itself


class Composite:
    """A layout that is a chunk: its name, the names of its chunks, and their ranges in order."""

    __slots__ = ("_ends", "_spans", "name", "names", "size")

    def __init__(self, name: bytes, names: Sequence[bytes], spans: Sequence[Span]) -> None:
        self.name = name
        self.names = tuple(names)
        self._spans = [(names[number], offset, length) for number, offset, length in spans]
        self._ends = ends_of(self._spans)
        self.size = self._ends[-1]

    @classmethod
    def read(cls, names: Sequence[bytes], raw: bytes) -> Composite:
        """Return the composite that is the first chunk of a checkpoint."""
        spans = unpack(raw)
        return cls(names[0], names[1 : 2 + max([number for number, _, _ in spans])], spans)

    def __len__(self) -> int:
        return len(self._spans)

    def spans(self, offset: int, length: int) -> Iterator[tuple[bytes, int, int]]:
        """Iterate over the ranges of chunks that make `length` bytes from `offset` on."""
        return cut_spans(self._spans, self._ends, offset, length)
