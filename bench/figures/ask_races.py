"""An ask and its two answers at the same moment, very many times on each backend: no run may be left behind.

One thread asks, two answer, at random moments within some milliseconds; what is ready afterwards is recovered. A run is stranded when it
is neither completed nor recoverable. An answer that was used twice, or a second answer that was accepted, counts as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from rig.asking import race

import ours
import outlive
import servers
from scale import Scale
from table import Row

_AT_ONCE = 8


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield _row("SQLite", ours.url(room / "asks.db"), scale.ask_races)
    yield _row("files", f"file://{room}/asks", scale.ask_races)
    with servers.postgres() as server:
        yield _row("PostgreSQL", server.url, scale.ask_races)
    with servers.valkey() as server:
        yield _row("Valkey", server.url, scale.ask_races)


def _row(name: str, url: str, count: int) -> Row:
    with ExitStack() as stack:
        stores = [stack.enter_context(ours.open_store(url)) for _ in range(3)]
        racers = stack.enter_context(ThreadPoolExecutor(_AT_ONCE))
        pool = stack.enter_context(ThreadPoolExecutor(3 * _AT_ONCE))
        failures = [failure for failure in racers.map(partial(_race, pool, stores), range(count)) if failure]
    measured = f"{len(failures)} of {count:,}"
    if failures:
        measured += f" ({failures[0]})"
    return Row(f"{name}: stranded runs in races of ask and answer", measured, "<= 0", not failures)


def _race(pool: ThreadPoolExecutor, stores: Sequence[outlive.Store], number: int) -> str:
    """Return what went wrong."""
    try:
        race(pool, stores, f"r{number}", random.Random(number))
    except AssertionError as failure:
        return str(failure)
    return ""
