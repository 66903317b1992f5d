"""How long after an answer the handler of its run is called, in a worker of another process that has nothing else to do.

The run asks and waits; nothing is live. The clock starts when `store.answer` is called, and stops when the handler is called
again. PostgreSQL and Valkey notify the worker; on SQLite it looks every 0.2 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import ours
import servers
from figures.queue import workers
from scale import Scale
from table import Row, milliseconds, within


def run(scale: Scale, room: Path) -> Iterator[Row]:
    yield _row("SQLite", ours.url(room / "answers.db"), scale.answers, 0.6)
    with servers.postgres() as server:
        yield _row("PostgreSQL", server.url, scale.answers, 0.15)
    with servers.valkey() as server:
        yield _row("Valkey", server.url, scale.answers, 0.15)


def _row(name: str, url: str, count: int, bar_s: float) -> Row:
    with ours.open_store(url) as store, workers("ours", url, 1):
        took_s = sorted(_answer(store, f"r{number}") for number in range(count))
    p99_s = took_s[min(count - 1, int(count * 0.99))]
    return within(
        f"{name}: from an answer to the handler, p99",
        p99_s,
        bar_s,
        f"median {milliseconds(median(took_s))}, {count} answers",
    )


def _answer(store: ours.outlive.Store, id: str) -> float:
    store.submit(id, run_id=id, agent="asks")
    while store.find_run(id, thread=id).status != "waiting":  # type: ignore[union-attr]
        time.sleep(0.01)
    time.sleep(0.05)
    answered_at = time.time()
    store.answer(id, "go?", True, thread=id)
    while not (run := store.find_run(id, thread=id)).is_finished:  # type: ignore[union-attr]
        time.sleep(0.01)
    return float(run.result) - answered_at  # type: ignore[union-attr]
