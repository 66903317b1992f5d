"""How long one worker takes for dead runs whose handlers take half a second each, twenty at a time, on SQLite.

The runs belong to a process that was killed. The clock starts with the worker and stops when the last run is completed.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ours
from scale import Scale
from table import Row, within

_HANDS = 20
_WORK_S = 0.5
_VICTIM = """
import os, signal, sys
import outlive
url, count = sys.argv[1:]
store = outlive.open(url)
runs = [store.run(f"t{n}", agent="dead").start() for n in range(int(count))]
os.kill(os.getpid(), signal.SIGKILL)
"""


def run(scale: Scale, room: Path) -> Iterator[Row]:
    url, count = ours.url(room / "dead.db"), scale.dead
    subprocess.run([sys.executable, "-c", _VICTIM, url, str(count)], check=False)
    done: list[str] = []

    def handler(run: ours.outlive.Run) -> None:
        time.sleep(_WORK_S)
        done.append(run.id)

    with ours.open_store(url) as store:
        worker = store.worker({"dead": handler}, concurrency=_HANDS)
        thread = threading.Thread(target=worker.run)
        start = time.perf_counter()
        thread.start()
        while any(True for _ in store.runs(status=["running", "released"])):
            time.sleep(0.05)
        took_s = time.perf_counter() - start
        worker.stop()
        thread.join()
    if len(set(done)) != count or len(done) != count:
        raise AssertionError(f"{len(done)} calls for {count} dead runs")
    bar_s = count * _WORK_S / _HANDS + 2
    note = f"{count} runs of {_WORK_S:g} s, {_HANDS} at a time"
    yield within("dead runs are recovered by one worker", took_s, bar_s, note)
