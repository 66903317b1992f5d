"""What `recover` and `retry` do with handlers of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from outlive.cli.context import Call
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.lookup import find_run
from outlive.cli.output.escape import as_argument, shown, shown_lines
from outlive.cli.stores import checked
from outlive.errors import BadArgument, OutliveError
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.recovery import Recovered
    from outlive.sync.facades import Store

Handlers = Mapping[str | None, Callable[[Any], Any]]


def load_handlers(said: str) -> Handlers:
    """Return the handlers that MODULE:NAME names."""
    module, colon, name = said.partition(":")
    if not colon or not module or not name:
        raise BadArgument(f"--handlers takes MODULE:NAME, such as agents.planner:HANDLERS, not {said!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise BadArgument(f"the module {module!r} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}"
        raise BadArgument(f"the module {module!r} cannot be imported: {said}; --debug shows where") from error
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise BadArgument(f"the module {module!r} has no {name!r}") from error
    if callable(found):
        return {"*": found}
    if isinstance(found, Mapping) and found and all(callable(one) for one in found.values()):
        return found
    raise BadArgument(f"{said} is neither a function nor a dict of agent → function")


def _are_async(handlers: Handlers) -> bool:
    return any(inspect.iscoroutinefunction(handler) for handler in handlers.values())


def list_dead(call: Call, store: Store) -> None:
    """Show what `recover` would take."""
    from outlive.cli.run_view import Running, show_runs

    clock = LeaseClock.of(store)
    items = [Running(run, clock, store).item() for run in store.recoverable()]
    call.answer(
        items,
        lambda: show_runs(items) if items else print("no run to recover"),
        brief=[shown(item["id"]) for item in items],
    )


def recover_all(call: Call, said: str, **options: Any) -> None:
    """Recover with the handlers, sync or async, and tell what came of it."""
    with _aside(call):
        handlers = load_handlers(said)
        if _are_async(handlers):
            report = asyncio.run(_recover_async(call, handlers, options))
        else:
            with call.open(writes=True, knows_types=True) as store:
                report = store.recover(handlers, **options)
    _tell(call, report)


def _aside(call: Call) -> contextlib.AbstractContextManager[Any]:
    """What handlers print must not stand in the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if call.is_json else contextlib.nullcontext()


async def _recover_async(call: Call, handlers: Handlers, options: Any) -> Recovered:
    import outlive

    with call.open(writes=True):  # says which store, and that it is there
        pass
    async with outlive.open_async(call.url, **checked(call.url, call.options())) as opened:
        return await opened.recover(handlers, **options)


def _tell(call: Call, report: Recovered) -> None:
    rows: list[tuple[str, RunInfo, str | None, str]] = [
        *(("resumed", run, None, run.status) for run in report.resumed),
        *(("failed", one.run, one.code, f"{one.code}: {one.message}") for one in report.failed),
        *(("waiting", run, None, "a process holds it") for run in report.waiting),
        *(("skipped", one.run, one.code, one.message) for one in report.skipped),
    ]
    items = [
        {"outcome": outcome, "run": run.id, "thread": run.thread, "agent": run.agent, "attempt": run.attempt, "code": code, "reason": reason}
        for outcome, run, code, reason in rows
    ]  # fmt: skip
    call.answer(
        items,
        lambda: _show(rows),
        brief=[f"{outcome} {shown(run.id)}" for outcome, run, _, _ in rows],
        is_ok=not (report.failed or report.skipped),
    )


def _show(rows: list[tuple[str, RunInfo, str | None, str]]) -> None:
    from outlive.cli.output.table import Column, print_table

    if not rows:
        print("no run to recover")
        return
    styles = {"resumed": "green", "failed": "red", "skipped": "yellow"}
    columns = (
        Column("OUTCOME", keeps=True, styles=styles.get), Column("RUN", is_id=True), Column("THREAD", is_id=True), Column("AGENT", drops=1),
        Column("ATTEMPT", right=True, drops=2), Column("WHY"),
    )  # fmt: skip
    print_table(
        columns,
        [
            (outcome, run.id, run.thread, run.agent or "", str(run.attempt), reason)
            for outcome, run, _, reason in rows
        ],
    )


def give_back(call: Call, store: Store, said: str, thread: str | None) -> None:
    """Make a run that has ended a candidate for recovery again."""
    found = find_run(store, said, thread=thread)
    _check_unfinished(run_now(store._store._give_back(found.id, found.thread)))
    call.did(
        f"run {shown(found.id)} was {found.status} and is released now: the next recover, or a worker, takes it",
        id=found.id,
        thread=found.thread,
        was=found.status,
        status="released",
        error=None,
    )


def retry_now(call: Call, said: str, thread: str | None, handlers_said: str) -> None:
    """Go on with a run in this process."""
    with _aside(call):
        handlers = load_handlers(handlers_said)
    with call.open(writes=True) as store:
        found = find_run(store, said, thread=thread)
    handler = handlers.get(found.agent) or handlers.get("*")
    if handler is None:
        raise BadArgument(f"{handlers_said} has no handler for agent {found.agent!r}, and none for '*'")
    with _aside(call):
        if inspect.iscoroutinefunction(handler):
            ended = asyncio.run(_retry_async(call, found, handler))
        else:
            ended = _retry(call, found, handler)
    failed = f": {ended.error}" if ended.status == "failed" else ""
    sentence = f"run {shown(found.id)} is {ended.status}{shown(failed)}; outlive run {as_argument(found.id)} shows it"
    item = {
        "id": found.id,
        "thread": found.thread,
        "was": found.status,
        "status": ended.status,
        "error": ended.error,
    }
    call.answer([item], lambda: print(shown_lines(sentence)), is_ok=not failed)


def _retry(call: Call, found: RunInfo, handler: Callable[[Any], Any]) -> RunInfo:
    with call.open(writes=True, knows_types=True) as store:
        run = store.retry(found.id, thread=found.thread)
        with _telling(call), run:
            _check_unfinished(run)
            _keep(run, handler(run))
        return run.info


async def _retry_async(call: Call, found: RunInfo, handler: Callable[[Any], Any]) -> RunInfo:
    import outlive

    async with outlive.open_async(call.url, **checked(call.url, call.options())) as store:
        run = await store.retry(found.id, thread=found.thread)
        with _telling(call):
            async with run:
                _check_unfinished(run)
                _keep(run, await handler(run))
        return run.info


@contextlib.contextmanager
def _telling(call: Call) -> Iterator[None]:
    """What a handler raises has made the run fail, and is told as that. What the store raises goes on."""
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
        raise BadArgument(f"run '{shown(run.id)}' is {run.status}: there is nothing left to do")


def _keep(run: Any, result: Any) -> None:
    """A handler's value is the run's result, as it is for `recover`."""
    if result is not None and run.result is None:
        run.info.result = result
