"""Tables that fit: plain text into files and pipes, cut to the width of a terminal where there is one."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from outlive.cli.output.escape import shown

_GAP = 2  # between columns
_LEAST, _SCANT = 12, 5  # of a column that may be cut: where there is room, and where there is hardly any


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how it is shown where there is little room."""

    name: str
    right: bool = False
    keeps: bool = False  # never cut
    is_id: bool = (
        False  # cut only when all columns that may be left out are: a part of an id is of little use
    )
    drops: int = 0  # left out where there is too little room, the greatest first; 0: never
    wraps: bool = False  # goes on in the next line instead of being cut
    styles: Callable[[str], str | None] | None = None


_STANDINGS = {"live": "green", "dead": "red", "failed": "red", "parked": "yellow", "released": "yellow"}


def standing_style(text: str) -> str | None:
    """Return the colour of what a run is doing."""
    return _STANDINGS.get(text)


def is_terminal() -> bool:
    """Tell whether a person sees what is printed."""
    return sys.stdout.isatty()


def _has_rich() -> bool:
    """Tell whether rich is installed: without it tables are plain, also at a terminal."""
    return importlib.util.find_spec("rich") is not None


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows; a column in which nothing stands is left out."""
    used = [at for at in range(len(columns)) if any(row[at] for row in rows)]
    columns = [columns[at] for at in used]
    cells = [[shown(row[at]) for at in used] for row in rows]
    if is_terminal() and _has_rich():
        _print_rich(columns, cells)
    else:
        _print_plain(columns, cells)


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
    """Return how many columns a text takes: some characters take two, some none."""
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
    """Return which columns there is room for, and how wide each may be."""
    from rich.cells import cell_len

    natural = {
        at: max(cell_len(column.name), *(cell_len(row[at]) for row in rows))
        for at, column in enumerate(columns)
    }
    is_whole = [column.keeps or column.is_id for column in columns]
    widths = {at: full if is_whole[at] else min(full, _LEAST) for at, full in natural.items()}
    while _total(widths) > room and (loose := [at for at in widths if columns[at].drops]):
        del widths[max(loose, key=lambda at: columns[at].drops)]
    _cut(widths, [at for at in widths if not is_whole[at]], room)
    _cut(widths, [at for at in widths if columns[at].is_id and not columns[at].keeps], room)
    for at, width in widths.items():  # what is left over goes to those that were cut, the first ones first
        widths[at] = width + max(0, min(natural[at] - width, room - _total(widths)))
    return widths


def _cut(widths: dict[int, int], loose: list[int], room: int) -> None:
    """Take from the widest of some columns what is too much, as far as they can give it."""
    while _total(widths) > room and any(widths[at] > _SCANT for at in loose):
        widths[max(loose, key=lambda at: widths[at])] -= 1


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def print_fields(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and what they are, one below the other."""
    pairs = [(name, shown(text)) for name, text in pairs if text]
    width = max((len(name) for name, _ in pairs), default=0)
    for name, text in pairs:
        print(f"{name.ljust(width)}  {text}")


def width() -> int:
    """Return how many columns a line may take."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns if is_terminal() else 100


def _console(*, is_error: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=is_error, highlight=False, markup=False, emoji=False)


def can_draw() -> bool:
    """Tell whether lines and dots can be printed."""
    return "utf" in (sys.stdout.encoding or "").lower()


@contextmanager
def progress(what: str, total: int | None = None, *, is_quiet: bool = False) -> Iterator[Callable[..., None]]:
    """Show how far a long work has got, on a terminal only; yields a function of (done, total)."""
    if is_quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb" or not _has_rich():
        yield lambda done, total=None: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*parts, console=_console(is_error=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def tell(done: int, said: int | None = None) -> None:
            bar.update(task, completed=done, total=total if said is None else said)

        yield tell
