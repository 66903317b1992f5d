"""What a race gave: rows about two of its lanes, and curves of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from measure import ALL, Rounds, Spread, Stats, divide
from table import Row, Versus, at_most, duration, figure, markdown, milliseconds, shown, times


@dataclass(frozen=True)
class Curve:
    """How the lanes of a race change along an axis: a plot, and a table with the same numbers."""

    name: str  # of the plot's file
    title: str
    axis: str
    at: list[float]
    labels: list[str]
    lanes: dict[str, list[Stats]]  # by the name that is shown; ours is first
    ratios: list[Spread]  # of the means, ours to the second
    is_log: bool = False

    def table(self) -> str:
        """Return the table: totals are the means of as many calls."""
        names = list(self.lanes)
        header = [self.axis, f"{names[0]} / {names[1]}", *(f"{name}, ms" for name in names)]
        return markdown(header, self._rows())

    def _rows(self) -> Iterator[list[str]]:
        for n, label in enumerate(self.labels):
            yield [label, spread(self.ratios[n]), *(_short(stats[n]) for stats in self.lanes.values())]


def spread(ratio: Spread) -> str:
    return f"{times(ratio.value)} ({figure(ratio.low)}-{figure(ratio.high)})"


def _short(stats: Stats) -> str:
    return " / ".join(figure(1e3 * value) for value in (stats.mean, stats.median, stats.p99, stats.cpu))


@dataclass(frozen=True)
class Duel:
    """Two lanes of the same rounds: ours, and the one beside it."""

    rounds: Rounds
    mine: str
    theirs: str

    def row(
        self, what: str, bar: float | None = None, part: slice = ALL, headline: str = "", by: str = "mean"
    ) -> Row:
        """Compare the means, or the CPU; the total, the other statistics and the range stand beside them."""
        mine, theirs = self.rounds.stats(self.mine, part), self.rounds.stats(self.theirs, part)
        ratio = self.ratio(part, is_cpu=by == "cpu")
        measured = (mine.cpu, theirs.cpu) if by == "cpu" else (mine.mean, theirs.mean)
        shorts = (
            [duration(mine.total), duration(theirs.total)] if by == "total" else map(milliseconds, measured)
        )
        versus = Versus(headline, *shorts) if headline else None
        beside = f"CPU {_pair(mine, theirs, 'cpu')}" if by == "cpu" else _note(mine, theirs)
        note = f"{beside}; rounds {figure(ratio.low)}-{figure(ratio.high)}x"
        if bar is None:
            return shown(what, f"{times(ratio.value)} ({note})", versus, "lower")
        return at_most(what, ratio.value, bar, note, versus)

    def ratio(self, part: slice = ALL, is_cpu: bool = False) -> Spread:
        side = self.rounds.cpu if is_cpu else self.rounds.wall
        return divide(side(self.mine, part), side(self.theirs, part))


def _note(mine: Stats, theirs: Stats) -> str:
    total = f"total {duration(mine.total)} / {duration(theirs.total)}"
    fields = {"mean": "mean", "median": "median", "p99": "p99", "CPU": "cpu"}
    return ", ".join([total, *(f"{name} {_pair(mine, theirs, field)}" for name, field in fields.items())])


def _pair(mine: Stats, theirs: Stats, field: str) -> str:
    return f"{figure(1e3 * getattr(mine, field))} / {figure(1e3 * getattr(theirs, field))} ms"


def windows(count: int, width: int) -> list[slice]:
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]


def curve(name: str, title: str, axis: str, rounds: Rounds, width: int, lanes: Mapping[str, str]) -> Curve:
    """Cut the laps of the rounds into windows; `lanes` maps what is shown to the lane, ours first."""
    parts = windows(rounds.laps, width)
    mine, theirs = list(lanes.values())[:2]
    duel = Duel(rounds, mine, theirs)
    return Curve(
        name,
        title,
        axis,
        [float(part.stop) for part in parts],
        [f"{part.start:,}-{part.stop:,}" for part in parts],
        {shown: [rounds.stats(lane, part) for part in parts] for shown, lane in lanes.items()},
        [duel.ratio(part) for part in parts],
    )


def curve_of(
    name: str, title: str, axis: str, points: Iterable[tuple[float, str, Duel]], lanes: Mapping[str, str]
) -> Curve:
    """Join races of different sizes: the size, its name, and its race."""
    points = list(points)
    return Curve(
        name,
        title,
        axis,
        [at for at, _, _ in points],
        [label for _, label, _ in points],
        {shown: [duel.rounds.stats(lane) for _, _, duel in points] for shown, lane in lanes.items()},
        [duel.ratio() for _, _, duel in points],
        is_log=True,
    )
