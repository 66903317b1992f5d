"""Write the results into the pages that publish them, between two markers; the rest of a page stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import peer
from figures import FIGURES
from table import Row, full_table, short_table

START, END = "<!-- bench:start -->", "<!-- bench:end -->"
_NEW_PAGE = f"# Benchmarks\n\n{START}\n{END}\n"
_FAIRNESS = (
    "Both sides take turns inside one run and the medians are compared, because the speed of a shared machine "
    "varies too much to compare times of different runs. "
    "Every timed save is durable (SQLite: `synchronous=FULL`; PostgreSQL: `fsync` and `synchronous_commit` on; "
    "Valkey: `appendfsync everysec`). Rows that name no server are SQLite."
)
# The rows of the README, by the beginning of their names and in this order. What we lose is among them.
_HEADLINES = (
    "1,000 checkpoints of a conversation",
    "durable save at step",
    "load at step",
    "64 concurrent async savers",
    "a LangGraph thread of",
    "PostgreSQL: durable save at step",
)
_MORE = "All figures, and how each is measured: [docs/benchmarks.md](docs/benchmarks.md)."


@dataclass(frozen=True)
class Report:
    rows: list[Row]
    where: str  # the machine
    versions: str
    is_whole: bool = True  # else the rows of other figures stay as they were published

    def write(self, project: Path) -> None:
        readme, page = project / "README.md", project / "docs" / "benchmarks.md"
        _require_markers(readme)
        if not page.exists():
            page.parent.mkdir(exist_ok=True)
            page.write_text(_NEW_PAGE, encoding="utf-8")
        if self.is_whole:
            _replace(readme, self.short())
            _replace(page, self.full())
        else:
            _renew(readme, self.headlines())
            _renew(page, full_table(self.rows))
            _replace_explanations(page)

    def short(self) -> str:
        return "\n\n".join([self.headlines(), f"Measured on {self.where}. {_FAIRNESS} {_MORE}"])

    def headlines(self) -> str:
        compared = {row.versus.what: row for row in self.rows if row.versus}
        rows = [row for name in _HEADLINES for what, row in compared.items() if what.startswith(name)]
        return short_table(rows, peer.NAME)

    def full(self) -> str:
        return "\n\n".join(
            [
                f"Measured on {date.today().isoformat()} by `python bench/run.py --write`; rows may have been renewed since, figure by figure.",
                f"- Machine: {self.where}\n- Versions: {self.versions}",
                _FAIRNESS + " A bar that was missed stays in the table.",
                full_table(self.rows),
                "## How each is measured",
                *_explanations(),
            ]
        )


def _explanations() -> Iterable[str]:
    for name, module in FIGURES.items():
        yield f"**{name}.** {' '.join((module.__doc__ or '').split())}"


def _require_markers(page: Path) -> None:
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    if START not in text or END not in text:
        raise SystemExit(
            f"{page.name} has no place for the results: put {START} and {END} on two lines of it"
        )


def _renew(page: Path, table: str) -> None:
    """Put the rows of a table into the one that is published, in place of those of the same name."""
    _require_markers(page)
    lines = page.read_text(encoding="utf-8").splitlines()
    at = {line.split("|")[1].strip(): number for number, line in enumerate(lines) if line.startswith("|")}
    last = max(at.values())
    for row in table.splitlines()[2:]:
        name = row.split("|")[1].strip()
        if name in at:
            lines[at[name]] = row
        else:
            last += 1
            lines.insert(last, row)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _replace_explanations(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    head, title, rest = text.partition("## How each is measured\n")
    end = rest[rest.index(END) :]
    page.write_text(f"{head}{title}\n" + "\n\n".join(_explanations()) + f"\n{end}", encoding="utf-8")


def _replace(page: Path, block: str) -> None:
    _require_markers(page)
    head, _, rest = page.read_text(encoding="utf-8").partition(START)
    page.write_text(f"{head}{START}\n{block}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
