"""The ranges of a stream that is to be stored: where each is, and which of them are written again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from outlive.dataclass import dataclass
from outlive.format.composite import Composite
from outlive.format.layout import cut_spans, ends_of
from outlive.format.part import Part
from outlive.format.splitter import LARGE

FAN_BITS = 3
FAN = 1 << FAN_BITS

Place = bytes | Composite | None


@dataclass(slots=True)
class Range:
    """A range of the stream: stored (`chunk`), in the checkpoint itself (INLINED), or new (None)."""

    part: Part
    start: int
    length: int
    chunk: Place = None
    offset: int = 0

    def follows(self, other: Range) -> bool:
        return (
            self.chunk is not None
            and self.chunk == other.chunk
            and other.offset + other.length == self.offset
        )


def ranges_of(part: Part) -> list[Range]:
    """Return where the bytes of a part are."""
    ranges: list[Range] = []
    at = 0
    if part.spans is not None:
        for chunk, place, size in part.spans:
            ranges.append(Range(part, at, size, chunk or None, place))
            at += size
        return ranges
    ends: dict[int, list[int]] = {}
    for start, length, other, offset in part.kept:
        spans = other.spans
        if spans is None:
            continue
        if not (at or start or offset) and length == other.size:  # it grew: all spans, as they are
            for chunk, place, size in spans:
                ranges.append(Range(part, at, size, chunk or None, place))
                at += size
            continue
        if id(other) not in ends:
            ends[id(other)] = ends_of(spans)
        if start > at:
            _append(ranges, part, at, start - at)
        for chunk, place, size in cut_spans(spans, ends[id(other)], offset, length):
            _append(ranges, part, start, size, chunk or None, place)
            start += size
        at = start
    if at < part.size:
        _append(ranges, part, at, part.size - at)
    return ranges


def _append(
    ranges: list[Range], part: Part, start: int, length: int, chunk: Place = None, offset: int = 0
) -> None:
    """Append what comes next in a part; where it continues the last range, the two become one."""
    if ranges:
        last = ranges[-1]
        if (
            last.part is part
            and last.chunk == chunk
            and (chunk is None or last.offset + last.length == offset)
        ):
            last.length += length
            return
    ranges.append(Range(part, start, length, chunk, offset))


def decompose(ranges: list[Range]) -> list[Range]:
    """Return ranges of chunks alone: those of composites are replaced by what they are made of."""
    plain: list[Range] = []
    for range_ in ranges:
        if not isinstance(range_.chunk, Composite):
            plain.append(range_)
            continue
        start = range_.start
        for name, offset, length in range_.chunk.spans(range_.offset, range_.length):
            _append(plain, range_.part, start, length, name or None, offset)
            start += length
    return plain


# What is written again


def limit_spans(ranges: list[Range], most: int, calm: int) -> None:
    """Write the smallest neighbours again, as one, while there are too many spans."""
    count = count_spans(ranges)
    if count <= most:
        return
    while count > calm:
        pairs = sorted(_pairs(ranges))
        if not pairs:
            return
        for _, index in pairs[: count - calm]:
            ranges[index].chunk = ranges[index + 1].chunk = None
        count = count_spans(ranges)


def _pairs(ranges: list[Range]) -> Iterator[tuple[int, int]]:
    """Iterate over (bytes to write again, index) of neighbours that could become one span."""
    alone = [is_alone(range_) for range_ in ranges]
    for index in range(len(ranges) - 1):
        a, b = ranges[index], ranges[index + 1]
        if not (alone[index] or alone[index + 1] or b.follows(a)) and (
            a.chunk is not None or b.chunk is not None
        ):
            yield a.length * (a.chunk is not None) + b.length * (b.chunk is not None), index


def count_spans(ranges: list[Range]) -> int:
    """Return how many spans ranges are, apart from large pieces."""
    count, last = 0, None
    for range_ in ranges:
        if last is None or not (range_.follows(last) or (range_.chunk is None and last.chunk is None)):
            count += not is_alone(range_)
        last = range_
    return count


def gather(ranges: list[Range], cap: int) -> None:
    """Write what is read of small chunks again, together, when FAN of them have one level or below.

    So the number of chunks grows with the logarithm of what was edited.
    """
    read: dict[Place, int] = {}
    for range_ in ranges:
        if range_.chunk is not None:
            read[range_.chunk] = read.get(range_.chunk, 0) + range_.length
    total = sum([range_.length for range_ in ranges if range_.chunk is None])
    chunks: set[Place] = set()
    while True:
        small = [chunk for chunk, size in read.items() if level(size) <= level(total) and size < LARGE]
        more = sum([read[chunk] for chunk in small])
        if len(small) < FAN - 1 or total + more > cap:
            break
        total += more
        chunks.update(small)
        for chunk in small:
            del read[chunk]
    for range_ in ranges:
        if range_.chunk in chunks:
            range_.chunk = None


def level(length: int) -> int:
    """Return the level of a range: those of a level are up to FAN times as long as others."""
    return (length >> 8).bit_length() // FAN_BITS


def is_alone(range_: Range) -> bool:
    """Tell whether a range is one large piece, or inside one."""
    if range_.length < LARGE:
        return False
    ends = range_.part.ends
    return bisect_right(ends, range_.start) == bisect_left(ends, range_.start + range_.length)
