"""Kill an agent of the OpenAI Agents SDK in the middle of a tool, and finish its run in another process.

    python examples/openai_agents.py

The model is the test model of the SDK, so no key is needed. The exit code is 0 only if the tool that had
ended was not called again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from agents import Agent, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import outlive
from outlive.adapters.openai_agents import resume, run

SCRIPT = [
    [function_call("search", {"city": "Lisbon"}, call_id="c1")],
    [function_call("book", {"city": "Lisbon"}, call_id="c2")],
    [assistant_message("done")],
]


def planner(folder: Path, answered: int = 0) -> Agent:
    """An agent whose model has given `answered` responses already, to the process that was killed."""

    def note(call: str) -> int:
        with (folder / "calls").open("a") as file:
            file.write(f"{call}\n")
        return (folder / "calls").read_text().split().count(call)

    @function_tool
    def search(city: str) -> str:
        """Search a hotel."""
        note("search")
        return f"found one in {city}"

    @function_tool
    def book(city: str) -> str:
        """Book a hotel."""
        if note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked in {city}"

    return Agent(name="planner", model=ScriptedModel(SCRIPT[answered:]), tools=[search, book])


def begin(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run(planner(folder), "a hotel in Lisbon", thread_id="trip-42", store=store, run_id="r-1")


def finish(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        report = store.recover({"planner": lambda claimed: resume(planner(folder, answered=2), claimed)})
        assert [info.id for info in report.resumed] == ["r-1"], report
        calls = (folder / "calls").read_text().split()
        assert calls == ["search", "book", "book"], calls
        print(f"booked Lisbon twice, searched once: {store.find_run('r-1').result}")


def main() -> None:
    set_tracing_disabled(True)
    if len(sys.argv) == 2:
        begin(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as name:
        ended = subprocess.run([sys.executable, __file__, name], check=False)
        assert ended.returncode == -signal.SIGKILL
        print("killed in the second tool", flush=True)
        finish(Path(name))


if __name__ == "__main__":
    main()
