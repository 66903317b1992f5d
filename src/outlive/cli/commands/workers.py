"""Commands about workers and what they work on: submit, worker, workers."""

from __future__ import annotations

import datetime as dt
import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from outlive.arguments import is_async
from outlive.cli.command import argument, command, flag, namespace_option, option, parse_filters
from outlive.cli.commands.recover import (
    divert_output,
    handlers_option,
    load_handlers,
    open_async,
    recovered_items,
)
from outlive.cli.context import FORMAT, Call
from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.table import Column, print_table
from outlive.cli.watch import Listing, answer_list, watch_option
from outlive.errors import BadArgument
from outlive.view.escape import escape_json, escape_terminal
from outlive.view.items import worker_item
from outlive.view.run_text import agent_name
from outlive.view.runs import RunView
from outlive.view.units import format_age, parse_duration, parse_iso, parse_moment

if TYPE_CHECKING:
    from outlive.cli.commands.recover import Handlers
    from outlive.runs.lease import RunInfo
    from outlive.runs.recovery import Recovered

_REMEMBERED = 10_000  # runs that were skipped, and are not told of again

Item = dict[str, Any]


# submit


@command(
    "submit",
    argument("THREAD"),
    option("--agent", metavar="AGENT", help="The agent whose handler works on the run."),
    option("--prompt", metavar="PROMPT", help="What the run is about: JSON, or else text; - reads standard input."),
    option("--run-id", metavar="ID", help="The id of the run. Submitted again under it, nothing changes. Default: a new one."),
    option("--not-before", metavar="TIME", help="Wait until then: a time such as 2026-05-01T12:00, or a duration such as 2h."),
    option("--priority", type=click.IntRange(0, 999), default=0, show_default=True, help="Of the runs of an agent, the greatest is claimed first."),
    option("--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="An attribute of the run; VALUE is JSON, or else text; can be repeated."),
    option("--code-version", metavar="VERSION", help="The version of the code that the run is for."),
    option("--max-attempts", type=click.IntRange(min=1), metavar="N", help="Park the run after so many failed attempts. Default: 5."),
    option("--backoff", metavar="TIME", help="After a failure, wait so long before the next attempt, doubled each time."),
    namespace_option(),
)  # fmt: skip
def submit(
    call: Call, thread: str, not_before: str | None, run_id: str | None, backoff: str | None, **options: Any
) -> None:
    """Store a run on a thread for workers; one with a handler for its agent claims it. A new store is created.

    \b
    outlive submit trip-42 --agent planner --prompt '{"to": "Lisbon"}'
    outlive submit trip-42 --agent planner --run-id plan-42 --not-before 2h
    """  # noqa: D301  # click reads the backspace as: do not wrap
    options["attributes"] = parse_filters(options["attributes"], "--attribute")
    options["prompt"] = _read_value(options["prompt"])
    options["run_id"] = run_id
    if options["max_attempts"] is None:
        del options["max_attempts"]
    if backoff is not None:
        options["backoff_s"] = parse_duration("--backoff", backoff)
    due = None if not_before is None else parse_moment("--not-before", not_before)
    with call.open(writes=True, creates=True) as store:
        was_stored = run_id is not None and store.find_run(run_id, thread=thread) is not None
        run = store.submit(thread, not_before=due, **options)
        item = RunView.of(store, run).item()
        call.answer([item], lambda: print(_submitted(run, item, was_stored)), brief=[escape_terminal(run.id)])
        if item["has_worker"] is False and not call.is_json:
            call.note(f"no living worker has a handler for {agent_name(item)}")


def _submitted(run: RunInfo, item: Item, was_stored: bool) -> str:
    name = f"run {escape_terminal(run.id)}"
    if was_stored:
        return f"{name} was submitted before, and is {item['standing']}"
    due = "" if run.waits is None else f"; it starts {format_age(run.waits.until)}"
    return f"submitted {name} on thread {escape_terminal(run.thread)}{due}"


def _read_value(text: str | None) -> Any:
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read().removesuffix("\n")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# workers


@command("workers", watch_option())
def workers(call: Call, watch: bool) -> None:
    """List the living workers: their agents, where they run, and how busy they are.

    \b
    outlive workers --watch
    """  # noqa: D301
    with call.open() as store:

        def look() -> Listing:
            items = [worker_item(worker) for worker in store.workers()]
            return Listing(
                items,
                lambda: _show_workers(items),
                name=lambda item: escape_terminal(item["id"]),
                cells=_worker_cells,
            )

        answer_list(call, look, watches=watch)


def _show_workers(items: list[Item]) -> None:
    if not items:
        print("no living workers")
        return
    ids = shorten_ids(item["id"] for item in items)
    columns = (
        Column("WORKER", is_id=True), Column("STATUS", keeps=True), Column("AGENTS"), Column("BUSY", right=True, keeps=True),
        Column("VERSION", drops=1), Column("PROCESS", drops=2), Column("STARTED", keeps=True, drops=3),
    )  # fmt: skip
    print_table(columns, [(ids[item["id"]], *_worker_cells(item)) for item in items])


def _worker_cells(item: Item) -> tuple[str, ...]:
    return (
        "draining" if item["is_draining"] else "working" if item["busy"] else "idle",
        ", ".join("none" if agent is None else agent for agent in item["agents"]),
        f"{item['busy']}/{item['capacity']}",
        _version(item),
        f"{item['pid']}@{item['host']}",
        format_age(parse_iso(item["started_at"])),
    )


def _version(item: Item) -> str:
    version: str = item["code_version"] or ""
    return f"{version} only" if version and item["policy"] == "hold" else version


# worker


@command(
    "worker",
    handlers_option(is_required=True),
    option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="How many runs it works on at a time."),
    option("--limit", "limits", multiple=True, metavar="AGENT=N", help="How many runs of an agent all workers together work on; can be repeated."),
    option("--limit-tenant", type=click.IntRange(min=1), metavar="N", help="How many runs of all agents all workers together work on."),
    option("--interval", default="5s", show_default=True, metavar="TIME", help="How often it looks for dead runs. Others are noticed at once."),
    option("--grace", default="20s", show_default=True, metavar="TIME", help="After SIGTERM, how long it waits for its runs before it gives them back."),
    option("--policy", type=click.Choice(["resume", "hold"]), default="resume", show_default=True,
           help="hold: leave runs of another code version to other workers."),
    option("--code-version", metavar="VERSION", help="The version of the handlers' code."),
    flag("--after-failover", help="Work even while a pair has failed over, when runs may still be running on the primary."),
)  # fmt: skip
def worker(
    call: Call, handlers: str, limits: tuple[str, ...], interval: str, grace: str, **options: Any
) -> None:
    """Work on submitted, woken and dead runs, until it is stopped: call the handler of the agent of each.

    SIGTERM drains it: it claims no more runs, waits for those it has, and gives back what has not ended in time. Ctrl-C
    gives them back at once. A line is printed for every run that left its handler; with --json it is an object.

    \b
    outlive worker --handlers agents:HANDLERS --concurrency 8 --limit planner=2
    """  # noqa: D301
    options["limits"] = _parse_limits(limits)
    options["interval_s"] = parse_duration("--interval", interval)
    options["grace_s"] = parse_duration("--grace", grace)
    log = _Log(call, sys.stdout)
    import asyncio  # takes long, and the other commands do not need it

    with divert_output(call):
        loaded = load_handlers(handlers)
        if any(map(is_async, loaded.values())):
            with call.open(writes=True, creates=True):  # checks the store
                log.begin(loaded, options["concurrency"])
            asyncio.run(_work_async(call, loaded, options, log))
        else:
            with call.open(writes=True, creates=True, knows_types=True) as store:
                worker = store.worker(loaded, on_report=log.report, **options)
                log.begin(loaded, options["concurrency"])
                worker.run()


