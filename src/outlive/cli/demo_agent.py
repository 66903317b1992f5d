"""The scripted agent of `outlive demo` and of examples/kill_and_resume.py: each attempt is a process of its own.

    python -m outlive.cli.demo_agent work URL RUN SIGNAL    start a run, and send itself SIGNAL in the third step
    python -m outlive.cli.demo_agent recover URL            resume that run

It needs no network: its tools make up a text. SIGKILL ends a process at once; SIGSTOP stops it
until SIGCONT, as a virtual machine is paused.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outlive.runtime.platform import system

if TYPE_CHECKING:
    from outlive import Run
    from outlive.values import Source

THREAD, AGENT = "trip", "travel"
STEPS = ("search ferries", "read timetable", "compare fares", "book the ferry")
_WAIT_S = 100.0  # for the lease of a stopped process to expire


def start_process(*arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Start this module in a process that imports the same outlive."""
    source = str(Path(__file__).resolve().parents[2])
    path = [source, os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [source]
    command = [sys.executable, "-m", "outlive.cli.demo_agent", *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, **options)


def act(run: Run, signal_name: str | None = None) -> str:
    """Run the steps. Completed steps are not repeated, and saved states are not saved again."""
    state: dict[str, Any] = run.load() or {"notes": {}, "messages": []}
    for number, name in enumerate(STEPS, 1):
        # A partial, because a step records the arguments, and the second attempt has others.
        text = run.step(name, functools.partial(_tool, name, signal_name if number == 3 else None))
        if number <= run.info.iteration:
            _say(f"{name}: was done before")
            continue
        state["notes"][name] = "done"
        state["messages"].append({"role": "tool", "name": name, "text": text})
        usage = {"input_tokens": 120, "output_tokens": 15, "cost_usd": 0.0012}
        source: Source = "loop" if number < len(STEPS) else "final"
        run.save(state, step=number, iteration=number, phase=name, usage=usage, source=source)
        _say(f"{name}: saved as step {number}")
    return "booked: the early ferry"


def _tool(name: str, signal_name: str | None) -> str:
    if signal_name is not None:
        _say(f"{name}: {'killed' if signal_name == 'SIGKILL' else 'stopped'}")
        if signal_name == "SIGKILL":
            system.kill_self()
        os.kill(os.getpid(), getattr(signal, signal_name))
    return " ".join(f"{name}: line {number} of the result." for number in range(1, 61))


def _say(line: str) -> None:
    print(f"  process {os.getpid()}: {line}", flush=True)


def _work(url: str, run_id: str, signal_name: str) -> None:
    import outlive

    lease_s = 30.0 if signal_name == "SIGKILL" else 1.0
    prompt = "Plan a trip to the island"
    with outlive.open(url) as store:
        try:
            with store.run(THREAD, run_id=run_id, agent=AGENT, prompt=prompt, lease_s=lease_s) as run:
                act(run, signal_name)
        except outlive.LeaseLost:
            _say("woken up, and refused: another process has taken over the run")


def _recover(url: str) -> None:
    import outlive

    end = time.monotonic() + _WAIT_S
    with outlive.open(url) as store:
        while not store.recover({AGENT: act}).resumed:
            if time.monotonic() > end:
                sys.exit("demo: there is no run to recover")
            time.sleep(0.05)


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    _work(*arguments) if command == "work" else _recover(*arguments)
