"""A conversation twice as long takes about twice the bytes, and no save of it stalls.

Bytes of the store after `close()` with half of the saves and with all of them. The second half of the saves
is timed one by one, taking turns with a bare durable transaction of the new message: that one's worst case
is the machine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ours
import yardstick
from measure import Race, bytes_in, quantile, settled
from scale import Scale
from table import Row, at_most, megabytes, milliseconds, shown, times
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states, half = conversation(scale.steps), scale.steps // 2
    race = _saves(states, half, room)
    yield _bytes(states, half, room)
    yield _worst(race, half)
    yield shown(f"p99 of the last {half:,} saves", _p99(race))


def _bytes(states: list[State], half: int, room: Path) -> Row:
    (room / "half").mkdir()
    ours.save_all(room / "half" / "store.db", states[:half])
    longer, shorter = bytes_in(room / "whole"), bytes_in(room / "half")
    what = f"bytes of {len(states):,} saves / of {half:,}"
    return at_most(what, longer / shorter, 2.4, f"{megabytes(longer)} / {megabytes(shorter)}")


def _saves(states: list[State], half: int, room: Path) -> Race:
    race, folder = Race(), room / "whole"
    folder.mkdir()
    with (
        settled(),
        yardstick.BareSQLite(room / "bare.db") as bare,
        ours.open_store(folder / "store.db") as store,
    ):
        thread = store.thread("talk")
        for state in states[:half]:
            thread.save(state)
        for state in states[half:]:
            message = yardstick.pack(state["messages"][-1])
            race.lap(save=partial(thread.save, state), bare=partial(bare.insert, message))
    return race


def _worst(race: Race, half: int) -> Row:
    save, bare = (max(race.wall_s[lane]) / race.wall(lane) for lane in ("save", "bare"))
    note = f"{milliseconds(max(race.wall_s['save']))}; a bare transaction's {times(bare)}"
    return at_most(f"slowest of the last {half:,} saves / median", save, 10, note)


def _p99(race: Race) -> str:
    p99, middle = quantile(race.wall_s["save"], 0.99), race.wall("save")
    return f"{milliseconds(p99)}, {times(p99 / middle)} the median of {milliseconds(middle)}"
