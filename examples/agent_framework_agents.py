"""Kill an agent of Microsoft Agent Framework in the middle of a tool, and finish its run in another process.

    python examples/agent_framework_agents.py

The exit code is 0 only if no finished call was made again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

import outlive
from outlive.adapters.agent_framework import resume, run


def call(name: str, id: str) -> Content:
    return Content.from_function_call(call_id=id, name=name, arguments={"city": "Lisbon"})


SCRIPT = [call("search", "c1"), call("book", "c2"), Content.from_text("done")]


class Scripted(BaseChatClient):
    """Stands for a model: it answers by the number of its own messages in the request."""

    def _inner_get_response(self, *, messages: Sequence[Message], **options: Any) -> Any:
        async def answer() -> ChatResponse:
            number = sum(message.role == "assistant" for message in messages)
            return ChatResponse(messages=[Message("assistant", [SCRIPT[number]])])

        return answer()


class Client(FunctionInvocationLayer, ChatMiddlewareLayer, Scripted):
    pass


def planner(folder: Path) -> Agent:
    def note(name: str) -> int:
        with (folder / "calls").open("a") as file:
            file.write(f"{name}\n")
        return (folder / "calls").read_text().split().count(name)

    @tool(approval_mode="never_require")
    def search(city: str) -> str:
        """Search a city."""
        note("search")
        return f"a hotel in {city}"

    @tool(approval_mode="never_require")
    def book(city: str) -> str:
        """Book a city."""
        if note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked {city}"

    return Agent(Client(), name="planner", tools=[search, book])


def begin(folder: Path) -> None:
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        run(planner(folder), "plan it", thread_id="trip-42", store=store, run_id="r-1")


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
