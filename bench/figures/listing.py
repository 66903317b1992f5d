"""The first page of a store with very many threads, and the newest records of a long thread's history.

The threads are filled by concurrent async saves with `fsync="normal"`, which no figure times; then the
store is opened again with its defaults. The first call is shown, the median of the calls after it counts.
The peer has no listing of threads; its history (`list`) reads every state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import ours
import outlive
import peer
from measure import Race, settled
from scale import Scale
from table import Row, Versus, milliseconds, within
from workloads import State, conversation

PAGE = 50
_FILLERS = 128


def run(scale: Scale, room: Path) -> Iterator[Row]:
    asyncio.run(_fill(room / "many.db", scale.threads))
    yield _threads(room / "many.db", scale)
    yield _history(conversation(scale.steps), scale, room)


async def _fill(path: Path, count: int) -> None:
    async with ours.open_async(path, fsync="normal") as store:
        await asyncio.gather(*(fill_some(store, range(n, count, _FILLERS)) for n in range(_FILLERS)))


async def fill_some(store: outlive.AsyncStore, numbers: range) -> None:
    for number in numbers:
        await store.thread(f"thread-{number:06}").save({"step": 1, "note": f"thread {number}"})


def _first_page(store: outlive.Store) -> list[object]:
    return list(islice(store.threads(limit=PAGE), PAGE))


def _newest(thread: outlive.Thread) -> list[object]:
    return list(thread.history(limit=PAGE))


def _threads(path: Path, scale: Scale) -> Row:
    race = Race()
    with settled(), ours.open_store(path) as store:
        page = partial(_first_page, store)
        race.time("first", page)
        for _ in range(scale.laps):
            race.time("page", page)
        _expect_page(page())
    return within(f"first {PAGE} of {scale.threads:,} threads", race.wall("page"), 0.010, _first(race))


def _history(states: list[State], scale: Scale, room: Path) -> Row:
    ours.save_all(room / "talk.db", states)
    peer.put_all(room / "peer.db", states)
    race = _history_race(scale, room)
    what = f"{PAGE} records of history at step {len(states):,}"
    versus = Versus(what, milliseconds(race.wall("page")), milliseconds(race.wall("list")))
    return within(what, race.wall("page"), 0.005, f"{_first(race)}; SqliteSaver {versus.peer}", versus)


def _history_race(scale: Scale, room: Path) -> Race:
    race = Race()
    with (
        settled(),
        ours.open_store(room / "talk.db") as store,
        peer.sqlite(room / "peer.db") as saver,
    ):
        page = partial(_newest, store.thread("talk"))
        race.time("first", page)
        for _ in range(scale.laps):
            race.lap(page=page, list=lambda: list(saver.list(peer.thread(), limit=PAGE)))
        _expect_page(page())
    return race


def _first(race: Race) -> str:
    return f"first call {milliseconds(race.wall('first'))}"


def _expect_page(found: list[object]) -> None:
    if len(found) != PAGE:
        raise AssertionError(f"asked for {PAGE} records, got {len(found)}")
