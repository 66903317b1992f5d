"""Loading the newest state of a long conversation from PostgreSQL, cold and warm, against `get_tuple` of the same state.

Measured as on SQLite: each side connects again for every lap and is first asked for a thread that is not there, so
that the state itself is all that is new to it. The peer's tables hold only the last few checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
import servers
from measure import Race
from races import LoadRace
from scale import Scale
from table import Row, Versus, at_most, milliseconds, shown
from workloads import conversation

_PEER_HISTORY = 20


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    with servers.postgres() as server:
        url = server.database("talk")
        ours.save_all(url, states)
        with peer.postgres(url) as saver:
            peer.extend(saver, peer.thread(), peer.prepare_all(states[-_PEER_HISTORY:]))
        race = LoadRace(url, lambda: peer.postgres(url))
        race.run(scale.laps, states[-1])
    yield _cold(race.cold, scale.steps)
    note = f"{milliseconds(race.warm.wall('load'))} against {milliseconds(race.warm.wall('get_tuple'))}"
    yield shown(f"PostgreSQL: load at step {scale.steps:,}, warm", note)


def _cold(race: Race, steps: int) -> Row:
    load, get_tuple = milliseconds(race.wall("load")), milliseconds(race.wall("get_tuple"))
    what, note = f"PostgreSQL: load at step {steps:,}, cold", f"{load} / {get_tuple}"
    versus = Versus(f"{what} cache", load, get_tuple)
    return at_most(f"{what} / get_tuple", race.ratio("load", "get_tuple"), 0.8, note, versus)
