"""Every durable save of a long conversation, from the first to the last, beside `SqliteSaver.put` of the same states.

At each step the lanes take turns in random order, each with its whole history: the save; the peer's `put`; and a bare transaction
that inserts the new message alone. Each side has saved once on another thread before the first step. A second race has `synchronous=NORMAL` on both sides, where
a power cut may lose the last saves. The curve has a point for each window of steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median

import ours
import peer
import yardstick
from compare import Curve, Duel, curve
from measure import Race, Rounds
from races import against_least, bare_lane, race_steps, save_lane
from scale import Scale
from table import Row, at_most, times
from workloads import State, conversation

_LANES = {"outlive": "save", "SqliteSaver": "put"}


def run(scale: Scale, room: Path) -> Iterator[Row | Curve]:
    states = conversation(scale.steps)
    full = Rounds([_round(states, room / f"full-{n}", n, "full") for n in range(scale.rounds)])
    yield from _against_put(full, scale)
    what = f"CPU of a save at step {scale.steps:,} / (packb + bare transaction)"
    yield against_least(what, full, scale.window, 1.4, packs=1, is_cpu=True)
    yield _worst(full, scale)
    yield from _curves(full, scale, "", _LANES | {"bare transaction": "bare"})
    normal = Rounds([_round(states, room / f"normal-{n}", n, "normal") for n in range(scale.rounds)])
    duel = Duel(normal, "save", "put")
    yield duel.row(f"synchronous=NORMAL: {scale.steps:,} saves / SqliteSaver", by="total")
    yield duel.row(
        f"synchronous=NORMAL: save, steps {_first(scale)} / SqliteSaver.put", part=slice(scale.window)
    )
    yield from _curves(normal, scale, "-normal", _LANES)


def _round(states: list[State], folder: Path, number: int, synchronous: str) -> Race:
    folder.mkdir()
    with (
        peer.sqlite(folder / "peer.db", synchronous) as saver,
        yardstick.BareSQLite(folder / "bare.db") as bare,
        ours.open_store(folder / "store.db", fsync=synchronous) as store,
    ):
        store.thread("warm-up").save({"step": 0})
        put = peer.PutLane(saver)
        lanes = {"save": save_lane(store.thread("talk")), "put": put}
        if synchronous == "full":
            lanes["bare"] = bare_lane(bare.insert)
        race = race_steps(lanes, states, number)
        put.expect(states[-1])
    ours.expect(folder / "store.db", states[-1])
    return race


def _first(scale: Scale) -> str:
    return f"0-{scale.window}"


def _against_put(rounds: Rounds, scale: Scale) -> Iterator[Row]:
    duel, first, last = Duel(rounds, "save", "put"), slice(scale.window), slice(-scale.window, None)
    total = f"{scale.steps:,} durable saves"
    yield duel.row(f"total of {scale.steps:,} saves / SqliteSaver", 0.35, headline=total, by="total")
    what = f"durable save, steps {_first(scale)}"
    yield duel.row(f"mean save, steps {_first(scale)} / SqliteSaver.put", 1.0, first, f"{what}, mean")
    yield duel.row(f"CPU of a save, steps {_first(scale)} / SqliteSaver.put", 1.1, first, by="cpu")
    yield duel.row(f"mean save at step {scale.steps:,} / SqliteSaver.put", None, last)
    yield duel.row(f"CPU of a save at step {scale.steps:,} / SqliteSaver.put", None, last, by="cpu")


def _worst(rounds: Rounds, scale: Scale) -> Row:
    """No save stalls; the worst case of a bare transaction is the machine's."""
    last = slice(scale.steps // 2, None)
    worst = {
        lane: median(max(race.wall_s[lane][last]) / median(race.wall_s[lane][last]) for race in rounds.races)
        for lane in ("save", "put", "bare")
    }
    note = f"SqliteSaver's {times(worst['put'])}, a bare transaction's {times(worst['bare'])}"
    return at_most(f"slowest of the last {scale.steps // 2:,} saves / their median", worst["save"], 10, note)


def _curves(rounds: Rounds, scale: Scale, suffix: str, lanes: dict[str, str]) -> Iterator[Curve]:
    title = f"One save, synchronous={'NORMAL' if suffix else 'FULL'}"
    yield curve(f"save{suffix}", title, "step", rounds, scale.window, lanes)
