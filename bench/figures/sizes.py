"""Durable saves and cold loads of states of one size each, from what most agents have to what few have.

A state is a conversation of that many bytes, packed; each save replaces its last message. The lanes take turns in random order: the save;
`SqliteSaver.put`; the state as a JSON file, written, synced and renamed, which keeps no history. Afterwards both stores are opened again
for every lap, and the newest state is loaded cold; the JSON file is read and parsed. A second race of saves has `synchronous=NORMAL` on
both sides, where a power cut may lose the last saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import ours
import peer
import yardstick
from compare import Curve, Duel, curve_of
from measure import Race, Rounds
from races import Lane, LoadRace, race_steps, save_lane
from scale import Scale
from table import Row
from workloads import State, messages

SIZES = {"2 KB": 2_000, "20 KB": 20_000, "200 KB": 200_000, "0.9 MB": 900_000, "8 MB": 8_000_000}
_BYTES = 800  # of a message, or more
_Point: TypeAlias = tuple[float, str, Duel]  # a size, its name, and its race


def run(scale: Scale, room: Path) -> Iterator[Row | Curve]:
    talk = messages(max(SIZES.values()) // _BYTES + scale.size_saves)
    saves, normal, loads = list[_Point](), list[_Point](), list[_Point]()
    for name, size in SIZES.items():
        states = _states(talk, size, scale.size_saves)
        for synchronous, points in (("full", saves), ("normal", normal)):
            points.append((size, name, _saves(states, room, name, scale.rounds, synchronous)))
        cold = Rounds([_loads(room / f"{name}-full-0", states[-1], scale.laps)])
        loads.append((size, name, Duel(cold, "load", "get_tuple")))
        yield saves[-1][2].row(f"save of {name} / SqliteSaver.put")
        yield normal[-1][2].row(f"synchronous=NORMAL: save of {name} / SqliteSaver.put")
        yield loads[-1][2].row(f"cold load of {name} / get_tuple")
    lanes = {"outlive": "save", "SqliteSaver": "put", "JSON file, no history": "json"}
    title = "One save, by the size of the state"
    yield curve_of("sizes-save", title, "bytes", saves, lanes)
    lanes = {"outlive": "save", "SqliteSaver": "put"}
    yield curve_of("sizes-save-normal", f"{title}, synchronous=NORMAL", "bytes", normal, lanes)
    lanes = {"outlive": "load", "SqliteSaver": "get_tuple", "JSON file": "json"}
    yield curve_of("sizes-load", "One cold load, by the size of the state", "bytes", loads, lanes)


def _saves(states: list[State], room: Path, name: str, rounds: int, synchronous: str) -> Duel:
    races = [_round(states, room / f"{name}-{synchronous}-{n}", n, synchronous) for n in range(rounds)]
    return Duel(Rounds(races), "save", "put")


def _states(talk: list[State], size: int, count: int) -> list[State]:
    """Return states of about this size, which differ by their last message."""
    old, total = 0, len(yardstick.pack(talk[0]))
    while total < size:
        old += 1
        total += len(yardstick.pack(talk[old]))
    return [{"messages": [*talk[:old], talk[old + n]], "step": n} for n in range(count)]


def _round(states: list[State], folder: Path, number: int, synchronous: str) -> Race:
    folder.mkdir()
    file = yardstick.JsonFile(folder / "state.json")
    with (
        peer.sqlite(folder / "peer.db", synchronous) as saver,
        ours.open_store(folder / "store.db", fsync=synchronous) as store,
    ):
        thread, put = store.thread("talk"), peer.PutLane(saver)
        for lane in (save := save_lane(thread), put):
            lane(states[0], 0)()  # not timed: the thread, and the whole of the state
        lanes: dict[str, Lane] = {"save": save, "put": put}
        if synchronous == "full":
            lanes["json"] = lambda state, step: partial(file.write, state)
        race = race_steps(lanes, states[1:], number)
        put.expect(states[-1])
    ours.expect(folder / "store.db", states[-1])
    return race


def _loads(folder: Path, expected: State, laps: int) -> Race:
    race = LoadRace(folder / "store.db", lambda: peer.sqlite(folder / "peer.db"))
    race.run(laps, expected)
    file = yardstick.JsonFile(folder / "state.json")
    for _ in range(laps):
        race.cold.time("json", file.read)
    return race.cold
