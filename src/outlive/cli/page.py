"""A page of what a store lists, read as items: threads, the checkpoints of a thread, and what a diff compares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from outlive.cli.lookup import find_checkpoint, find_run
from outlive.errors import BadArgument, Corrupt
from outlive.values import format_cursor, parse_cursor
from outlive.view.graph import GraphStep, read_graph
from outlive.view.items import checkpoint_item, thread_item
from outlive.view.lease_clock import LeaseClock

if TYPE_CHECKING:
    from outlive.backend import CheckpointRecord
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, CheckpointInfo, ThreadInfo
    from outlive.view.opened_store import OpenedStore


# Threads


def thread_items(store: OpenedStore, page: Iterable[ThreadInfo]) -> list[dict[str, Any]]:
    """Return threads, each with the run that saved its newest checkpoint."""
    clock = LeaseClock.of(store)
    return [thread_item(info, _run_of_head(store, info, clock)) for info in page]


def _run_of_head(store: OpenedStore, info: ThreadInfo, clock: LeaseClock) -> dict[str, Any] | None:
    if info.head is None or info.head.run is None:
        return None
    run = store.find_run(info.head.run, thread=info.id)
    return None if run is None else {"id": run.id, "status": run.status, "standing": clock.standing(run)}


# Checkpoints


class Selection(TypedDict):
    """Which checkpoints of a thread are listed."""

    before: str | None
    filter: dict[str, Any]
    run: str | None
    all_namespaces: bool


@dataclass(frozen=True, slots=True)
class CheckpointPage:
    """Checkpoints of a thread, newest first, with what the steps of a graph did."""

    checkpoints: list[CheckpointInfo]
    steps: dict[CheckpointInfo, GraphStep] = field(default_factory=dict)
    next: str | None = None

    def items(self) -> list[dict[str, Any]]:
        return [
            {**checkpoint_item(checkpoint), **_step_item(self.steps.get(checkpoint))}
            for checkpoint in self.checkpoints
        ]


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


def read_history(
    store: OpenedStore, thread: Thread, selection: Selection, limit: int, *, is_raw: bool
) -> CheckpointPage:
    """Read a page of checkpoints; unless `is_raw`, also what each step of a LangGraph thread did."""
    page = list(thread.history(limit=limit + 1, **selection))
    next = page[limit - 1].cursor if len(page) > limit else None
    page = page[:limit]
    if is_raw or not page or not _is_graph(store, page[0]):
        return CheckpointPage(page, next=next)
    return CheckpointPage(page, _graph_steps(thread.history(limit=limit, states=True, **selection)), next)


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


def _step_item(step: GraphStep | None) -> dict[str, Any]:
    if step is None:
        return {}
    return {
        "next_nodes": list(step.next_nodes),
        "messages": step.messages,
        "changed_channels": list(step.changed),
    }


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
