"""One durable save at the end of a long conversation, `synchronous=FULL` on all sides.

At each of the last steps three lanes take turns in random order: the save; the peer's `put` of the same
state; and a bare transaction that inserts the new message alone, plus two `packb` of the state. The median
of the rounds counts. The peer's file holds only a few dozen earlier checkpoints instead of all of them,
which favours the peer. CPU is process time, all threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import ours
import peer
import yardstick
from measure import Race, settled
from races import SaveRace
from scale import Scale
from table import Row, Versus, at_least, at_most, milliseconds
from workloads import State, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    races = [_round(states, scale.tail, room / str(n), n) for n in range(scale.rounds)]
    step = f"at step {scale.steps:,}"
    yield _against_bare(races, step)
    yield _against_put(races, step)
    yield _cpu(races, step)


def _round(states: list[State], tail: int, folder: Path, number: int) -> Race:
    folder.mkdir()
    with (
        settled(),
        peer.sqlite(folder / "peer.db") as saver,
        yardstick.BareSQLite(folder / "bare.db") as bare,
        ours.open_store(folder / "store.db") as store,
    ):
        race = SaveRace(store.thread("talk"), partial(_least, bare), saver, number).run(states, tail)
    ours.expect(folder / "store.db", states[-1])
    return race


def _least(bare: yardstick.BareSQLite, state: State, message: bytes) -> None:
    yardstick.pack(state)
    yardstick.pack(state)
    bare.insert(message)


def _against_bare(races: list[Race], step: str) -> Row:
    save, bare = (median(race.wall(lane) for race in races) for lane in ("save", "bare"))
    ratio = median(race.ratio("save", "bare") for race in races)
    note = f"{milliseconds(save)} / {milliseconds(bare)}"
    return at_most(f"save {step} / (bare transaction + 2 packb)", ratio, 1.5, note)


def _against_put(races: list[Race], step: str) -> Row:
    save, put = (median(race.wall(lane) for race in races) for lane in ("save", "put"))
    ratio = median(race.ratio("put", "save") for race in races)
    versus = Versus(f"durable save {step}", milliseconds(save), milliseconds(put))
    note = f"{versus.ours} against {versus.peer}"
    return at_least(f"save {step}, faster than SqliteSaver.put", ratio, 3, note, versus)


def _cpu(races: list[Race], step: str) -> Row:
    save, put = (median(race.cpu(lane) for race in races) for lane in ("save", "put"))
    versus = Versus(f"CPU of a save {step}", milliseconds(save), milliseconds(put))
    return Row(versus.what, f"{versus.ours} against {versus.peer}", versus=versus)
