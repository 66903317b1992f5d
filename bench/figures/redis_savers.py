"""Many concurrent savers on one Valkey, `appendonly` with `appendfsync everysec`, beside as many loops of a bare SET.

Measured as on SQLite. The other side stores nothing but the new message of each step, packed, under a new key, over as
many connections as it has loops (redis-py with hiredis); ours has its default of connections.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import ormsgpack
import redis.asyncio

import ours
import peer
import servers
from races import CrowdRace
from scale import Scale
from table import Row, at_least
from workloads import SEED, conversation


class _BareSaver:
    """Stores the newest message of a state, by a single SET."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._numbers = itertools.count()

    async def aput(self, config: Any, checkpoint: Any, metadata: object, versions: object) -> Any:
        message = checkpoint["channel_values"]["messages"][-1]
        await self._client.set(f"message:{next(self._numbers)}", ormsgpack.packb(message))
        return config


@asynccontextmanager
async def _bare(url: str, connections: int) -> AsyncIterator[peer.Saver]:
    async with redis.asyncio.Redis.from_url(url, max_connections=connections) as client:
        yield cast(peer.Saver, _BareSaver(client))


def run(scale: Scale, room: Path) -> Iterator[Row]:
    talks = [conversation(scale.saves_each, seed=SEED + 100 + n) for n in range(scale.savers)]
    race = CrowdRace(talks, warm_ups=scale.savers)
    for _ in range(scale.server_rounds):
        with servers.valkey() as server:
            race.round(partial(ours.open_async, server.url), partial(_bare, server.url, scale.savers))
    what = f"Valkey: {scale.savers} concurrent savers / bare SET loops"
    yield at_least(what, median(race.ratios()), 0.5, race.note())
