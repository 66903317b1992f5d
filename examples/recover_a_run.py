"""Kill a run, and let another process recover it; then stop a process, and see that it is refused when it wakes.

    python examples/recover_a_run.py

Each process is one of its own, on one SQLite file in a temporary folder. Steps that were done are not done again. The
exit code is 0 only if everything is as it should be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import outlive

STEPS = ("search flights", "compare prices", "book the flight", "write to the customer")
LEASE_S = 1.0


def say(line: str) -> None:
    print(line, flush=True)


def agent(run: outlive.Run, ends: str | None) -> None:
    """Do the steps in order; end in the third as the demo wants it."""
    for number, name in enumerate(STEPS, 1):
        done: list[str] = []

        def call(name: str = name, number: int = number, done: list[str] = done) -> str:
            done.append(name)
            if number == 3 and ends is not None:
                say(f"  step {number}  {name:<22} is cut off by {ends}")
                os.kill(os.getpid(), getattr(signal, ends))
            return f"{name}: done by {os.getpid()}"

        run.step(name, key=str(number))(call)()
        run.save({"step": number}, iteration=number)
        say(f"  step {number}  {name:<22} {'done' if done else 'was done before'}")


def work(url: str, run_id: str, ends: str) -> None:
    with outlive.open(url) as store:
        try:
            with store.run(f"thread of {run_id}", run_id=run_id, agent="travel", lease_s=LEASE_S) as run:
                agent(run, ends)
        except outlive.LeaseLost:
            say("  woken up, and refused: another process has taken the run over")


def recover(url: str) -> None:
    with outlive.open(url) as store:
        end = time.monotonic() + 100
        while not (report := store.recover({"travel": lambda run: agent(run, None)})).resumed:
            if time.monotonic() > end:
                sys.exit("recover_a_run: nothing was recovered")
            time.sleep(0.05)
        (run,) = report.resumed
        say(f"  {run.id} is {run.status}, attempt {run.attempt}")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(Path(__file__).resolve()), *arguments])


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"recover_a_run: {what}")


def demo(url: str) -> None:
    say("\na run is killed")
    check(
        start("work", url, "run-1", "SIGKILL").wait(120) == -signal.SIGKILL,
        "the first process was not killed",
    )
    say("another process recovers it, at once: its owner is gone")
    began = time.monotonic()
    check(start("recover", url).wait(120) == 0, "the run was not recovered")
    say(f"  {time.monotonic() - began:.1f} s with the start of Python")

    say("\na run is stopped for longer than its lease")
    zombie = start("work", url, "run-2", "SIGSTOP")
    try:
        wait_until_stopped(zombie)
        say(f"another process recovers it when its lease of {LEASE_S:.0f} s has run out")
        check(start("recover", url).wait(120) == 0, "the stopped run was not recovered")
        zombie.send_signal(signal.SIGCONT)
        check(zombie.wait(120) == 0, "the zombie did not end")
    finally:
        zombie.kill()
        zombie.wait()
    with outlive.open(url) as store:
        found = [(run.id, run.status, run.attempt) for run in store.runs()]
        check(found == [("run-1", "completed", 2), ("run-2", "completed", 2)], f"the runs are {found}")
        say(f"\nboth runs are completed, by {len(STEPS)} steps each and one that was repeated")


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["work"]:
        work(*arguments[1:])
    elif arguments[:1] == ["recover"]:
        recover(*arguments[1:])
    else:
        with tempfile.TemporaryDirectory(prefix="outlive-demo-") as folder:
            demo(f"sqlite:///{folder}/agent.db")


if __name__ == "__main__":
    main(sys.argv[1:])
