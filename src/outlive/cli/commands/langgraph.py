"""The command about databases of LangGraph's: moving them into a store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from outlive.cli.command import argument, command, flag, option
from outlive.cli.context import Call
from outlive.cli.output.escape import escape_terminal
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.adapters.langgraph.importer.importer import Moved, Progress


@command(
    "import-langgraph",
    argument("SOURCE_URL"),
    argument("TARGET_URL", required=False),
    option("--type", "types", multiple=True, metavar="MODULE.CLASS", help="A class of your own that states hold."),
    option("--serde", metavar="MODULE.NAME", help="The serializer of the source, or a function that returns it."),
    option("--thread", "threads", multiple=True, metavar="THREAD", help="Only this thread; can be repeated."),
    flag("--skip", help="Leave out threads that cannot be moved, and go on with the others."),
    flag("--no-verify", help="Do not compare the target with the source afterwards."),
    flag("--dry-run", help="Read and decode everything, store nothing, list all problems."),
)  # fmt: skip
def import_langgraph(
    call: Call,
    source_url: str,
    target_url: str | None,
    types: tuple[str, ...],
    serde: str | None,
    threads: tuple[str, ...],
    skip: bool,
    no_verify: bool,
    dry_run: bool,
) -> None:
    """Move every thread of a database that LangGraph's SqliteSaver or PostgresSaver wrote into a store of outlive's.

    The source (sqlite:///old.db, postgresql://host/database) is only read, and may be in use. Can be repeated: what is there stays,
    what is new is brought. Exits with 1 when threads were left out.
    """
    import outlive
    from outlive.adapters.langgraph.importer import dotted_names as naming
    from outlive.adapters.langgraph.importer import importer as moving
    from outlive.adapters.langgraph.importer.source import open_source
    from outlive.backends.server.urls import hide_secrets
    from outlive.cli.config import open_arguments
    from outlive.cli.output.table import progress
    from outlive.cli.stores import pair_options, to_url

    if target_url is not None and call.store_url:
        raise BadArgument("name the target once: outlive import-langgraph SOURCE_URL TARGET_URL")
    types_named, serde_named = naming.named_types(types), naming.named_serde(serde)
    open_source(source_url).close()  # before a mistake in its URL has made an empty store
    # As a URL: the importer compares it with the source, and looks whether it exists.
    call.store_url = to_url(target_url or call.url)
    options = pair_options(call.store_url, call.store_options())
    moving.check_apart(source_url, call.store_url)
    is_quiet = call.is_quiet or call.is_json
    where = call.store_url
    if dry_run and moving.is_absent(where):
        where, options = "memory:", {}
    with (
        outlive.open(where, **open_arguments(options)) as store,
        progress("moving", is_quiet=is_quiet) as bar,
    ):
        call.use(store)
        if where != call.store_url:
            call.store_name = hide_secrets(call.store_url)
        call.check_unpaired(store)
        with _hinting():
            moved = moving.import_langgraph(
                source_url,
                store,
                types=types_named,
                serde=serde_named,
                threads=threads or None,
                progress=_teller(call, bar, is_quiet=is_quiet),
                on_problem="skip" if skip else "stop",
                verify=not no_verify,
                dry_run=dry_run,
            )
    call.answer([_item(moved)], lambda: _show(moved, dry_run=dry_run), brief=[escape_terminal(str(one)) for one in moved.problems], is_ok=moved.ok)  # fmt: skip


@contextlib.contextmanager
def _hinting() -> Iterator[None]:
    """Tell what else there is to do about a thread that cannot be moved."""
    from outlive.adapters.langgraph.importer.importer import CannotMove

    try:
        yield
    except CannotMove as error:
        if error.problem.checkpoint is not None:
            error.add_note("--dry-run lists all problems, --skip leaves such threads out")
        raise


def _teller(call: Call, bar: Progress, *, is_quiet: bool) -> Progress:
    """Return who is told how far it has got: a bar on a terminal, else plain lines."""
    from outlive.adapters.langgraph.importer.importer import Lines

    return bar if is_quiet or sys.stderr.isatty() else Lines(call.note)


def _item(moved: Moved) -> dict[str, object]:
    return {
        "threads": moved.threads,
        "checkpoints": moved.checkpoints,
        "writes": moved.writes,
        "present": moved.present,
        "renewed": moved.renewed,
        "ahead": moved.ahead,
        "verified": moved.verified,
        "unknown_types": list(moved.unknown),
        "problems": [{"thread": one.thread, "checkpoint": one.checkpoint, "problem": one.sentence} for one in moved.problems],
    }  # fmt: skip


def _show(moved: Moved, *, dry_run: bool) -> None:
    for problem in moved.problems:
        print(escape_terminal(str(problem)))
    print(f"{'would move' if dry_run else 'moved'} {moved}")
    if moved.unknown:
        print("name the classes: " + " ".join(f"--type {escape_terminal(name)}" for name in moved.unknown))
