"""What a program does with outlive, step by step, under a simulated system: SCENARIO COMMAND FOLDER."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sys
import threading
import time
from pathlib import Path

import outlive
from outlive.errors import BadURL
from outlive.runtime.platform import system

LEFT_OUT = (
    "outlive.__main__",  # it would start
    "outlive.runtime.platform.",  # each is for its own system
    "outlive.cli.mcp.",  # `mcp` asks sys.platform, which is not simulated
)


def import_all(folder: Path) -> None:
    """Import every module whose optional dependencies are installed."""
    missing = set()
    for module in pkgutil.walk_packages(outlive.__path__, "outlive.", onerror=lambda name: None):
        if module.name.startswith(LEFT_OUT):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            missing.add((error.name or "").partition(".")[0])
    assert not missing & {"outlive", "fcntl", "termios", "resource", "pwd", "msvcrt"}, missing
    print(system.name)


def work(folder: Path) -> None:
    """Start a run and be killed in its second step."""
    with (
        outlive.open(folder / "agent.db") as store,
        store.run("t", run_id="r", agent="a", lease_s=600) as run,
    ):
        run.step("first", lambda: (folder / "first").open("a").write("x"))
        run.save({"n": 1}, step=1)
        print("ready", flush=True)
        time.sleep(600)


def recover(folder: Path) -> None:
    """Resume the run at once, though its lease would last for minutes: its owner is gone."""

    def act(run: outlive.Run) -> str:
        run.step("first", lambda: (folder / "first").open("a").write("x"))
        run.save({"n": 2}, step=2, source="final")
        return "done"

    with outlive.open(folder / "agent.db") as store:
        report = store.recover({"a": act})
        print([(run.id, run.status) for run in store.runs()], store.thread("t").load(), len(report.resumed))


def checkpoint(folder: Path) -> None:
    """Write one checkpoint file from several threads, and read it meanwhile."""
    file = outlive.checkpoint_file(folder / "deep" / "state.ckpt")
    file.open(["a", "b", "c"], prompt="?")

    def answer(name: str) -> None:
        own = outlive.checkpoint_file(folder / "deep" / "state.ckpt")
        for number in range(5):
            own.update(name, {"text": "x" * number})
        own.mark_completed(name, {"text": f"answer of {name}"})

    threads = [threading.Thread(target=answer, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sorted((response.model_id, response.status, response.text) for response in file.load().responses))
    file.save({"n": 1})
    print(file.load())
    file.clear()
    print(file.load())


def stores(folder: Path) -> None:
    """Use the stores of this machine, sync and async; files are refused where they cannot be kept."""
    for _ in range(2):
        with outlive.open(folder / "agent.db") as store:
            store.thread("t").save({"n": 1})
    assert sorted(path.name for path in folder.iterdir()) == ["agent.db"]  # SQLite and we clean up

    async def in_a_loop() -> object:
        async with outlive.open_async(f"sqlite:///{folder}/agent.db") as store:
            return await store.thread("t").load()

    print(asyncio.run(in_a_loop()))
    try:
        with outlive.open(f"file:{folder}/files") as store:
            store.thread("t").save({"n": 2})
            print(store.thread("t").load())
    except BadURL as error:
        print(error)


if __name__ == "__main__":
    {"import": import_all, "work": work, "recover": recover, "checkpoint": checkpoint, "stores": stores}[
        sys.argv[1]
    ](Path(sys.argv[2]))
