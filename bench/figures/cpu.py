"""CPU of a save (process time, all threads) against one `packb` of the same state, on the last saves.

Both take turns. The `packb` that counts comes right behind one that does not, so that its buffer is warm:
what malloc did before can make it four times as slow, and would flatter the save.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import ours
import yardstick
from measure import Race, settled
from scale import Scale
from table import Row, at_most, milliseconds
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    races = [_round(states, scale.tail, room / f"{n}.db", n) for n in range(scale.rounds)]
    save, packb = (median(race.cpu(lane) for race in races) for lane in ("save", "packb"))
    ratio = median(race.cpu("save") / race.cpu("packb") for race in races)
    note = f"{milliseconds(save)} / {milliseconds(packb)}"
    yield at_most(f"CPU of a save at step {scale.steps:,} / one packb", ratio, 2, note)


def _round(states: list[State], tail: int, path: Path, number: int) -> Race:
    race = Race(number)
    with settled(), ours.open_store(path) as store:
        thread = store.thread("talk")
        for state in states[:-tail]:
            thread.save(state)
        for state in states[-tail:]:
            race.time("save", partial(thread.save, state))
            yardstick.pack(state)
            race.time("packb", partial(yardstick.pack, state))
    return race
