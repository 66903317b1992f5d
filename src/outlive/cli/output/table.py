"""Prints tables: plain text into files and pipes, fitted to the width of a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from outlive.dataclass import dataclass
from outlive.view.escape import escape_terminal

_GAP = 2  # between columns
_MIN_WIDTH, _SCANT_WIDTH = 12, 5  # of a column that may be cut: normally, and on a very narrow terminal


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and what happens to it where there is little room."""

    name: str
    right: bool = False
    keeps: bool = False  # never cut
    is_id: bool = False  # cut only after all optional columns are dropped: half an id is of little use
    drops: int = 0  # dropped where there is too little room, the greatest number first; 0: never
    wraps: bool = False  # wrapped instead of cut
    styles: Callable[[str], str | None] | None = None


_STANDINGS = {
    "live": "green", "dead": "red", "failed": "red", "parked": "yellow", "released": "yellow", "waiting": "cyan",
}  # fmt: skip


def standing_style(text: str) -> str | None:
    return _STANDINGS.get(text)


def is_terminal() -> bool:
    return sys.stdout.isatty()


def terminal_width() -> int:
    """Return how many characters a line may have."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if is_terminal() else 100


def can_draw() -> bool:
    """Tell whether the output can show lines and dots."""
    return "utf" in (sys.stdout.encoding or "").lower()


def format_ratio(part: int, whole: int) -> str:
    sign, none = ("×", "–") if can_draw() else ("x", "-")
    return f"{whole / part:.1f}{sign}" if part else none


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows, without the columns that are empty in all of them."""
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    columns = [columns[at] for at in used]
    cells = [[escape_terminal(row[at]) for at in used] for row in rows]
    (_print_rich if is_terminal() else _print_plain)(columns, cells)


def _print_plain(columns: Sequence[Column], rows: list[list[str]]) -> None:
    lines = [[column.name for column in columns], *rows]
    widths = [max(_cells(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        cells = []
        for text, width, column in zip(line, widths, columns, strict=True):
            gap = " " * (width - _cells(text))
            cells.append(gap + text if column.right else text + gap)
        print("  ".join(cells).rstrip())


def _cells(text: str) -> int:
    """Return the width of a text: some characters take two cells, some none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _print_rich(columns: Sequence[Column], rows: list[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    console = _console()
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    widths = _fit(columns, rows, console.width)
    for at, width in widths.items():
        justify: Any = "right" if columns[at].right else "left"
        wraps = columns[at].wraps
        overflow: Any = "fold" if wraps else "ellipsis"
        table.add_column(columns[at].name, justify=justify, no_wrap=not wraps, overflow=overflow, width=width)
    for row in rows:
        table.add_row(*(Text(row[at], style=_style(columns[at], row[at])) for at in widths))
    console.print(table)


def _style(column: Column, text: str) -> str:
    return (column.styles(text) if column.styles else None) or ""


def _fit(columns: Sequence[Column], rows: list[list[str]], room: int) -> dict[int, int]:
    """Return the columns that fit, and their widths."""
    from rich.cells import cell_len

    natural = {
        at: max(cell_len(column.name), *(cell_len(row[at]) for row in rows))
        for at, column in enumerate(columns)
    }
    # 1. Columns that may be cut start at their least width.
    is_whole = [column.keeps or column.is_id for column in columns]
    widths = {at: full if is_whole[at] else min(full, _MIN_WIDTH) for at, full in natural.items()}
    # 2. Optional columns are dropped, then the rest is cut, ids last.
    while _total(widths) > room and (optional := [at for at in widths if columns[at].drops]):
        del widths[max(optional, key=lambda at: columns[at].drops)]
    _cut(widths, [at for at in widths if not is_whole[at]], room)
    _cut(widths, [at for at in widths if columns[at].is_id and not columns[at].keeps], room)
    # 3. The room that is left goes to the columns that were cut, from the left.
    for at, width in widths.items():
        widths[at] = width + max(0, min(natural[at] - width, room - _total(widths)))
    return widths


def _cut(widths: dict[int, int], flexible: list[int], room: int) -> None:
    """Narrow the widest of some columns until the table fits or they can give no more."""
    while _total(widths) > room and any(widths[at] > _SCANT_WIDTH for at in flexible):
        widths[max(flexible, key=lambda at: widths[at])] -= 1


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one per line, without the values that are empty."""
    fields = [(name, escape_terminal(text)) for name, text in fields if text]
    width = max((len(name) for name, _ in fields), default=0)
    for name, text in fields:
        print(f"{name.ljust(width)}  {text}")


def _console(*, is_error: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=is_error, highlight=False, markup=False, emoji=False)


@contextmanager
def progress(
    label: str, total: int | None = None, *, is_quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a progress bar, at a terminal only; yields a function of (done, total)."""
    if is_quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda done, total=None: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=_console(is_error=True), transient=True) as bar:
        task = bar.add_task(label, total=total)

        def update(done: int, new_total: int | None = None) -> None:
            bar.update(task, completed=done, total=total if new_total is None else new_total)

        yield update
