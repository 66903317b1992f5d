"""Many concurrent savers on one PostgreSQL server, `fsync` and `synchronous_commit` on.

Measured as on SQLite, each round in a new database. Both sides have a pool of the same size, and every connection of it
has saved once before the clock starts. The peer is `AsyncPostgresSaver` over psycopg's pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

import ours
import peer
import servers
from races import CrowdRace
from scale import Scale
from table import Row, Versus, at_least
from workloads import SEED, conversation


def run(scale: Scale, room: Path) -> Iterator[Row]:
    talks = [conversation(scale.saves_each, seed=SEED + 100 + n) for n in range(scale.server_savers)]
    race = CrowdRace(talks, warm_ups=2 * scale.pool)
    with servers.postgres() as server:
        for n in range(scale.server_rounds):
            url = server.database(f"round_{n}")
            race.round(
                partial(ours.open_async, url, pool_size=scale.pool),
                partial(peer.async_postgres, url, scale.pool),
            )
    yield _row(race, scale)


def _row(race: CrowdRace, scale: Scale) -> Row:
    mine, theirs = race.medians()
    what = f"PostgreSQL: {scale.server_savers} concurrent async savers, {scale.pool} connections"
    versus = Versus(what, f"{mine:,.0f} saves/s", f"{theirs:,.0f} saves/s")
    what = f"PostgreSQL: {scale.server_savers} concurrent savers / AsyncPostgresSaver"
    return at_least(what, median(race.ratios()), 4, race.note(), versus)
