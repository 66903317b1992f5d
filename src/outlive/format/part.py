"""A stretch of the stream of a state, and what it has in common with the one before. Pure, no I/O.

A part knows its bytes, its cuts, and where it is stored. When a run of elements is packed again, an
alignment finds the bytes that the old part has too. By far the most common is a run that grew: one
comparison. Then come edits (a common beginning and end), a window that moved on, and at last single
pieces wherever they are now.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, NamedTuple, Protocol

from outlive.dataclass import dataclass
from outlive.format.codec import Codec
from outlive.format.composite import Composite
from outlive.format.edit import WORTH, find_common

StoredSpan = tuple[bytes | Composite, int, int]  # (name of a chunk, INLINED or a composite; offset; length)


class Part:
    """A stretch of the stream. `spans` says where its bytes are stored, once they are.

    The bytes of a run that grows are held as a long beginning, shared with the part before it, and
    a short rest: a new buffer for every state would cost more than comparing does.
    """

    __slots__ = ("_bytes", "ends", "holds_bytes", "kept", "leaf", "marks", "size", "spans")

    def __init__(
        self, data: bytes, ends: list[int], marks: list[int] | None = None, *, start: int = 0
    ) -> None:
        # (beginning, where in it the part starts, rest); None: see `forget_packed`. Cutting off
        # what is before the start would copy the bytes.
        self._bytes: tuple[bytes, int, bytes] | None = (data, start, b"")
        self.ends = ends  # the offsets after each piece: where the part may be cut
        # How many elements of the container are before each of these.
        self.marks = marks if marks is not None else list(range(1, len(ends) + 1))
        self.size = ends[-1] if ends else 0
        self.holds_bytes = False
        self.leaf: str | bytes | None = None
        # What an earlier part has too: (offset, length, earlier part, its offset).
        self.kept: list[tuple[int, int, Part, int]] = []
        self.spans: list[StoredSpan] | None = None

    def hold_more(self, old: Part, rest: bytes) -> None:
        """Take the bytes of an earlier part and `rest`."""
        assert old._bytes is not None
        data, start, more = old._bytes
        more += rest
        if len(more) * _SHORT > len(data):
            data, start, more = b"".join((memoryview(data)[start:], more)), 0, b""
        self._bytes = (data, start, more)

    def share_edit(self, old: Part, data: bytes, before: bytes, skip: int = 0) -> None:
        """Keep what `before`, the bytes of `old`, has in common with `data`, the bytes of this part."""
        matches = find_common(data, before, (skip, len(data), skip, len(before)))
        self.kept = [(start, length, old, offset) for start, length, offset in matches]

    def share_edits(self, old: Part) -> None:
        """Look for the bytes between kept ranges in what was between them in `old`."""
        kept, at, old_at = list[tuple[int, int, Part, int]](), 0, 0
        for start, length, other, offset in (*self.kept, (self.size, 0, old, old.size)):
            if start - at >= WORTH and offset - old_at >= WORTH:
                kept += self._common(old, (at, start, old_at, offset))
            if length:
                kept.append((start, length, other, offset))
            at, old_at = start + length, offset + length
        self.kept = kept

    def _common(self, old: Part, gap: tuple[int, int, int, int]) -> list[tuple[int, int, Part, int]]:
        assert self._bytes is not None
        assert old._bytes is not None
        old.whole()
        (data, start, _), (before, first, _) = self._bytes, old._bytes
        low, high, old_low, old_high = gap
        matches = find_common(
            data, before, (start + low, start + high, first + old_low, first + old_high), joins=True
        )
        return [(at - start, length, old, offset - first) for at, length, offset in matches]

    def forget_packed(self) -> None:
        """Forget the packed form of a leaf: the leaf itself is kept, and both would take the room twice."""
        self._bytes = None

    def starts(self, data: bytes, at: int) -> bool:
        """Tell whether `data` has the bytes of this part at `at`."""
        assert self._bytes is not None
        long, start, more = self._bytes
        length = len(long) - start
        return data.startswith(memoryview(long)[start:], at) and data.startswith(more, at + length)

    def is_equal(self, data: bytes) -> bool:
        """Tell whether `data` is all of this part, which is not a leaf."""
        return self._bytes is not None and self.size == len(data) and self.starts(data, 0)

    def has(self, data: memoryview, low: int, high: int) -> bool:
        """Tell whether `data` is what this part has from `low` to `high`."""
        assert self._bytes is not None
        long, start, more = self._bytes
        border = len(long) - start - low  # what comes after it in `data` is in the rest
        return (
            len(data) == high - low
            and (border <= 0 or long.startswith(data[:border], start + low))
            and (border >= len(data) or more.startswith(data[max(0, border) :], max(0, -border)))
        )

    def whole(self) -> memoryview:
        """Return all bytes of a run or of glue."""
        assert self._bytes is not None
        data, start, more = self._bytes
        if more:
            data, start = b"".join((memoryview(data)[start:], more)), 0
            self._bytes = (data, start, b"")
        return memoryview(data)[start:]

    def bytes_of(self, codec: Codec) -> bytes | memoryview:
        """Return the bytes; those of a leaf are packed when asked for."""
        return codec.pack_native(self.leaf) if self._bytes is None else self.whole()

    def cut(self, low: int, high: int) -> bytes:
        """Return the bytes from `low` to `high`."""
        assert self._bytes is not None
        data, start, more = self._bytes
        length = len(data) - start
        if high <= length:
            return data[start + low : start + high]
        if low >= length:
            return more[low - length : high - length]
        return data[start + low :] + more[: high - length]


_SHORT = 8  # the rest is joined with the beginning when it is longer than an eighth of it


class LayoutChanged(Exception):
    """The old branch does not fit this container: split it fully."""


class Packer(Protocol):
    """What packs elements for an alignment."""

    def pack_run(self, elements: list[Any], is_dict: bool) -> bytes: ...
    def cut(
        self, elements: list[Any], is_dict: bool, limit: int, average: float, packed: bytes
    ) -> tuple[list[bytes], list[int], bool]: ...


class PackedRun(NamedTuple):
    """The packed elements of a run: `data` from `start` on.

    With `follows_old`, the run begins with all bytes of the old run, which were compared and are
    not repeated in `data`: offsets count as if they were, so `start` lies before the data.
    """

    data: bytes
    start: int
    follows_old: bool = False


@dataclass(slots=True)
class Alignment:
    """Finds the bytes of a run in its predecessor: at its start, at its end, then anywhere."""

    _packer: Packer
    _elements: list[Any]
    _is_dict: bool
    _limit: int
    _data: bytes
    _start: int
    _size: int

    def align(self, old: Part, *, follows_old: bool) -> Part:
        """Return the new part, with what it keeps of the old one."""
        head = len(old.ends) if follows_old else self._common_prefix(old)
        if head == len(old.ends):
            return self._grown(old)
        if head == 0:
            shifted = self._shifted(old)
            if shifted is not None:
                return shifted
        # Of a few pieces each is looked for alone anyway.
        tail = self._common_suffix(old, head) if len(old.ends) - head > _FEW else 0
        return self._assemble(old, head, tail)

    def _grown(self, old: Part) -> Part:
        """Return the old run with more at its end: by far the most common."""
        part = Part(self._data, list(old.ends), list(old.marks), start=self._start)
        part.kept = [(0, old.size, old, 0)] if old.size else []
        part = self._finish(part, old, self._elements[part.marks[-1] if part.marks else 0 :])
        part.hold_more(old, self._data[self._start + old.size :])
        return part

    def _shifted(self, old: Part) -> Part | None:
        """Return a window that moved on: the old run without its first elements, and more at its end; None if it is none."""
        if not self._elements:
            return None
        first = self._packer.pack_run(self._elements[:1], self._is_dict)
        whole = old.whole()
        start = bytes(whole).find(first)
        cut = bisect_left(old.ends, start)
        if start <= 0 or cut >= len(old.ends) or old.ends[cut] != start:
            return None
        if not self._data.startswith(whole[start:], self._start):
            return None
        gone = old.marks[cut]
        ends = [end - start for end in old.ends[cut + 1 :]]
        marks = [mark - gone for mark in old.marks[cut + 1 :]]
        part = Part(self._data, ends, marks, start=self._start)
        part.kept = [(0, old.size - start, old, start)]
        return self._finish(part, old, self._elements[part.marks[-1] if part.marks else 0 :])

    def _assemble(self, old: Part, head: int, tail: int) -> Part:
        """Keep the first `head` and the last `tail` cuts of the old run; pack what is between them."""
        part = Part(self._data, old.ends[:head], old.marks[:head], start=self._start)
        if head:
            part.kept = [(0, part.size, old, 0)]
        before, count = _before_tail(old, tail) if tail else (old.size, 0)
        done = part.marks[-1] if part.marks else 0
        part = self._finish(part, old, self._elements[done : len(self._elements) - count], old.size - before)
        if tail:
            shift, more = self._size - old.size, len(self._elements) - old.marks[-1]
            part.ends += [end + shift for end in old.ends[-tail:]]
            part.marks += [mark + more for mark in old.marks[-tail:]]
            part.kept.append((before + shift, old.size - before, old, before))
        part.share_edits(old)
        return part

    def _finish(self, part: Part, old: Part, elements: list[Any], after: int = 0) -> Part:
        """Cut the new elements and look for each piece among the unused old ones.

        `after` bytes follow them.
        """
        average = self._size / max(1, len(self._elements))
        at, mark = part.size, part.marks[-1] if part.marks else 0
        packed = self._data[self._start + at : len(self._data) - after]
        pieces, counts, holds_bytes = self._packer.cut(elements, self._is_dict, self._limit, average, packed)
        leftovers = _leftovers(old, part.kept) if len(pieces) > 1 or not part.kept else {}
        for piece, count in zip(pieces, counts, strict=True):
            if (where := leftovers.get(piece)) is not None:
                part.kept.append((at, len(piece), old, where))
            at += len(piece)
            mark += count
            part.ends.append(at)
            part.marks.append(mark)
        if at + after != self._size:
            raise LayoutChanged
        part.size = self._size
        part.holds_bytes = old.holds_bytes or holds_bytes
        return part

    def _common_prefix(self, old: Part) -> int:
        """Return how many of the old cuts lie inside the common prefix."""
        if old.starts(self._data, self._start):
            return len(old.ends)
        low, high, same = 0, len(old.ends) - 1, 0
        while low < high:
            middle = (low + high) // 2
            if self._data.startswith(old.cut(same, old.ends[middle]), self._start + same):
                same = old.ends[middle]
                low = middle + 1
            else:
                high = middle
        return low

    def _common_suffix(self, old: Part, head: int) -> int:
        """Return how many of the last old pieces end the new run too, apart from the first `head`."""
        room = self._size - (old.ends[head - 1] if head else 0)
        low, high = 0, len(old.ends) - head
        while low < high:
            middle = (low + high + 1) // 2
            before, _ = _before_tail(old, middle)
            if old.size - before <= room and self._data.endswith(old.whole()[before:]):
                low = middle
            else:
                high = middle - 1
        return low


_FEW = 4


def _before_tail(old: Part, tail: int) -> tuple[int, int]:
    """Return where the last `tail` pieces begin, and how many elements they are."""
    if tail == len(old.ends):
        return 0, old.marks[-1] if old.marks else 0
    return old.ends[-tail - 1], old.marks[-1] - old.marks[-tail - 1]


def _leftovers(old: Part, kept: list[tuple[int, int, Part, int]]) -> dict[bytes, int]:
    """Return the pieces of the old run that are not kept yet, and where each is."""
    used = [(offset, offset + length) for _, length, _, offset in kept]
    if used == [(0, old.size)]:
        return {}
    pieces, start = {}, 0
    for end in old.ends:
        if not any(a <= start and end <= b for a, b in used):
            pieces[old.cut(start, end)] = start
        start = end
    return pieces
