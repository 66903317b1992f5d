"""Many concurrent savers on one SQLite file, `synchronous=FULL`.

Each saver has a thread of its own that grows by a message a save. All states (and the peer's checkpoints)
are made before the clock starts. Both sides run in every round, on new files, in alternating order; the
median of the rounds' ratios counts. The peer is `AsyncSqliteSaver`; the aim beyond the bar is 10x.
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
from table import Row, Versus, at_least
from workloads import SEED, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    race = CrowdRace([conversation(scale.saves_each, seed=SEED + 100 + n) for n in range(scale.savers)])
    for n in range(scale.rounds):
        race.round(
            partial(ours.open_async, room / f"store-{n}.db"),
            partial(peer.async_sqlite, room / f"peer-{n}.db"),
        )
    (mine, theirs), ratios = race.medians(), race.ratios()
    what = f"{scale.savers} concurrent async savers, one file"
    versus = Versus(what, f"{mine:,.0f} saves/s", f"{theirs:,.0f} saves/s")
    note = f"{mine:,.0f} against {theirs:,.0f} saves/s; rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
    yield at_least(f"{scale.savers} concurrent savers / AsyncSqliteSaver", median(ratios), 5, note, versus)
