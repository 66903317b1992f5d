"""A worker process of a figure: `python queue_worker.py ours|theirs URL`. It works until it is killed."""

from __future__ import annotations

import sys
import threading
import time

import outlive


def work_ours(url: str, concurrency: int = 8) -> None:
    with outlive.open(url) as store:
        worker = store.worker({"empty": lambda run: None, "asks": _ask}, concurrency=concurrency)
        print("ready", flush=True)
        worker.run()


def _ask(run: outlive.Run) -> float:
    """Wait for an answer; return when the handler was called after it."""
    called_at = time.time()
    run.ask("go?")
    return called_at


def work_theirs(url: str) -> None:
    import dbos_workflows

    with dbos_workflows.launched(url):
        print("ready", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    side, url = sys.argv[1:]
    (work_ours if side == "ours" else work_theirs)(url)
