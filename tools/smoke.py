"""Use an installed outlive as a user does, in an empty folder: `python -I smoke.py [--with-cli]`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import outlive


def use_library() -> None:
    """Save, kill the run in the middle, resume it, and check every byte."""
    with outlive.open("agent.db") as store:
        thread = store.thread("trip-42")
        for n in range(20):
            thread.save({"messages": [f"message {i} " * 20 for i in range(n)]})
        store.run("trip-43", run_id="r", agent="planner").start().release()
        report = store.recover({"planner": lambda run: run.step("ask", lambda: "Lisbon")})
        assert [run.result for run in report.resumed] == ["Lisbon"], report
        assert store.verify().ok
    assert "site-packages" in str(Path(outlive.__file__)), outlive.__file__
    asyncio.run(use_async())


async def use_async() -> None:
    async with outlive.open_async("file:folder") as store:
        await store.thread("t").save({"n": 1})
        assert await store.thread("t").load() == {"n": 1}


def use_program() -> None:
    """Call the command line, and read the documentation of the wheel."""
    for arguments, expected in (
        (["--version"], f"outlive {outlive.__version__}"),
        (["ls", "--store", "sqlite:///agent.db"], "trip-42"),
        (["verify", "--store", "sqlite:///agent.db"], ""),
        (["docs"], "tutorial"),
        (["docs", "encryption"], "# Encryption"),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-m", "outlive", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done
        assert expected in done.stdout, done
    key = outlive.KeyRing({"k": outlive.KeyRing.new_key()})
    with outlive.open("sealed.db", key=key) as store:
        assert store.thread("t").save({"n": 1}).seq == 1


use_library()
if "--with-cli" in sys.argv:
    use_program()
