"""Commands about runs: who is at work, what died, and handing it on."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from outlive.cli.command import argument, command, flag, limit_option, option, yes_option
from outlive.cli.context import Call
from outlive.cli.output.escape import as_argument, shown
from outlive.errors import BadArgument, RunEnded

_STATUSES = ("live", "dead", "running", "released", "parked", "failed", "completed", "cancelled")
_SHOWN = ("live", "dead", "released", "parked", "failed")


def handlers_option(*, required: bool) -> click.Option:
    return option(
        "--handlers", required=required, metavar="MODULE:NAME",
        help="A dict of agent → function of a run, or one function for all agents; the module is also looked for in this folder.",
    )  # fmt: skip


@command(
    "runs",
    "List runs: live, dead, parked, failed.",
    option("--status", type=click.Choice(_STATUSES), multiple=True, help="Only these; may be repeated."),
    flag("--all", help="Completed and cancelled runs too."),
    option("--agent", metavar="NAME", help="Only runs of this agent."),
    option("--thread", metavar="THREAD", help="Only runs of this thread."),
    limit_option(100, "runs"),
    option("--after", metavar="RUN", help="Go on behind this run: the next page."),
)
def runs(
    call: Call,
    status: tuple[str, ...],
    all: bool,
    agent: str | None,
    thread: str | None,
    limit: int,
    after: str | None,
) -> None:
    """List runs that are live, dead, released, parked or failed: owner, lease, attempts, tokens and cost."""
    wanted = set(status) or (set(_STATUSES) if all else set(_SHOWN))
    with call.open() as store:
        from outlive.cli.lookup import find_run, find_thread
        from outlive.cli.run_view import list_runs, show_runs

        if after is not None:
            with contextlib.suppress(BadArgument):  # it need not be there any more
                after = find_run(store, after, is_exact=True).id
        place = None if thread is None else find_thread(store, thread)
        found, next = list_runs(store, wanted, agent, place, limit, after)
        items = [one.item() for one in found]
        call.answer(
            items,
            lambda: show_runs(items, are_all=all or bool(status)),
            brief=[shown(item["id"]) for item in items],
            next=next,
        )
        if next is not None and not call.is_json:
            call.note(f"there are more: --after {as_argument(next).removeprefix('-- ')}")


def thread_option() -> click.Option:
    return option("--thread", metavar="THREAD", help="The thread of the run, if several have one of this id.")


@command(
    "run", "Show one run: steps, responses.", argument("RUN"), thread_option(), flag("--full", help="Cut nothing."),
)  # fmt: skip
def run(call: Call, run: str, thread: str | None, full: bool) -> None:
    """Show one run: what became of it, its steps, and what its models answered."""
    with call.open() as store:
        from outlive.cli.lookup import find_run
        from outlive.cli.run_view import Running, show_run

        found = Running.of(store, find_run(store, run, thread=thread))
        call.answer([found.whole_item()], lambda: show_run(found, full), brief=[found.item()["standing"]])


@command(
    "recover", "Go on with every dead run.",
    handlers_option(required=False),
    option("--policy", type=click.Choice(["resume", "hold"]), default="resume", show_default=True,
           help="hold: leave runs of another code version alone."),
    option("--code-version", metavar="VERSION", help="The version of the handlers' code."),
    flag("--after-failover", help="Also while a pair has failed over, when a run may still be at work with the primary."),
    flag("--dry-run", help="Only list what would be recovered."),
)  # fmt: skip
def recover(
    call: Call,
    handlers: str | None,
    policy: str,
    code_version: str | None,
    after_failover: bool,
    dry_run: bool,
) -> None:
    """Go on with every dead run: claim it, and call the handler of its agent.

    Of many processes that try, one gets each run. Exits with 1 when a run failed again or was refused.
    """
    from outlive.cli.commands.recover import list_dead, recover_all

    if dry_run:
        with call.open() as store:
            list_dead(call, store)
        return
    if handlers is None:
        raise BadArgument("give --handlers MODULE:NAME, or --dry-run to see what would be recovered")
    recover_all(call, handlers, policy=policy, code_version=code_version, after_failover=after_failover)


@command(
    "retry", "Go on with a run that has ended.", argument("RUN"), thread_option(), handlers_option(required=False),
)  # fmt: skip
def retry(call: Call, run: str, thread: str | None, handlers: str | None) -> None:
    """Go on with a run that failed, was parked, cancelled or released.

    Without --handlers it is given back as released: the next `recover`, or a worker, takes it.
    """
    from outlive.cli.commands.recover import give_back, retry_now

    if handlers is None:
        with call.open(writes=True) as store:
            give_back(call, store, run, thread)
    else:
        retry_now(call, run, thread, handlers)


@command("park", "Set a run aside.", argument("RUN"), thread_option(), yes_option())
def park(call: Call, run: str, thread: str | None) -> None:
    """Set a run aside: nobody recovers it until `retry`."""
    _end(call, run, thread, "parked")


@command("cancel", "End a run.", argument("RUN"), thread_option(), yes_option())
def cancel(call: Call, run: str, thread: str | None) -> None:
    """End a run. A live one is refused with its next write, wherever its process is."""
    _end(call, run, thread, "cancelled")


def _end(call: Call, run: str, thread: str | None, status: str) -> None:
    with call.open(writes=True) as store:
        from outlive.cli.lookup import find_run
        from outlive.cli.run_view import Running

        found = find_run(store, run, thread=thread, is_exact=call.is_yes)
        before = Running.of(store, found).item()
        if found.status in ("completed", status):
            raise RunEnded(found.id, found.status)
        what = (
            f"mark run {shown(found.id)} of thread {shown(found.thread)} ({before['standing']}) as {status}"
        )
        if before["standing"] == "live":
            what += f"; it is at work in {found.owner}, whose next write will be refused"
        call.confirm(what)
        (store.park if status == "parked" else store.cancel)(found.id, thread=found.thread)
        hint = f"; outlive retry {as_argument(found.id)} goes on with it"
        call.did(f"run {shown(found.id)} is {status}{hint}", **_ended(before, status))


def _ended(before: dict[str, Any], status: str) -> dict[str, Any]:
    return {"id": before["id"], "thread": before["thread"], "was": before["standing"], "status": status}