async def _work_async(call: Call, handlers: Handlers, options: Any, log: _Log) -> None:
    async with open_async(call) as store:
        await store.worker(handlers, on_report=log.report, **options).run()


def _parse_limits(texts: tuple[str, ...]) -> dict[str | None, int]:
    limits: dict[str | None, int] = {}
    for text in texts:
        agent, _, count = text.rpartition("=")
        if not agent or not count.isdecimal() or not int(count):
            raise BadArgument(f"--limit takes AGENT=N, such as planner=2, not {text!r}")
        limits[agent] = int(count)
    return limits


class _Log:
    """Prints what became of the runs of a worker, also while handlers cannot print to the output."""

    def __init__(self, call: Call, output: TextIO) -> None:
        self._call = call
        self._output = output
        self._skipped: set[tuple[str, str | None]] = set()  # told before: they are met at every look

    def begin(self, handlers: Handlers, concurrency: int) -> None:
        agents = ", ".join("runs without an agent" if agent is None else str(agent) for agent in handlers)
        self._call.note(f"a worker for {agents} starts, {concurrency} at a time; SIGTERM drains it")

    def report(self, report: Recovered) -> None:
        for item in recovered_items(report):
            if item["outcome"] != "waiting" and not self._is_known(item):
                self._print(item)
        self._output.flush()

    def _is_known(self, item: Item) -> bool:
        if item["outcome"] != "skipped":
            return False
        key = (item["id"], item["code"])
        if key in self._skipped:
            return True
        if len(self._skipped) >= _REMEMBERED:
            self._skipped.clear()
        self._skipped.add(key)
        return False

    def _print(self, item: Item) -> None:
        now = dt.datetime.now(dt.UTC)
        if self._call.is_json:
            line = {"format": FORMAT, "command": self._call.command, "at": now.isoformat(), "item": item}
            text = escape_json(json.dumps(line))
        else:
            parts = (item["outcome"], item["id"], item["agent"] or "", item["reason"])
            text = "  ".join(escape_terminal(part) for part in parts if part)
            text = text if self._call.is_quiet else f"{now.astimezone():%H:%M:%S} {text}"
        print(text, file=self._output)
