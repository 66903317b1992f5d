"""Durable steps per second on one PostgreSQL server, `fsync` and `synchronous_commit` on, beside DBOS.

A run and workflows of DBOS take turns in random order, a few empty steps a turn; DBOS keeps its system database on the same server. The
clock runs from the first step of a turn to its last, without the beginning and end of DBOS's workflow. Each round has new databases;
within a round the medians of the turns are compared, and the median of the rounds' ratios counts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from dbos import DBOS, SetWorkflowID

import ours
import servers
import workflows
from measure import settled
from outlive.sync.run import Run
from scale import Scale
from table import Row, at_least

_TURN = 25  # steps


def run(scale: Scale, room: Path) -> Iterator[Row]:
    turns = scale.durable_steps // _TURN
    with servers.postgres() as server:
        rates = [
            _round(server.database(f"ours_{n}"), server.database(f"theirs_{n}"), turns, n)
            for n in range(scale.server_rounds)
        ]
    yield _row(rates)


def _row(rates: list[tuple[float, float]]) -> Row:
    ratios = sorted(mine / theirs for mine, theirs in rates)
    mine, theirs = (median(side) for side in zip(*rates, strict=True))
    note = f"{mine:,.0f} against {theirs:,.0f} steps/s; rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
    return at_least(f"PostgreSQL: durable steps per second / {workflows.NAME}", median(ratios), 2, note)


def _round(url: str, peer_url: str, turns: int, seed: int) -> tuple[float, float]:
    """Return the steps per second of both sides; the first turn of each warms up."""
    rng = random.Random(seed)
    took_s: dict[str, list[float]] = {"ours": [], "theirs": []}
    with (
        settled(),
        workflows.launched(peer_url),
        ours.open_store(url) as store,
        store.run("worker") as run,
    ):
        for turn in range(turns + 1):
            for side in rng.sample(["ours", "theirs"], 2):
                took_s[side].append(_ours(run) if side == "ours" else _theirs(turn))
        _expect(ours.stored_steps(store, run), (turns + 1) * _TURN)
        _expect(len(DBOS.list_workflow_steps(f"turn-{turns}")), _TURN)
    return _TURN / median(took_s["ours"][1:]), _TURN / median(took_s["theirs"][1:])


def _ours(run: Run) -> float:
    start = time.perf_counter()
    for _ in range(_TURN):
        run.step("nothing", _nothing)
    return time.perf_counter() - start


def _theirs(turn: int) -> float:
    with SetWorkflowID(f"turn-{turn}"):
        return workflows.steps(_TURN)


def _nothing() -> None:
    pass


def _expect(stored: int, count: int) -> None:
    if stored != count:
        raise AssertionError(f"{stored} steps are stored instead of {count}")
