"""Count what a call walks through: files, functions, changes of file, calls of outlive's own code.

    PYTHONPATH=src python bench/walk.py

Each walk is traced with `sys.setprofile` in this thread. Only functions defined in outlive count; comprehensions,
generator expressions and lambdas count as part of the function around them. `--show WALK` lists them in order.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import outlive

ROOT = str(Path(outlive.__file__).parent)
_INSIDE = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")


class Walk:
    """What one call went through, in order."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []  # (file, function)

    @property
    def row(self) -> tuple[int, int, int, int]:
        files = {file for file, _ in self.steps}
        turns = sum(a[0] != b[0] for a, b in zip(self.steps, self.steps[1:], strict=False))
        return len(files), len(set(self.steps)), turns, len(self.steps)

    def add(self, frame: FrameType, event: str, arg: object) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name not in _INSIDE:
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            self.steps.append((code.co_filename[len(ROOT) + 1 :], name))


@contextmanager
def traced() -> Iterator[Walk]:
    walk = Walk()
    sys.setprofile(walk.add)
    try:
        yield walk
    finally:
        sys.setprofile(None)


STATE = {"messages": [{"role": "user", "content": "hello " * 40} for _ in range(20)], "step": 0}


def _grown(step: int) -> dict[str, object]:
    return {"messages": STATE["messages"] + [{"role": "ai", "content": f"answer {step} " * 20}], "step": step}  # type: ignore[operator]


def _warm(thread: outlive.Thread) -> None:
    for step in range(3):
        thread.save(_grown(step))


def save(folder: Path) -> Walk:
    with outlive.open(f"sqlite:///{folder}/save.db") as store:
        thread = store.thread("t")
        _warm(thread)
        with traced() as walk:
            thread.save(_grown(9))
        return walk


def load(folder: Path) -> Walk:
    with outlive.open(f"sqlite:///{folder}/load.db") as store:
        thread = store.thread("t")
        _warm(thread)
        with traced() as walk:
            thread.load()
        return walk


def cold_load(folder: Path) -> Walk:
    url = f"sqlite:///{folder}/cold.db"
    with outlive.open(url) as store:
        _warm(store.thread("t"))
    with outlive.open(url) as store:
        store.thread("other").load()  # the connection is there
        thread = store.thread("t")
        with traced() as walk:
            thread.load()
        return walk


def recovery(folder: Path) -> Walk:
    """One dead run: one step that is kept, one new step, one save."""
    with outlive.open(f"sqlite:///{folder}/runs.db") as store:
        run = store.run("t", agent="agent").start()
        run.step("first", str)
        run.save({"n": 1})
        end = getattr(run, "release", None) or run.interrupt
        end()

        def handler(run: outlive.Run) -> None:
            run.step("first", str)
            run.step("second", str)
            run.save({"n": 2})

        with traced() as walk:
            report = store.recover({"agent": handler})
        assert report.resumed, report
        return walk


def pair(folder: Path) -> Walk:
    secondary = f"sqlite:///{folder}/secondary.db"
    primary = f"sqlite:///{folder}/primary.db"
    try:
        opened = outlive.open(primary, replication=outlive.Replication(secondary))
    except Exception:
        opened = outlive.open(primary, secondary=secondary)
    with opened as store:
        thread = store.thread("t")
        _warm(thread)
        with traced() as walk:
            thread.save(_grown(9))
        return walk


def put(folder: Path) -> Walk:
    from langgraph.checkpoint.base import empty_checkpoint

    from outlive.adapters.langgraph import OutliveSaver

    with OutliveSaver(f"sqlite:///{folder}/graph.db") as saver:
        config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
        for step in range(4):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = _grown(step)
            checkpoint["channel_versions"] = {"messages": f"{step}", "step": f"{step}"}
            with traced() as walk:
                config = saver.put(config, checkpoint, {"source": "loop", "step": step}, {})
        return walk


def history(folder: Path) -> Walk:
    """`outlive history t`, with the opening of the store."""
    url = f"sqlite:///{folder}/history.db"
    with outlive.open(url) as store:
        _warm(store.thread("t"))
    from outlive.cli.program import run

    for _ in range(2):  # the first time imports
        with tempfile.TemporaryFile("w+") as out, traced() as walk:
            stdout, sys.stdout = sys.stdout, out
            try:
                code = run(["--store", url, "history", "t"])
            finally:
                sys.stdout = stdout
        assert code == 0
    return walk


WALKS: dict[str, Callable[[Path], Walk]] = {
    "save": save,
    "load": load,
    "cold load": cold_load,
    "recovery": recovery,
    "pair save": pair,
    "LangGraph put": put,
    "outlive history": history,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", choices=WALKS, help="list the functions of one walk, in order")
    shown = parser.parse_args().show
    warnings.simplefilter("ignore")
    print(f"{'walk':18} {'files':>6} {'functions':>10} {'changes':>8} {'calls':>6}")
    for name, walk_of in WALKS.items():
        if shown not in (None, name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            walk = walk_of(Path(folder))
        print("{:18} {:6} {:10} {:8} {:6}".format(name, *walk.row))
        if shown:
            print(*(f"{file:40} {function}" for file, function in walk.steps), sep="\n")


if __name__ == "__main__":
    main()
