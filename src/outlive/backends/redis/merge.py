"""Lines of many indexes, merged into one order.

Each index is asked for a few lines at first. One that runs out is asked again before the merge
continues.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Line(NamedTuple):
    """A line of an index, what follows the start of its range, and the bucket of the index."""

    text: bytes
    rest: bytes
    bucket: int


@dataclass(slots=True)
class Range:
    """Lines of the index of a bucket that begin with `start`, from `low`, which advances."""

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


Ask = Callable[[Sequence[Range], int], Awaitable[list[list[bytes]]]]


class Merge:
    """The lines of many ranges, in order of what follows their start."""

    def __init__(self, ask: Ask, ranges: Sequence[Range], page_size: int) -> None:
        self._ask = ask
        self._page_size = page_size
        self._ranges = ranges
        self._open = set(range(len(ranges)))  # numbers of ranges that may have more lines
        self._queues: list[deque[bytes]] = [deque() for _ in ranges]
        self._heads: list[tuple[bytes, int, bytes]] = []  # heap of (rest, range number, line)
        self._empty = list(self._open)

    async def take(self, count: int) -> list[Line]:
        """Return the next lines; fewer at the end."""
        taken: list[Line] = []
        while len(taken) < count:
            # Every range that may have more lines needs one in the heap, for the order.
            if self._empty:
                await self._fill()
            if not self._heads:
                break
            rest, number, text = heapq.heappop(self._heads)
            taken.append(Line(text, rest, self._ranges[number].bucket))
            self._advance(number)
        return taken

    async def _fill(self) -> None:
        numbers, self._empty = self._empty, []
        pages = await self._ask([self._ranges[number] for number in numbers], self._page_size)
        for number, page in zip(numbers, pages, strict=True):
            if len(page) < self._page_size:
                self._open.remove(number)
            else:
                self._ranges[number].low = b"(" + page[-1]
            self._queues[number].extend(page)
            self._advance(number)

    def _advance(self, number: int) -> None:
        """Move the next line of a range into the heap."""
        queue = self._queues[number]
        if queue:
            text = queue.popleft()
            heapq.heappush(self._heads, (text[len(self._ranges[number].start) :], number, text))
        elif number in self._open:
            self._empty.append(number)
