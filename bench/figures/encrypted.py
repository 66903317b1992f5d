"""Saving and loading the same conversation with and without a key, on SQLite in one folder, both durable.

The lanes take turns save by save in random order, and the median of the last saves counts: with `synchronous=FULL` and with `fsync="normal"`,
where the disk does not hide what sealing costs. Then both stores are opened again for every lap, and the newest state is loaded cold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import ours
import outlive
from measure import Race, settled
from scale import Scale
from table import Row, at_most, milliseconds
from workloads import State, conversation

_KEY = bytes(range(7, 39))


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    races = [_save(room / f"{n}", states, scale.tail, n, fsync="full") for n in range(scale.rounds)]
    yield _row(f"save {scale.steps:,} steps with a key / without", races)
    races = [_save(room / f"n{n}", states, scale.tail, n, fsync="normal") for n in range(scale.rounds)]
    yield _row("the same without waiting for the disk", races)
    yield _row(
        f"load at step {scale.steps:,}, cold, with a key / without",
        [_load(room / "0", states[-1], scale.laps)],
    )


def _row(what: str, races: list[Race]) -> Row:
    ratio = median(race.ratio("sealed", "plain") for race in races)
    sealed, plain = (median(race.wall(lane) for race in races) for lane in ("sealed", "plain"))
    return at_most(what, ratio, 1.25, f"{milliseconds(sealed)} / {milliseconds(plain)}")


def _options(lane: str) -> dict[str, Any]:
    return {"key": outlive.KeyRing({"bench": _KEY})} if lane == "sealed" else {}


def _save(room: Path, states: list[State], tail: int, number: int, fsync: str) -> Race:
    room.mkdir()
    race, before = Race(number), Race(number)
    with (
        settled(),
        ours.open_store(room / "sealed.db", fsync=fsync, **_options("sealed")) as sealed,
        ours.open_store(room / "plain.db", fsync=fsync) as plain,
    ):
        one, two = sealed.thread("talk"), plain.thread("talk")
        for n, state in enumerate(states):
            (race if n >= len(states) - tail else before).lap(
                sealed=lambda state=state: one.save(state), plain=lambda state=state: two.save(state)
            )
    return race


def _load(room: Path, expected: State, laps: int) -> Race:
    race = Race()
    with settled():
        for _ in range(laps):
            with (
                ours.open_store(room / "sealed.db", **_options("sealed")) as sealed,
                ours.open_store(room / "plain.db") as plain,
            ):
                for store in (sealed, plain):
                    store.thread("nobody").load()
                race.lap(
                    sealed=lambda store=sealed: store.thread("talk").load(),
                    plain=lambda store=plain: store.thread("talk").load(),
                )
                if sealed.thread("talk").load() != expected:
                    raise AssertionError("the sealed state came back as another one")
    return race
