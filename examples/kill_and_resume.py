"""Kill an agent in the middle of its work, and watch another process continue from there.

    python examples/kill_and_resume.py [FOLDER]

The agent is scripted: a "model" that names the next tool, and tools that make up a
text; no network. It runs in a process of its own and saves its state after every
step. The first process is killed with SIGKILL inside a tool call. The second finds
what is saved, skips it, and finishes. Then this process looks at what is there.

The store is FOLDER/agent.db and stays there; without FOLDER, all of it happens in a
temporary folder. The exit code is 0 only if everything is as it should be.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import outlive

THREAD = "trip"
HANGS_AT = 5  # the step in which the first process is killed
SCRIPT = (
    ("search", "ferries to the island"),
    ("read", "timetable"),
    ("read", "fares"),
    ("note", "take the early ferry"),
    ("search", "rooms near the port"),
    ("read", "guest house"),
    ("note", "two nights, sea view"),
    ("answer", "early ferry, two nights, sea view"),
)
WORDS = (
    "harbour island ferry morning evening ticket window garden kitchen market bridge lantern gravel orchard "
    "captain weather season luggage counter terrace balcony blanket breakfast stairway mountain shoreline "
    "open closed cheap early late quiet narrow sunny empty between behind before after without and the of"
)

State = dict[str, Any]


# The agent: what runs in the child process ---------------------------------------------------------------


def model(state: State) -> tuple[str, str] | None:
    """Say which tool to call next: a real one would read the messages, this one counts them."""
    done = sum(message["role"] == "tool" for message in state["messages"])
    return SCRIPT[done] if done < len(SCRIPT) else None


def text(subject: str, words: int) -> str:
    return f"{subject}: " + " ".join(random.Random(subject).choices(WORDS.split(), k=words))


def tool(name: str, argument: str, state: State) -> str:
    if name == "search":
        return "\n".join(text(f"{argument} {number}", 40) for number in range(1, 9))
    if name == "read":
        return text(argument, 4_000)
    if name == "note":
        state["notes"][f"note {len(state['notes']) + 1}"] = argument
        return "noted"
    state["answer"] = argument
    return "done"


def work(
    thread: outlive.Thread, tell: Callable[[str], None], before_call: Callable[[int, str], None]
) -> None:
    """The loop of the agent: continue from the newest checkpoint, save after every step."""
    saved = thread.checkpoint()
    if saved is None:
        tell("  nothing is saved yet")
        state: State = {"task": "plan a trip", "notes": {}, "answer": None, "messages": []}
        saved = thread.save(state, step=0, source="input")
    else:
        tell(f"  {saved.step} steps are saved: continue with step {(saved.step or 0) + 1}")
        state = saved.state
    while (call := model(state)) is not None:
        step = (saved.step or 0) + 1
        shown = f"  step {step}  {call[0]:<6}  {call[1]:<34}"
        before_call(step, shown)
        result = tool(*call, state)
        state["messages"] += [{"role": "assistant", "call": list(call)}, {"role": "tool", "text": result}]
        saved = thread.save(state, step=step, source="loop" if model(state) else "final")
        tell(f"{shown} saved as #{saved.seq}")


def run_child(folder: Path, hangs_at: int) -> None:
    def before_call(step: int, shown: str) -> None:
        with (folder / "calls.txt").open("a", encoding="utf-8") as file:
            file.write(f"{shown}\n")  # a trace outside the store: what the world has seen
        if step == hangs_at:
            say(f"{shown} does not return")
            sys.stdin.read()  # ends only with the process that started this one
            sys.exit("nobody killed this process")

    with outlive.open(f"sqlite:///{folder / 'agent.db'}") as store:
        work(store.thread(THREAD), say, before_call)


# The demo: what runs in the parent -----------------------------------------------------------------------


def say(line: str = "") -> None:
    print(line, flush=True)


def check(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"kill_and_resume: {what}")


def run_agent(folder: Path, hangs_at: int) -> int:
    """Run the agent in a process of its own; kill it when a call hangs. Return its exit code."""
    command = [sys.executable, str(Path(__file__).resolve()), "--work", str(folder), str(hangs_at)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        for line in child.stdout:
            say(line.rstrip("\n"))
            if line.endswith("does not return\n"):
                child.kill()
                say("  killed with SIGKILL")
        return child.wait(timeout=120)
    finally:
        child.kill()
        child.communicate()


def show_history(thread: outlive.Thread) -> dict[int, outlive.CheckpointInfo]:
    """List the checkpoints. Nothing of the states is read for that."""
    say("\nhistory, newest first: bytes of the state, bytes of the chunks it added")
    say("  seq  step  source       size      added")
    steps: dict[int, outlive.CheckpointInfo] = {}
    for past in thread.history():
        say(
            f"  {past.seq:>3}  {past.step:>4}  {past.source:<6}  {past.state_bytes:>9,}  {past.new_bytes:>9,}"
        )
        steps[past.step or 0] = past
    say("  (a change of less than 128 bytes stands in the checkpoint itself)")
    check(sorted(steps) == list(range(len(SCRIPT) + 1)), f"the history has the steps {sorted(steps)}")
    return steps


def show_diff(thread: outlive.Thread, old: outlive.CheckpointInfo, new: outlive.CheckpointInfo) -> None:
    changes = thread.diff(old.id, new.id)
    say(f"\ndiff from step {old.step} to step {new.step}")
    for change in changes:
        line = f"  {change}"
        say(line if len(line) <= 76 else f"{line[:73]}...")
    check([change.path for change in changes][:1] == ["notes['note 1']"], "the diff misses the note")


def show_fork(thread: outlive.Thread, at: outlive.CheckpointInfo) -> None:
    """Let the story go another way, in a thread of its own."""
    before = thread.load()
    branch = thread.fork("trip-by-night", at=at.id)
    copied = branch.size().stored_bytes
    state = branch.load()
    state["notes"]["note 1"] = "take the night ferry"
    branch.save(state, step=at.step, source="update")
    more = branch.size().stored_bytes - copied
    say(f"\nfork of step {at.step} as thread {branch.id!r}")
    say(f"  {copied:,} bytes copied, {more:,} more after a note was changed")
    check(thread.load() == before, "the fork changed its origin")
    check(branch.load()["notes"] == {"note 1": "take the night ferry"}, "the fork lost its note")


def show_cost(store: outlive.Store, folder: Path) -> None:
    sizes = store.thread(THREAD).size()
    store.close()  # SQLite moves its log into the file
    size = (folder / "agent.db").stat().st_size
    say(f"\nwhat {sizes.checkpoints} checkpoints cost")
    say(f"  whole states, uncompressed  {sizes.state_bytes:>9,} bytes")
    say(f"  kept in the store           {sizes.stored_bytes:>9,} bytes")
    say(f"  agent.db with all its rows  {size:>9,} bytes")
    check(sizes.stored_bytes < sizes.state_bytes / 5, "the store holds more than it should")


def undisturbed() -> State:
    """Return what the agent ends with when nobody kills it."""
    with outlive.open("memory:") as store:
        work(store.thread(THREAD), lambda line: None, lambda step, shown: None)
        state: State = store.thread(THREAD).load()
        return state


def demo(folder: Path) -> None:
    say("process 1")
    code = run_agent(folder, HANGS_AT)
    check(code == -signal.SIGKILL, f"the first process ended with {code}, not by SIGKILL")
    say("process 2")
    code = run_agent(folder, 0)
    check(code == 0, f"the second process ended with {code}")

    calls = (folder / "calls.txt").read_text(encoding="utf-8").splitlines()
    check(len(calls) == len(SCRIPT) + 1, f"{len(calls)} tool calls for {len(SCRIPT)} steps")
    say(f"  finished: {len(calls)} tool calls for {len(SCRIPT)} steps, only the killed one was repeated")
    with outlive.open(f"sqlite:///{folder / 'agent.db'}") as store:
        thread = store.thread(THREAD)
        check(thread.load() == undisturbed(), "the state is not that of an undisturbed run")
        say("  the state is equal to that of a run that nobody killed")
        steps = show_history(thread)
        show_diff(thread, steps[3], steps[4])
        show_fork(thread, steps[4])
        verified = store.verify()
        check(verified.ok, "; ".join(map(str, verified.problems)))
        say(f"\nverified every byte of {verified.checkpoints} checkpoints in {verified.threads} threads")
        show_cost(store, folder)


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--work"]:
        run_child(Path(arguments[1]), int(arguments[2]))
    elif not arguments:
        with tempfile.TemporaryDirectory(prefix="outlive-demo-") as name:
            demo(Path(name))
    elif len(arguments) > 1 or arguments[0].startswith("-"):
        say(__doc__ or "")
        sys.exit(0 if arguments in (["-h"], ["--help"]) else 2)
    else:
        folder = Path(arguments[0]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check(not any(folder.iterdir()), f"{folder} is not empty; name another folder")
        demo(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
