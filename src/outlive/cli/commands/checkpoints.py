"""Commands about the checkpoints of a thread: looking, comparing, drawing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.cli.command import (
    argument,
    command,
    filter_option,
    flag,
    limit_option,
    namespace_option,
    option,
    read_filters,
    thread_argument,
)
from outlive.cli.context import Call
from outlive.cli.output.escape import as_argument, shown
from outlive.errors import BadArgument
from outlive.values import format_cursor, parse_cursor

if TYPE_CHECKING:
    from outlive.values import CheckpointInfo


# show --------------------------------------------------------------------------------------------------------


@command(
    "show",
    "Show a checkpoint and its state.",
    thread_argument(),
    argument("CHECKPOINT", required=False),
    namespace_option(),
    option("--path", metavar="PATH", help="One place of the state, such as messages[0].text."),
    flag("--parts", help="Show the size of its parts instead."),
    option(
        "--at",
        metavar="TIME",
        help="The newest as of this moment: 2026-05-01T12:00, local unless it has a zone.",
    ),
    flag("--full", help="Cut nothing."),
)
def show(
    call: Call,
    thread: str,
    checkpoint: str | None,
    namespace: str,
    path: str | None,
    parts: bool,
    at: str | None,
    full: bool,
) -> None:
    """Show a checkpoint and its state; the head if none is named.

    CHECKPOINT is an id or its beginning, or a place: @7 has seq 7, @-1 is the one before the head.
    """
    if at is not None and checkpoint is not None:
        raise BadArgument("give either a checkpoint or --at, not both")
    with call.open() as store:
        from outlive.cli.commands.showing import Shown
        from outlive.cli.lookup import find_checkpoint, find_thread
        from outlive.cli.output.units import moment

        place = store.thread(find_thread(store, thread), namespace=namespace)
        head = find_checkpoint(store, place, None)
        if at is None:
            found = place.checkpoint(find_checkpoint(store, place, checkpoint).id)
        else:
            found = place.checkpoint(at=moment("--at", at))
        if found is None:
            raise BadArgument(f"thread '{shown(place.id)}' had no checkpoint at that moment")
        answer = Shown(store, found, path, is_head=found.id == head.id, is_full=full)
        items = answer.part_items() if parts else [answer.item()]
        call.answer(items, answer.show_parts if parts else answer.show, brief=answer.brief)


# history, heads ----------------------------------------------------------------------------------------------


@command(
    "history",
    "List checkpoints as a tree.",
    thread_argument(),
    namespace_option(),
    flag("--all-namespaces", help="All namespaces of the thread."),
    option("--run", metavar="RUN", help="Only checkpoints of this run."),
    filter_option(),
    option(
        "--before",
        metavar="CHECKPOINT",
        help="Start after this one: the next page. An id, a place or a cursor.",
    ),
    limit_option(50, "checkpoints"),
)
def history(
    call: Call,
    thread: str,
    namespace: str,
    all_namespaces: bool,
    run: str | None,
    filters: tuple[str, ...],
    before: str | None,
    limit: int,
) -> None:
    """List the checkpoints of a thread, newest first, as a tree: branches are drawn."""
    with call.open() as store:
        from outlive.cli.lookup import find_checkpoint, find_run, find_thread

        place, start = store.thread(find_thread(store, thread), namespace=namespace), None
        if before is not None and parse_cursor(before) is not None:
            start = before
        elif before is not None:
            last = find_checkpoint(store, place, before, is_anywhere=all_namespaces)
            start = format_cursor(last.epoch, last.seq, last.id)
        run_id = None if run is None else find_run(store, run).id
        found = place.history(
            limit=limit + 1, before=start, filter=read_filters(filters), run=run_id, all_namespaces=all_namespaces
        )  # fmt: skip
        page = list(found)
        _list_checkpoints(call, page[:limit], next=page[limit - 1].cursor if len(page) > limit else None)


@command("heads", "List the tips of a thread.", thread_argument(), namespace_option())
def heads(call: Call, thread: str, namespace: str) -> None:
    """List the tips of a thread: checkpoints from which nobody went on. More than one means branches."""
    with call.open() as store:
        from outlive.cli.lookup import find_thread

        found = store.thread(find_thread(store, thread), namespace=namespace).tips()
        _list_checkpoints(call, found, next=None, is_drawn=False)


def _list_checkpoints(
    call: Call, page: list[CheckpointInfo], *, next: str | None, is_drawn: bool = True
) -> None:
    from outlive.cli.output.items import checkpoint_item
    from outlive.cli.output.tree import show_tree

    call.answer(
        [checkpoint_item(one) for one in page],
        lambda: show_tree(page, is_drawn=is_drawn),
        brief=[shown(one.id) for one in page],
        next=next,
    )
    if next is not None and not call.is_json:
        call.note(f"there are more: --before {as_argument(next).removeprefix('-- ')}")


# diff, writes ------------------------------------------------------------------------------------------------


@command(
    "diff",
    "Show what changed between checkpoints.",
    thread_argument(),
    argument("OLD", required=False),
    argument("NEW", required=False),
    namespace_option(),
    option("--to", metavar="THREAD", help="NEW is a checkpoint of this thread."),
    flag("--exit-code", help="Exit with 1 when there is a difference."),
    flag("--full", help="Cut nothing."),
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
) -> None:
    """Show what changed between two checkpoints, path by path.

    NEW is the head if it is not named, and OLD the parent of NEW.
    """
    with call.open() as store:
        from outlive.cli.commands.comparing import compare, is_differing
        from outlive.cli.lookup import find_thread

        first = store.thread(find_thread(store, thread), namespace=namespace)
        second = first if to is None else store.thread(find_thread(store, to), namespace=namespace)
        compared = compare(store, first, old, second, new)
        call.answer(
            compared.items(),
            lambda: compared.show(full=full),
            brief=lambda: [shown(change.path) for change in compared.changes],
            is_ok=not (exit_code and is_differing(compared)),
        )


@command(
    "writes",
    "List pending writes of a checkpoint.",
    thread_argument(),
    argument("CHECKPOINT", required=False),
    namespace_option(),
)
def writes(call: Call, thread: str, checkpoint: str | None, namespace: str) -> None:
    """List the pending writes of a checkpoint: what tasks wrote before the step as a whole was saved."""
    with call.open() as store:
        from outlive.cli.commands.showing import show_writes
        from outlive.cli.lookup import find_checkpoint, find_thread
        from outlive.cli.output.items import write_item

        place = store.thread(find_thread(store, thread), namespace=namespace)
        found = place.writes(find_checkpoint(store, place, checkpoint).id)
        call.answer(
            [write_item(one) for one in found],
            lambda: show_writes(found),
            brief=[shown(one.channel) for one in found],
        )
