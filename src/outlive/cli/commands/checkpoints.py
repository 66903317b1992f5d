"""Commands about the checkpoints of a thread: show, history, tips, diff, writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outlive.cli.command import (
    argument,
    command,
    filter_option,
    flag,
    limit_option,
    namespace_option,
    option,
    parse_filters,
    raw_option,
    thread_argument,
)
from outlive.cli.context import Call
from outlive.cli.graph_view import checkpoint_view, comparison
from outlive.cli.lookup import find_checkpoint, open_thread
from outlive.cli.output.table import Column, print_table
from outlive.cli.output.tree import show_checkpoints
from outlive.cli.page import deleted_error, find_pair, select_checkpoints
from outlive.errors import BadArgument
from outlive.view.escape import escape_terminal, quote_argument
from outlive.view.history import CheckpointPage, read_history
from outlive.view.items import write_item
from outlive.view.units import parse_time
from outlive.view.values import one_line

if TYPE_CHECKING:
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, PendingWrite
    from outlive.view.opened_store import OpenedStore


# show


@command(
    "show",
    thread_argument(),
    argument("CHECKPOINT", required=False),
    namespace_option(),
    option("--path", metavar="PATH", help="Only one value of the state, such as messages[0].text."),
    flag("--parts", help="Show the sizes of the parts of the state instead."),
    option("--at", metavar="TIME", help="The newest checkpoint at this time: 2026-05-01T12:00, local unless it has a zone."),
    flag("--full", help="Do not shorten long values."),
    raw_option(),
)  # fmt: skip
def show(
    call: Call,
    thread: str,
    checkpoint: str | None,
    namespace: str,
    path: str | None,
    parts: bool,
    at: str | None,
    full: bool,
    raw: bool,
) -> None:
    """Show a checkpoint and its state; the head if none is named.

    CHECKPOINT is an id, the beginning of one, or a position: @7 has seq 7, @-1 is the one before
    the head.
    """
    if at is not None and checkpoint is not None:
        raise BadArgument("give either a checkpoint or --at, not both")
    with call.open() as store:
        handle = open_thread(store, thread, namespace)
        head = find_checkpoint(store, handle, None)
        if at is None:
            shown = handle.checkpoint(find_checkpoint(store, handle, checkpoint).id)
        else:
            shown = handle.checkpoint(at=parse_time("--at", at))
        if shown is None:
            raise BadArgument(f"thread '{escape_terminal(handle.id)}' had no checkpoint at that time")
        view = checkpoint_view(shown, path, is_head=shown.id == head.id, is_full=full, is_raw=raw)
        items = view.part_items() if parts else [view.item()]
        call.answer(items, view.show_parts if parts else view.show, brief=view.brief)


# history, tips


@command(
    "history",
    thread_argument(),
    namespace_option(),
    flag("--all-namespaces", help="All namespaces of the thread."),
    option("--run", metavar="RUN", help="Only checkpoints of this run."),
    filter_option(),
    option("--before", metavar="CHECKPOINT", help="Start after this one: the next page. An id, a position or a cursor."),
    limit_option(50, "checkpoints"),
    raw_option(),
)  # fmt: skip
def history(
    call: Call,
    thread: str,
    namespace: str,
    all_namespaces: bool,
    run: str | None,
    filters: tuple[str, ...],
    before: str | None,
    limit: int,
    raw: bool,
) -> None:
    """List the checkpoints of a thread as a tree with its branches, newest first."""
    with call.open() as store:
        handle = open_thread(store, thread, namespace)
        selection = select_checkpoints(
            store, handle, before=before, run=run, filter=parse_filters(filters), all_namespaces=all_namespaces
        )  # fmt: skip
        page = read_history(store, handle, selection, limit, is_raw=raw or call.is_quiet)
        _answer_checkpoints(call, page)


@command("tips", thread_argument(), namespace_option())
def tips(call: Call, thread: str, namespace: str) -> None:
    """List the tips of a thread: the checkpoints without children. More than one means branches."""
    with call.open() as store:
        page = CheckpointPage(open_thread(store, thread, namespace).tips())
        _answer_checkpoints(call, page, is_tree=False)


def _answer_checkpoints(call: Call, page: CheckpointPage, *, is_tree: bool = True) -> None:
    call.answer(
        page.items(),
        lambda: show_checkpoints(page.checkpoints, page.steps, is_tree=is_tree),
        brief=[escape_terminal(checkpoint.id) for checkpoint in page.checkpoints],
        next=page.next,
    )
    if page.next is not None and not call.is_json:
        call.note(f"more: --before {quote_argument(page.next).removeprefix('-- ')}")


# diff


@command(
    "diff",
    thread_argument(),
    argument("OLD", required=False),
    argument("NEW", required=False),
    namespace_option(),
    option("--to", metavar="THREAD", help="NEW is a checkpoint of this thread."),
    flag("--exit-code", help="Exit with 1 if there are changes."),
    flag("--full", help="Do not shorten long values."),
    raw_option(),
)
def diff(
    call: Call,
    thread: str,
    old: str | None,
    new: str | None,
    namespace: str,
    to: str | None,
    exit_code: bool,
    full: bool,
    raw: bool,
) -> None:
    """Show what changed between two checkpoints, path by path.

    Without NEW the head is compared; without OLD the parent of NEW.
    """
    with call.open() as store:
        first = open_thread(store, thread, namespace)
        second = first if to is None else open_thread(store, to, namespace)
        changed = comparison(*_load_pair(store, first, old, second, new), is_raw=raw)
        call.answer(
            changed.items(),
            lambda: changed.show(full=full),
            brief=lambda: [escape_terminal(change.path) for change in changed.changes],
            is_ok=not (exit_code and changed.changes),
        )


def _load_pair(
    store: OpenedStore, first: Thread, old: str | None, second: Thread, new: str | None
) -> tuple[Checkpoint, Checkpoint]:
    source, target = find_pair(store, first, old, second, new)
    before, after = first.checkpoint(source.id), second.checkpoint(target.id)
    if before is None or after is None:
        raise deleted_error(first, source.id)
    return before, after


# writes


@command("writes", thread_argument(), argument("CHECKPOINT", required=False), namespace_option())
def writes(call: Call, thread: str, checkpoint: str | None, namespace: str) -> None:
    """List the pending writes of a checkpoint: what tasks wrote before the next step was saved."""
    with call.open() as store:
        handle = open_thread(store, thread, namespace)
        pending = handle.writes(find_checkpoint(store, handle, checkpoint).id)
        call.answer(
            [write_item(write) for write in pending],
            lambda: _show_writes(pending),
            brief=[escape_terminal(write.channel) for write in pending],
        )


def _show_writes(pending: Sequence[PendingWrite]) -> None:
    if not pending:
        print("no pending writes")
        return
    columns = (
        Column("TASK"), Column("INDEX", right=True, keeps=True), Column("CHANNEL"), Column("PATH"), Column("VALUE"),
    )  # fmt: skip
    print_table(
        columns,
        [
            (write.task, str(write.index), write.channel, write.path, one_line(write.value, 80))
            for write in pending
        ],
    )
