"""Write the results into the pages that publish them, between two markers; the rest of a page stays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from compare import Curve
from figures import module_path
from plot import draw
from results import Result, Results
from table import Row, full_table, short_table

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
PLOTS = Path("docs/plots")
_NAMES = "LangGraph's savers"
_FAIRNESS = (
    "Both sides take turns inside one run, and both keep their whole history. The means are compared round by round, and "
    "the median of the rounds counts. "
    "Every timed save is durable (SQLite: `synchronous=FULL` unless a row says NORMAL; PostgreSQL: `fsync` and "
    "`synchronous_commit` on; Valkey: `appendfsync everysec`). Rows that name no server are SQLite."
)
_READING = (
    "The name of a row says what is divided by what, and the numbers beside it have the same order. Means and totals come first: a median hides what a side does only now "
    "and then, as a checkpoint of its write-ahead log. CPU is process time of all threads, the mean of a call. The range is "
    "that of the rounds. A bar that was missed stays in the table."
)
# The rows of the README, by the beginning of their names and in this order. What we lose is among them.
_HEADLINES = (
    "1,000 checkpoints of a conversation",
    "durable save, steps",
    "1,000 durable saves",
    "load at step",
    "64 concurrent async savers",
    "LangGraph turn, turns",
    "LangGraph turn, all",
)
_MORE = "All figures, curves, and how each is measured: [docs/benchmarks.md](docs/benchmarks.md)."


@dataclass(frozen=True)
class Report:
    results: Results

    def write(self, project: Path) -> None:
        for page, block in self.pages().items():
            _replace(project / page, block)
        folder = project / PLOTS
        folder.mkdir(parents=True, exist_ok=True)
        plots = self.plots()
        for path in folder.glob("*.svg"):
            if path.name not in plots:
                path.unlink()
        for name, svg in plots.items():
            (folder / name).write_text(svg, encoding="utf-8")

    def pages(self) -> dict[str, str]:
        return {"README.md": self.short(), "docs/benchmarks.md": self.full()}

    def plots(self) -> dict[str, str]:
        curves = [curve for result in self.results.figures.values() for curve in result.curves]
        return {f"{curve.name}.svg": draw(curve) for curve in curves}

    def short(self) -> str:
        compared = {row.versus.what: row for row in self._rows() if row.versus}
        rows = [row for name in _HEADLINES for what, row in compared.items() if what.startswith(name)]
        where = f"Measured on {self.results.machine}. {_FAIRNESS} {_MORE}"
        return "\n\n".join([short_table(rows, _NAMES), where])

    def full(self) -> str:
        sections = [
            block for name, result in self.results.figures.items() for block in _section(name, result)
        ]
        return "\n\n".join([self._header(), _FAIRNESS, _READING, self._verdict(), *sections])

    def _header(self) -> str:
        facts = {
            "Machine": self.results.machine,
            "Versions": self.results.versions,
            "Sizes": self.results.sizes,
            "Load average while measuring": self._load(),
        }
        return "\n".join(f"- {name}: {value}" for name, value in facts.items())

    def _rows(self) -> Iterator[Row]:
        for result in self.results.figures.values():
            yield from result.rows

    def _load(self) -> str:
        loads = sorted({load for result in self.results.figures.values() for load in result.load})
        return (
            f"{loads[0]:.1f} to {loads[-1]:.1f}; each figure has its own below" if loads else "not recorded"
        )

    def _verdict(self) -> str:
        judged = [row for row in self._rows() if row.met is not None]
        missed = [f"{row.what}: {row.measured.split(' ')[0]}, bar {row.bar}" for row in judged if not row.met]
        count = f"{len(judged) - len(missed)} of {len(judged)} bars are met."
        return "\n".join([f"{count} Missed:\n" if missed else count, *(f"- {line}" for line in missed)])


def _section(name: str, result: Result) -> Iterator[str]:
    yield f"## {name}"
    yield explanation(name)
    load = (
        " before, ".join(f"{load:.1f}" for load in result.load) + " after" if result.load else "not recorded"
    )
    yield f"Measured on {result.date}; load average {load}."
    yield full_table(result.rows)
    for curve in result.curves:
        yield from _figure(curve)


def _figure(curve: Curve) -> Iterator[str]:
    yield f"![{curve.title}](plots/{curve.name}.svg)"
    summary = f"<details><summary>{curve.title}: mean / median / p99 / CPU</summary>"
    yield f"{summary}\n\n{curve.table()}\n\n</details>"


def explanation(name: str) -> str:
    """Return the docstring of a figure, without importing what it measures."""
    source = module_path(name).read_text(encoding="utf-8")
    return " ".join((ast.get_docstring(ast.parse(source)) or "").split())


def _replace(page: Path, block: str) -> None:
    text = page.read_text(encoding="utf-8")
    if START not in text or END not in text:
        raise SystemExit(
            f"{page.name} has no place for the results: put {START} and {END} on two lines of it"
        )
    head, _, rest = text.partition(START)
    page.write_text(f"{head}{START}\n{block}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
