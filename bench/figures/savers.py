"""Saves per second of many concurrent savers on one SQLite file, `synchronous=FULL`.

Each saver has a thread of its own that grows by a message a save. All states (and the peer's checkpoints)
are made before the clock starts. Both sides run in every round, on new files, in alternating order; the
median of the rounds' ratios counts. The peer is `AsyncSqliteSaver`. A second race has `synchronous=NORMAL` on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import ours
import peer
from races import CrowdRace
from scale import Scale
from table import Row, Versus, at_least, shown, times
from workloads import SEED, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    talks = [conversation(scale.saves_each, seed=SEED + 100 + n) for n in range(scale.savers)]
    for synchronous in ("full", "normal"):
        race = CrowdRace(talks)
        for n in range(scale.rounds):
            race.round(
                partial(ours.open_async, room / f"store-{synchronous}-{n}.db", fsync=synchronous),
                partial(peer.async_sqlite, room / f"peer-{synchronous}-{n}.db", synchronous),
            )
        yield _row(race, scale.savers) if synchronous == "full" else _normal_row(race, scale.savers)


def _row(race: CrowdRace, savers: int) -> Row:
    mine, theirs = race.medians()
    what = f"{savers} concurrent async savers, one file"
    versus = Versus(what, f"{mine:,.0f} saves/s", f"{theirs:,.0f} saves/s")
    what = f"{savers} concurrent savers / AsyncSqliteSaver"
    return at_least(what, median(race.ratios()), 5, race.note(), versus)


def _normal_row(race: CrowdRace, savers: int) -> Row:
    measured = f"{times(median(race.ratios()))} ({race.note()})"
    return shown(
        f"synchronous=NORMAL: {savers} concurrent savers / AsyncSqliteSaver", measured, better="higher"
    )
