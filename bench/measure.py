"""Take times and sizes so that two sides of one run can be compared.

The speed of a shared machine swings by a factor of two within minutes, so nothing here is meant to be read
alone: the sides take turns inside one run, medians are compared, and the ratio is the result.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median


@contextmanager
def settled() -> Iterator[None]:
    """Leave the collector on, but let it not walk the benchmark's own states at every turn."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Race:
    """Lanes that take turns, in an order drawn again for each lap.

    A fixed order would let one lane always run in the wake of the same other one, its dirty pages and caches.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self.wall_s: defaultdict[str, list[float]] = defaultdict(list)
        self.cpu_s: defaultdict[str, list[float]] = defaultdict(list)

    def lap(self, **lanes: Callable[[], object]) -> None:
        for lane in self._rng.sample(sorted(lanes), len(lanes)):
            self.time(lane, lanes[lane])

    def time(self, lane: str, call: Callable[[], object]) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        result = call()
        wall_end, cpu_end = time.perf_counter(), time.process_time()
        del result  # a state that was read is freed outside the clock
        self.wall_s[lane].append(wall_end - wall)
        self.cpu_s[lane].append(cpu_end - cpu)

    def wall(self, lane: str) -> float:
        return median(self.wall_s[lane])

    def cpu(self, lane: str) -> float:
        return median(self.cpu_s[lane])

    def ratio(self, lane: str, other: str) -> float:
        return self.wall(lane) / self.wall(other)
