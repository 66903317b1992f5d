"""Draw a curve as a small SVG that is readable on a light page and on a dark one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape

from compare import Curve
from measure import Stats

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 44, 44
_STROKES = ("#2f7ed8", "#d9622b", "#3a9d5d", "#9a5fc0", "#8a8a8a")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.t{font-weight:600}.g{stroke:#8884;fill:none}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def draw(curve: Curve) -> str:
    plot = _Plot(curve)
    body = "\n".join([*plot.frame(), *plot.bands(), *plot.lines(), *plot.legend()])
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return f"{head}\n<title>{escape(curve.title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"


class _Plot:
    def __init__(self, curve: Curve) -> None:
        self._curve = curve
        highest = max(1e3 * stats.high for lane in curve.lanes.values() for stats in lane)
        lowest = min(1e3 * stats.low for lane in curve.lanes.values() for stats in lane)
        self._ticks = _decades(lowest, highest) if curve.is_log else _steps(highest)
        ends = (self._ticks[0], self._ticks[-1])
        self._y = _scale(ends, (HEIGHT - BOTTOM, TOP), curve.is_log)
        first = curve.at[0] if curve.is_log else 0
        self._x = _scale((first, curve.at[-1]), (LEFT + 8, WIDTH - RIGHT - 8), curve.is_log)

    def frame(self) -> Iterator[str]:
        yield f'<text class="t" x="{LEFT}" y="16">{escape(self._curve.title)}</text>'
        for tick in self._ticks:
            y = self._y(tick)
            yield f'<path class="g" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        yield f'<text x="4" y="{TOP - 10}">ms</text>'
        every = math.ceil(len(self._curve.at) / 10)
        for at, label in list(zip(self._curve.at, self._curve.labels, strict=True))[::every]:
            yield f'<text x="{self._x(at):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(label.split("-")[-1])}</text>'
        yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(self._curve.axis)}</text>'

    def bands(self) -> Iterator[str]:
        """Draw the range of the rounds."""
        for stroke, lane in zip(_STROKES, self._curve.lanes.values(), strict=False):
            edge = [*self._points(lane, "low"), *reversed(self._points(lane, "high"))]
            yield f'<path d="M{"L".join(edge)}Z" fill="{stroke}" opacity=".18"/>'

    def lines(self) -> Iterator[str]:
        for stroke, lane in zip(_STROKES, self._curve.lanes.values(), strict=False):
            line = "L".join(self._points(lane, "mean"))
            yield f'<path d="M{line}" fill="none" stroke="{stroke}" stroke-width="2"/>'

    def legend(self) -> Iterator[str]:
        x = float(LEFT)
        for stroke, name in zip(_STROKES, self._curve.lanes, strict=False):
            yield f'<path d="M{x:.0f} 30h14" stroke="{stroke}" stroke-width="3"/>'
            yield f'<text x="{x + 19:.0f}" y="34">{escape(name)}</text>'
            x += 34 + 6.6 * len(name)

    def _points(self, lane: Sequence[Stats], field: str) -> list[str]:
        pairs = zip(self._curve.at, lane, strict=True)
        return [f"{self._x(at):.1f} {self._y(1e3 * getattr(stats, field)):.1f}" for at, stats in pairs]


def _scale(
    values: tuple[float, float], places: tuple[float, float], is_log: bool
) -> Callable[[float], float]:
    """Map values to places."""
    low, high = (math.log10(value) for value in values) if is_log else values
    factor = (places[1] - places[0]) / ((high - low) or 1)
    return lambda value: places[0] + factor * ((math.log10(value) if is_log else value) - low)


def _steps(highest: float) -> list[float]:
    """Return round numbers from zero to above the highest."""
    power = 10 ** math.floor(math.log10(highest))
    step = next(power * part for part in (0.2, 0.5, 1, 2) if power * part * 6 >= highest)
    return [step * n for n in range(math.ceil(highest / step) + 1)]


def _decades(lowest: float, highest: float) -> list[float]:
    return [10.0**n for n in range(math.floor(math.log10(lowest)), math.ceil(math.log10(highest)) + 1)]
