"""The threads that changed last, and the totals, of a store with very many threads: SQLite, PostgreSQL, Valkey.

One thread is saved; the others are commits of the same record, in groups, which no figure times. Then the
store is opened again with its defaults. The median of the calls counts: a page of 50 threads, newest first,
and `store.size()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import outlive
import servers
from figures.listing import PAGE
from measure import Race, settled
from outlive.backend import Backend, CheckpointRecord, Commit, ThreadKey
from outlive.runtime.runtime import run_now
from scale import Scale
from table import Row, within

_GROUP = 500  # commits


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield from _rows("SQLite", f"sqlite:///{room}/many.db", scale)
    with servers.postgres() as server:
        yield from _rows("PostgreSQL", server.database("many"), scale)
    with servers.valkey() as server:
        yield from _rows("Valkey", server.url, scale)


def _rows(name: str, url: str, scale: Scale) -> Iterator[Row]:
    fill(url, scale.threads)
    race = Race()
    with settled(), outlive.open(url) as store:
        for _ in range(scale.laps):
            race.time("page", partial(_newest, store))
            race.time("totals", store.size)
        _check(name, store, scale)
    count = f"{scale.threads:,} threads"
    yield within(f"newest {PAGE} of {count}, {name}", race.wall("page"), 0.020)
    yield within(f"totals of {count}, {name}", race.wall("totals"), 0.5)


def fill(url: str, count: int) -> None:
    """Store threads of one checkpoint."""
    with outlive.open(url) as store:
        saved = store.thread("thread-000000").save({"step": 1, "note": "as all others"})
        backend = store._store._engine.backend
        record = run_now(backend.read(ThreadKey.of("", "thread-000000"), "", saved.id)).record
        assert record is not None
        draft = replace(record, seq=0, epoch=0, created_at=0, follows=True)
        for start in range(1, count, _GROUP):
            _commit(backend, draft, range(start, min(start + _GROUP, count)))


def _commit(backend: Backend, draft: CheckpointRecord, numbers: range) -> None:
    commits = [Commit(ThreadKey.of("", f"thread-{n:06}"), checkpoints=(draft,)) for n in numbers]
    for result in run_now(backend.commit_all(commits)):
        if isinstance(result, Exception):
            raise result


def _check(name: str, store: outlive.Store, scale: Scale) -> None:
    """Compare what was listed with what was saved."""
    last = {f"thread-{n:06}" for n in range(max(0, scale.threads - 2 * _GROUP), scale.threads)}
    page, size = _newest(store), store.size()
    times = [info.updated_at for info in page]
    is_newest = len({info.id for info in page} & last) == PAGE and times == sorted(times, reverse=True)
    if not is_newest or (size.threads, size.checkpoints) != (scale.threads, scale.threads):
        raise AssertionError(f"{name} lists other threads than were saved")


def _newest(store: outlive.Store) -> list[outlive.ThreadInfo]:
    return list(islice(store.threads(order="updated", limit=PAGE), PAGE))
