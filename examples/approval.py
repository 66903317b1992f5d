"""Ask a person, end the process, answer from another one, and let a third one continue the run.

    python examples/approval.py

Each process is one of its own, on one SQLite file in a temporary folder. While the run waits, no process and no lease
belongs to it. The exit code is 0 only if everything is as it should be.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from pathlib import Path

import outlive


@dataclasses.dataclass
class Approval:
    approved: bool
    note: str = ""


def say(line: str) -> None:
    print(line, flush=True)


def refund(run: outlive.Run) -> str:
    """Look a claim up, ask for approval, and pay."""
    claim = run.step("look up", lambda: {"order": 4711, "eur": 180})
    say(f"  the agent knows the claim: {claim}")
    approval = run.ask("approve refund", claim, schema=Approval, timeout_s=3 * 86_400)
    say(f"  the agent has the answer: {approval}")
    return run.step("pay", lambda: f"paid {claim['eur']} EUR") if approval.approved else "declined"


def begin(url: str) -> None:
    with outlive.open(url) as store:
        with store.run("claim-4711", run_id="refund-1", agent="refunds") as run:
            refund(run)
            say("  this line is reached only if there is an answer already")
        say(f"  the run is {run.status}")


def desk(url: str) -> None:
    """What a web handler does: it has none of the agent's code."""
    with outlive.open(url) as store:
        (question,) = store.questions()
        say(f"  the desk reads: {question.name}, {question.payload}")
        try:
            store.answer(question.run, question.name, {"approved": "yes"}, by="intern")
        except outlive.errors.AnswerRefused as refused:
            say(f"  refused: {refused.path}: {refused.reason}")
        store.answer(question.run, question.name, {"approved": True, "note": "goodwill"}, by="support desk")
        try:
            store.answer(question.run, question.name, {"approved": False}, by="intern")
        except outlive.errors.AlreadyAnswered as answered:
            say(f"  too late: answered by {answered.by}")


def work(url: str) -> None:
    with outlive.open(url) as store:
        (run,) = store.recover({"refunds": refund}).resumed
        say(f"  the run is {run.status}, attempt {run.attempt}: {run.result}")


def start(*arguments: str) -> None:
    script = str(Path(__file__).resolve())
    code = subprocess.run([sys.executable, script, *arguments], timeout=120, check=False).returncode
    if code != 0:
        sys.exit(f"approval: the process {arguments[0]!r} ended with {code}")


def demo(url: str) -> None:
    say("a process begins a refund, and ends while it waits for approval")
    start("begin", url)
    say("days later, another process answers")
    start("desk", url)
    say("a worker continues the run: no step is repeated")
    start("work", url)
    with outlive.open(url) as store:
        run = store.find_run("refund-1")
        if run is None or (run.status, run.result) != ("completed", "paid 180 EUR"):
            sys.exit(f"approval: the run is {run}")


def main(arguments: list[str]) -> None:
    processes = {"begin": begin, "desk": desk, "work": work}
    if arguments:
        processes[arguments[0]](arguments[1])
    else:
        with tempfile.TemporaryDirectory(prefix="outlive-demo-") as folder:
            demo(f"sqlite:///{folder}/agent.db")


if __name__ == "__main__":
    main(sys.argv[1:])
