"""Kill an agent of Pydantic AI in the middle of a tool, and finish its run in another process.

    python examples/pydantic_agents.py

The model plays a script, so no key is needed. The exit code is 0 only if the tool that had
ended was not called again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import outlive
from outlive.adapters.pydantic_ai import OutliveDurability, resume, run

SCRIPT = [
    ToolCallPart("search", {"city": "Lisbon"}, tool_call_id="c1"),
    ToolCallPart("book", {"city": "Lisbon"}, tool_call_id="c2"),
    TextPart("done"),
]


def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse([SCRIPT[sum(message.kind == "response" for message in messages)]])


def planner(folder: Path) -> Agent:
    agent = Agent(FunctionModel(play), name="planner", capabilities=[OutliveDurability()])

    def note(call: str) -> int:
        with (folder / "calls").open("a") as file:
            file.write(f"{call}\n")
        return (folder / "calls").read_text().split().count(call)

    @agent.tool_plain
    def search(city: str) -> str:
        """Search a hotel."""
        note("search")
        return f"found one in {city}"

    @agent.tool_plain
    def book(city: str) -> str:
        """Book a hotel."""
        if note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked in {city}"

    return agent


def begin(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run(planner(folder), "a hotel in Lisbon", thread_id="trip-42", store=store, run_id="r-1")


def finish(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        report = store.recover({"planner": lambda claimed: resume(planner(folder), claimed)})
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
        print("killed in the second tool", flush=True)
        finish(Path(name))


if __name__ == "__main__":
    main()
