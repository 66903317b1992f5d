"""The agent of `demo`, and the two processes that it lives in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlive.cli.context import Call
from outlive.cli.output.escape import as_argument
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.sync.facades import Run

THREAD, RUN, AGENT = "trip", "plan-the-trip", "travel"
STEPS = ("search ferries", "read timetable", "compare fares", "book the ferry")


def play(call: Call, folder: str, url: str) -> None:
    """Kill the first process, let the second finish, and say what there is to look at."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"{folder!r} cannot be made: {error.strerror}; name another folder") from None
    if any(path.iterdir()):
        raise BadArgument(f"{folder!r} is not empty; name another folder, or delete that one")
    call.note("an agent starts, and is killed with SIGKILL in its third step")
    if _start(folder, 1) != -signal.SIGKILL:
        raise BadArgument("the first process was not killed")
    call.note("another process recovers the run at once: its owner is gone")
    if _start(folder, 2) != 0:
        raise BadArgument("the second process did not finish the run")
    _branch(url)
    store = as_argument(url)
    for line in (
        "ls",
        f"history {THREAD}",
        f"run {RUN}",
        f"diff {THREAD}",
        f"show {THREAD} --path notes",
        "verify",
    ):
        print(f"outlive --store {store} {line}")


def _start(folder: str, part: int) -> int:
    source = str(Path(__file__).resolve().parents[3])
    known = [source, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [source]
    command = [sys.executable, "-m", "outlive", "demo", "--work", str(part), "--", folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
    return subprocess.run(command, env=environment, check=False).returncode


def work_on(url: str, part: int) -> None:
    """Do one process's part: be killed in the third step, or recover."""
    import outlive

    with outlive.open(url) as store:
        if part == 1:
            with store.run(THREAD, run_id=RUN, agent=AGENT, prompt="Plan a trip to the island") as run:
                _act(run, is_killed=True)
        else:
            report = store.recover({AGENT: lambda run: _act(run, is_killed=False)})
            sys.exit(0 if len(report.resumed) == 1 else 1)


def _act(run: Run, *, is_killed: bool) -> str:
    """Go through the steps. Those that are done are not done again, and what is saved is not saved again."""
    state: dict[str, Any] = run.load() or {"notes": {}, "messages": []}
    for number, name in enumerate(STEPS, 1):
        found = run.step(name, lambda name=name, number=number: _tool(name, is_killed and number == 3))
        if number <= run.info.iteration:
            print(f"  process {os.getpid()}: {name}: was done before", flush=True)
            continue
        state["notes"][name] = "done"
        state["messages"].append({"role": "tool", "name": name, "text": found})
        used = {"input_tokens": 120 * number, "output_tokens": 15 * number, "cost_usd": 0.0012 * number}
        source = "loop" if number < len(STEPS) else "final"
        run.save(state, step=number, iteration=number, phase=name, usage=used, source=source)
        print(f"  process {os.getpid()}: {name}: saved as step {number}", flush=True)
    return "booked: the early ferry"


def _tool(name: str, is_killed: bool) -> str:
    if is_killed:
        print(f"  process {os.getpid()}: {name}: killed", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return " ".join(f"{name}: line {number} of what was found." for number in range(1, 61))


def _branch(url: str) -> None:
    """Let the story go another way from its second step, beside the first one."""
    import outlive

    with outlive.open(url) as store:
        thread = store.thread(THREAD)
        second = next(one for one in thread.history() if one.step == 2)
        state = thread.load(second.id)
        state["notes"]["read timetable"] = "there is a night ferry"
        thread.save(state, parent=second.id, step=3, source="update")
        thread.set_metadata({"title": "The island", "user": "ada"})
