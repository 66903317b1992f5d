"""`demo`: an agent is killed in the middle of a run; another process goes on; the store stays, to be looked at."""

from __future__ import annotations

import click

from .call import Call
from .command import argument, command


@command(
    "demo",
    "Kill an agent, and watch its run go on.",
    argument("FOLDER", required=False, default="outlive-demo", type=click.Path()),
    click.Option(["--work"], hidden=True, type=click.IntRange(0, 2), default=0),
)
def demo(call: Call, folder: str, work: int) -> None:
    """Kill an agent in its third step, recover it in another process, and leave the store in FOLDER (outlive-demo)."""
    from .acting import play, work_on
    from .place import quoted

    url = f"sqlite:///{quoted(folder)}/agent.db"
    if work:
        work_on(url, work)
    else:
        play(call, folder, url)
