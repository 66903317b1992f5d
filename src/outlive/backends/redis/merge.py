"""Lines of many indexes, merged into one order.

The first exchange asks each index for a few lines. They tell how far the wanted lines reach at
most. The second one asks those indexes that may have more lines up to there, and only for these.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from outlive.dataclass import dataclass


class Line(NamedTuple):
    """A line of an index, what follows the start of its range, and the bucket of the index."""

    text: bytes
    rest: bytes
    bucket: int


@dataclass(frozen=True, slots=True)
class Range:
    """Lines of the index of a bucket that begin with `start`, from `low` to `high`."""

    bucket: int
    start: bytes
    low: bytes
    high: bytes

    @classmethod
    def of(cls, bucket: int, start: bytes, prefix: bytes, after: bytes | None) -> Range:
        """Return the range of lines with a prefix, after a position. No UTF-8 has the byte 0xff."""
        low = b"[" + start + prefix
        if after is not None and after >= prefix:
            low = b"(" + start + after
        return cls(bucket, start, low, b"(" + start + prefix + b"\xff")

    def part(self, after: bytes, bound: bytes | None) -> Range:
        """Return the lines after one that was read, up to a bound, both without the start."""
        low = b"(" + self.start + after if after else self.low
        return replace(self, low=low, high=self.high if bound is None else b"[" + self.start + bound)


Ask = Callable[[Sequence[Range], int], Awaitable[list[list[bytes]]]]


class Merge:
    """The lines of many ranges, in order of what follows their start."""

    def __init__(self, ask: Ask, ranges: Sequence[Range]) -> None:
        self._ask = ask
        self._ranges = ranges
        self._lines: list[tuple[bytes, int, bytes]] = []  # (rest, range number, line), in order
        # Ranges that may have more lines, by number: up to where they were read.
        self._ends: dict[int, bytes] = dict.fromkeys(range(len(ranges)), b"")
        self._was_asked = False

    async def take(self, count: int) -> list[Line]:
        """Return the next lines; fewer at the end."""
        while True:
            bound = self._lines[count - 1][0] if len(self._lines) >= count else None
            short = [number for number, end in self._ends.items() if bound is None or end < bound]
            if not short:
                break
            await self._read(short, bound, count if self._was_asked else 2 * count // len(short) + 1)
        taken, self._lines = self._lines[:count], self._lines[count:]
        return [Line(text, rest, self._ranges[number].bucket) for rest, number, text in taken]

    async def _read(self, numbers: Sequence[int], bound: bytes | None, page_size: int) -> None:
        """Read a page of each of some ranges, up to a bound."""
        self._was_asked = True
        parts = [self._ranges[number].part(self._ends[number], bound) for number in numbers]
        pages = await self._ask(parts, page_size)
        for number, part, page in zip(numbers, parts, pages, strict=True):
            rests = [line[len(part.start) :] for line in page]
            self._lines += [(rest, number, line) for rest, line in zip(rests, page, strict=True)]
            if len(page) == page_size:
                self._ends[number] = rests[-1]
            elif bound is not None:
                self._ends[number] = bound
            else:
                del self._ends[number]
        self._lines.sort()
