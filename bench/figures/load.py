"""Loading the newest state of a long conversation, cold and warm, against `get_tuple` of the same state.

Cold: each side is opened again for every lap and first asked for a thread that is not there, so that
connecting and setting up are outside the clock and the state itself has never been seen. Warm: the same
handle asked again. The peer's file holds only the last few checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
from measure import Race
from races import LoadRace
from scale import Scale
from table import Row, Versus, at_most, milliseconds, shown
from workloads import conversation

_PEER_HISTORY = 20


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    ours.save_all(room / "store.db", states)
    peer.put_all(room / "peer.db", states[-_PEER_HISTORY:])
    race = LoadRace(room / "store.db", lambda: peer.sqlite(room / "peer.db"))
    race.run(scale.laps, states[-1])
    yield _cold(race.cold, scale.steps)
    note = f"{milliseconds(race.warm.wall('load'))} against {milliseconds(race.warm.wall('get_tuple'))}"
    yield shown(f"load at step {scale.steps:,}, warm", note)


def _cold(race: Race, steps: int) -> Row:
    load, get_tuple = milliseconds(race.wall("load")), milliseconds(race.wall("get_tuple"))
    versus = Versus(f"load at step {steps:,}, cold cache", load, get_tuple)
    ratio = race.ratio("load", "get_tuple")
    return at_most(f"load at step {steps:,}, cold / get_tuple", ratio, 1.2, f"{load} / {get_tuple}", versus)
