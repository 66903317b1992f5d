"""A conversation twice as long takes about twice the bytes: those of the store after `close()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
from measure import bytes_in
from scale import Scale
from table import Row, at_most, megabytes
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states, half = conversation(scale.steps), scale.steps // 2
    longer, shorter = _bytes(states, room / "whole"), _bytes(states[:half], room / "half")
    what = f"bytes of {len(states):,} saves / of {half:,}"
    yield at_most(what, longer / shorter, 2.4, f"{megabytes(longer)} / {megabytes(shorter)}")


def _bytes(states: list[State], folder: Path) -> int:
    folder.mkdir()
    ours.save_all(folder / "store.db", states)
    return bytes_in(folder)
