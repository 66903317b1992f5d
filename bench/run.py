"""Measure outlive beside LangGraph's savers and beside the bare engine: SQLite, PostgreSQL, Valkey.

    python bench/run.py                      everything, some minutes
    python bench/run.py --quick              smaller sizes, under a minute
    python bench/run.py --only disk,save     some figures
    python bench/run.py --write              everything, and publish it in README.md and docs/benchmarks.md
    python bench/run.py --write --only save  the same for some figures; the others stay as they were published

A missed bar is a row that says so, not a failing exit code.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import machine
from figures import FIGURES
from report import Report
from scale import FULL, QUICK, Scale
from table import HEADER, Row, line, rule

PROJECT = Path(__file__).resolve().parent.parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="smaller sizes; the bars are meant for the full ones"
    )
    parser.add_argument("--only", metavar="NAME,...", help=f"some of: {', '.join(FIGURES)}")
    parser.add_argument("--write", action="store_true", help="publish the results")
    parser.add_argument(
        "--dir", type=Path, help="put the stores here instead of the system's temporary folder"
    )
    return parser


def _chosen(parser: argparse.ArgumentParser, only: str | None) -> list[str]:
    names = only.split(",") if only else list(FIGURES)
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        parser.error(f"no figure is called {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    return names


def _rows(names: Sequence[str], scale: Scale, folder: Path) -> Iterator[Row]:
    """Run each figure in a room of its own, which is emptied before the next one starts."""
    for name in names:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as room:
            yield from FIGURES[name].run(scale, Path(room))
        print(f"  {name}: {time.perf_counter() - start:.0f} s", flush=True)


def _print(rows: Iterator[Row]) -> Iterator[Row]:
    print(line(HEADER), rule(), sep="\n", flush=True)
    for row in rows:
        print(line(row.cells()), flush=True)
        yield row


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    names = _chosen(parser, options.only)
    if options.write and options.quick:
        parser.error("--write publishes full sizes: leave out --quick")
    if options.dir is not None:
        tempfile.tempdir = str(options.dir.resolve())  # the servers make their folders there too
    machine.keep_memory()
    with tempfile.TemporaryDirectory(prefix="outlive-bench-") as folder:
        where = machine.describe(Path(folder))
        print(f"{where}\n{machine.versions()}\n")
        if options.quick:
            print("Quick sizes: the bars are those of a full run.\n")
        rows = list(_print(_rows(names, QUICK if options.quick else FULL, Path(folder))))
    if options.write:
        Report(rows, where, machine.versions(), is_whole=options.only is None).write(PROJECT)


if __name__ == "__main__":
    main()
