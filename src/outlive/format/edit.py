"""What an edited text has in common with the text before. Pure, no I/O.

Most edits leave a common beginning and a common end. What is between them is searched by probes: a
few bytes from the middle of the new text are looked up in the old one, and a hit is extended in
both directions. That finds several edits in one text, and text that moved because a length before
it changed. All comparisons are native, and the time is bounded by PROBES lookups. They search far
only once something in common is found: a text that was replaced costs a few lookups of NEAR bytes.
"""

from __future__ import annotations

from typing import Any

WORTH = 256  # a shorter common range costs more as a span than it saves
PROBES = 32
_PROBE = 32  # bytes that are looked up
_FAR = 64 * 1024  # how far from where it was before a text is searched
_NEAR = 128  # the same, before anything is found
_PLACES = (4, 2, 6, 1, 3, 5, 7)  # where probes are taken, in eighths of a gap

Match = tuple[int, int, int]  # (offset in the new bytes, length, offset in the old bytes)
Gap = tuple[int, int, int, int]  # (from, to) in the new bytes, (from, to) in the old bytes


def find_common(new: bytes, old: bytes, gap: Gap, *, joins: bool = False) -> list[Match]:
    """Return the ranges of a gap that both texts have, in order.

    With `joins`, what is around the gap is common too, so that even a short beginning or end
    counts.
    """
    matches: list[Match] = []
    low, high, old_low, old_high = gap
    # 1. The common beginning and end.
    head = _common_start(new, low, old, old_low, min(high - low, old_high - old_low))
    tail = _common_end(new, high, old, old_high, min(high - low, old_high - old_low) - head)
    for length, start, offset in ((head, low, old_low), (tail, high - tail, old_high - tail)):
        if length >= WORTH or (joins and length):
            matches.append((start, length, offset))
    # 2. Probes between them. A match splits its gap in two, which are searched in turn; a gap without
    #    a match is new. All gaps share the budget of probes, so the time is bounded.
    gaps, probes = [(low + head, high - tail, old_low + head, old_high - tail)], PROBES
    reach = _FAR if max(head, tail) >= WORTH else _NEAR
    while gaps:
        gap = gaps.pop()
        if min(gap[1] - gap[0], gap[3] - gap[2]) < WORTH:
            continue
        for eighths in _PLACES[:probes]:
            probes -= 1
            match = _probe(new, old, gap, gap[0] + (gap[1] - gap[0] - _PROBE) * eighths // 8, reach)
            if match is not None:
                reach = _FAR  # an edited text, not another one
                start, length, offset = match
                matches.append(match)
                gaps.append((gap[0], start, gap[2], offset))
                gaps.append((start + length, gap[1], offset + length, gap[3]))
                break
    matches.sort()
    return matches


def resembles(new: Any, old: Any) -> bool:  # two str or two bytes
    """Tell at little cost whether two texts are likely to have something in common."""
    if new[:_PROBE] == old[:_PROBE] or new[-_PROBE:] == old[-_PROBE:]:
        return True
    for eighths in _PLACES:
        at = (len(new) - _PROBE) * eighths // 8
        for place in (at, len(old) - (len(new) - at)):
            if new[at : at + _PROBE] in old[max(0, place - _NEAR) : max(0, place + _NEAR)]:
                return True
    return False


def _probe(new: bytes, old: bytes, gap: Gap, at: int, reach: int) -> Match | None:
    """Look up the bytes at `at`, and extend what is found."""
    low, high, old_low, old_high = gap
    # Without a change before it, or without one after it, the text would be at one of these.
    hit, probe = -1, new[at : at + _PROBE]
    for place in {old_low + at - low, old_high - (high - at)}:
        if hit < 0:
            hit = old.find(probe, max(old_low, place - reach), min(old_high, place + reach))
    if hit < 0:
        return None
    back = _common_end(new, at, old, hit, min(at - low, hit - old_low))
    length = back + _common_start(new, at, old, hit, min(high - at, old_high - hit))
    return (at - back, length, hit - back) if length >= WORTH else None


def _common_start(new: bytes, at: int, old: bytes, old_at: int, limit: int) -> int:
    """Return how many bytes after `at` are those after `old_at`, `limit` at most.

    Steps that grow find where the difference is, steps that shrink find the byte.
    """
    view, same, step = memoryview(old), 0, 512
    while same < limit and step:
        size = min(step, limit - same)
        if new.startswith(view[old_at + same : old_at + same + size], at + same):
            same += size
            step *= 4
        else:  # the difference is in these bytes
            limit, step = same + size - 1, size // 2
    return same


def _common_end(new: bytes, at: int, old: bytes, old_at: int, limit: int) -> int:
    """Return how many bytes before `at` are those before `old_at`, `limit` at most: as `_common_start`."""
    view, same, step = memoryview(old), 0, 512
    while same < limit and step:
        size = min(step, limit - same)
        if new.endswith(view[old_at - same - size : old_at - same], 0, at - same):
            same += size
            step *= 4
        else:
            limit, step = same + size - 1, size // 2
    return same
