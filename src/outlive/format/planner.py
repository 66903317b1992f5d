"""Parts to chunks: what is new, and how it is packed together.

Theory of operation. A checkpoint lists its stream as spans, each a range of bytes in a chunk; very
short stretches are stored inline, in the checkpoint itself. A save that shares with an earlier one
names the old ranges and puts what is new into one new chunk. Appending without end would make one
short span per save, so short neighbours at the end of a run are merged like the levels of a
log-structured store: when the last FAN of them are of one level or below, they are written again as
one. So each byte is rewritten log_FAN(n) times at most, and a list that grew in a thousand steps is
a few dozen spans. A large piece gets a chunk of its own and is never rewritten. Apart from large
pieces a checkpoint never lists more than MAX_SPANS spans.

A text that is edited in the middle is spans of the old text around the new bytes. When a checkpoint
would list too many of them, its layout becomes a composite (`layout.py`), which later checkpoints
share. A composite has at most MAX_COMPOSED spans, and one for COMPOSED_BYTES of the state: beyond
that the smallest neighbours are written again as one. What is read of small chunks is gathered in
larger ones, so that a load reads a number of chunks that grows with the logarithm of the edits.

A plan changes nothing in the store, and nothing in the parts until `record_spans`: a save that is
refused, or a crash before the commit, leaves both as they were.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from outlive.dataclass import dataclass
from outlive.format.chunk import MAX_RAW, Namer, encode
from outlive.format.codec import Codec
from outlive.format.composite import INLINED, Composite
from outlive.format.layout import COMPOSITE, Layout, pack
from outlive.format.part import Part, StoredSpan
from outlive.format.ranges import (
    FAN,
    Range,
    count_spans,
    decompose,
    gather,
    is_alone,
    level,
    limit_spans,
    ranges_of,
)
from outlive.format.splitter import LARGE, SPLIT, SplitState

SPAN_COST = 20  # bytes that a span of its own takes: a name and three numbers
INLINE = 128  # shorter than this, a stretch costs less inline than as a span
MAX_SPANS = 64
CALM_SPANS = 48  # a stream that had too many spans is brought down to this
MAX_COMPOSED = 512  # spans of a composite
COMPOSED_BYTES = 512  # of the state for each of them
MAX_CHUNK = 1 << 20  # a new chunk is closed when it has reached this
INLINE_SUM = 256  # above this, an inline stretch would cost more in every checkpoint than once in a chunk


@dataclass(slots=True)
class Plan:
    """How a stream will be stored: new chunks, names in order, layout, places of the parts."""

    pieces: SplitState
    chunks: dict[bytes, bytes]
    names: list[bytes]
    layout: Layout
    places: list[tuple[Part, list[StoredSpan]]]
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


def plan_chunks(codec: Codec, namer: Namer, pieces: SplitState, old: SplitState | None) -> Plan:
    """Decide how to store `pieces`, whose kept ranges point into the parts of `old`."""
    # By far the most states are too small to be cut: no ranges are needed, unless the state is the
    # old one again and can share its chunk.
    if pieces.root is None and pieces.size < SPLIT:
        raw = pieces.parts[0].cut(0, pieces.size)
        if old is None or old.size != pieces.size or not old.parts[0].starts(raw, 0):
            return _plan_whole(namer, pieces, raw)
    # 1. Find what is stored already: parts of `old`.
    if old is not None:
        _adopt(pieces, old)
    ranges = [range_ for part in pieces.parts for range_ in ranges_of(part)]
    # 2. Choose what is written again although it is stored, to keep the number of spans small. `cap`
    #    limits the bytes of a new chunk; it grows with the state, so that few chunks hold all of it.
    cap = min(MAX_RAW // 2, max(MAX_CHUNK, pieces.size // (CALM_SPANS // 2)))
    _merge_tails(ranges, cap)
    composites = {range_.chunk for range_ in ranges if isinstance(range_.chunk, Composite)}
    folds = len(ranges) > MAX_SPANS or (bool(composites) and _is_wasteful(ranges, composites))
    if folds:
        # The composite is made again from spans of chunks alone: composites do not nest. If that
        # leaves few enough spans, none is needed.
        ranges, composites = decompose(ranges), set()
        most = max(MAX_SPANS, min(MAX_COMPOSED, pieces.size // COMPOSED_BYTES))
        limit_spans(ranges, most, most * 3 // 4)
        gather(ranges, cap)
        folds = count_spans(ranges) > MAX_SPANS
    # 3. Choose what is too short for a span of its own. From here on `chunk` is None only for what
    #    is written. A composite has no text.
    if not folds:
        _choose_inline(ranges)
    # 4. Put what is written into chunks.
    if any(range_.length >= LARGE for range_ in ranges if range_.chunk is None):
        ranges = _divide(ranges, cap)
    chunks = _build(codec, namer, ranges, cap)
    # 5. List the spans of the whole stream in order. Nothing is stored yet, and no part knows of the
    #    plan: a crash or a refusal leaves the base as it is.
    plan = _lay_out(codec, pieces, ranges, chunks, *composites)
    return _fold(namer, plan) if folds else plan


def _is_wasteful(ranges: list[Range], composites: set[Composite]) -> bool:
    """Tell whether a state reads too little of a composite, or has two of them."""
    used = sum([range_.length for range_ in ranges if isinstance(range_.chunk, Composite)])
    return len(composites) > 1 or 2 * used < sum([composite.size for composite in composites])


def _fold(namer: Namer, plan: Plan) -> Plan:
    """Make the layout of a plan a composite: what is not edited costs later checkpoints one span."""
    data = encode(pack(plan.layout))
    spans = [item for item in plan.layout if type(item) is tuple]
    composite, at = Composite(namer.name(data), plan.names, spans), 0
    for index, (part, _) in enumerate(plan.places):
        plan.places[index] = (part, [(composite, at, part.size)])
        at += part.size
    chunks = plan.chunks | {composite.name: data}
    layout: Layout = [(COMPOSITE, 0, at)]
    names = [composite.name, *plan.names]
    return Plan(plan.pieces, chunks, names, layout, plan.places, plan.added + len(data))


def _plan_whole(namer: Namer, pieces: SplitState, raw: bytes) -> Plan:
    """Store a state that is too small to be cut, and shares nothing, inline or as one chunk."""
    (part,) = pieces.parts
    if len(raw) < INLINE:
        return Plan(pieces, {}, [], [raw], [(part, [(INLINED, 0, len(raw))])], 0)
    data = encode(raw)
    name = namer.name(data)
    span = (name, 0, len(raw))
    return Plan(pieces, {name: data}, [name], [(0, 0, len(raw))], [(part, [span])], len(data))


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


def _merge_tails(ranges: list[Range], cap: int) -> None:
    """Write short neighbours before what was appended again, together with it, when FAN of them have gathered.

    Only at the end of a run that grew: an edit in the middle says nothing about its neighbours.
    """
    for index, range_ in enumerate(ranges):
        if range_.chunk is not None or not range_.part.kept:
            continue
        # The part grew when the last range that it keeps ends where the earlier part ended.
        _, length, other, offset = range_.part.kept[-1]
        is_last = index + 1 == len(ranges) or ranges[index + 1].part is not range_.part
        if offset + length != other.size or not is_last or (range_.length >= LARGE and is_alone(range_)):
            continue
        for neighbour in ranges[_merge_from(ranges, index, cap) : index]:
            neighbour.chunk = range_.chunk = None


def _merge_from(ranges: list[Range], index: int, cap: int) -> int:
    """Return the first of the ranges that are written again together with the new one at `index`."""
    part, first, total = ranges[index].part, index, ranges[index].length
    cap = min(cap, part.size // 2)  # half of a run is not written again for what was appended
    while True:
        # Look back over neighbours of the same level or below. Fewer than FAN, with the new one,
        # stay as they are; more become one range, which may be of the next level and complete FAN
        # of those.
        height, reach, joined = level(total), first, total
        while reach > 0 and _merges(ranges[reach - 1], part, height):
            if joined + ranges[reach - 1].length > cap:
                break
            reach -= 1
            joined += ranges[reach].length
        if first - reach < FAN - 1:
            return first
        total, first = joined, reach


def _merges(range_: Range, part: Part, height: int) -> bool:
    return range_.part is part and level(range_.length) <= height and not is_alone(range_)


def _choose_inline(ranges: list[Range]) -> None:
    """Put short new stretches, and all that is shorter than a span, into the checkpoint itself."""
    # 1. Gather the stretches that are written. A stored range shorter than its span is written too,
    #    unless it joins a neighbour, which makes its span free.
    stretches: list[list[Range]] = [[]]  # neighbours that are written
    for index, range_ in enumerate(ranges):
        if range_.length <= SPAN_COST and range_.chunk is not None and not _joins(ranges, index):
            range_.chunk = None
        if range_.chunk is None:
            stretches[-1].append(range_)
        elif stretches[-1]:
            stretches.append([])
    # 2. Inline the short ones. If they are many, only the shortest: later checkpoints would repeat
    #    them all.
    sizes = [sum([range_.length for range_ in stretch]) for stretch in stretches]
    limit = INLINE if sum([size for size in sizes if size < INLINE]) < INLINE_SUM else SPAN_COST
    for size, stretch in zip(sizes, stretches, strict=True):
        if size < limit:
            for range_ in stretch:
                range_.chunk = INLINED


def _joins(ranges: list[Range], index: int) -> bool:
    """Tell whether a range is one span with the one before it or after it."""
    range_ = ranges[index]
    return (index > 0 and range_.follows(ranges[index - 1])) or (
        index + 1 < len(ranges) and ranges[index + 1].follows(range_)
    )


def _divide(ranges: list[Range], cap: int) -> list[Range]:
    """Cut new ranges so that a large piece is alone and none is longer than a chunk may be."""
    divided = []
    for range_ in ranges:
        if range_.chunk is not None or range_.length < LARGE:
            divided.append(range_)
        else:
            divided.extend(_divided(range_, cap))
    return divided


def _divided(range_: Range, cap: int) -> list[Range]:
    """Cut a new range at the cuts of its part: large pieces alone, the others in stretches of up to `cap`."""
    part, start, stop = range_.part, range_.start, range_.start + range_.length
    ranges, begin, last = [], start, start
    inner = part.ends[bisect_right(part.ends, start) : bisect_left(part.ends, stop)]
    for end in (*inner, stop):
        if end - last >= LARGE or end - begin > cap:
            # The stretch before this piece ends here.
            if last > begin:
                ranges.append(Range(part, begin, last - begin))
            begin = last
        if end - last >= LARGE:
            # A large piece has chunks of its own, several if it is larger than a chunk may be.
            step = MAX_RAW // 2
            ranges += [Range(part, at, min(step, end - at)) for at in range(last, end, step)]
            begin = end
        last = end
    if stop > begin:
        ranges.append(Range(part, begin, stop - begin))
    return ranges


def _build(codec: Codec, namer: Namer, ranges: list[Range], cap: int) -> dict[bytes, bytes]:
    """Put the new ranges into chunks, in the order of the stream; a large piece gets its own."""
    groups: list[list[Range]] = [[]]
    for range_ in ranges:
        if range_.chunk is not None:
            continue
        alone = range_.length >= LARGE and is_alone(range_)
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


def _bytes(codec: Codec, range_: Range) -> bytes | memoryview:
    start, stop = range_.start, range_.start + range_.length
    if range_.part.leaf is None:
        return range_.part.cut(start, stop)
    return memoryview(range_.part.bytes_of(codec))[start:stop]


def _lay_out(
    codec: Codec,
    pieces: SplitState,
    ranges: list[Range],
    chunks: dict[bytes, bytes],
    composite: Composite | None = None,
) -> Plan:
    """List the spans of the checkpoint, and those of each part for the next plan.

    The two differ: a span of the checkpoint may reach over several parts.
    """
    # The names of a composite come first, because its ranges are numbered from there (`layout.py`).
    names = (composite.name, *composite.names) if composite is not None else ()
    index: dict[bytes, int] = {name: number for number, name in enumerate(names)}
    layout: Layout = []
    places: list[tuple[Part, list[StoredSpan]]] = []
    spans: list[StoredSpan] = []
    part = None
    last, begin, end = _NONE, 0, 0  # the last span: number of its chunk, and where it begins and ends
    for range_ in ranges:
        if range_.part is not part:  # the ranges of a part are neighbours
            part, spans = range_.part, []
            places.append((part, spans))
        name, offset, length = range_.chunk, range_.offset, range_.length
        if not name:
            # Inline: the bytes themselves, joined with inline bytes before them.
            spans.append((INLINED, 0, length))
            _append_inline(layout, bytes(_bytes(codec, range_)))
            last = _NONE
            continue
        number = index.setdefault(name, len(index)) if type(name) is bytes else COMPOSITE
        # It continues the span before it in the same chunk: one span. Otherwise a span of its own.
        if number == last and offset == end:
            end += length
            layout[-1] = (number, begin, end - begin)
            if spans:  # of the same part: one span there too, so that the next plan has one range
                _, offset, before = spans.pop()
                length += before
        else:
            last, begin, end = number, offset, offset + length
            layout.append((number, offset, length))
        spans.append((name, offset, length))
    return Plan(pieces, chunks, list(index), layout, places, sum(map(len, chunks.values())))


_NONE = -2  # no chunk and no composite


def _append_inline(layout: Layout, data: bytes) -> None:
    if layout and isinstance(layout[-1], bytes):
        layout[-1] += data
    else:
        layout.append(data)


def place(pieces: SplitState, layout: Layout, names: Sequence[bytes], composite: Composite | None) -> None:
    """Tell the parts of a state that was read back where they are stored."""
    # The spans of the stream, the next one last; each part takes its bytes from there.
    spans: list[StoredSpan] = []
    for item in reversed(layout):
        if type(item) is bytes:
            spans.append((INLINED, 0, len(item)))
        else:
            number, offset, length = item
            spans.append((composite or INLINED if number == COMPOSITE else names[number], offset, length))
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
