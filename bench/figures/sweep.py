"""How long saves take while the same store sweeps in the background, beside the same saves without a sweep.

A SQLite file is filled with threads of 100 short checkpoints each (100,000 in all), of which the sweep keeps 50 each. One thread saves durably some hundred times
a second, first alone, then while another thread of the same process sweeps. The 99th percentile of the single saves is compared, and the whole of the sweep is
told beside it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ours
import outlive
from measure import quantile, settled
from scale import Scale
from table import Row, at_most, milliseconds, shown

_EACH = 100
_KEPT = 50
_PAUSE_S = 0.004  # between two saves: an agent has other things to do


def run(scale: Scale, room: Path) -> Iterator[Row]:
    place = room / "store.db"
    threads = scale.swept
    _fill(place, threads)
    before = place.stat().st_size
    with settled(), ours.open_store(place) as store:
        alone = _saves(store, _after(3.0))
        sweeping = _Sweeping(store)
        beside = _saves(store, sweeping.is_over)
        if sweeping.swept < threads * (_EACH - _KEPT):
            raise AssertionError(f"only {sweeping.swept:,} checkpoints were swept")
    total = threads * _EACH
    one, two = quantile(alone, 0.99), quantile(beside, 0.99)
    medians = f"medians {milliseconds(quantile(beside, 0.5))} / {milliseconds(quantile(alone, 0.5))}"
    note = f"{milliseconds(two)} / {milliseconds(one)}, {medians}"
    yield at_most(f"p99 of a save beside a sweep of {total:,} checkpoints / alone", two / one, 3, note)
    shrunk = f"{before / 1e6:.0f} → {place.stat().st_size / 1e6:.0f} MB"
    measured = f"{sweeping.seconds:.1f} s, {len(beside):,} saves meanwhile, {shrunk}"
    yield shown(f"sweep of {total:,} checkpoints in {threads:,} threads", measured)


class _Sweeping:
    """A sweep in a thread of its own."""

    def __init__(self, store: outlive.Store) -> None:
        self._store = store
        self.swept = 0
        self.seconds = 0.0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        start = time.monotonic()
        self.swept = self._store.sweep(retain=outlive.Retain(keep_last=_KEPT)).checkpoints
        self.seconds = time.monotonic() - start

    def is_over(self) -> bool:
        return not self._thread.is_alive()


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _state(thread: int, n: int) -> dict[str, object]:
    return {"step": n, "said": [f"message {i} of thread {thread}, some words long" for i in range(n)]}


def _fill(place: Path, threads: int) -> None:
    with ours.open_store(place, fsync="normal") as store:
        for number in range(threads):
            thread = store.thread(f"thread-{number:05}")
            for n in range(_EACH):
                thread.save(_state(number, n))


def _saves(store: outlive.Store, is_over: Callable[[], bool]) -> list[float]:
    """Save in turns until it is over; return how long each save took."""
    taken = []
    thread = store.thread("zz busy")
    while not is_over():
        state = _state(-1, len(taken) % _EACH)
        start = time.perf_counter()
        thread.save(state)
        taken.append(time.perf_counter() - start)
        time.sleep(_PAUSE_S)
    return taken
