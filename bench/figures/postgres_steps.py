"""Durable steps per second on one PostgreSQL server, `fsync` and `synchronous_commit` on, beside DBOS.

One run, and one workflow of DBOS, does one empty step after the other; DBOS keeps its system database on the same server. The clock runs
from the first step to the last, without the beginning and end of the run or workflow. Both sides run in every round, each in a new
database, in alternating order, and nothing of DBOS runs while it is not its turn; the median of the rounds' ratios counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from dbos import DBOS, SetWorkflowID

import ours
import servers
import workflows
from measure import settled
from scale import Scale
from table import Row, at_least

_WARM_UP = 20


def run(scale: Scale, room: Path) -> Iterator[Row]:
    rates: list[tuple[float, float]] = []
    with servers.postgres() as server:
        for n in range(scale.server_rounds):
            sides = [
                partial(_ours, server.database(f"ours_{n}"), scale.durable_steps),
                partial(_theirs, server.database(f"theirs_{n}"), scale.durable_steps),
            ]
            rates.append(_round(sides, n))
    yield _row(rates)


def _round(sides: list[Callable[[], float]], number: int) -> tuple[float, float]:
    found: dict[int, float] = {}
    for side in (0, 1) if number % 2 == 0 else (1, 0):
        with settled():
            found[side] = sides[side]()
    return found[0], found[1]


def _row(rates: list[tuple[float, float]]) -> Row:
    ratios = sorted(mine / theirs for mine, theirs in rates)
    mine, theirs = (median(side) for side in zip(*rates, strict=True))
    note = f"{mine:,.0f} against {theirs:,.0f} steps/s; rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
    return at_least(f"PostgreSQL: durable steps per second / {workflows.NAME}", median(ratios), 2, note)


def _ours(url: str, count: int) -> float:
    with ours.open_store(url) as store, store.run("worker", run_id="timed") as run:
        for _ in range(_WARM_UP):
            run.step("warm-up", _nothing)
        start = time.perf_counter()
        for _ in range(count):
            run.step("nothing", _nothing)
        took_s = time.perf_counter() - start
        stored = ours.stored_steps(store, run)
    if stored != _WARM_UP + count:
        raise AssertionError(f"{stored} steps are stored instead of {_WARM_UP + count}")
    return count / took_s


def _theirs(url: str, count: int) -> float:
    with workflows.launched(url):
        workflows.steps(_WARM_UP)
        with SetWorkflowID("timed"):
            took_s = workflows.steps(count)
        stored = len(DBOS.list_workflow_steps("timed"))
    if stored != count:
        raise AssertionError(f"{stored} steps are stored instead of {count}")
    return count / took_s


def _nothing() -> None:
    pass
