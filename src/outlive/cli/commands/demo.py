"""`demo`: an agent is killed in the middle of a run; another process goes on; the store stays, to be looked at."""

from __future__ import annotations

import click

from outlive.cli.command import argument, command
from outlive.cli.context import Call


@command(
    "demo",
    "Kill an agent, and watch its run go on.",
    argument("FOLDER", required=False, default="outlive-demo", type=click.Path()),
    click.Option(["--work"], hidden=True, type=click.IntRange(0, 2), default=0),
)
def demo(call: Call, folder: str, work: int) -> None:
    """Kill an agent in its third step, recover it in another process, and leave the store in FOLDER (outlive-demo)."""
    from outlive.cli.commands.demo_agent import play, work_on
    from outlive.cli.stores import quoted

    url = f"sqlite:///{quoted(folder)}/agent.db"
    if work:
        work_on(url, work)
    else:
        play(call, folder, url)
