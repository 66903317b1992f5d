"""Commands about runs: runs, runs show, park, cancel."""

from __future__ import annotations

import contextlib

import click

from outlive.cli.command import (
    CommandGroup,
    argument,
    command,
    flag,
    limit_of,
    option,
    watched_limit_option,
    yes_option,
)
from outlive.cli.context import Call
from outlive.cli.lookup import find_run, find_thread
from outlive.cli.run_view import run_cells, show_run, show_runs
from outlive.cli.watch import Listing, answer_list, watch_option
from outlive.errors import BadArgument, RunEnded
from outlive.view.escape import escape_terminal, quote_argument
from outlive.view.items import changed_run_item
from outlive.view.runs import RunView, Usages, list_runs

_LISTED = ("live", "dead", "waiting", "released", "parked", "failed")
_STATUSES = (*_LISTED, "running", "completed", "cancelled")


@command(
    "runs",
    option("--status", type=click.Choice(_STATUSES), multiple=True, help="Only runs with this status; can be repeated."),
    flag("--all", help="Include completed and cancelled runs."),
    option("--agent", metavar="AGENT", help="Only runs of this agent."),
    option("--thread", metavar="THREAD", help="Only runs of this thread."),
    watched_limit_option("runs"),
    option("--after", metavar="RUN", help="Start after this run: the next page."),
    watch_option(),
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="[show RUN]",
)  # fmt: skip
def runs(
    call: Call,
    status: tuple[str, ...],
    all: bool,
    agent: str | None,
    thread: str | None,
    limit: int | None,
    after: str | None,
    watch: bool,
) -> None:
    """List runs that are live, dead, waiting, released, parked or failed: owner, lease, attempts, tokens and cost.

    The list says what a run waits for, and in which step a run has been quiet for a minute or more. A damaged run is
    listed with the reason; then the exit code is 1.

    \b
    outlive runs --status waiting --agent refunds
    outlive runs --watch
    """  # noqa: D301  # click reads the backspace as: do not wrap
    wanted = set(status) or set(_STATUSES if all else _LISTED)
    with call.open() as store:
        if after is not None:
            with contextlib.suppress(BadArgument):  # it may have been deleted
                after = find_run(store, after, is_exact=True).id
        thread_id = None if thread is None else find_thread(store, thread)

        most, usages = limit_of(limit, watches=watch), Usages()

        def look() -> Listing:
            damage: list[str] = []
            views, next = list_runs(store, wanted, agent, thread_id, most, after, usages, damage)
            items = [view.item() for view in views]
            more = None if next is None else f"more: --after {quote_argument(next).removeprefix('-- ')}"
            return Listing(
                items,
                lambda: show_runs(items, are_all=all or bool(status)),
                name=lambda item: escape_terminal(item["id"]),
                cells=run_cells,
                next=next,
                notes=[*([more] if more and not call.is_json else []), *damage],
                is_ok=not damage,
            )

        answer_list(call, look, watches=watch)


def thread_option() -> click.Option:
    return option(
        "--thread", metavar="THREAD", help="The thread of the run, if several threads have a run of this id."
    )


@command("show", argument("RUN"), thread_option(), flag("--full", help="Do not shorten long values."))
def show(call: Call, run: str, thread: str | None, full: bool) -> None:
    """Show one run: its status, what it waits for, its attempts and steps, and the responses of its models.

    \b
    outlive runs show plan-the-trip
    """  # noqa: D301
    with call.open() as store:
        view = RunView.of(store, find_run(store, run, thread=thread))
        call.answer([view.full_item()], lambda: show_run(view, full), brief=[view.item()["standing"]])


runs.add_command(show)


@command("park", argument("RUN"), thread_option(), yes_option())
def park(call: Call, run: str, thread: str | None) -> None:
    """Exclude a run from recovery until `outlive retry`. The next write of a live run is refused."""
    _end(call, run, thread, "parked")


@command("cancel", argument("RUN"), thread_option(), yes_option())
def cancel(call: Call, run: str, thread: str | None) -> None:
    """Cancel a run. The next write of a live run is refused, wherever its process is."""
    _end(call, run, thread, "cancelled")


def _end(call: Call, text: str, thread: str | None, status: str) -> None:
    with call.open(writes=True) as store:
        run = find_run(store, text, thread=thread, is_exact=call.is_confirmed)
        standing = RunView.of(store, run).item()["standing"]
        if run.status in ("completed", status):
            raise RunEnded(run.id, run.status)
        name = escape_terminal(run.id)
        action = f"mark run {name} of thread {escape_terminal(run.thread)} ({standing}) as {status}"
        if standing == "live":
            action += f"; it is running in {run.owner}, its next write will be refused"
        call.confirm(action)
        (store.park if status == "parked" else store.cancel)(run.id, thread=run.thread)
        call.report(
            f"run {name} is {status}; outlive retry {quote_argument(run.id)} resumes it",
            **changed_run_item(run, was=standing, status=status),
        )
