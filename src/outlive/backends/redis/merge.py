"""Lines of many indexes in one order.

Each index is asked for a few lines at first; one that runs out is asked again before anybody goes on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

Taken = tuple[bytes, bytes, int]
Line = tuple[bytes, int, bytes]  # (what it is sorted by, number of the range, the line itself)


@dataclass(slots=True)
class Range:
    """A part of the index of a bucket: lines that begin with `start`, from `low`, which moves on, to `high`."""

    bucket: int
    start: bytes
    low: bytes
    high: bytes

    @classmethod
    def of(cls, bucket: int, start: bytes, prefix: bytes, behind: bytes | None) -> Range:
        """Return the range of lines with a prefix, behind a place. No UTF-8 has the byte 0xff."""
        low = b"[" + start + prefix
        if behind is not None and behind >= prefix:
            low = b"(" + start + behind
        return cls(bucket, start, low, b"(" + start + prefix + b"\xff")


Ask = Callable[[Sequence[Range], int], Awaitable[list[list[bytes]]]]


class Merge:
    """The lines of many ranges, in order of what stands behind their start."""

    def __init__(self, ask: Ask, ranges: Sequence[Range], count: int) -> None:
        self._ask = ask
        self._count = count
        self._ranges = dict(enumerate(ranges))  # those that may have more
        self._starts = [len(one.start) for one in ranges]
        self._buckets = [one.bucket for one in ranges]
        self._queues: dict[int, deque[bytes]] = {}
        self._heads: list[Line] = []
        self._hungry = list(self._ranges)

    async def take(self, count: int) -> list[Taken]:
        """Return the next lines, each with what stands behind its start and its bucket; fewer at the end."""
        taken: list[Taken] = []
        while len(taken) < count:
            if self._hungry:
                await self._fill()
            if not self._heads:
                break
            order, number, line = heapq.heappop(self._heads)
            taken.append((line, order, self._buckets[number]))
            self._advance(number)
        return taken

    async def _fill(self) -> None:
        hungry, self._hungry = self._hungry, []
        pages = await self._ask([self._ranges[number] for number in hungry], self._count)
        for number, page in zip(hungry, pages, strict=True):
            if len(page) < self._count:
                del self._ranges[number]
            else:
                self._ranges[number].low = b"(" + page[-1]
            self._queues[number] = deque(page)
            self._advance(number)

    def _advance(self, number: int) -> None:
        queue = self._queues[number]
        if queue:
            line = queue.popleft()
            heapq.heappush(self._heads, (line[self._starts[number] :], number, line))
        elif number in self._ranges:
            self._hungry.append(number)
