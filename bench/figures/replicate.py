"""A save with a second store, at the end of a long conversation; both stores are SQLite files, `synchronous=FULL`.

Three lanes save the same states: one store; a pair with `Replication(mode="sync")`, where a save is in both files when it returns; a pair
with `Replication(mode="async")`, where it is queued and carried over in the background. They take turns in blocks, in
random order, so that what an async pair does behind its saves is in its own time; between blocks its queue is left to run dry,
untimed. Each lane's time is its whole time by its number of saves, and the median of the rounds counts.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import outlive
from measure import settled
from scale import Scale
from table import Row, at_most, milliseconds
from workloads import State, conversation

_BLOCK = 20
_LANES = {"plain": None, "sync": "sync", "async": "async"}


def run(scale: Scale, room: Path) -> Iterator[Row]:
    states = conversation(scale.steps)
    rounds = [_round(states, scale.tail, room / str(n), n) for n in range(scale.rounds)]
    plain = median(one["plain"] for one in rounds)
    for lane, bar in (("sync", 2.2), ("async", 1.2)):
        ratio = median(one[lane] / one["plain"] for one in rounds)
        note = f"{milliseconds(median(one[lane] for one in rounds))} / {milliseconds(plain)}"
        yield at_most(f"save at step {scale.steps:,} with {lane} replication / without", ratio, bar, note)


def _round(states: list[State], tail: int, folder: Path, seed: int) -> dict[str, float]:
    """Return the seconds of a save, by lane."""
    folder.mkdir()
    rng, spent = random.Random(seed), defaultdict(float)
    with settled(), ExitStack() as stack:
        stores = {lane: stack.enter_context(_open(folder, lane)) for lane in _LANES}
        threads = {lane: store.thread("talk") for lane, store in stores.items()}
        first = len(states) - tail
        for state in states[:first]:
            for thread in threads.values():
                thread.save(state)
        for at in range(first, len(states), _BLOCK):
            for lane in rng.sample(sorted(_LANES), len(_LANES)):
                _dry(stores["async"])
                start = time.perf_counter()
                for state in states[at : at + _BLOCK]:
                    threads[lane].save(state)
                spent[lane] += time.perf_counter() - start
        _dry(stores["async"])
    _expect(folder, states[-1])
    return {lane: seconds / tail for lane, seconds in spent.items()}


def _open(folder: Path, lane: str) -> outlive.Store:
    mode = _LANES[lane]
    url = f"sqlite:///{folder}/{lane}.db"
    if mode is None:
        return outlive.open(url)
    return outlive.open(url, replication=outlive.Replication(f"sqlite:///{folder}/{lane}-2.db", mode=mode))


def _dry(store: outlive.Store) -> None:
    while store.replication_status().queued:
        time.sleep(0.02)


def _expect(folder: Path, state: State) -> None:
    for name in ("plain", "sync", "sync-2", "async", "async-2"):
        with outlive.open(f"sqlite:///{folder}/{name}.db") as store:
            if store.thread("talk").load() != state:
                raise AssertionError(f"{name} has another state")
