"""Bytes of all files of a store after `close()`, with every checkpoint kept.

The base of the ratio is the last state, packed once by ormsgpack and not compressed. A sample of
checkpoints is read back by id from a store opened again and compared with what was saved. The peer stores
the same states.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
import yardstick
from measure import bytes_in
from scale import Scale
from table import Row, Versus, at_most, megabytes, times
from workloads import WORKLOADS, State

BARS = {"conversation": 2.3, "nested": 2.3, "window": 10.0, "files": 6.0, "text": 4.0, "images": 1.6}
TEXT = (2.5, 3.5)  # how well the made-up text may compress to stand for a real transcript


def run(scale: Scale, room: Path) -> Iterator[Row]:
    for name, make in WORKLOADS.items():
        states = make(scale.steps)
        if name != "images":
            yield _text(name, states[-1])
        yield _bytes(name, states, scale, room)


def _text(name: str, state: State) -> Row:
    ratio, (low, high) = yardstick.zstd_ratio(state), TEXT
    measured = f"{times(ratio)} smaller than {megabytes(yardstick.packed_size(state))}"
    return Row(f"{name}: last state under zstd level 1", measured, f"{low}-{high}x", low <= ratio <= high)


def _bytes(name: str, states: list[State], scale: Scale, room: Path) -> Row:
    stored, last = _ours(states, scale, room / name), yardstick.packed_size(states[-1])
    note, versus = f"{megabytes(stored)} for {len(states):,} states", None
    if name == "conversation":
        what = f"{len(states):,} checkpoints of a conversation, last state {megabytes(last)}"
        versus = Versus(what, megabytes(stored), megabytes(_peer(states, room / "peer")))
        note += f"; SqliteSaver {versus.peer}"
    return at_most(f"{name}: bytes on disk / last state", stored / last, BARS[name], note, versus)


def _ours(states: list[State], scale: Scale, folder: Path) -> int:
    folder.mkdir()
    ids = ours.save_all(folder / "store.db", states)
    stored = bytes_in(folder)
    ours.read_back(folder / "store.db", ids, states, scale.samples)
    return stored


def _peer(states: list[State], folder: Path) -> int:
    folder.mkdir()
    peer.put_all(folder / "peer.db", states)
    return bytes_in(folder)
