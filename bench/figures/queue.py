"""Empty runs per second through a queue, from the first submission until the last is completed, beside a queue of DBOS.

One PostgreSQL server, `fsync` and `synchronous_commit` on. One process submits from eight threads, two worker processes with the defaults of each side
work. The rounds of both sides alternate, each with a new database; the median of the rounds' ratios counts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import dbos_workflows
import ours
import servers
from scale import Scale
from table import Row, at_least

_WORKER = Path(__file__).resolve().parent.parent / "queue_worker.py"
_PROCESSES = 2
_SUBMITTERS = 8
_PATIENCE_S = 600.0


def run(scale: Scale, room: Path) -> Iterator[Row]:
    rates: list[tuple[float, float]] = []
    with servers.postgres() as server:
        for number in range(scale.server_rounds):
            mine = _ours(server.database(f"queue_ours_{number}"), scale.queued)
            theirs = _theirs(server.database(f"queue_theirs_{number}"), scale.queued)
            rates.append((mine, theirs))
    ratios = sorted(mine / theirs for mine, theirs in rates)
    mine, theirs = (median(side) for side in zip(*rates, strict=True))
    note = f"{mine:,.0f} against {theirs:,.0f} runs/s; rounds {ratios[0]:.1f}-{ratios[-1]:.1f}x"
    yield at_least(f"PostgreSQL: queued runs per second / {dbos_workflows.NAME}", median(ratios), 2, note)


def _ours(url: str, count: int) -> float:
    with ours.open_store(url) as store, workers("ours", url, _PROCESSES):
        start = time.perf_counter()
        _in_threads(lambda number: store.submit(f"t{number}", agent="empty"), count)
        _wait(lambda: not any(True for _ in store.runs(status=["released", "running"])))
        took_s = time.perf_counter() - start
        if sum(run.status == "completed" for run in store.runs()) != count:
            raise AssertionError("some runs were not completed")
    return count / took_s


def _theirs(url: str, count: int) -> float:
    with workers("theirs", url, _PROCESSES), dbos_workflows.client(url) as client:
        start = time.perf_counter()
        _in_threads(lambda number: dbos_workflows.enqueue(client), count)
        _wait(lambda: dbos_workflows.completed(client) == count)
        return count / (time.perf_counter() - start)


def _in_threads(submit: Callable[[int], object], count: int) -> None:
    with ThreadPoolExecutor(_SUBMITTERS) as pool:
        for done in pool.map(submit, range(count)):
            del done


class workers:  # noqa: N801  # used like a function
    """Worker processes that live until the block ends."""

    def __init__(self, side: str, url: str, count: int) -> None:
        self._command = [sys.executable, str(_WORKER), side, url]
        self._count = count

    def __enter__(self) -> None:
        self._stack = ExitStack()
        for _ in range(self._count):
            process = self._stack.enter_context(
                subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
            )
            self._stack.callback(process.kill)
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise AssertionError("a worker did not start")

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def _wait(is_done: Callable[[], bool]) -> None:
    end = time.perf_counter() + _PATIENCE_S
    while not is_done():
        if time.perf_counter() > end:
            raise AssertionError("the queue was not worked off")
        time.sleep(0.25)
