"""A service of workers: submit runs, kill a worker, end another one in order, and lose nothing.

    python examples/worker_service.py worker URL   work until SIGTERM: a deployment runs several of these
    python examples/worker_service.py submit URL   submit a trip, as a web handler would
    python examples/worker_service.py demo         do both in a temporary folder, and kill workers

The exit code of the demo is 0 only if every run was completed, and no completed step was repeated.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import outlive

TRIPS = 12


def plan_trip(run: outlive.Run) -> str:
    """Plan a trip in three steps. A step whose result is stored is not called again."""
    for name in ("flights", "hotel", "plan"):
        run.step(name, search, run.id, name)
    return f"planned {run.info.prompt['to']}"


def search(run_id: str, name: str) -> str:
    # A call that costs time and money. One write, because other threads print too.
    print(f"{os.getpid()} {run_id} {name}\n", end="", flush=True)
    time.sleep(0.2)
    return f"{name} found"


def work(url: str) -> None:
    """Work until SIGTERM: then claim nothing more, finish what is short, and give back the rest."""
    with outlive.open(url) as store:
        worker = store.worker(
            {"planner": plan_trip},
            concurrency=4,
            limits={"planner": 6},  # of all workers together
            code_version=os.environ.get("CODE_VERSION"),
            interval_s=1,
            grace_s=20,
        )
        worker.run()


def submit(url: str) -> None:
    """Submit trips. The id makes a repeated request harmless."""
    with outlive.open(url) as store:
        for number in range(TRIPS):
            trip = f"trip-{number}"
            store.submit(trip, run_id=trip, agent="planner", prompt={"to": "Lisbon"}, priority=number % 3)


def demo(folder: Path) -> None:
    url = f"sqlite:///{folder}/service.db"
    log = (folder / "calls.txt").open("w+")
    start = [sys.executable, __file__, "worker", url]
    workers = [subprocess.Popen(start, stdout=log) for _ in range(2)]
    try:
        submit(url)
        with outlive.open(url) as store:
            wait_for(lambda: sum(run.status == "completed" for run in store.runs()) >= 2)
            workers[0].kill()  # its runs are taken over
            workers[0].wait()
            workers.append(subprocess.Popen(start, stdout=log))
            wait_for(lambda: len(list(store.workers())) == 2)
            workers[1].send_signal(signal.SIGTERM)  # a rolling deployment
            check(workers[1].wait(60) == 0, "the drained worker failed")
            wait_for(lambda: all(run.is_finished for run in store.runs()))
            runs = list(store.runs())
    finally:
        for process in workers:
            process.terminate()
            process.wait(60)
    log.seek(0)
    calls = Counter(tuple(line.split()[1:]) for line in log)
    repeated = sum(count - 1 for count in calls.values())
    print(f"{len(runs)} runs completed, {sum(calls.values())} calls, {repeated} repeated after the kill")
    check({run.status for run in runs} == {"completed"}, "a run was not completed")
    check(len(calls) == 3 * TRIPS, f"{len(calls)} steps instead of {3 * TRIPS}")
    check(repeated <= 4, "a worker that was killed had 4 steps under way at most")


def wait_for(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        check(time.monotonic() < end, "it takes too long")
        time.sleep(0.05)


def check(holds: bool, problem: str) -> None:
    if not holds:
        sys.exit(f"worker_service: {problem}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["worker", url]:
            work(url)
        case ["submit", url]:
            submit(url)
        case ["demo"]:
            with tempfile.TemporaryDirectory(prefix="outlive-service-") as name:
                demo(Path(name))
        case _:
            sys.exit(__doc__)
