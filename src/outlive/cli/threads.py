"""Commands about threads: listing, looking, forking, deleting."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from .call import Call
from .command import (
    argument,
    command,
    filter_option,
    flag,
    limit_option,
    namespace_option,
    option,
    read_filters,
    thread_argument,
    yes_option,
)
from .harmless import as_argument, shown
from .table import Column

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint, ThreadInfo

_SORTS = ("id", "age", "size", "checkpoints", "step")


def standing_style(text: str) -> str | None:
    return {"live": "green", "dead": "red", "failed": "red", "parked": "yellow", "interrupted": "yellow"}.get(
        text
    )


# ls ----------------------------------------------------------------------------------------------------------


@command(
    "ls",
    "List threads.",
    argument("PREFIX", required=False, default=""),
    filter_option(),
    option(
        "--sort",
        type=click.Choice(_SORTS),
        default="id",
        show_default=True,
        help="Other than id reads all threads.",
    ),
    flag("--reverse", help="The other way round."),
    limit_option(100, "threads"),
    option("--after", metavar="ID", help="Go on behind this thread: the next page."),
)
def ls(
    call: Call, prefix: str, filters: tuple[str, ...], sort: str, reverse: bool, limit: int, after: str | None
) -> None:
    """List threads: head, step, run, size and age; those whose id begins with PREFIX."""
    if after is not None and (sort != "id" or reverse):
        raise click.UsageError("--after goes with the order by id; leave --sort and --reverse away")
    with call.open() as store:
        from .clock import LeaseClock
        from .find import run_of_head
        from .items import thread_item

        found = store.threads(prefix=prefix, filter=read_filters(filters), after=after)
        page = list(itertools.islice(_sorted(found, sort, reverse), limit + 1))
        rest, page = page[limit:], page[:limit]
        clock = LeaseClock.of(store)
        rows = [(info, run_of_head(store, info)) for info in page]
        items = [thread_item(info, run, clock) for info, run in rows]
        next = page[-1].id if rest and sort == "id" and not reverse else None
        call.answer(
            items,
            lambda: _show_threads(call, page, items, has_more=bool(rest), next=next),
            brief=[shown(info.id) for info in page],
            next=next,
        )


def _sorted(found: Iterator[ThreadInfo], sort: str, reverse: bool) -> Iterator[ThreadInfo]:
    if sort == "id" and not reverse:
        return found
    keys: dict[str, Any] = {
        "id": lambda info: info.id,
        "age": lambda info: -info.updated_at.timestamp(),
        "size": lambda info: -info.stored_bytes,
        "checkpoints": lambda info: -info.checkpoints,
        "step": lambda info: -((info.head and info.head.step) or 0),
    }
    return iter(sorted(found, key=keys[sort], reverse=reverse))


def _show_threads(
    call: Call, page: list[ThreadInfo], items: list[dict[str, Any]], *, has_more: bool, next: str | None
) -> None:
    from .measure import age, size
    from .table import print_table

    if not page:
        print("no threads")
        return
    columns = (
        Column("THREAD"), Column("HEAD", right=True, keeps=True), Column("STEP", right=True, keeps=True),
        Column("RUN", keeps=True, styles=standing_style), Column("CHECKPOINTS", right=True),
        Column("SIZE", right=True, keeps=True), Column("SAVED", keeps=True), Column("METADATA"),
    )  # fmt: skip
    print_table(
        columns,
        [
            (
                info.id,
                f"@{info.head.seq}" if info.head else "",
                _number(info.head.step) if info.head else "",
                item["run"]["standing"] if item["run"] else "",
                str(info.checkpoints),
                size(info.stored_bytes),
                age(info.updated_at),
                _metadata(info.metadata),
            )
            for info, item in zip(page, items, strict=True)
        ],
    )
    if next is not None:
        call.note(f"there are more: outlive ls --after {as_argument(next).removeprefix('-- ')}")
    elif has_more:
        call.note("there are more; --limit shows them")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _metadata(metadata: Any) -> str:
    from .value import one_line

    return " ".join(f"{key}={one_line(value, 30)}" for key, value in metadata.items())


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
    """Show a checkpoint and its state; the head if none is named."""
    if at is not None and checkpoint is not None:
        raise click.UsageError("give either a checkpoint or --at, not both")
    with call.open() as store:
        from .find import find_checkpoint, find_thread
        from .showing import Shown

        place = store.thread(find_thread(store, thread), namespace=namespace)
        head = find_checkpoint(store, place, None)
        if at is None:
            found = place.checkpoint(find_checkpoint(store, place, checkpoint).id)
        else:
            found = place.checkpoint(at=_moment(at))
        if found is None:
            raise click.UsageError(f"thread {shown(place.id)!r} had no checkpoint at that moment")
        answer = Shown(store, found, path, is_head=found.id == head.id, is_full=full)
        items = answer.part_items() if parts else [answer.item()]
        call.answer(items, answer.show_parts if parts else answer.show, brief=answer.brief)


def _moment(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.UsageError(f"--at takes a moment such as 2026-05-01T12:00, not {text!r}") from None


# history, heads ----------------------------------------------------------------------------------------------


@command(
    "history",
    "List checkpoints as a tree.",
    thread_argument(),
    namespace_option(),
    flag("--all-namespaces", help="All namespaces of the thread."),
    option("--run", metavar="RUN", help="Only checkpoints of this run."),
    filter_option(),
    option("--before", metavar="CHECKPOINT", help="Start behind this one: the next page."),
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
        from .find import find_checkpoint, find_run, find_thread

        place = store.thread(find_thread(store, thread), namespace=namespace)
        start = None if before is None else find_checkpoint(store, place, before).id
        run_id = None if run is None else find_run(store, run).id
        found = place.history(
            limit=limit + 1, before=start, filter=read_filters(filters), run=run_id, all_namespaces=all_namespaces
        )  # fmt: skip
        page = list(found)
        _list_checkpoints(call, page[:limit], next=page[limit - 1].id if len(page) > limit else None)


@command("heads", "List the tips of a thread.", thread_argument(), namespace_option())
def heads(call: Call, thread: str, namespace: str) -> None:
    """List the tips of a thread: checkpoints from which nobody went on. More than one means branches."""
    with call.open() as store:
        from .find import find_thread

        found = store.thread(find_thread(store, thread), namespace=namespace).heads()
        _list_checkpoints(call, found, next=None, is_drawn=False)


def _list_checkpoints(call: Call, page: list[Checkpoint], *, next: str | None, is_drawn: bool = True) -> None:
    from .items import checkpoint_item
    from .tree import show_tree

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
        from .comparing import compare, is_differing
        from .find import find_thread

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
        from .find import find_checkpoint, find_thread
        from .items import write_item
        from .showing import show_writes

        place = store.thread(find_thread(store, thread), namespace=namespace)
        found = place.writes(find_checkpoint(store, place, checkpoint).id)
        call.answer(
            [write_item(one) for one in found],
            lambda: show_writes(found),
            brief=[shown(one.channel) for one in found],
        )


# fork, copy-thread -------------------------------------------------------------------------------------------


@command(
    "fork",
    "Begin a thread with a checkpoint of another.",
    thread_argument(),
    argument("NEW_THREAD"),
    option("--at", metavar="CHECKPOINT", help="Where the new thread begins; default: the head."),
    namespace_option(),
)
def fork(call: Call, thread: str, new_thread: str, at: str | None, namespace: str) -> None:
    """Make a new thread that begins with one checkpoint of another."""
    with call.open() as store:
        from .find import find_checkpoint, find_thread

        place = store.thread(find_thread(store, thread), namespace=namespace)
        record = find_checkpoint(store, place, at)
        made = place.fork(new_thread, at=record.id)
        call.did(
            f"thread {shown(made.id)} begins with @{record.seq} of {shown(place.id)}",
            thread=made.id,
            forked_from={"thread": place.id, "checkpoint": record.id},
        )


@command("copy-thread", "Copy a thread with its whole history.", thread_argument(), argument("NEW_THREAD"))
def copy_thread(call: Call, thread: str, new_thread: str) -> None:
    """Make a new thread with the whole history of another, all namespaces."""
    with call.open() as store:
        from .find import find_thread

        place = store.thread(find_thread(store, thread))
        made = place.copy(new_thread)
        count = made.size().checkpoints
        call.did(
            f"thread {shown(made.id)} has the {count} checkpoints of {shown(place.id)}",
            thread=made.id,
            copied_from=place.id,
            checkpoints=count,
        )


# rm, prune ---------------------------------------------------------------------------------------------------


@command(
    "rm",
    "Delete a thread, or some checkpoints.",
    thread_argument(),
    argument("CHECKPOINT", nargs=-1),
    option("--run", metavar="RUN", help="Delete the checkpoints of this run."),
    namespace_option(),
    flag("--erase", help="Leave no byte of the checkpoints behind, whatever that costs."),
    yes_option(),
)
def rm(
    call: Call, thread: str, checkpoint: tuple[str, ...], run: str | None, namespace: str, erase: bool
) -> None:
    """Delete a thread with everything of it, or only some of its checkpoints.

    With --yes the id of the thread must be written out: nothing is deleted by a part of its name.
    """
    with call.open() as store:
        from .deleting import remove_checkpoints, remove_thread
        from .find import find_thread

        place = store.thread(find_thread(store, thread, is_exact=call.is_yes), namespace=namespace)
        if checkpoint or run is not None:
            remove_checkpoints(call, store, place, checkpoint, run, erase)
        else:
            remove_thread(call, store, place)


@command(
    "prune",
    "Keep the newest checkpoints, delete the rest.",
    argument("THREAD", required=False),
    flag("--all", help="Every thread of the store."),
    option(
        "--keep-last",
        type=click.IntRange(min=1),
        required=True,
        metavar="N",
        help="How many of each namespace stay.",
    ),
    flag("--keep-lineage", help="Keep the ancestors of what stays."),
    flag("--erase", help="Leave no byte of what goes behind, whatever that costs."),
    flag("--dry-run", help="Say what would go, and delete nothing."),
    yes_option(),
)
def prune(
    call: Call, thread: str | None, all: bool, keep_last: int, keep_lineage: bool, erase: bool, dry_run: bool
) -> None:
    """Keep the newest checkpoints of a thread and its open interrupts; delete the rest and give the space back."""
    if (thread is None) != all:
        raise click.UsageError("name a thread, or give --all for every one")
    with call.open() as store:
        from .deleting import Pruning
        from .find import find_thread

        if thread is None:
            names = [info.id for info in store.threads()]
        else:
            names = [find_thread(store, thread, is_exact=call.is_yes)]
        Pruning(call, store, names, {"keep_last": keep_last, "keep_lineage": keep_lineage}, erase).go(dry_run)
