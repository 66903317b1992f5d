"""Parts to chunks: what is new, and how it is packed together.

Theory of operation. A checkpoint lists its stream as spans, each a range of bytes in a chunk; very
short stretches are stored inline, in the checkpoint itself. A save that shares with an earlier one
names the old ranges and puts what is new into one new chunk. Appending without end would make one
short span per save, so short neighbours at the end of a run are merged like the levels of a
log-structured store: when the last FAN of them are of one level or below, they are written again as
one. So each byte is rewritten log_FAN(n) times at most, and a list that grew in a thousand steps is
a dozen spans. A large piece gets a chunk of its own and is never rewritten. Apart from large pieces
a stream never has more than MAX_SPANS spans; the smallest neighbours are merged first.

A plan changes nothing in the store, and nothing in the parts until `record_spans`: a save that is
refused, or a crash before the commit, leaves both as they were.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

from outlive.format.chunk import MAX_RAW, Layout, Namer, encode
from outlive.format.codec import Codec
from outlive.format.part import Part
from outlive.format.splitter import LARGE, SplitState

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

    pieces: SplitState
    chunks: dict[bytes, bytes]
    names: list[bytes]
    layout: Layout
    places: list[tuple[Part, list[tuple[bytes, int, int]]]]
    added: int  # bytes of the new chunks

    @property
    def shared(self) -> set[bytes]:
        """The chunks that are stored already."""
        return set(self.names) - self.chunks.keys()

    def record_spans(self) -> None:
        """Tell the parts where they are stored.

        Only after the commit: a refused save has stored nothing.
        """
        for part, spans in self.places:
            part.spans = spans
            part.kept = []
            if part.leaf is not None:
                part.forget_packed()


@dataclass(slots=True)
class _Range:
    """A range of the stream: stored (`chunk`), in the checkpoint itself (INLINED), or new (None)."""

    part: Part
    start: int
    length: int
    chunk: bytes | None = None
    offset: int = 0

    def follows(self, other: _Range) -> bool:
        return (
            self.chunk is not None
            and self.chunk == other.chunk
            and other.offset + other.length == self.offset
        )


def plan_chunks(codec: Codec, namer: Namer, pieces: SplitState, old: SplitState | None) -> Plan:
    """Decide how to store `pieces`, whose kept ranges point into the parts of `old`."""
    # 1. Find what is stored already: parts of `old`.
    if old is not None:
        _adopt(pieces, old)
    ranges = [range_ for part in pieces.parts for range_ in _ranges_of(part)]
    # 2. Choose what is written again although it is stored, to keep the number of spans small.
    cap = min(MAX_RAW // 2, max(MAX_CHUNK, pieces.size // (CALM_SPANS // 2)))
    _merge_tails(ranges, cap)
    if len(ranges) > MAX_SPANS:
        _limit_spans(ranges)
    # 3. Choose what is too short for a span of its own. From here on `chunk` is None only for what
    #    is written.
    _choose_inline(ranges)
    # 4. Put what is written into chunks.
    if any(range_.length >= LARGE and range_.chunk is None for range_ in ranges):
        ranges = _divide(ranges, cap)
    chunks = _build(codec, namer, ranges, cap)
    # 5. List the spans of the whole stream in order.
    return _lay_out(codec, pieces, ranges, chunks)


def _adopt(pieces: SplitState, old: SplitState) -> None:
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


def _ranges_of(part: Part) -> list[_Range]:
    ranges: list[_Range] = []
    at = 0
    if part.spans is not None:
        for chunk, place, size in part.spans:
            ranges.append(_Range(part, at, size, chunk or None, place))
            at += size
        return ranges
    for start, length, other, offset in part.kept:
        if other.spans is None:
            continue
        if start > at:
            _append(ranges, part, at, start - at)
        _locate(ranges, part, start, length, other, offset)
        at = start + length
    if at < part.size:
        _append(ranges, part, at, part.size - at)
    return ranges


def _locate(ranges: list[_Range], part: Part, start: int, length: int, other: Part, offset: int) -> None:
    """Find `length` bytes of `other`, from `offset` on, in its chunks."""
    at, stop = 0, offset + length
    for chunk, place, size in other.spans or ():
        end = at + size
        if offset <= at and end <= stop:
            _append(ranges, part, start + at - offset, size, chunk or None, place)
        elif (low := max(offset, at)) < (high := min(stop, end)):
            _append(ranges, part, start + low - offset, high - low, chunk or None, place + low - at)
        at = end


def _append(
    ranges: list[_Range], part: Part, start: int, length: int, chunk: bytes | None = None, offset: int = 0
) -> None:
    """Append what comes next in a part; where it continues the last range, the two become one."""
    if ranges:
        last = ranges[-1]
        if last.chunk == chunk and (chunk is None or last.offset + last.length == offset):
            last.length += length
            return
    ranges.append(_Range(part, start, length, chunk, offset))


def _merge_tails(ranges: list[_Range], cap: int) -> None:
    """Write short neighbours before what was appended again, together with it, when FAN of them have gathered.

    Only at the end of a run that grew: an edit in the middle says nothing about its neighbours.
    """
    for index, range_ in enumerate(ranges):
        if range_.chunk is not None or not range_.part.kept:
            continue
        # The part grew when the last range that it keeps ends where the earlier part ended.
        _, length, other, offset = range_.part.kept[-1]
        is_last = index + 1 == len(ranges) or ranges[index + 1].part is not range_.part
        if offset + length != other.size or not is_last or (range_.length >= LARGE and _is_alone(range_)):
            continue
        for neighbour in ranges[_merge_from(ranges, index, cap) : index]:
            neighbour.chunk = range_.chunk = None


def _merge_from(ranges: list[_Range], index: int, cap: int) -> int:
    part, first, total = ranges[index].part, index, ranges[index].length
    while True:
        level, reach = _level(total), first
        while reach > 0 and _merges(ranges[reach - 1], part, level):
            reach -= 1
        more = sum(range_.length for range_ in ranges[reach:first])
        if first - reach < FAN - 1 or total + more > cap:
            return first
        total += more
        first = reach


def _merges(range_: _Range, part: Part, level: int) -> bool:
    return range_.part is part and _level(range_.length) <= level and not _is_alone(range_)


def _level(length: int) -> int:
    return (length >> 9).bit_length() // FAN_BITS


def _limit_spans(ranges: list[_Range]) -> None:
    """Write the smallest neighbours again, as one, while there are too many spans."""
    count = _count_spans(ranges)
    if count <= MAX_SPANS:
        return
    while count > CALM_SPANS:
        pairs = sorted(_pairs(ranges))
        if not pairs:
            return
        for _, index in pairs[: count - CALM_SPANS]:
            ranges[index].chunk = ranges[index + 1].chunk = None
        count = _count_spans(ranges)


def _pairs(ranges: list[_Range]) -> list[tuple[int, int]]:
    """Return (bytes to write again, index) of neighbours that could become one span."""
    alone = [_is_alone(range_) for range_ in ranges]
    pairs = []
    for index in range(len(ranges) - 1):
        a, b = ranges[index], ranges[index + 1]
        if not (alone[index] or alone[index + 1] or b.follows(a)) and (
            a.chunk is not None or b.chunk is not None
        ):
            pairs.append((a.length * (a.chunk is not None) + b.length * (b.chunk is not None), index))
    return pairs


def _count_spans(ranges: list[_Range]) -> int:
    count, last = 0, None
    for range_ in ranges:
        if last is None or not (range_.follows(last) or (range_.chunk is None and last.chunk is None)):
            count += not _is_alone(range_)
        last = range_
    return count


def _choose_inline(ranges: list[_Range]) -> None:
    """Put short new stretches, and all that is shorter than a span, into the checkpoint itself."""
    # Whether each is one span with the one before it.
    joins = [False, *[range_.follows(before) for before, range_ in pairwise(ranges)], False]
    stretch: list[_Range] = []  # neighbours that are written
    for index, range_ in enumerate((*ranges, None)):
        if range_ is not None:
            if range_.length <= SPAN_COST and not (joins[index] or joins[index + 1]):
                range_.chunk = None
            if range_.chunk is None:
                stretch.append(range_)
                continue
        if stretch and sum([written.length for written in stretch]) < INLINE:
            for written in stretch:
                written.chunk = INLINED
        stretch = []


def _divide(ranges: list[_Range], cap: int) -> list[_Range]:
    """Cut new ranges so that a large piece is alone and none is longer than a chunk may be."""
    divided = []
    for range_ in ranges:
        if range_.chunk is not None or range_.length < LARGE:
            divided.append(range_)
        else:
            divided.extend(_divided(range_, cap))
    return divided


def _divided(range_: _Range, cap: int) -> list[_Range]:
    part, start, stop = range_.part, range_.start, range_.start + range_.length
    ranges, begin, last = [], start, start
    inner = part.ends[bisect_right(part.ends, start) : bisect_left(part.ends, stop)]
    for end in (*inner, stop):
        if end - last >= LARGE or end - begin > cap:
            if last > begin:
                ranges.append(_Range(part, begin, last - begin))
            begin = last
        if end - last >= LARGE:
            step = MAX_RAW // 2
            ranges += [_Range(part, at, min(step, end - at)) for at in range(last, end, step)]
            begin = end
        last = end
    if stop > begin:
        ranges.append(_Range(part, begin, stop - begin))
    return ranges


def _is_alone(range_: _Range) -> bool:
    """Tell whether a range is one large piece."""
    if range_.length < LARGE:
        return False
    ends = range_.part.ends
    return bisect_right(ends, range_.start) == bisect_left(ends, range_.start + range_.length)


def _build(codec: Codec, namer: Namer, ranges: list[_Range], cap: int) -> dict[bytes, bytes]:
    """Put the new ranges into chunks, in the order of the stream; a large piece gets its own."""
    groups: list[list[_Range]] = [[]]
    for range_ in ranges:
        if range_.chunk is not None:
            continue
        alone = range_.length >= LARGE and _is_alone(range_)
        size = sum([other.length for other in groups[-1]])
        if (size and size + range_.length > cap) or (alone and size >= INLINE):
            groups.append([])
        groups[-1].append(range_)
        if alone:
            groups.append([])
    chunks: dict[bytes, bytes] = {}
    for group in filter(None, groups):
        data = encode(b"".join([_bytes(codec, range_) for range_ in group]))
        name, at = namer.name(data), 0
        chunks[name] = data
        for range_ in group:
            range_.chunk, range_.offset = name, at
            at += range_.length
    return chunks


def _bytes(codec: Codec, range_: _Range) -> bytes | memoryview:
    start, stop = range_.start, range_.start + range_.length
    if range_.part.leaf is None:
        return range_.part.cut(start, stop)
    return memoryview(range_.part.bytes_of(codec))[start:stop]


def _lay_out(codec: Codec, pieces: SplitState, ranges: list[_Range], chunks: dict[bytes, bytes]) -> Plan:
    index: dict[bytes, int] = {}
    layout: Layout = []
    places: list[tuple[Part, list[tuple[bytes, int, int]]]] = []
    spans: list[tuple[bytes, int, int]] = []
    part = None
    last, begin, end = -1, 0, 0  # the last span: number of its chunk, and where it begins and ends
    for range_ in ranges:
        if range_.part is not part:  # the ranges of a part are neighbours
            part, spans = range_.part, []
            places.append((part, spans))
        name, offset, length = range_.chunk, range_.offset, range_.length
        if not name:
            spans.append((INLINED, 0, length))
            _append_inline(layout, bytes(_bytes(codec, range_)))
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


def place(pieces: SplitState, layout: Layout, names: list[bytes]) -> None:
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
