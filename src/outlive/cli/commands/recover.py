"""Commands that resume runs with the user's handlers: recover, retry."""

from __future__ import annotations

import contextlib
import datetime as dt
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from outlive.arguments import is_async
from outlive.cli.command import argument, command, flag, option
from outlive.cli.commands.runs import thread_option
from outlive.cli.config import open_arguments
from outlive.cli.context import Call
from outlive.cli.lookup import find_run
from outlive.cli.output.table import Column, print_table
from outlive.cli.run_view import show_runs
from outlive.cli.stores import pair_options
from outlive.errors import BadArgument, OutliveError
from outlive.view.escape import escape_terminal, quote_argument
from outlive.view.items import changed_run_item, recovered_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.runs import RunView, Usages, Workers
from outlive.view.units import format_age, parse_moment

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.recovery import Recovered
    from outlive.store import AsyncStore
    from outlive.view.opened_store import OpenedStore

Handlers = Mapping[str | None, Callable[[Any], Any]]


def handlers_option(*, is_required: bool = False) -> click.Option:
    return option(
        "--handlers", metavar="MODULE:NAME", required=is_required,
        help="A dict of agent → function of a run, or one function for all agents. The module may be in this folder.",
    )  # fmt: skip


def load_handlers(text: str) -> Handlers:
    """Return the handlers that MODULE:NAME names."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise BadArgument(f"--handlers takes MODULE:NAME, such as agents.planner:HANDLERS, not {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        handlers: Any = importlib.import_module(module)
    except ImportError as error:
        raise BadArgument(f"cannot import the module {module!r}: {error}") from error
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise BadArgument(
            f"cannot import the module {module!r}: {reason}; --debug prints the traceback"
        ) from error
    try:
        for part in name.split("."):
            handlers = getattr(handlers, part)
    except AttributeError as error:
        raise BadArgument(f"the module {module!r} has no {name!r}") from error
    if callable(handlers):
        return {"*": handlers}
    if isinstance(handlers, Mapping) and handlers and all(map(callable, handlers.values())):
        return handlers
    raise BadArgument(f"{text} is neither a function nor a dict of agent → function")


def divert_output(call: Call) -> contextlib.AbstractContextManager[Any]:
    """Keep what handlers print out of the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if call.is_json else contextlib.nullcontext()


@contextlib.asynccontextmanager
async def open_async(call: Call) -> Any:
    import outlive

    options = pair_options(call.url, call.store_options())
    async with outlive.open_async(call.url, **open_arguments(options)) as store:
        yield store


# recover


@command(
    "recover",
    handlers_option(),
    option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, metavar="N", help="How many runs it resumes at a time."),
    option("--policy", type=click.Choice(["resume", "hold"]), default="resume", show_default=True,
           help="hold: skip runs of another code version."),
    option("--code-version", metavar="VERSION", help="The version of the handlers' code."),
    flag("--after-failover", help="Resume runs even while a pair has failed over, when they may still be running on the primary."),
    flag("--dry-run", help="Only list the runs that would be resumed."),
)  # fmt: skip
def recover(call: Call, handlers: str | None, dry_run: bool, **options: Any) -> None:
    """Resume all dead and released runs: claim each, and call the handler of its agent.

    If several processes recover at once, each run goes to one of them. Exits with 1 if a run failed
    or was skipped.
    """
    if dry_run:
        with call.open() as store:
            _list_recoverable(call, store)
        return
    if handlers is None:
        raise BadArgument("give --handlers MODULE:NAME, or --dry-run to list the runs")
    import asyncio

    with divert_output(call):
        loaded = load_handlers(handlers)
        if any(map(is_async, loaded.values())):
            with call.open(writes=True):  # checks the store, and names it in the answer
                pass
            report = asyncio.run(_recover_async(call, loaded, options))
        else:
            with call.open(writes=True, knows_types=True) as store:
                report = store.recover(loaded, **options)
    _answer_recovered(call, report)


def _list_recoverable(call: Call, store: OpenedStore) -> None:
    clock, workers = LeaseClock.of(store), Workers(store)
    usages, damage = Usages(), list[str]()
    items = [RunView(run, clock, store, workers, usages, damage).item() for run in store.recoverable()]
    call.answer(
        items,
        lambda: show_runs(items) if items else print("no runs to recover"),
        brief=[escape_terminal(item["id"]) for item in items],
        is_ok=not damage,
    )
    for message in damage:
        call.note(message)


async def _recover_async(call: Call, handlers: Handlers, options: Any) -> Recovered:
    async with open_async(call) as store:
        opened: AsyncStore = store
        return await opened.recover(handlers, **options)


def recovered_items(report: Recovered) -> list[dict[str, Any]]:
    """Return what became of each run, as items."""
    rows: list[tuple[str, RunInfo, str | None, str]] = [
        *(("resumed", run, None, run.status) for run in report.resumed),
        *(("suspended", run, None, _waits_for(run)) for run in report.suspended),
        *(
            ("failed", failed.run, failed.code, f"{failed.code}: {failed.message}")
            for failed in report.failed
        ),
        *((run.status, run, None, "by its handler") for run in report.left),
        *(("waiting", run, None, "another process is running it") for run in report.waiting),
        *(("skipped", skipped.run, skipped.code, skipped.message) for skipped in report.skipped),
    ]
    return [
        recovered_item(run, outcome=outcome, code=code, reason=reason) for outcome, run, code, reason in rows
    ]


