"""The threads that changed last, and the totals, of a store with very many threads: SQLite, PostgreSQL, Valkey.

The threads are filled by concurrent async saves, which no figure times. Then the store is opened again with its
defaults. The median of the calls counts: a page of 50 threads, newest first, and `store.size()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import outlive
import servers
from figures.listing import PAGE, fill_some
from measure import Race, settled
from scale import Scale
from table import Row, within

_FILLERS = 64


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield from _rows("SQLite", f"sqlite:///{room}/many.db", scale, fsync="normal")
    with servers.postgres() as server:
        yield from _rows("PostgreSQL", server.database("many"), scale)
    with servers.valkey() as server:
        yield from _rows("Valkey", server.url, scale)


def _rows(name: str, url: str, scale: Scale, **options: str) -> Iterator[Row]:
    asyncio.run(_fill(url, scale.threads, **options))
    race = Race()
    with settled(), outlive.open(url) as store:
        page = partial(_newest, store)
        for _ in range(scale.laps):
            race.time("page", page)
            race.time("totals", store.size)
        if len(page()) != PAGE or store.size().threads != scale.threads:
            raise AssertionError(f"{name} lists other threads than were saved")
    count = f"{scale.threads:,} threads"
    yield within(f"newest {PAGE} of {count}, {name}", race.wall("page"), 0.020)
    yield within(f"totals of {count}, {name}", race.wall("totals"), 0.5)


async def _fill(url: str, count: int, **options: str) -> None:
    async with await outlive.open_async(url, **options) as store:
        await asyncio.gather(*(fill_some(store, range(n, count, _FILLERS)) for n in range(_FILLERS)))


def _newest(store: outlive.Store) -> list[outlive.ThreadInfo]:
    return list(islice(store.threads(order="updated", limit=PAGE), PAGE))
