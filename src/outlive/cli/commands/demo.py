"""The command demo: kills an agent in the middle of a run, resumes it in another process, keeps the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from outlive.cli.command import argument, command
from outlive.cli.context import Call
from outlive.cli.demo_agent import THREAD, start_process
from outlive.cli.stores import quote_path
from outlive.errors import BadArgument
from outlive.runtime.platform import system
from outlive.view.escape import quote_argument

RUN = "plan-the-trip"
NEXT_COMMANDS = (
    "ls",
    f"history {THREAD}",
    f"runs show {RUN}",
    f"diff {THREAD}",
    f"show {THREAD} --path notes",
    "verify",
)


@command("demo", argument("FOLDER", required=False, default="outlive-demo", type=click.Path()))
def demo(call: Call, folder: str) -> None:
    """Kill an agent in its third step, resume its run in another process, and keep the store.

    The store is FOLDER/agent.db (default: outlive-demo/agent.db).
    """
    url = f"sqlite:///{quote_path(folder)}/agent.db"
    _create_folder(folder)
    call.note("an agent starts, and is killed with SIGKILL in its third step")
    if not system.is_killed(start_process("work", url, RUN, "SIGKILL").wait()):
        raise BadArgument("the first process was not killed")
    call.note("another process recovers the run at once, because its owner is gone")
    if start_process("recover", url).wait() != 0:
        raise BadArgument("the second process did not finish the run")
    _add_branch(url)
    for line in NEXT_COMMANDS:
        print(f"outlive --store {quote_argument(url)} {line}")


def _create_folder(folder: str) -> None:
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(f"cannot create {folder!r}: {error.strerror}; name another folder") from None
    if any(path.iterdir()):
        raise BadArgument(f"{folder!r} is not empty; name another folder, or delete that one")


def _add_branch(url: str) -> None:
    """Save another continuation of the second step."""
    import outlive

    with outlive.open(url) as store:
        thread = store.thread(THREAD)
        second = next(checkpoint for checkpoint in thread.history() if checkpoint.step == 2)
        state: Any = thread.load(second.id)
        state["notes"]["read timetable"] = "there is a night ferry"
        thread.save(state, parent=second.id, step=3, source="update")
        thread.set_metadata({"title": "The island", "user": "ada"})
