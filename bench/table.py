"""A row of results, and the tables that rows make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

HEADER = ("what", "measured", "better", "bar", "verdict")
_WIDTHS = (60, 60, 6, 14, 7)


@dataclass(frozen=True)
class Versus:
    """The same thing measured on both sides of one run: a row of the short table."""

    what: str
    ours: str
    peer: str


@dataclass(frozen=True)
class Row:
    what: str
    measured: str
    bar: str = ""
    met: bool | None = None  # None: reported, not judged
    versus: Versus | None = None
    better: str = ""  # "lower" or "higher"; a bar says it too

    def cells(self) -> tuple[str, ...]:
        better = self.better or {"<": "lower", ">": "higher"}.get(self.bar[:1], "")
        return self.what, self.measured, better, self.bar, {None: "", True: "met", False: "MISSED"}[self.met]


def figure(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}"


def times(value: float) -> str:
    return f"{figure(value)}x"


def milliseconds(seconds: float) -> str:
    return f"{figure(seconds * 1e3)} ms"


def duration(seconds: float) -> str:
    return milliseconds(seconds) if seconds < 1 else f"{figure(seconds)} s"


def megabytes(count: float) -> str:
    return f"{figure(count / 1e6)} MB"


def _measured(value: str, note: str) -> str:
    return f"{value} ({note})" if note else value


def at_most(what: str, ratio: float, bar: float, note: str = "", versus: Versus | None = None) -> Row:
    return Row(what, _measured(times(ratio), note), f"<= {bar:g}x", ratio <= bar, versus)


def at_least(what: str, ratio: float, bar: float, note: str = "", versus: Versus | None = None) -> Row:
    return Row(what, _measured(times(ratio), note), f">= {bar:g}x", ratio >= bar, versus)


def within(what: str, seconds: float, bar_s: float, note: str = "", versus: Versus | None = None) -> Row:
    return Row(
        what, _measured(milliseconds(seconds), note), f"<= {bar_s * 1e3:g} ms", seconds <= bar_s, versus
    )


def shown(what: str, measured: str, versus: Versus | None = None, better: str = "") -> Row:
    return Row(what, measured, versus=versus, better=better)


def line(cells: Iterable[str]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def rule() -> str:
    return line("-" * width for width in _WIDTHS)


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def full_table(rows: Iterable[Row]) -> str:
    return markdown(HEADER, (row.cells() for row in rows))


def short_table(rows: Iterable[Row], peer: str) -> str:
    compared = [(row.versus.what, row.versus.ours, row.versus.peer) for row in rows if row.versus]
    return markdown(("", "outlive", peer), compared)
