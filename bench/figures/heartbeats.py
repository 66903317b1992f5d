"""The leases of very many live runs of one process: what one beat costs the store, and so what a second costs it.

A lease is 30 s (the default), so there is a beat every 10 s; here beats are called one after the other and counted by the
engine itself. PostgreSQL: `xact_commit` of the database. SQLite: the transactions that its write-ahead log counts. Valkey:
exchanges with each node. Afterwards every run is still owned. What one beat takes is shown.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psycopg

import ours
import outlive
import servers
from outlive.runtime.runtime import run_now
from scale import Scale
from table import Row, figure, milliseconds, within

_INTERVAL_S = 10.0  # between two beats of runs with the default lease
_BEATS = 5
_CHANGES_AT = 8  # in the -shm file: a number that SQLite raises by one at every commit


def run(scale: Scale, room: Path) -> Iterator[Row]:
    with servers.postgres() as server, psycopg.connect(server.url, autocommit=True) as watcher:
        url = server.database("beats")
        with _live_runs(url, scale.live_runs) as store:
            yield _commits("PostgreSQL", scale, store, lambda: _postgres_commits(watcher, store))
            yield _renewal(scale, store)
    path = room / "beats.db"
    with _live_runs(path, scale.live_runs) as store:
        yield _commits("SQLite", scale, store, lambda: _sqlite_commits(path))
    with servers.valkey() as server, _live_runs(server.url, scale.live_runs) as store:
        yield _exchanges("Valkey", 1, scale, store)
    with servers.cluster() as cluster, _live_runs(cluster.url, scale.live_runs) as store:
        yield _exchanges("Valkey Cluster", 3, scale, store)


@contextmanager
def _live_runs(place: ours.Place, count: int) -> Iterator[outlive.Store]:
    with ours.open_store(place) as store:
        runs = [store.run(f"thread-{n}", run_id=f"run-{n}").start() for n in range(count)]
        store._store._heart._stop()  # the timer: beats come when they are called
        yield store
        if any(run._run._is_lost or run.status != "running" for run in runs):
            raise AssertionError("a run was lost by beating")
        for run in runs:  # the servers go with their rooms: what is stored there need not end well
            run._run._stop()


def _beat(store: outlive.Store) -> float:
    """Renew all leases, and tell how long it took."""
    start = time.perf_counter()
    run_now(store._store._heart.beat())
    return time.perf_counter() - start


def _ends(store: outlive.Store) -> dict[str, int]:
    return {run.id: run.lease_expires_at for run in store.runs(status="running")}


def _expect_renewed(store: outlive.Store, before: dict[str, int]) -> None:
    if any(ends <= before[run] for run, ends in _ends(store).items()):
        raise AssertionError("a beat left a lease as it was")


def _commits(name: str, scale: Scale, store: outlive.Store, commits: Callable[[], int]) -> Row:
    looking = -commits() + commits()  # what it costs to look
    took_s, count = [], 0
    for _ in range(_BEATS):
        ends, before = _ends(store), commits()
        took_s.append(_beat(store))
        count += commits() - before - looking
        _expect_renewed(store, ends)
    rate = count / _BEATS / _INTERVAL_S
    note = f"{figure(count / _BEATS)} a beat, which takes {milliseconds(median(took_s))}"
    what = f"{name}: commits per second for {scale.live_runs:,} live runs"
    return Row(what, f"{figure(rate)} ({note})", "<= 1", rate <= 1)


def _renewal(scale: Scale, store: outlive.Store) -> Row:
    took_s = [_beat(store) for _ in range(_BEATS)]
    note = f"{milliseconds(min(took_s))} to {milliseconds(max(took_s))}, {_BEATS} beats"
    return within(f"PostgreSQL: renewal of {scale.live_runs:,} leases", median(took_s), 0.1, note)


def _postgres_commits(watcher: psycopg.Connection[Any], store: outlive.Store) -> int:
    """Read the counter, once the store's connections have reported: they do so with a call, at most once a second."""
    time.sleep(1.1)
    store.thread("absent").load()
    found = watcher.execute("select xact_commit from pg_stat_database where datname = 'beats'").fetchone()
    assert found is not None
    return int(found[0])


def _sqlite_commits(path: Path) -> int:
    with open(f"{path}-shm", "rb") as file:
        file.seek(_CHANGES_AT)
        (count,) = struct.unpack("=I", file.read(4))
    return int(count)


def _exchanges(name: str, nodes: int, scale: Scale, store: outlive.Store) -> Row:
    took_s, worst = [], 0
    for _ in range(_BEATS):
        ends = _ends(store)
        with _counted(store) as exchanges:
            took_s.append(_beat(store))
        _expect_renewed(store, ends)
        if len(exchanges) != nodes:
            raise AssertionError(f"{len(exchanges)} nodes were asked instead of {nodes}")
        worst = max(worst, *exchanges.values())
    what = f"{name}: exchanges per node and beat, {scale.live_runs:,} live runs"
    return Row(what, f"{worst:,} (a beat takes {milliseconds(median(took_s))})", "<= 1", worst <= 1)


@contextmanager
def _counted(store: outlive.Store) -> Iterator[Counter[int]]:
    """Count the exchanges of a store with each node."""
    client: Any = store._store._engine.backend.session.client
    exchange, exchanges = client._exchange, Counter[int]()

    async def count(pool: Any, *args: Any) -> Any:
        exchanges[id(pool)] += 1
        return await exchange(pool, *args)

    client._exchange = count
    try:
        yield exchanges
    finally:
        del client._exchange
