"""How long the command line takes from its start to its end: `outlive ls` of a store with one thread.

Every process is new, and all modules are compiled before (`.pyc`). The lanes take turns: a Python that does nothing, one that imports
click, `outlive --version`, and `outlive ls`. The fastest of the starts counts, the median is shown beside it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import ours
from measure import Race
from scale import Scale
from table import Row, milliseconds, within

_PYTHONS = {"python -c pass": ["-c", "pass"], "import click": ["-c", "import click"]}


def run(scale: Scale, room: Path) -> Iterator[Row]:
    place = room / "start.db"
    ours.save_all(place, [{"step": 1}])
    program = [sys.executable, "-m", "outlive"]
    commands = {name: [sys.executable, *arguments] for name, arguments in _PYTHONS.items()}
    commands |= {"--version": [*program, "--version"], "ls": [*program, "ls", "--store", ours.url(place)]}
    race, warm_up = Race(), Race()
    lanes = {name: _start(command, room) for name, command in commands.items()}
    warm_up.lap(**lanes)  # compiles
    for _ in range(scale.starts):
        race.lap(**lanes)
    yield _row(race)


def _start(command: list[str], room: Path) -> Callable[[], object]:
    """Start a process that finds compiled modules, whatever this environment says about writing them."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(room / "compiled")
    return partial(subprocess.run, command, env=env, check=True, stdout=subprocess.DEVNULL)


def _row(race: Race) -> Row:
    others = [f"{name} {_short(race, name)}" for name in (*_PYTHONS, "--version")]
    note = f"median {milliseconds(race.wall('ls'))}; {', '.join(others)}"
    return within("`outlive ls`, compiled modules: fastest start", min(race.wall_s["ls"]), 0.13, note)


def _short(race: Race, name: str) -> str:
    return f"{milliseconds(min(race.wall_s[name]))}, median {milliseconds(race.wall(name))}"
