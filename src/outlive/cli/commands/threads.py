"""Commands about threads: ls, fork, copy-thread, rm, prune."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict
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
    parse_filters,
    thread_argument,
    yes_option,
)
from outlive.cli.context import Call
from outlive.cli.lookup import (
    find_checkpoint,
    find_prefix,
    find_run,
    find_thread,
)
from outlive.cli.output.table import Column, print_table, progress, standing_style
from outlive.cli.page import thread_items
from outlive.cli.watch import Listing, answer_list, watch_option
from outlive.errors import BadArgument, Corrupt, KeyMissing
from outlive.values import Pruned
from outlive.view.advice import message_with_advice
from outlive.view.escape import escape_lines, escape_terminal, quote_argument
from outlive.view.lease_clock import LeaseClock
from outlive.view.units import format_age, format_count, format_size
from outlive.view.values import one_line

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.sync.thread import Thread
    from outlive.values import Sizes, ThreadInfo
    from outlive.view.opened_store import OpenedStore

_SORTS: dict[str, Any] = {
    "id": lambda info: info.id,
    "age": lambda info: -info.updated_at.timestamp(),
    "size": lambda info: -info.stored_bytes,
    "checkpoints": lambda info: -info.checkpoints,
    "step": lambda info: -((info.head and info.head.step) or 0),
}


# ls


@command(
    "ls",
    argument("PREFIX", required=False, default=""),
    filter_option(),
    option("--sort", type=click.Choice(list(_SORTS)), default="id", show_default=True, help="Orders other than id and age read all threads."),
    flag("--reverse", help="Reverse the order."),
    limit_option(100, "threads"),
    option("--after", metavar="THREAD", help="Start after this thread: the next page."),
    watch_option(),
)  # fmt: skip
def ls(
    call: Call,
    prefix: str,
    filters: tuple[str, ...],
    sort: str,
    reverse: bool,
    limit: int,
    after: str | None,
    watch: bool,
) -> None:
    """List threads, or those whose id begins with PREFIX: head, step, run, size and age.

    Damaged threads are reported and skipped; then the exit code is 1.

    \b
    outlive ls trip- --filter user=ada
    outlive ls --sort age --watch
    """  # noqa: D301  # click reads the backspace as: do not wrap
    is_by_id = sort == "id" and not reverse
    if after is not None and not is_by_id:
        raise BadArgument("--after needs the order by id; remove --sort and --reverse")
    with call.open() as store:
        if after is not None:
            with contextlib.suppress(BadArgument):  # it may have been deleted
                after = find_thread(store, after, is_exact=True)
        wanted = {"prefix": find_prefix(store, prefix), "filter": parse_filters(filters), "after": after}
        is_newest_first = sort == "age" and not reverse and not prefix  # the store lists them in this order

        def look() -> Listing:
            damaged: list[Corrupt] = []
            infos: Iterable[ThreadInfo] = store.list_threads(damaged, newest=is_newest_first, **wanted)
            if not is_by_id and not is_newest_first:
                infos = sorted(infos, key=_SORTS[sort], reverse=reverse)
            page = list(itertools.islice(infos, limit + 1))
            has_more, page = len(page) > limit, page[:limit]
            next = page[-1].id if has_more and is_by_id else None
            return _list_page(store, page, damaged, next, has_more and not call.is_json)

        answer_list(call, look, watches=watch)


def _list_page(
    store: OpenedStore, page: list[ThreadInfo], damaged: list[Corrupt], next: str | None, tells_more: bool
) -> Listing:
    damage = [message_with_advice(error) for error in damaged]
    items = thread_items(store, page, damage)
    rows = {info.id: _thread_row(info, item) for info, item in zip(page, items, strict=True)}
    more = f"more: --after {quote_argument(next).removeprefix('-- ')}" if next else "more: use --limit"
    return Listing(
        items,
        lambda: _show_threads(rows),
        name=lambda item: escape_terminal(item["id"]),
        cells=lambda item: rows.get(item["id"], ("",))[1:],
        next=next,
        notes=[*([more] if tells_more else []), *damage],
        is_ok=not damage,
    )


def _show_threads(rows: dict[str, tuple[str, ...]]) -> None:
    if not rows:
        print("no threads")
        return
    columns = (
        Column("THREAD", is_id=True), Column("HEAD", right=True, keeps=True), Column("STEP", right=True, keeps=True, drops=1),
        Column("RUN", keeps=True, styles=standing_style), Column("CHECKPOINTS", right=True, drops=4),
        Column("SIZE", right=True, keeps=True, drops=2), Column("CHANGED", keeps=True), Column("METADATA", drops=3),
    )  # fmt: skip
    print_table(columns, list(rows.values()))


def _thread_row(info: ThreadInfo, item: dict[str, Any]) -> tuple[str, ...]:
    return (
        info.id,
        f"@{info.head.seq}" if info.head else "",
        str(info.head.step) if info.head and info.head.step is not None else "",
        item["run"]["standing"] if item["run"] else "",
        str(info.checkpoints),
        format_size(info.stored_bytes),
        format_age(info.updated_at),
        " ".join(f"{key}={one_line(value, 30)}" for key, value in info.metadata.items()),
    )


# fork, copy-thread


@command(
    "fork",
    thread_argument(),
    argument("NEW_THREAD"),
    option("--at", metavar="CHECKPOINT", help="The checkpoint to start from. Default: the head."),
    namespace_option(),
)
def fork(call: Call, thread: str, new_thread: str, at: str | None, namespace: str) -> None:
    """Create a thread that starts with a checkpoint of another."""
    with call.open(writes=True) as store:
        origin = store.thread(find_thread(store, thread), namespace=namespace)
        record = find_checkpoint(store, origin, at)
        fork = origin.fork(new_thread, checkpoint=record.id)
        call.report(
            f"created thread {escape_terminal(fork.id)} from @{record.seq} of {escape_terminal(origin.id)}",
            thread=fork.id,
            forked_from={"thread": origin.id, "checkpoint": record.id},
        )


@command("copy-thread", thread_argument(), argument("NEW_THREAD"))
def copy_thread(call: Call, thread: str, new_thread: str) -> None:
    """Copy a thread with its whole history, in all namespaces."""
    with call.open(writes=True) as store:
        origin = store.thread(find_thread(store, thread))
        copy = origin.copy(new_thread)
        count = copy.size().checkpoints
        call.report(
            f"copied {format_count(count, 'checkpoint')} of {escape_terminal(origin.id)} to thread {escape_terminal(copy.id)}",
            thread=copy.id,
            copied_from=origin.id,
            checkpoints=count,
        )


# rm

_NOT_ERASED = "other processes saved at the same time, so deleted bytes may remain; run it again"


def _erase_flag() -> click.Option:
    return flag("--erase", help="Overwrite the deleted bytes, whatever that costs.")


@command(
    "rm",
    thread_argument(),
    argument("CHECKPOINT", nargs=-1),
    option("--run", metavar="RUN", help="Delete the checkpoints of this run."),
    namespace_option(),
    _erase_flag(),
    yes_option(),
)
def rm(
    call: Call, thread: str, checkpoint: tuple[str, ...], run: str | None, namespace: str, erase: bool
) -> None:
    """Delete a thread with all its data, or only some of its checkpoints.

    With --yes ids must be complete: the beginning of an id deletes nothing.
    """
    with call.open(writes=True) as store:
        handle = store.thread(find_thread(store, thread, is_exact=call.is_confirmed), namespace=namespace)
        if checkpoint or run is not None:
            _delete_checkpoints(call, store, handle, checkpoint, run, erase)
        else:
            _delete_thread(call, store, handle, erase)


def _delete_thread(call: Call, store: OpenedStore, thread: Thread, erase: bool) -> None:
    sizes, name = _sizes(thread), escape_terminal(thread.id)
    count, live = _runs(store, thread)
    if sizes is None:
        action, done = f"{name}, which is damaged", ""
    else:
        contents = f"{format_count(sizes.checkpoints, 'checkpoint')} ({format_size(sizes.stored_bytes)})"
        action, done = f"{name} with its {contents}", f": {contents}"
    if count:
        action += f" and {format_count(count, 'run')}"
    if live is not None:
        action += f"; run {escape_terminal(live.id)} is live in {live.owner}, its next write will be refused"
    call.confirm(f"delete thread {action}")
    thread.delete(erase=erase)
    call.report(
        f"deleted thread {name}{done}",
        thread=thread.id,
        checkpoints=None if sizes is None else sizes.checkpoints,
        freed_bytes=None if sizes is None else sizes.stored_bytes,
        runs=count,
    )


def _sizes(thread: Thread) -> Sizes | None:
    """Measure a thread; a damaged one can still be deleted."""
    try:
        return thread.size()
    except Corrupt:
        return None


def _runs(store: OpenedStore, thread: Thread) -> tuple[int, RunInfo | None]:
    """Count the runs of a thread, and return a live one; without keys none can be identified."""
    try:
        runs = list(store.runs(thread=thread.id))
    except (Corrupt, KeyMissing):
        return _count_entries(store, thread), None
    clock = LeaseClock.of(store)
    return len(runs), next((run for run in runs if clock.standing(run) == "live"), None)


def _count_entries(store: OpenedStore, thread: Thread) -> int:
    from outlive.backend import EntryQuery
    from outlive.backend.paging import all_entries
    from outlive.runs.lease import RUN
    from outlive.runtime.runtime import run_now

    key = store.key(thread.id)
    return len(run_now(all_entries(store.backend, EntryQuery(key.tenant, RUN, thread=key))))


def _delete_checkpoints(
    call: Call, store: OpenedStore, thread: Thread, texts: tuple[str, ...], run: str | None, erase: bool
) -> None:
    records = [find_checkpoint(store, thread, text, is_exact=call.is_confirmed) for text in texts]
    ids = [record.id for record in records]
    run_id = None if run is None else find_run(store, run, is_exact=call.is_confirmed).id
    count = len(records)
    if run_id is not None:
        of_run = thread.history(run=run_id, all_namespaces=True)
        count += sum(1 for checkpoint in of_run if checkpoint.id not in ids)
    names = [", ".join(f"@{record.seq}" for record in records)]
    names += [f"those of run {escape_terminal(run_id)}"] if run_id else []
    call.confirm(
        f"delete {format_count(count, 'checkpoint')} of thread {escape_terminal(thread.id)}: "
        + " and ".join(filter(None, names))
    )
    deleted = thread.delete_checkpoints(ids, run=run_id, erase=erase)
    is_ok = deleted.erased or not erase
    sentence = f"deleted {_count_deleted(deleted)}" + ("" if is_ok else f"; {_NOT_ERASED}")
    call.report(sentence, is_ok=is_ok, thread=thread.id, **asdict(deleted))


def _count_deleted(deleted: Pruned) -> str:
    return f"{format_count(deleted.checkpoints, 'checkpoint')} ({format_size(deleted.freed_bytes)})"


# prune


@command(
    "prune",
    argument("THREAD", required=False),
    flag("--all", help="All threads of the store."),
    option("--keep-last", type=click.IntRange(min=1), required=True, metavar="N", help="How many checkpoints of each namespace to keep."),
    flag("--keep-lineage", help="Keep also the ancestors of those."),
    _erase_flag(),
    flag("--dry-run", help="Only show what would be deleted."),
    yes_option(),
)  # fmt: skip
def prune(
    call: Call, thread: str | None, all: bool, keep_last: int, keep_lineage: bool, erase: bool, dry_run: bool
) -> None:
    """Keep the newest checkpoints of a thread and its open interrupts, and delete the others."""
    if (thread is None) != all:
        raise BadArgument("name a thread, or use --all for all threads")
    with call.open(writes=not dry_run) as store:
        store.check_keys()
        if thread is None:
            names = [info.id for info in store.threads()]
        else:
            names = [find_thread(store, thread, is_exact=call.is_confirmed)]
        options = {"keep_last": keep_last, "keep_lineage": keep_lineage, "erase": erase}
        _prune(call, store, names, options, dry_run)


def _prune(call: Call, store: OpenedStore, names: list[str], options: dict[str, Any], dry_run: bool) -> None:
    plan = [(name, done) for name, done in _prune_each(call, store, names, options, True) if done.checkpoints]
    where = f"thread {escape_terminal(names[0])}" if len(names) == 1 else format_count(len(plan), "thread")
    total = f"{_count_deleted(_sum(plan))} of {where}"
    if dry_run or not plan:
        _answer_pruned(call, plan, f"would delete {total}" if plan else "nothing to delete")
        return
    call.confirm(f"delete {total}")
    pruned = list(_prune_each(call, store, [name for name, _ in plan], options, False))
    is_ok = not options["erase"] or all(done.erased for _, done in pruned)
    sentence = f"deleted {_count_deleted(_sum(pruned))} of {where}"
    _answer_pruned(call, pruned, sentence + ("" if is_ok else f"; {_NOT_ERASED}"), is_ok=is_ok)


def _prune_each(
    call: Call, store: OpenedStore, names: list[str], options: dict[str, Any], dry_run: bool
) -> Iterator[tuple[str, Pruned]]:
    label = "checking" if dry_run else "pruning"
    with progress(label, len(names), is_quiet=call.is_quiet or len(names) < 2) as update:
        for number, name in enumerate(names, 1):
            yield name, store.thread(name).prune(**options, dry_run=dry_run)
            update(number)


def _answer_pruned(
    call: Call, pruned: list[tuple[str, Pruned]], sentence: str, *, is_ok: bool = True
) -> None:
    items = [{"thread": name, **asdict(done)} for name, done in pruned]
    call.answer(items, lambda: print(escape_lines(sentence)), is_ok=is_ok)


def _sum(pruned: list[tuple[str, Pruned]]) -> Pruned:
    return Pruned(
        checkpoints=sum(done.checkpoints for _, done in pruned),
        freed_bytes=sum(done.freed_bytes for _, done in pruned),
    )
