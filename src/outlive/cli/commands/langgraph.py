"""The command that imports a LangGraph database into a store."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from outlive.cli.command import argument, command, flag, option
from outlive.cli.context import Call
from outlive.errors import BadArgument
from outlive.view.escape import escape_terminal

if TYPE_CHECKING:
    from outlive.adapters.langgraph.importer.classes import ClassUse
    from outlive.adapters.langgraph.importer.importer import ImportResult


@command(
    "import-langgraph",
    argument("SOURCE_URL"),
    argument("TARGET_URL", required=False),
    option("--type", "types", multiple=True, metavar="MODULE.CLASS", help="A class of yours that states contain, or the class of a state: its annotations name the others. Can be repeated."),
    option("--serde", metavar="MODULE.NAME", help="The serializer of the source, or a function that returns it."),
    option("--thread", "threads", multiple=True, metavar="THREAD", help="Only this thread; can be repeated."),
    flag("--skip", help="Leave out threads that cannot be imported, and import the others."),
    flag("--no-verify", help="Do not compare the target with the source afterwards."),
    flag("--dry-run", help="Read and decode everything, store nothing, list all classes and problems."),
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
    """Import every thread that LangGraph's SqliteSaver or PostgresSaver has stored.

    The source (old.db, sqlite:///old.db, postgresql://host/database) is only read, and may be in
    use. You can repeat the import: it skips what is there, and imports threads again that have
    changed. Exits with 1 when threads were left out.
    """
    from outlive.adapters.langgraph.importer import importer
    from outlive.adapters.langgraph.importer.dotted_names import named_serde, named_types
    from outlive.backends.server.urls import hide_secrets
    from outlive.cli.output.table import progress
    from outlive.cli.stores import open_store, pair_options, to_url

    if target_url is not None and call.store_url:
        raise BadArgument("name the target once: outlive import-langgraph SOURCE_URL TARGET_URL")
    state_types, serializer = named_types(types), named_serde(serde)
    importer.open_source(source_url).close()  # a mistake in its URL must not create an empty store
    # As a URL: the importer compares it with the source, and checks whether it exists.
    call.store_url = to_url(target_url or call.url)
    options = pair_options(call.store_url, call.store_options())
    importer.check_apart(source_url, call.store_url)
    url = call.store_url
    if dry_run and importer.is_absent(url):
        url, options = "memory:", {}
    with (
        open_store(url, options, create=True, knows_types=True) as store,
        progress("importing", is_quiet=call.hides_progress) as bar,
    ):
        call.use(store)
        if url != call.store_url:
            call.store_name = hide_secrets(call.store_url)
        call.check_unpaired(store)
        with _adding_hint():
            result = importer.import_langgraph(
                source_url,
                store,
                types=state_types,
                serde=serializer,
                threads=threads or None,
                # A bar on a terminal, else plain lines.
                progress=bar if call.hides_progress or sys.stderr.isatty() else _Lines(call.note),
                on_problem="skip" if skip else "stop",
                verify=not no_verify,
                dry_run=dry_run,
            )
    brief = [escape_terminal(str(problem)) for problem in result.problems]
    call.answer([_item(result)], lambda: _show(result, dry_run=dry_run), brief=brief, is_ok=result.ok)


@contextlib.contextmanager
def _adding_hint() -> Iterator[None]:
    """Add the options that help with a thread that cannot be imported."""
    from outlive.adapters.langgraph.importer.importer import CannotImport

    try:
        yield
    except CannotImport as error:
        if error.problem.checkpoint is not None:
            error.add_note("--dry-run lists all problems, --skip leaves such threads out")
        raise


class _Lines:
    """Progress as plain lines: one for every tenth of the checkpoints."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._tenth = 0

    def __call__(self, done: int, total: int | None) -> None:
        if total and done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            self._note(f"{done:,} of {total:,} checkpoints")


def _item(result: ImportResult) -> dict[str, object]:
    return {
        "threads": result.threads,
        "checkpoints": result.checkpoints,
        "writes": result.writes,
        "present": result.present,
        "again": result.again,
        "ahead": result.ahead,
        "verified": result.verified,
        "unknown_types": list(result.unknown),
        "classes": [
            {"name": use.name, "values": use.values, "threads": use.threads, "is_known": use.is_known}
            for use in result.classes
        ],
        "problems": [
            {"thread": problem.thread, "checkpoint": problem.checkpoint, "problem": problem.sentence}
            for problem in result.problems
        ],
    }


def _show(result: ImportResult, *, dry_run: bool) -> None:
    for problem in result.problems:
        print(escape_terminal(str(problem)))
    print(f"{'would import' if dry_run else 'imported'} {result}")
    if result.classes:
        _show_classes(result.classes)
    if result.unknown:
        print("name the classes: " + " ".join(f"--type {escape_terminal(name)}" for name in result.unknown))
        print("the class of a state is enough for those that its annotations name")


def _show_classes(uses: Sequence[ClassUse]) -> None:
    from outlive.cli.output.table import Column, print_table

    columns = (
        Column("CLASS", is_id=True), Column("VALUES", right=True, keeps=True), Column("THREADS", right=True, keeps=True),
        Column("", keeps=True),
    )  # fmt: skip
    rows = [
        (use.name, f"{use.values:,}", f"{use.threads:,}", "known" if use.is_known else "unknown")
        for use in uses
    ]
    print()
    print_table(columns, rows)
