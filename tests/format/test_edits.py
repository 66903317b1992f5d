"""The search for what two texts have in common."""

import random

import pytest

from outlive.errors import Corrupt
from outlive.format import layout
from outlive.format.edit import PROBES, WORTH, find_common


@pytest.mark.parametrize("seed", range(200))
def test_common_ranges_are_equal_in_order_and_inside(seed):
    rng = random.Random(seed)
    old = bytes(rng.choices(rng.choice((b"ab", bytes(range(256)))), k=rng.randrange(20_000)))
    new = old
    for _ in range(rng.randrange(12)):
        at = rng.randrange(len(new) + 1)
        new = new[:at] + rng.randbytes(rng.randrange(50)) + new[at + rng.randrange(50) :]
    end = 0
    matches = find_common(new, old, (0, len(new), 0, len(old)), joins=rng.random() < 0.5)
    assert len(matches) <= PROBES + 2
    for start, length, offset in matches:
        assert start >= end
        assert length > 0
        assert new[start : start + length] == old[offset : offset + length]
        end = start + length
    assert end <= len(new)


def test_one_edit_leaves_all_but_its_bytes():
    rng = random.Random(1)
    old = rng.randbytes(100_000)
    new = old[:40_000] + b"edit" + old[40_100:]
    common = sum(length for _, length, _ in find_common(new, old, (0, len(new), 0, len(old))))
    assert len(new) - common <= 4
    assert find_common(rng.randbytes(WORTH * 10), old, (0, WORTH * 10, 0, len(old))) == []


def test_a_layout_is_read_back_as_it_was():
    spans = [(0, 5, 10), b"literal", (1, 0, 3), (0, 15, 2), (layout.COMPOSITE, 4, 9), (0, 0, 1)]
    assert layout.unflatten(layout.flatten(spans)) == spans


@pytest.mark.parametrize(
    "inner",
    [
        [],
        [b"text"],
        [(0, 0, 0)],
        [(-1, 0, 4)],
        [(0, 0, 3)],
        [(7, 0, 4)],
        [(0, 8, 4)],
        [(0, 0, 2), b"", (0, 2, 2)],
    ],
)
def test_a_composite_that_is_none_is_corrupt(inner):
    raw = layout.pack(inner)
    with pytest.raises(Corrupt):
        layout.assemble([(layout.COMPOSITE, 0, 4)], [raw, b"0123456789"], 4)


def test_a_composite_that_is_missing_or_no_list_is_corrupt():
    for raws in ([], [b"\xc1", b"01234"], [b"\x01", b"01234"], [b"", b"01234"]):
        with pytest.raises(Corrupt):
            layout.assemble([(layout.COMPOSITE, 0, 4)], raws, 4)
    good = layout.pack([(0, 3, 2), (0, 0, 2)])
    assert layout.assemble([(layout.COMPOSITE, 1, 2), b"!"], [good, b"01234"], 3) == b"40!"
