"""Take times and sizes so that two sides of one run can be compared.

The speed of a shared machine varies by a factor of two within minutes, so no time here is meant to be read alone. The
sides take turns inside one run, and a run has several rounds. The result is the ratio of the means, the median of the
rounds, with their range beside it: a median of single calls would hide what one side does only now and then.
"""

from __future__ import annotations

import gc
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

ALL = slice(None)


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


@dataclass(frozen=True)
class Stats:
    """Calls of one lane: seconds. CPU is process time of all threads, the mean of a call."""

    total: float
    mean: float
    median: float
    p99: float
    cpu: float
    low: float  # the lowest and the highest mean of a round
    high: float


@dataclass(frozen=True)
class Spread:
    """One number per round: the median counts, the range is shown."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(median(values), min(values), max(values))


class Rounds:
    """Races of the same lanes, of which a part may be looked at: some laps, as a slice."""

    def __init__(self, races: Sequence[Race]) -> None:
        self.races = races

    @property
    def laps(self) -> int:
        return max(len(taken) for taken in self.races[0].wall_s.values())

    def stats(self, lane: str, part: slice = ALL) -> Stats:
        """Describe a lane by the medians of its rounds."""
        walls = [race.wall_s[lane][part] for race in self.races]
        mean = Spread.of(self.wall(lane, part))
        return Stats(
            total=median(map(sum, walls)),
            mean=mean.value,
            median=median(map(median, walls)),
            p99=median(quantile(wall, 0.99) for wall in walls),
            cpu=median(self.cpu(lane, part)),
            low=mean.low,
            high=mean.high,
        )

    def wall(self, lane: str, part: slice = ALL) -> list[float]:
        """Return the mean seconds of a call, by round."""
        return [fmean(race.wall_s[lane][part]) for race in self.races]

    def cpu(self, lane: str, part: slice = ALL) -> list[float]:
        return [fmean(race.cpu_s[lane][part]) for race in self.races]


def divide(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Divide round by round."""
    return Spread.of([value / other for value, other in zip(values, others, strict=True)])
