"""The command demo: kills an agent in the middle of a run, resumes it in another process, keeps the store."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command
from outlive.cli.context import Call
from outlive.cli.output.escape import quote_argument
from outlive.cli.stores import quote_path
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.sync.run import Run

THREAD, RUN, AGENT = "trip", "plan-the-trip", "travel"
STEPS = ("search ferries", "read timetable", "compare fares", "book the ferry")
NEXT_COMMANDS = (
    "ls",
    f"history {THREAD}",
    f"runs show {RUN}",
    f"diff {THREAD}",
    f"show {THREAD} --path notes",
    "verify",
)


@command(
    "demo",
    argument("FOLDER", required=False, default="outlive-demo", type=click.Path()),
    click.Option(["--work"], hidden=True, type=click.IntRange(0, 2), default=0),
)
def demo(call: Call, folder: str, work: int) -> None:
    """Kill an agent in its third step, resume its run in another process, and keep the store.

    The store is FOLDER/agent.db (default: outlive-demo/agent.db).
    """
    url = f"sqlite:///{quote_path(folder)}/agent.db"
    if work:
        _work(url, is_killed=work == 1)
        return
    _create_folder(folder)
    call.note("an agent starts, and is killed with SIGKILL in its third step")
    if _start_process(folder, 1) != -signal.SIGKILL:
        raise BadArgument("the first process was not killed")
    call.note("another process recovers the run at once, because its owner is gone")
    if _start_process(folder, 2) != 0:
        raise BadArgument("the second process did not finish the run")
    _add_branch(url)
    for line in NEXT_COMMANDS:
        print(f"outlive --store {quote_argument(url)} {line}")


def _create_folder(folder: str) -> None:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"cannot create {folder!r}: {error.strerror}; name another folder") from None
    if any(path.iterdir()):
        raise BadArgument(f"{folder!r} is not empty; name another folder, or delete that one")


def _start_process(folder: str, part: int) -> int:
    source = str(Path(__file__).resolve().parents[3])
    path = [source, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [source]
    command = [sys.executable, "-m", "outlive", "demo", "--work", str(part), "--", folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(command, env=environment, check=False).returncode


def _work(url: str, *, is_killed: bool) -> None:
    """Run the agent in this process: start the run and be killed, or recover it."""
    import outlive

    with outlive.open(url) as store:
        if is_killed:
            with store.run(THREAD, run_id=RUN, agent=AGENT, prompt="Plan a trip to the island") as run:
                _act(run, is_killed=True)
        else:
            report = store.recover({AGENT: lambda run: _act(run, is_killed=False)})
            sys.exit(0 if len(report.resumed) == 1 else 1)


def _act(run: Run, *, is_killed: bool) -> str:
    """Run the steps. Completed steps are not repeated, and saved states are not saved again."""
    state: dict[str, Any] = run.load() or {"notes": {}, "messages": []}
    for number, name in enumerate(STEPS, 1):
        # A partial, because a step records the arguments, and the second attempt has others.
        text = run.step(name, functools.partial(_tool, name, is_killed and number == 3))
        if number <= run.info.iteration:
            print(f"  process {os.getpid()}: {name}: was done before", flush=True)
            continue
        state["notes"][name] = "done"
        state["messages"].append({"role": "tool", "name": name, "text": text})
        usage = {"input_tokens": 120, "output_tokens": 15, "cost_usd": 0.0012}
        source = "loop" if number < len(STEPS) else "final"
        run.save(state, step=number, iteration=number, phase=name, usage=usage, source=source)
        print(f"  process {os.getpid()}: {name}: saved as step {number}", flush=True)
    return "booked: the early ferry"


def _tool(name: str, is_killed: bool) -> str:
    if is_killed:
        print(f"  process {os.getpid()}: {name}: killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return " ".join(f"{name}: line {number} of the result." for number in range(1, 61))


def _add_branch(url: str) -> None:
    """Save another continuation of the second step."""
    import outlive

    with outlive.open(url) as store:
        thread = store.thread(THREAD)
        second = next(checkpoint for checkpoint in thread.history() if checkpoint.step == 2)
        state: Any = thread.load(second.id)
        state["notes"]["read timetable"] = "there is a night ferry"
        thread.save(state, parent=second.id, step=3, source="update")
        thread.set_metadata({"title": "The island", "user": "ada"})
