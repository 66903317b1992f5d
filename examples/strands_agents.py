"""Kill an agent of Strands in the middle of a tool, and finish its run in another process.

    python examples/strands_agents.py

The model is scripted, so no key is needed. The exit code is 0 only if the tool that had ended was not
called again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model

import outlive
from outlive.adapters.strands import resume, run

SCRIPT: list[Any] = [("search", "c1"), ("book", "c2"), "done"]


class Scripted(Model):
    """A model that answers by the number of its own messages."""

    stateful = False

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        answer = SCRIPT[sum(message["role"] == "assistant" for message in messages)]
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(answer, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer}}}
        else:
            name, id = answer
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": id}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"city": "Lisbon"})}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(answer, str) else "tool_use"}}

    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any: ...

    def structured_output(self, *args: Any, **options: Any) -> Any: ...


def planner(folder: Path) -> Agent:
    def note(call: str) -> int:
        with (folder / "calls").open("a") as file:
            file.write(f"{call}\n")
        return (folder / "calls").read_text().split().count(call)

    @tool
    def search(city: str) -> str:
        """Search a hotel."""
        note("search")
        return f"found one in {city}"

    @tool
    def book(city: str) -> str:
        """Book a hotel."""
        if note("book") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"booked in {city}"

    return Agent(name="planner", model=Scripted(), tools=[search, book], callback_handler=None)


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
