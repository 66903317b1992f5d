"""Commands about threads: listing, forking, deleting."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

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
    yes_option,
)
from outlive.cli.context import Call
from outlive.cli.output.escape import as_argument, shown
from outlive.cli.output.table import Column, standing_style
from outlive.errors import BadArgument

if TYPE_CHECKING:
    from outlive.errors import Corrupt
    from outlive.values import ThreadInfo

_SORTS = ("id", "age", "size", "checkpoints", "step")


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
    option("--after", metavar="THREAD", help="Go on behind this thread: the next page."),
)
def ls(
    call: Call, prefix: str, filters: tuple[str, ...], sort: str, reverse: bool, limit: int, after: str | None
) -> None:
    """List threads: head, step, run, size and age; those whose id begins with PREFIX.

    Exits with 1 when there are damaged ones among them, which are told and left out.
    """
    if after is not None and (sort != "id" or reverse):
        raise BadArgument("--after goes with the order by id; leave --sort and --reverse away")
    with call.open() as store:
        from outlive.cli.lease_clock import LeaseClock
        from outlive.cli.lookup import find_prefix, find_thread, list_threads, run_of_head
        from outlive.cli.output.items import thread_item

        if after is not None:
            with contextlib.suppress(BadArgument):  # it need not be there any more
                after = find_thread(store, after, is_exact=True)
        damaged: list[Corrupt] = []
        chosen = {"prefix": find_prefix(store, prefix), "filter": read_filters(filters), "after": after}
        found = list_threads(store, damaged, **chosen)
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
            is_ok=not damaged,
        )
        call.tell_damaged(damaged)


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
    from outlive.cli.output.table import print_table
    from outlive.cli.output.units import age, size

    if not page:
        print("no threads")
        return
    columns = (
        Column("THREAD", is_id=True), Column("HEAD", right=True, keeps=True), Column("STEP", right=True, keeps=True, drops=1),
        Column("RUN", keeps=True, styles=standing_style), Column("CHECKPOINTS", right=True, drops=4),
        Column("SIZE", right=True, keeps=True, drops=2), Column("CHANGED", keeps=True), Column("METADATA", drops=3),
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
        call.note(f"there are more: --after {as_argument(next).removeprefix('-- ')}")
    elif has_more:
        call.note("there are more; --limit shows them")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _metadata(metadata: Any) -> str:
    from outlive.cli.output.values import one_line

    return " ".join(f"{key}={one_line(value, 30)}" for key, value in metadata.items())


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
    with call.open(writes=True) as store:
        from outlive.cli.lookup import find_checkpoint, find_thread

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
    with call.open(writes=True) as store:
        from outlive.cli.lookup import find_thread
        from outlive.cli.output.units import counted

        place = store.thread(find_thread(store, thread))
        made = place.copy(new_thread)
        count = made.size().checkpoints
        call.did(
            f"thread {shown(made.id)} has the {counted(count, 'checkpoint')} of {shown(place.id)}",
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
    flag("--erase", help="Leave no byte of what goes behind, whatever that costs."),
    yes_option(),
)
def rm(
    call: Call, thread: str, checkpoint: tuple[str, ...], run: str | None, namespace: str, erase: bool
) -> None:
    """Delete a thread with everything of it, or only some of its checkpoints.

    With --yes the id of the thread must be written out: nothing is deleted by a part of its name.
    """
    with call.open(writes=True) as store:
        from outlive.cli.commands.deleting import remove_checkpoints, remove_thread
        from outlive.cli.lookup import find_thread

        place = store.thread(find_thread(store, thread, is_exact=call.is_yes), namespace=namespace)
        if checkpoint or run is not None:
            remove_checkpoints(call, store, place, checkpoint, run, erase)
        else:
            remove_thread(call, store, place, erase)


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
        raise BadArgument("name a thread, or give --all for every one")
    with call.open(writes=not dry_run) as store:
        from outlive.cli.commands.deleting import Pruning
        from outlive.cli.lookup import check_keys, find_thread

        check_keys(store)
        if thread is None:
            names = [info.id for info in store.threads()]
        else:
            names = [find_thread(store, thread, is_exact=call.is_yes)]
        Pruning(call, store, names, {"keep_last": keep_last, "keep_lineage": keep_lineage}, erase).go(dry_run)
