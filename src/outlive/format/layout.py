"""Layouts: how a stream is put together from ranges of chunks. Pure, no I/O.

A layout is a list of literal bytes and spans. A span names its chunk by position in a list of names
that is stored beside the layout. A text that is edited again and again has hundreds of spans, most
of them as in the checkpoint before. To repeat them in each checkpoint would cost more than the
edits. So the first chunk of a list may be a *composite*: a chunk that has a layout of the chunks
after it, and stands for the bytes which that layout makes. Spans with the number COMPOSITE are
ranges of those bytes. A composite has spans alone, no text, and is never made of another one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import ormsgpack

from outlive.errors import Corrupt

T = TypeVar("T")

COMPOSITE = -1
Span = tuple[int, int, int]  # (number of the chunk, offset, length)
Layout = list["bytes | Span"]  # bytes are in the layout itself


def flatten(layout: Layout) -> list[Any]:
    """Return a layout as one list: literal bytes, and three numbers for each span.

    They are the number of the chunk, how far after the last span of that chunk this one begins, and
    its length: distances are shorter than offsets.
    """
    flat: list[Any] = []
    ends: dict[int, int] = {}
    for item in layout:
        if type(item) is tuple:
            number, offset, length = item
            flat += (number, offset - ends.get(number, 0), length)
            ends[number] = offset + length
        else:
            flat.append(item)
    return flat


def unflatten(flat: Iterable[Any]) -> Layout:
    """Return the layout of a list; raise Corrupt if it is none."""
    layout: Layout = []
    ends: dict[int, int] = {}
    items = iter(flat)
    for item in items:
        if type(item) is bytes:
            layout.append(item)
            continue
        distance, length = next(items, None), next(items, None)
        if not (type(item) is type(distance) is type(length) is int):
            raise Corrupt("a span of a layout is not three numbers")
        offset = ends.get(item, 0) + distance
        if offset < 0 or length < 0 or item < COMPOSITE:
            raise Corrupt("a span of a layout has a negative number")
        ends[item] = offset + length
        layout.append((item, offset, length))
    return layout


def pack(layout: Layout) -> bytes:
    """Return the raw bytes of a composite."""
    return ormsgpack.packb(flatten(layout))


def unpack(raw: bytes) -> list[Span]:
    """Return the spans of a composite; raise Corrupt if it is none."""
    try:
        flat = ormsgpack.unpackb(raw)
    except ValueError as error:
        raise Corrupt(f"a composite has no layout ({error})") from error
    if type(flat) is not list:
        raise Corrupt("a composite has no layout")
    # No literal bytes: nobody looks for text in a composite that is to be erased. No empty spans:
    # what is stored must not choose how much is done for a byte of the state.
    spans = [item for item in unflatten(flat) if type(item) is tuple and item[0] >= 0 and item[2] > 0]
    if len(spans) * 3 != len(flat):
        raise Corrupt("a composite has something else than spans")
    return spans


def has_composite(layout: Layout) -> bool:
    """Tell whether a layout has spans of a composite."""
    return any(type(item) is tuple and item[0] == COMPOSITE for item in layout)


def length_of(layout: Layout) -> int:
    """Return how many bytes a layout makes."""
    return sum([item[2] if type(item) is tuple else len(item) for item in layout])


def expand(layout: Layout, raw: bytes) -> Layout:
    """Return a layout without spans of the composite `raw`: they are replaced by what it is made of."""
    spans = unpack(raw)
    ends = ends_of(spans)
    expanded: Layout = []
    for item in layout:
        if type(item) is not tuple or item[0] != COMPOSITE:
            expanded.append(item)
            continue
        if item[1] + item[2] > (ends[-1] if ends else 0):
            raise Corrupt("a span reaches beyond its composite")
        expanded += [
            (1 + number, offset, length)
            for number, offset, length in cut_spans(spans, ends, item[1], item[2])
        ]
    return expanded


def ends_of(spans: Sequence[tuple[Any, int, int]]) -> list[int]:
    """Return where each span ends in what they make."""
    return list(accumulate([length for _, _, length in spans]))


def cut_spans(
    spans: Sequence[tuple[T, int, int]], ends: Sequence[int], offset: int, length: int
) -> Iterator[tuple[T, int, int]]:
    """Iterate over the spans, cut at both sides, that make `length` bytes from `offset` on."""
    index, stop = bisect_right(ends, offset), offset + length
    while offset < stop:
        chunk, start, size = spans[index]
        skipped = offset - (ends[index] - size)
        taken = min(size - skipped, stop - offset)
        yield chunk, start + skipped, taken
        offset += taken
        index += 1


def assemble(layout: Layout, raws: Sequence[bytes], size: int | None) -> bytes:
    """Put a stream together from the raw bytes of its chunks; raise Corrupt if it does not fit."""
    declared = length_of(layout)
    if size is not None and declared != size:
        raise Corrupt(f"the state has {declared} bytes instead of {size}")
    if has_composite(layout):
        if not raws:
            raise Corrupt("a span names a chunk that is not listed")
        layout = expand(layout, raws[0])
    views = [memoryview(raw) for raw in raws]
    try:
        pieces = [
            item if type(item) is bytes else views[item[0]][item[1] : item[1] + item[2]] for item in layout
        ]
    except IndexError:
        raise Corrupt("a span names a chunk that is not listed") from None
    stream = b"".join(pieces)
    if len(stream) != declared:
        raise Corrupt("a span reaches beyond its chunk")
    return stream
