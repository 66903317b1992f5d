"""A large state of which only a small field changes: strings of 1 MB, the very same objects at every save.

It takes turns with a state of the same shape that holds one such string. The cache is large enough to hold
both.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ours
import outlive
from measure import Race, settled
from scale import Scale
from table import Row, at_most, milliseconds
from text import prose
from workloads import SEED, State

_MEGABYTE = 1_000_000
_CACHE_BYTES = 128 * 1024 * 1024
_WARM_UP = 3


def run(scale: Scale, room: Path) -> Iterator[Row]:
    blobs = _blobs(scale.megabytes)
    race = Race()
    with settled(), ours.open_store(room / "store.db", cache_bytes=_CACHE_BYTES) as store:
        small, large = store.thread("small"), store.thread("large")
        for step in range(_WARM_UP):
            small.save(_state(blobs[:1], step))
            large.save(_state(blobs, step))
        for step in range(_WARM_UP, _WARM_UP + scale.laps):
            race.lap(
                small=partial(small.save, _state(blobs[:1], step)),
                large=partial(large.save, _state(blobs, step)),
            )
        _read_back(large, blobs)
    note = f"{milliseconds(race.wall('large'))} / {milliseconds(race.wall('small'))}"
    yield at_most(f"small change in {scale.megabytes} MB / in 1 MB", race.ratio("large", "small"), 2, note)


def _blobs(count: int) -> list[str]:
    """Cut `count` different strings of one megabyte from one long text."""
    text = prose(random.Random(SEED), _MEGABYTE)
    shift = _MEGABYTE // count
    return [text[n * shift :] + text[: n * shift] for n in range(count)]


def _state(blobs: list[str], step: int) -> State:
    return {"blobs": list(blobs), "note": f"step {step}", "step": step}


def _read_back(thread: outlive.Thread, blobs: list[str]) -> None:
    state = thread.load()
    if state is None or state["blobs"] != blobs:
        raise AssertionError("the large state came back as another state")
