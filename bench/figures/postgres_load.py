"""Loading the newest state of a long conversation from PostgreSQL, cold and warm, against `get_tuple` of the same state.

Measured as on SQLite: each side connects again for every lap and is first asked for a thread that is not there, so
that the state itself is all that is new to it. Both sides hold every checkpoint of the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ours
import peer
import servers
from figures.load import rows
from races import LoadRace
from scale import Scale
from table import Row
from workloads import conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    with servers.postgres() as server:
        url = server.database("talk")
        ours.save_all(url, states)
        with peer.postgres(url) as saver:
            peer.extend(saver, peer.thread(), peer.prepare_all(states))
        races = [LoadRace(url, lambda: peer.postgres(url)) for _ in range(scale.server_rounds)]
        for race in races:
            race.run(scale.laps, states[-1])
    yield from rows("PostgreSQL: ", races, scale.steps, cold_bar=0.8, warm_bar=0.8)
