"""Parts to chunks: what is new, and how it is packed together.

Theory of operation. A checkpoint lists its stream as spans, each a range of bytes in a chunk; very
short stretches are stored inline, in the checkpoint itself. A save that shares with an earlier one
names the old ranges and puts what is new into one new chunk. Appending without end would make one
short span per save, so short neighbours at the end of a run are merged like the levels of a
log-structured store: when the last FAN of them are of one level or below, they are written again as
one. So each byte is rewritten log_FAN(n) times at most, and a list that grew in a thousand steps is
a dozen spans. A large piece gets a chunk of its own and is never rewritten. Apart from large pieces
a stream never has more than MAX_SPANS spans; the smallest neighbours are merged first.

A plan changes nothing in the store, and nothing in the parts until `settle`: a save that is
refused, or a crash before the commit, leaves both as they were.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from outlive.format.chunk import MAX_RAW, Layout, Namer, encode
from outlive.format.codec import Codec
from outlive.format.part import Part
from outlive.format.splitter import LARGE, Pieces

FAN_BITS = 2
FAN = 1 << FAN_BITS
SPAN_COST = 20  # bytes that a span of its own takes: a name and three numbers
INLINE = 128  # shorter than this, a stretch costs less inline than as a span
MAX_SPANS = 64
CALM_SPANS = 48  # a stream that had too many spans is brought down to this
MAX_CHUNK = 1 << 20  # a new chunk is closed when it has reached this

INLINED = b""  # in place of a chunk's name: these bytes are in the checkpoint itself


@dataclass(slots=True)
class Plan:
    """How a stream will be stored: new chunks, names in order, layout, places of the parts."""

    pieces: Pieces
    chunks: dict[bytes, bytes]
    names: list[bytes]
    layout: Layout
    places: list[tuple[Part, list[tuple[bytes, int, int]]]]
    added: int  # bytes of the new chunks

    @property
    def shared(self) -> set[bytes]:
        """The chunks that are stored already."""
        return set(self.names) - self.chunks.keys()

    def settle(self) -> None:
        """Remember where the parts are.

        Only after the commit: a refused save has stored nothing.
        """
        for part, spans in self.places:
            part.spans = spans
            part.kept = []
            if part.leaf is not None:
                part.forget_packed()


@dataclass(slots=True)
class _Extent:
    """A range of the stream: stored (`chunk`), in the checkpoint itself (INLINED), or new (None)."""

    part: Part
    start: int
    length: int
    chunk: bytes | None = None
    offset: int = 0

    def follows(self, other: _Extent) -> bool:
        return (
            self.chunk is not None
            and self.chunk == other.chunk
            and other.offset + other.length == self.offset
        )


def plan_chunks(codec: Codec, namer: Namer, pieces: Pieces, old: Pieces | None) -> Plan:
    """Decide how to store `pieces`, whose kept ranges point into the parts of `old`."""
    # 1. Find what is stored already: parts of `old`.
    if old is not None:
        _adopt(pieces, old)
    extents = [extent for part in pieces.parts for extent in _extents(part)]
    # 2. Choose what is written again although it is stored, to keep the number of spans small.
    cap = min(MAX_RAW // 2, max(MAX_CHUNK, pieces.size // (CALM_SPANS // 2)))
    _merge_tails(extents, cap)
    if len(extents) > MAX_SPANS:
        _limit_spans(extents)
    # 3. Choose what is too short for a span of its own. From here on `chunk` is None only for what
    #    is written.
    _choose_inline(extents)
    # 4. Put what is written into chunks.
    if any(extent.length >= LARGE and extent.chunk is None for extent in extents):
        extents = _divide(extents, cap)
    chunks = _build(codec, namer, extents, cap)
    # 5. List the spans of the whole stream in order.
    return _lay_out(codec, pieces, extents, chunks)


def _adopt(pieces: Pieces, old: Pieces) -> None:
    """Match parts without a predecessor (glue, a run under another key) with equal old parts."""
    alone = [part for part in pieces.parts if part.spans is None and not part.kept and part.leaf is None]
    sizes = {part.size for part in alone}
    known = {
        other.cut(0, other.size): other
        for other in old.parts
        if other.size in sizes and other.spans is not None and other.leaf is None
    }
    for part in alone:
        other = known.get(part.cut(0, part.size))
        if other is not None:
            part.kept = [(0, part.size, other, 0)]


def _extents(part: Part) -> list[_Extent]:
    extents: list[_Extent] = []
    at = 0
    if part.spans is not None:
        for chunk, place, size in part.spans:
            extents.append(_Extent(part, at, size, chunk or None, place))
            at += size
        return extents
    for start, length, other, offset in part.kept:
        if other.spans is None:
            continue
        if start > at:
            _append(extents, part, at, start - at)
        _locate(extents, part, start, length, other, offset)
        at = start + length
    if at < part.size:
        _append(extents, part, at, part.size - at)
    return extents


def _locate(extents: list[_Extent], part: Part, start: int, length: int, other: Part, offset: int) -> None:
    """Find `length` bytes of `other`, from `offset` on, in its chunks."""
    at, stop = 0, offset + length
    for chunk, place, size in other.spans or ():
        end = at + size
        if offset <= at and end <= stop:
            _append(extents, part, start + at - offset, size, chunk or None, place)
        elif (low := max(offset, at)) < (high := min(stop, end)):
            _append(extents, part, start + low - offset, high - low, chunk or None, place + low - at)
        at = end


def _append(
    extents: list[_Extent], part: Part, start: int, length: int, chunk: bytes | None = None, offset: int = 0
) -> None:
    """Append what comes next in a part; where it continues the last extent, the two become one."""
    if extents:
        last = extents[-1]
        if last.chunk == chunk and (chunk is None or last.offset + last.length == offset):
            last.length += length
            return
    extents.append(_Extent(part, start, length, chunk, offset))


def _merge_tails(extents: list[_Extent], cap: int) -> None:
    """Write short neighbours before what was appended again, together with it, when FAN of them have gathered.

    Only at the end of a run that grew: an edit in the middle says nothing about its neighbours.
    """
    for index, extent in enumerate(extents):
        if extent.chunk is not None or not extent.part.kept:
            continue
        # The part grew when the last range that it keeps ends where the earlier part ended.
        _, length, other, offset = extent.part.kept[-1]
        is_last = index + 1 == len(extents) or extents[index + 1].part is not extent.part
        if offset + length != other.size or not is_last or (extent.length >= LARGE and _is_alone(extent)):
            continue
        for neighbour in extents[_merge_from(extents, index, cap) : index]:
            neighbour.chunk = extent.chunk = None


def _merge_from(extents: list[_Extent], index: int, cap: int) -> int:
    part, first, total = extents[index].part, index, extents[index].length
    while True:
        level, reach = _level(total), first
        while reach > 0 and _merges(extents[reach - 1], part, level):
            reach -= 1
        more = sum(extent.length for extent in extents[reach:first])
        if first - reach < FAN - 1 or total + more > cap:
            return first
        total += more
        first = reach


def _merges(extent: _Extent, part: Part, level: int) -> bool:
    return extent.part is part and _level(extent.length) <= level and not _is_alone(extent)


def _level(length: int) -> int:
    return (length >> 9).bit_length() // FAN_BITS


def _limit_spans(extents: list[_Extent]) -> None:
    """Write the smallest neighbours again, as one, while there are too many spans."""
    count = _count_spans(extents)
    if count <= MAX_SPANS:
        return
    while count > CALM_SPANS:
        pairs = sorted(_pairs(extents))
        if not pairs:
            return
        for _, index in pairs[: count - CALM_SPANS]:
            extents[index].chunk = extents[index + 1].chunk = None
        count = _count_spans(extents)


def _pairs(extents: list[_Extent]) -> list[tuple[int, int]]:
    """Return (bytes to write again, index) of neighbours that could become one span."""
    alone = [_is_alone(extent) for extent in extents]
    pairs = []
    for index in range(len(extents) - 1):
        a, b = extents[index], extents[index + 1]
        if not (alone[index] or alone[index + 1] or b.follows(a)) and (
            a.chunk is not None or b.chunk is not None
        ):
            pairs.append((a.length * (a.chunk is not None) + b.length * (b.chunk is not None), index))
    return pairs


def _count_spans(extents: list[_Extent]) -> int:
    count, last = 0, None
    for extent in extents:
        if last is None or not (extent.follows(last) or (extent.chunk is None and last.chunk is None)):
            count += not _is_alone(extent)
        last = extent
    return count


def _choose_inline(extents: list[_Extent]) -> None:
    """Put short new stretches, and all that is shorter than a span, into the checkpoint itself."""
    stretch: list[_Extent] = []  # neighbours that are written
    for index, extent in enumerate((*extents, None)):
        if extent is not None:
            if extent.length <= SPAN_COST and not _has_neighbour(extents, index):
                extent.chunk = None
            if extent.chunk is None:
                stretch.append(extent)
                continue
        if stretch and sum([written.length for written in stretch]) < INLINE:
            for written in stretch:
                written.chunk = INLINED
        stretch = []


def _has_neighbour(extents: list[_Extent], index: int) -> bool:
    """Tell whether an extent is one span with the one before or after it."""
    here = extents[index]
    if here.chunk is None:
        return True
    before = index > 0 and here.follows(extents[index - 1])
    return before or (index + 1 < len(extents) and extents[index + 1].follows(here))


def _divide(extents: list[_Extent], cap: int) -> list[_Extent]:
    """Cut new extents so that a large piece is alone and none is longer than a chunk may be."""
    divided = []
    for extent in extents:
        if extent.chunk is not None or extent.length < LARGE:
            divided.append(extent)
        else:
            divided.extend(_divided(extent, cap))
    return divided


def _divided(extent: _Extent, cap: int) -> list[_Extent]:
    part, start, stop = extent.part, extent.start, extent.start + extent.length
    extents, begin, last = [], start, start
    inner = part.ends[bisect_right(part.ends, start) : bisect_left(part.ends, stop)]
    for end in (*inner, stop):
        if end - last >= LARGE or end - begin > cap:
            if last > begin:
                extents.append(_Extent(part, begin, last - begin))
            begin = last
        if end - last >= LARGE:
            step = MAX_RAW // 2
            extents += [_Extent(part, at, min(step, end - at)) for at in range(last, end, step)]
            begin = end
        last = end
    if stop > begin:
        extents.append(_Extent(part, begin, stop - begin))
    return extents


def _is_alone(extent: _Extent) -> bool:
    """Tell whether an extent is one large piece."""
    if extent.length < LARGE:
        return False
    ends = extent.part.ends
    return bisect_right(ends, extent.start) == bisect_left(ends, extent.start + extent.length)


def _build(codec: Codec, namer: Namer, extents: list[_Extent], cap: int) -> dict[bytes, bytes]:
    """Put the new extents into chunks, in the order of the stream; a large piece gets its own."""
    chunks: dict[bytes, bytes] = {}
    waiting: list[_Extent] = []
    for extent in extents:
        if extent.chunk is not None:
            continue
        alone = extent.length >= LARGE and _is_alone(extent)
        size = sum([other.length for other in waiting])
        if (waiting and size + extent.length > cap) or (alone and size >= INLINE):
            _close(codec, namer, waiting, chunks)
            waiting = []
        waiting.append(extent)
        if alone:
            _close(codec, namer, waiting, chunks)
            waiting = []
    if waiting:
        _close(codec, namer, waiting, chunks)
    return chunks


def _close(codec: Codec, namer: Namer, extents: list[_Extent], chunks: dict[bytes, bytes]) -> None:
    data = encode(b"".join([_bytes(codec, extent) for extent in extents]))
    name = namer.name(data)
    chunks[name] = data
    at = 0
    for extent in extents:
        extent.chunk, extent.offset = name, at
        at += extent.length


def _bytes(codec: Codec, extent: _Extent) -> bytes | memoryview:
    start, stop = extent.start, extent.start + extent.length
    if extent.part.leaf is None:
        return extent.part.cut(start, stop)
    return memoryview(extent.part.bytes_of(codec))[start:stop]


def _lay_out(codec: Codec, pieces: Pieces, extents: list[_Extent], chunks: dict[bytes, bytes]) -> Plan:
    index: dict[bytes, int] = {}
    layout: Layout = []
    places: list[tuple[Part, list[tuple[bytes, int, int]]]] = []
    spans: list[tuple[bytes, int, int]] = []
    part = None
    last, begin, end = -1, 0, 0  # the last span: number of its chunk, and where it begins and ends
    for extent in extents:
        if extent.part is not part:  # the extents of a part are neighbours
            part, spans = extent.part, []
            places.append((part, spans))
        name, offset, length = extent.chunk, extent.offset, extent.length
        if not name:
            spans.append((INLINED, 0, length))
            _append_inline(layout, bytes(_bytes(codec, extent)))
            last = -1
            continue
        spans.append((name, offset, length))
        number = index.setdefault(name, len(index))
        if number == last and offset == end:
            end += length
            layout[-1] = (number, begin, end - begin)
        else:
            last, begin, end = number, offset, offset + length
            layout.append((number, offset, length))
    return Plan(pieces, chunks, list(index), layout, places, sum(map(len, chunks.values())))


def _append_inline(layout: Layout, data: bytes) -> None:
    if layout and isinstance(layout[-1], bytes):
        layout[-1] += data
    else:
        layout.append(data)


def place(pieces: Pieces, layout: Layout, names: list[bytes]) -> None:
    """Tell the parts of a state that was read back where they are stored."""
    spans = [
        (INLINED, 0, len(item)) if isinstance(item, bytes) else (names[item[0]], *item[1:]) for item in layout
    ]
    spans.reverse()
    for part in pieces.parts:
        part.spans, need = [], part.size
        while need:
            name, offset, length = spans.pop()
            take = min(need, length)
            part.spans.append((name, offset, take))
            if take < length:
                spans.append((name, offset + take, length - take))
            need -= take
        if part.leaf is not None:
            part.forget_packed()
