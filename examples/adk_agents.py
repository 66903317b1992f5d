"""Kill an agent of Google ADK in the middle of a tool, and finish its run in another process.

    python examples/adk_agents.py

The exit code is 0 only if no finished call was made again.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

import outlive
from outlive.adapters.adk import resume, run


def call(name: str, id: str) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, id=id, args={"city": "Lisbon"}))


SCRIPT = [call("search", "c1"), call("book", "c2"), types.Part(text="done")]


class Scripted(BaseLlm):
    """Stands for a model: it answers by the number of its own messages in the request."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: Any, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        number = sum(content.role == "model" for content in llm_request.contents)
        yield LlmResponse(content=types.Content(role="model", parts=[SCRIPT[number]]))


def planner(folder: Path) -> LlmAgent:
    def note(name: str) -> int:
        with (folder / "calls").open("a") as file:
            file.write(f"{name}\n")
        return (folder / "calls").read_text().split().count(name)

    def search(city: str) -> str:
        """Search a city."""
        note("search")
        return f"a hotel in {city}"

    def book(city: str) -> str:
        """Book a city."""
        if note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked {city}"

    return LlmAgent(name="planner", model=Scripted(), tools=[search, book])


def begin(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run(planner(folder), "plan it", user_id="ann", session_id="trip-42", store=store, run_id="r-1")


def finish(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        report = store.recover({"planner": lambda claimed: resume(planner(folder), claimed)})
        assert [info.id for info in report.resumed] == ["r-1"], report
        calls = (folder / "calls").read_text().split()
        assert calls == ["search", "book", "book"], calls
        print(f"booked Lisbon twice, searched once: {store.find_run('r-1').result}")


def main() -> None:
    logging.disable(logging.WARNING)  # ADK warns that a script reports no usage of tokens
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
