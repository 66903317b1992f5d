"""Kill an agent in the middle of its work, and watch another process resume its run.

    python examples/kill_and_resume.py [FOLDER]

The agent is scripted (src/outlive/cli/demo_agent.py); each of its attempts is a process of its own.

1. The first process is killed with SIGKILL in its third step. The second resumes the run at once,
   because the owner is gone. It does not repeat completed steps. Then this process shows the
   history, a diff, a fork, and what all of it costs.
2. In another store, the first process is stopped with SIGSTOP. The second takes over the run when
   the lease has expired. The first wakes up, and its next write is refused.

The stores are FOLDER/agent.db and FOLDER/stopped.db (default: in a temporary folder). The exit code
is 0 only if everything is as it should be.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import outlive
from outlive.cli.demo_agent import STEPS, THREAD, act, start_process


def say(line: str) -> None:
    print(line, flush=True)


def check(holds: bool, problem: str) -> None:
    if not holds:
        sys.exit(f"kill_and_resume: {problem}")


def run_process(*arguments: str) -> tuple[int, int]:
    """Run one attempt and show its output; return its exit code, and how many tools it called."""
    calls = 0
    with start_process(*arguments, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            say(line.rstrip("\n"))
            calls += "was done before" not in line
    return process.returncode, calls


def kill_and_resume(url: str) -> None:
    say("a run is killed in its third step")
    code, calls = run_process("work", url, "run-1", "SIGKILL")
    check(code == -signal.SIGKILL, f"the first process ended with {code}, not by SIGKILL")
    say("another process recovers it at once, because its owner is gone")
    began = time.monotonic()
    code, more = run_process("recover", url)
    check(code == 0, f"the second process ended with {code}")
    say(f"  {time.monotonic() - began:.1f} s with the start of Python")
    calls += more
    check(calls == len(STEPS) + 1, f"{calls} tool calls for {len(STEPS)} steps")
    say(f"  {calls} tool calls for {len(STEPS)} steps: only the killed one was repeated")


def undisturbed() -> Any:
    """Return the state with which the agent ends when nobody kills it."""
    with outlive.open("memory:") as store:
        say("\nthe same agent in memory, and nobody kills it")
        with store.run(THREAD) as run:
            act(run)
        return store.thread(THREAD).load()


def show_history(thread: outlive.Thread) -> dict[int, outlive.CheckpointInfo]:
    """List the checkpoints. That reads no state."""
    say("\nhistory, newest first: bytes of the state, bytes of the chunks it added")
    say("  seq  step  source       size      added")
    steps = {checkpoint.step or 0: checkpoint for checkpoint in thread.history()}
    for past in steps.values():
        size, added = f"{past.state_bytes:>9,}", f"{past.new_bytes:>9,}"
        say(f"  {past.seq:>3}  {past.step or 0:>4}  {past.source:<6}  {size}  {added}")
    check(list(steps) == [4, 3, 2, 1, 0], f"the history has the steps {list(steps)}")
    return steps


def show_diff(thread: outlive.Thread, old: outlive.CheckpointInfo, new: outlive.CheckpointInfo) -> None:
    changes = thread.diff(old.id, new.id)
    say(f"\ndiff from step {old.step} to step {new.step}")
    for change in changes:
        line = f"  {change}"
        say(line if len(line) <= 76 else f"{line[:73]}...")
    check([change.path for change in changes][:1] == [f"notes[{STEPS[2]!r}]"], "the diff misses the note")


def show_fork(thread: outlive.Thread, at: outlive.CheckpointInfo) -> None:
    """Change the past, in a thread of its own."""
    before = thread.load()
    branch = thread.fork("trip-by-night", checkpoint=at.id)
    copied = branch.size().stored_bytes
    state = branch.load()
    state["notes"][STEPS[1]] = "there is a night ferry"
    branch.save(state, step=at.step, source="update")
    more = branch.size().stored_bytes - copied
    say(f"\nfork of step {at.step} as thread {branch.id!r}")
    say(f"  {copied:,} bytes copied, {more:,} more after a note was changed")
    check(thread.load() == before, "the fork changed its origin")
    check(branch.load() == state, "the fork lost its note")


def show_cost(store: outlive.Store, file: Path) -> None:
    sizes = store.thread(THREAD).size()
    store.close()  # SQLite moves its log into the file
    say(f"\nwhat {sizes.checkpoints} checkpoints cost")
    say(f"  whole states, uncompressed  {sizes.state_bytes:>9,} bytes")
    say(f"  kept in the store           {sizes.stored_bytes:>9,} bytes")
    say(f"  agent.db with all its rows  {file.stat().st_size:>9,} bytes")
    check(sizes.stored_bytes < sizes.state_bytes / 5, "the store holds more than it should")


def stop_and_wake(url: str) -> None:
    say("\na run is stopped in its third step, for longer than its lease")
    zombie = start_process("work", url, "run-2", "SIGSTOP")
    try:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)
        say("another process recovers it when its lease of 1 s has expired")
        code, _ = run_process("recover", url)
        check(code == 0, "the stopped run was not recovered")
        zombie.send_signal(signal.SIGCONT)
        check(zombie.wait(120) == 0, "the stopped process did not end")
    finally:
        zombie.kill()
        zombie.wait()
    with outlive.open(url) as store:
        runs = [(run.id, run.status, run.attempt) for run in store.runs()]
        check(runs == [("run-2", "completed", 2)], f"the runs are {runs}")
        say("run-2 is completed, attempt 2")


def demo(folder: Path) -> None:
    kill_and_resume(f"sqlite:///{folder}/agent.db")
    with outlive.open(f"sqlite:///{folder}/agent.db") as store:
        thread = store.thread(THREAD)
        check(thread.load() == undisturbed(), "the state is not that of an undisturbed run")
        say("the states are equal")
        steps = show_history(thread)
        show_diff(thread, steps[2], steps[3])
        show_fork(thread, steps[2])
        verified = store.verify()
        check(verified.ok, "; ".join(map(str, verified.problems)))
        say(f"\nverified every byte of {verified.checkpoints} checkpoints in {verified.threads} threads")
        show_cost(store, folder / "agent.db")
    stop_and_wake(f"sqlite:///{folder}/stopped.db")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, help="an empty or new folder for the stores")
    folder = parser.parse_args().folder
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="outlive-demo-") as name:
            demo(Path(name))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        check(not any(folder.iterdir()), f"{folder} is not empty; name another folder")
        demo(folder.resolve())


if __name__ == "__main__":
    main()
