"""Kill a workflow of LlamaIndex in the middle of a step, and finish its run in another process.

    python examples/llama_workflows.py

The exit code is 0 only if the step that had ended was not run again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

import outlive
from outlive.adapters.llama_index import resume, run


class Found(Event):
    city: str


class Planner(Workflow):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def note(self, call: str) -> int:
        with (self.folder / "calls").open("a") as file:
            file.write(f"{call}\n")
        return (self.folder / "calls").read_text().split().count(call)

    @step
    async def search(self, ev: StartEvent) -> Found:
        self.note("search")
        return Found(city=ev.city)

    @step
    async def book(self, ev: Found) -> StopEvent:
        if self.note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return StopEvent(result="done")


def begin(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run(Planner(folder), {"city": "Lisbon"}, thread_id="trip-42", store=store, run_id="r-1")


def finish(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        report = store.recover({"Planner": lambda claimed: resume(Planner(folder), claimed)})
        assert [info.id for info in report.resumed] == ["r-1"], report
        calls = (folder / "calls").read_text().split()
        assert calls == ["search", "book", "book"], calls
        print(f"booked Lisbon twice, searched once: {store.find_run('r-1').result}")


def main() -> None:
    if len(sys.argv) == 2:
        begin(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        ended = subprocess.run([sys.executable, __file__, name], check=False)
        assert ended.returncode == -signal.SIGKILL
        print("killed in the second step", flush=True)
        finish(Path(name))


if __name__ == "__main__":
    main()
