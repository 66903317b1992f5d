"""Lines of many indexes come in one order, by two exchanges for a page."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from outlive.backends.redis.merge import Merge, Range
from outlive.runtime.runtime import run_now


class Indexes:
    """Sorted lines of buckets, read as `index.lua` reads them."""

    def __init__(self, lines: list[list[bytes]]) -> None:
        self.lines = lines
        self.exchanges: list[int] = []  # lines that each has read

    async def ask(self, ranges: Sequence[Range], page_size: int) -> list[list[bytes]]:
        pages = []
        for part in ranges:
            fitting = [line for line in self.lines[part.bucket] if _is_within(line, part)]
            pages.append(fitting[:page_size])
        self.exchanges.append(sum(map(len, pages)))
        return pages


def _is_within(line: bytes, part: Range) -> bool:
    is_after = line > part.low[1:] if part.low[:1] == b"(" else line >= part.low[1:]
    return is_after and (line < part.high[1:] if part.high[:1] == b"(" else line <= part.high[1:])


def _indexes(chance: random.Random, buckets: int, count: int, start: bytes) -> Indexes:
    lines: list[list[bytes]] = [[] for _ in range(buckets)]
    for number in range(count):
        # Some are equal in what is compared, and others are of another tenant.
        lines[chance.randrange(buckets)].append(start + b"%04d" % (number - number % 3))
        lines[chance.randrange(buckets)].append(b"other\0%04d" % number)
    return Indexes([sorted(set(bucket)) for bucket in lines])


@pytest.mark.parametrize("buckets, count", [(1, 0), (1, 90), (3, 90), (64, 40), (64, 900), (64, 3)])
def test_lines_come_in_order_whatever_the_pages(buckets: int, count: int) -> None:
    chance, start = random.Random(buckets * 1000 + count), b"tenant\0"
    for size in (1, 7, 50, 1000):
        indexes = _indexes(chance, buckets, count, start)
        own = [
            (line[len(start) :], bucket)
            for bucket, lines in enumerate(indexes.lines)
            for line in lines
            if line.startswith(start)
        ]
        merge = Merge(indexes.ask, [Range.of(bucket, start, b"", None) for bucket in range(buckets)])
        taken = []
        while lines := run_now(merge.take(size)):
            assert len(lines) == min(size, len(own) - len(taken))
            assert all(line.text == start + line.rest for line in lines)
            taken += [(line.rest, line.bucket) for line in lines]
        assert taken == sorted(own)


def test_a_page_of_many_buckets_reads_little_more_than_its_lines() -> None:
    indexes = _indexes(random.Random(1), 1024, 20_000, b"t\0")
    merge = Merge(indexes.ask, [Range.of(bucket, b"t\0", b"", None) for bucket in range(1024)])
    assert len(run_now(merge.take(50))) == 50
    first, second = indexes.exchanges
    assert first <= 1024
    assert second < 50
