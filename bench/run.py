"""Measure outlive beside LangGraph's savers and beside the bare engine: SQLite, PostgreSQL, Valkey.

    python bench/run.py                      everything, an hour or more
    python bench/run.py --quick              smaller sizes, less than a minute each
    python bench/run.py --only disk,save     some figures
    python bench/run.py --write              everything, and publish it in README.md and docs/benchmarks.md
    python bench/run.py --write --only save  the same for some figures; the others stay as they were published
    python bench/run.py --frameworks         the adapters beside what their frameworks ship, in the environment of those
    python bench/run.py --render             publish again what was measured, without measuring

A missed bar is a row that says so, not a failing exit code.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import machine
from compare import Curve
from figures import FIGURES, FRAMEWORKS, module
from report import Report
from results import Result, Results
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
    parser.add_argument("--only", metavar="NAME,...", help=f"some of: {', '.join((*FIGURES, *FRAMEWORKS))}")
    parser.add_argument("--frameworks", action="store_true", help="the figures of the adapters")
    parser.add_argument("--write", action="store_true", help="publish the results")
    parser.add_argument("--render", action="store_true", help="publish what was measured before")
    parser.add_argument(
        "--dir", type=Path, help="put the stores here instead of the system's temporary folder"
    )
    return parser


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> list[str]:
    known = FRAMEWORKS if options.frameworks else FIGURES
    names = options.only.split(",") if options.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no figure is called {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _measure(name: str, scale: Scale, folder: Path) -> Result:
    """Run a figure in a room of its own, which is emptied before the next one starts."""
    start, before = time.perf_counter(), machine.load()
    result = Result(date.today().isoformat(), [before], [])
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as room:
        for made in module(name).run(scale, Path(room)):
            _keep(made, result)
    result.load.append(machine.load())
    print(f"  {name}: {time.perf_counter() - start:.0f} s, load average {before:.1f}", flush=True)
    return result


def _keep(made: Row | Curve, result: Result) -> None:
    if isinstance(made, Curve):
        result.curves.append(made)
        print(made.table(), flush=True)
    else:
        result.rows.append(made)
        print(line(made.cells()), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    names = _chosen(parser, options)
    if options.write and options.quick:
        parser.error("--write publishes full sizes: leave out --quick")
    if options.dir is not None:
        tempfile.tempdir = str(options.dir.resolve())  # the servers make their folders there too
    machine.keep_memory()
    results = Results.load()
    with tempfile.TemporaryDirectory(prefix="outlive-bench-") as folder:
        scale = QUICK if options.quick else FULL
        where, versions = machine.describe(Path(folder)), machine.versions()
        print(f"{where}\n{versions}\n{scale.describe()}\nload average {machine.load():.1f}\n")
        if options.quick:
            print("Quick sizes: the bars are those of a full run.\n")
        print(line(HEADER), rule(), sep="\n", flush=True)
        for name in [] if options.render else names:
            results.figures[name] = _measure(name, scale, Path(folder))
            if options.write:  # after each, so that a run that is interrupted keeps what it has measured
                results.machine, results.sizes = where, scale.describe()
                if not options.frameworks:  # most figures come from the other environment
                    results.versions = versions
                results.save((*FIGURES, *FRAMEWORKS))
    if options.write or options.render:
        Report(results).write(PROJECT)


if __name__ == "__main__":
    main()
