"""A page of what a store lists, read as items: threads, the checkpoints of a thread, and what a diff compares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from outlive.cli.lookup import find_checkpoint, find_run
from outlive.errors import BadArgument
from outlive.values import format_cursor, parse_cursor
from outlive.view.items import thread_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.runs import run_of_head

if TYPE_CHECKING:
    from outlive.backend import CheckpointRecord
    from outlive.sync.thread import Thread
    from outlive.values import ThreadInfo
    from outlive.view.history import Selection
    from outlive.view.opened_store import OpenedStore


# Threads


def thread_items(store: OpenedStore, page: Iterable[ThreadInfo], damage: list[str]) -> list[dict[str, Any]]:
    """Return threads, each with the run that saved its newest checkpoint; `damage` gets why one cannot be read."""
    clock = LeaseClock.of(store)
    return [thread_item(info, run_of_head(store, info, clock, damage)) for info in page]


# Checkpoints


def select_checkpoints(
    store: OpenedStore,
    thread: Thread,
    *,
    before: str | None,
    run: str | None,
    filter: dict[str, Any],
    all_namespaces: bool,
) -> Selection:
    """Return what `thread.history` takes; `before` is an id, a position or a cursor."""
    if before is not None and parse_cursor(before) is None:
        last = find_checkpoint(store, thread, before, is_anywhere=all_namespaces)
        before = format_cursor(last.epoch, last.seq, last.id)
    run_id = None if run is None else find_run(store, run).id
    return {"before": before, "filter": filter, "run": run_id, "all_namespaces": all_namespaces}


def find_pair(
    store: OpenedStore, first: Thread, old: str | None, second: Thread, new: str | None
) -> tuple[CheckpointRecord, CheckpointRecord]:
    """Return what a diff compares: without `new` the head, without `old` the parent of `new`."""
    target = find_checkpoint(store, second, new)
    if old is not None or first.id != second.id:
        return find_checkpoint(store, first, old), target
    if target.parent is None:
        raise BadArgument(
            f"@{target.seq} of thread {first.id!r} has no parent; name a checkpoint to compare with"
        )
    try:
        return find_checkpoint(store, first, target.parent, is_exact=True), target
    except BadArgument:
        raise deleted_error(first, target.parent) from None


def deleted_error(thread: Thread, checkpoint: str) -> BadArgument:
    """Return the error for a checkpoint that cannot be compared because it is gone."""
    return BadArgument(
        f"checkpoint {checkpoint!r} of thread {thread.id!r} was deleted; name another to compare with"
    )