def _answer_recovered(call: Call, report: Recovered) -> None:
    items = recovered_items(report)
    call.answer(
        items,
        lambda: _show_recovered(items),
        brief=[f"{item['outcome']} {escape_terminal(item['id'])}" for item in items],
        is_ok=not (report.failed or report.skipped),
    )


def _waits_for(run: RunInfo) -> str:
    names = () if run.waits is None else run.waits.names
    return f"waits for {', '.join(map(repr, names))}" if names else "waits"


def _show_recovered(items: list[dict[str, Any]]) -> None:
    if not items:
        print("no runs to recover")
        return
    styles = {"resumed": "green", "failed": "red", "skipped": "yellow"}
    columns = (
        Column("OUTCOME", keeps=True, styles=styles.get), Column("RUN", is_id=True), Column("THREAD", is_id=True), Column("AGENT", drops=1),
        Column("ATTEMPT", right=True, drops=2), Column("REASON"),
    )  # fmt: skip
    fields = ("outcome", "id", "thread", "agent", "attempt", "reason")
    print_table(columns, [[str(item[field] or "") for field in fields] for item in items])


# retry


@command(
    "retry",
    argument("RUN"),
    thread_option(),
    handlers_option(),
    option("--not-before", metavar="TIME", help="Let it wait until then: a time such as 2026-05-01T12:00, or a duration such as 2h."),
)  # fmt: skip
def retry(call: Call, run: str, thread: str | None, handlers: str | None, not_before: str | None) -> None:
    """Resume a run that failed, was parked, cancelled or released.

    Without --handlers the run is only marked as released: the next `recover`, or a worker, resumes
    it.
    """
    if handlers is not None and not_before is not None:
        raise BadArgument("--handlers resumes the run now, and --not-before later; give one of them")
    if handlers is not None:
        _resume(call, run, thread, handlers)
        return
    due = None if not_before is None else parse_moment("--not-before", not_before)
    with call.open(writes=True) as store:
        if due is None:
            _release(call, store, run, thread)
        else:
            _delay(call, store, run, thread, due)


def _delay(call: Call, store: OpenedStore, text: str, thread: str | None, due: dt.datetime) -> None:
    """Let a run wait for the time at which a worker may claim it."""
    run = find_run(store, text, thread=thread)
    was = LeaseClock.of(store).standing(run)
    store.retry(run.id, thread=run.thread, not_before=due)
    when = format_age(due) if due > dt.datetime.now(dt.UTC) else "now"
    _report_released(call, run, was, "waiting", f"a worker or recover resumes it {when}")


def _release(call: Call, store: OpenedStore, text: str, thread: str | None) -> None:
    run = find_run(store, text, thread=thread)
    was = LeaseClock.of(store).standing(run)
    store.give_back(run)
    _report_released(call, run, was, "released", "the next recover or a worker resumes it")


def _report_released(call: Call, run: RunInfo, was: str, status: str, what_next: str) -> None:
    sentence = f"run {escape_terminal(run.id)} was {was} and is {status}: {what_next}"
    call.report(sentence, **changed_run_item(run, was=was, status=status))


def _resume(call: Call, text: str, thread: str | None, handlers_text: str) -> None:
    """Resume a run in this process."""
    import asyncio

    with divert_output(call):
        handlers = load_handlers(handlers_text)
    with call.open(writes=True) as store:
        run = find_run(store, text, thread=thread)
        was = LeaseClock.of(store).standing(run)
    handler = handlers.get(run.agent) or handlers.get("*")
    if handler is None:
        raise BadArgument(f"{handlers_text} has no handler for agent {run.agent!r}, and none for '*'")
    with divert_output(call):
        if is_async(handler):
            ended = asyncio.run(_call_async(call, run, handler))
        else:
            ended = _call(call, run, handler)
    failure = f": {ended.error}" if ended.error is not None else ""
    quoted = quote_argument(run.id)
    call.report(
        f"run {escape_terminal(run.id)} is {ended.status}{escape_terminal(failure)}; outlive runs show {quoted} shows it",
        is_ok=not failure,
        **changed_run_item(run, was=was, status=ended.status, error=ended.error),
    )


def _call(call: Call, info: RunInfo, handler: Callable[[Any], Any]) -> RunInfo:
    with call.open(writes=True, knows_types=True) as store:
        run = store.retry(info.id, thread=info.thread)
        with _handler_errors(call), run:
            _check_unfinished(run)
            _set_result(run, handler(run))
        return run.info


async def _call_async(call: Call, info: RunInfo, handler: Callable[[Any], Any]) -> RunInfo:
    async with open_async(call) as store:
        run = await store.retry(info.id, thread=info.thread)
        with _handler_errors(call):
            async with run:
                _check_unfinished(run)
                _set_result(run, await handler(run))
        ended: RunInfo = run.info
        return ended


@contextlib.contextmanager
def _handler_errors(call: Call) -> Iterator[None]:
    """An error of the handler has made the run fail, which the answer reports. Errors of the store pass."""
    try:
        yield
    except OutliveError:
        raise
    except Exception:  # noqa: BLE001
        if call.is_debug:
            import traceback

            traceback.print_exc()


def _check_unfinished(run: Any) -> None:
    if run.is_finished:
        raise BadArgument(f"run '{escape_terminal(run.id)}' is {run.status}; nothing is left to do")


def _set_result(run: Any, result: Any) -> None:
    """Make the handler's return value the result of the run, as `recover` does."""
    if result is not None and run.result is None:
        run.info.result = result
