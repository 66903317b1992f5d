"""How long saves take while another process sweeps the same SQLite file, beside the same saves without a sweep.

The file is filled with threads of 100 short checkpoints each (100,000 in all), of which the sweep keeps 50 each. One process saves to its own threads,
as fast as it can and durably, first alone, then while another one sweeps. The 99th percentile of the single saves is compared,
and the whole of the sweep is told beside it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import ours
import outlive
from measure import quantile, settled
from scale import Scale
from table import Row, at_most, milliseconds, shown

_EACH = 100
_KEPT = 50


def run(scale: Scale, room: Path) -> Iterator[Row]:
    place = room / "store.db"
    threads = scale.swept
    _fill(place, threads)
    before = place.stat().st_size
    with settled(), ours.open_store(place) as store:
        alone = _saves(store, _Clock(2.0))
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=_sweep, args=(place, theirs))
        process.start()
        mine.recv()  # it is ready
        beside = _saves(store, mine)
        swept, seconds = mine.recv()
        process.join()
        if swept < threads * (_EACH - _KEPT):  # more when it came to the busy thread, which is last
            raise AssertionError(f"{swept:,} checkpoints were swept")
    total = threads * _EACH
    one, two = quantile(alone, 0.99), quantile(beside, 0.99)
    note = f"{milliseconds(two)} / {milliseconds(one)}, medians {milliseconds(quantile(beside, 0.5))} / {milliseconds(quantile(alone, 0.5))}"
    yield at_most(f"p99 of a save beside a sweep of {total:,} checkpoints / alone", two / one, 3, note)
    shrunk = f"{before / 1e6:.0f} → {place.stat().st_size / 1e6:.0f} MB"
    yield shown(
        f"sweep of {total:,} checkpoints in {threads:,} threads",
        f"{seconds:.1f} s, {len(beside):,} saves meanwhile, {shrunk}",
    )


class _Clock:
    """Ends the saves after some time."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def poll(self) -> bool:
        return time.monotonic() > self._end


def _state(thread: int, n: int) -> dict[str, object]:
    return {"step": n, "said": [f"message {i} of thread {thread}, some words long" for i in range(n)]}


def _fill(place: Path, threads: int) -> None:
    with ours.open_store(place, fsync="normal") as store:
        for number in range(threads):
            thread = store.thread(f"thread-{number:05}")
            for n in range(_EACH):
                thread.save(_state(number, n))


def _saves(store: outlive.Store, until: _Clock | Connection) -> list[float]:
    """Save as fast as it goes until there is news; return how long each save took."""
    taken = []
    thread = store.thread("zz busy")
    n = 0
    while not until.poll():
        state = _state(-1, n % _EACH)
        start = time.perf_counter()
        thread.save(state)
        taken.append(time.perf_counter() - start)
        n += 1
    return taken


def _sweep(place: Path, pipe: Connection) -> None:
    with ours.open_store(place) as store:
        pipe.send("ready")
        start = time.monotonic()
        swept = store.sweep(retain=outlive.Retain(keep_last=_KEPT))
        pipe.send((swept.checkpoints, time.monotonic() - start))
