"""Commands about the checkpoints of a thread: show, history, tips, diff, writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

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
from outlive.cli.lookup import find_checkpoint, find_run, open_thread
from outlive.cli.output.table import Column, print_table
from outlive.cli.output.tree import show_checkpoints
from outlive.errors import BadArgument, Corrupt
from outlive.values import format_cursor, parse_cursor
from outlive.view.escape import escape_terminal, quote_argument
from outlive.view.graph import GraphStep, read_graph
from outlive.view.items import checkpoint_item, write_item
from outlive.view.units import parse_time
from outlive.view.values import one_line

if TYPE_CHECKING:
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, CheckpointInfo, PendingWrite
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

    CHECKPOINT is an id, the beginning of one, or a position: @7 has seq 7, @-1 is the one before the head.
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
        handle, start = open_thread(store, thread, namespace), None
        if before is not None and parse_cursor(before) is not None:
            start = before
        elif before is not None:
            last = find_checkpoint(store, handle, before, is_anywhere=all_namespaces)
            start = format_cursor(last.epoch, last.seq, last.id)
        selection: _Selection = {
            "before": start,
            "filter": parse_filters(filters),
            "run": None if run is None else find_run(store, run).id,
            "all_namespaces": all_namespaces,
        }
        page = list(handle.history(limit=limit + 1, **selection))
        next = page[limit - 1].cursor if len(page) > limit else None
        page = page[:limit]
        is_plain = raw or call.is_quiet or not page or not _is_graph(store, page[0])
        steps = {} if is_plain else _graph_steps(handle.history(limit=limit, states=True, **selection))
        _answer_checkpoints(call, page, steps, next=next)


class _Selection(TypedDict):
    before: str | None
    filter: dict[str, Any]
    run: str | None
    all_namespaces: bool


def _is_graph(store: OpenedStore, newest: CheckpointInfo) -> bool:
    """Tell whether a thread is LangGraph's by its newest state; one that is damaged is listed as any other."""
    with contextlib.suppress(Corrupt):
        checkpoint = store.thread(newest.thread, namespace=newest.namespace).checkpoint(newest.id)
        return checkpoint is not None and read_graph(checkpoint.state) is not None
    return False


def _graph_steps(history: Iterator[Checkpoint]) -> dict[CheckpointInfo, GraphStep]:
    """Read what each step of a graph did, as far as no state is damaged; keep no state in memory."""
    steps: dict[CheckpointInfo, GraphStep] = {}
    with contextlib.suppress(Corrupt):
        for checkpoint in history:
            if (graph := read_graph(checkpoint.state)) is not None:
                steps[checkpoint] = graph.step
    return steps


@command("tips", thread_argument(), namespace_option())
def tips(call: Call, thread: str, namespace: str) -> None:
    """List the tips of a thread: the checkpoints without children. More than one means branches."""
    with call.open() as store:
        page = open_thread(store, thread, namespace).tips()
        _answer_checkpoints(call, page, {}, is_tree=False)


def _answer_checkpoints(
    call: Call,
    page: list[CheckpointInfo],
    steps: dict[CheckpointInfo, GraphStep],
    *,
    next: str | None = None,
    is_tree: bool = True,
) -> None:
    call.answer(
        [{**checkpoint_item(checkpoint), **_step_item(steps.get(checkpoint))} for checkpoint in page],
        lambda: show_checkpoints(page, steps, is_tree=is_tree),
        brief=[escape_terminal(checkpoint.id) for checkpoint in page],
        next=next,
    )
    if next is not None and not call.is_json:
        call.note(f"more: --before {quote_argument(next).removeprefix('-- ')}")


def _step_item(step: GraphStep | None) -> dict[str, Any]:
    if step is None:
        return {}
    return {
        "next_nodes": list(step.next_nodes),
        "messages": step.messages,
        "changed_channels": list(step.changed),
    }


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
        changed = comparison(*_find_pair(store, first, old, second, new), is_raw=raw)
        call.answer(
            changed.items(),
            lambda: changed.show(full=full),
            brief=lambda: [escape_terminal(change.path) for change in changed.changes],
            is_ok=not (exit_code and changed.changes),
        )


def _find_pair(
    store: OpenedStore, first: Thread, old: str | None, second: Thread, new: str | None
) -> tuple[Checkpoint, Checkpoint]:
    target = find_checkpoint(store, second, new)
    if old is not None or first.id != second.id:
        source = find_checkpoint(store, first, old).id
    elif target.parent is not None:
        source = target.parent
    else:
        raise BadArgument(
            f"@{target.seq} of thread {first.id!r} has no parent; name a checkpoint to compare with"
        )
    before, after = first.checkpoint(source), second.checkpoint(target.id)
    if before is None or after is None:
        raise BadArgument(
            f"checkpoint {source!r} of thread {first.id!r} was deleted; name another to compare with"
        )
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
