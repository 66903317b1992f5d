"""Loading the newest state of a long conversation, cold and warm, against `get_tuple` of the same state.

Cold: each side is opened again for every lap and first asked for a thread that is not there, so that
connecting and setting up are outside the clock and the state itself has never been seen. Warm: the same
handle asked again. Both files hold every checkpoint of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
from compare import Duel
from measure import Rounds
from races import LoadRace
from scale import Scale
from table import Row
from workloads import conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    ours.save_all(room / "store.db", states)
    peer.put_all(room / "peer.db", states)
    races = [LoadRace(room / "store.db", lambda: peer.sqlite(room / "peer.db")) for _ in range(scale.rounds)]
    for race in races:
        race.run(scale.laps, states[-1])
    yield from rows("", races, scale.steps, cold_bar=1.5, warm_bar=0.8)


def rows(where: str, races: list[LoadRace], steps: int, cold_bar: float, warm_bar: float) -> Iterator[Row]:
    cold, warm = Rounds([race.cold for race in races]), Rounds([race.warm for race in races])
    what = f"{where}load at step {steps:,}"
    headline = f"{what}, cold cache"
    yield Duel(cold, "load", "get_tuple").row(f"{what}, cold / get_tuple", cold_bar, headline=headline)
    yield Duel(warm, "load", "get_tuple").row(f"{what}, warm / get_tuple", warm_bar)
