"""A page of the checkpoints of a thread, with what the steps of a graph did."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypedDict

from outlive.dataclass import dataclass
from outlive.errors import Corrupt
from outlive.view.graph import GraphStep, read_graph
from outlive.view.items import checkpoint_item

if TYPE_CHECKING:
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, CheckpointInfo
    from outlive.view.opened_store import OpenedStore


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


def read_history(
    store: OpenedStore,
    thread: Thread,
    selection: Selection,
    limit: int,
    *,
    is_raw: bool,
    max_state_bytes: float = math.inf,
) -> CheckpointPage:
    """Read a page of checkpoints; unless `is_raw`, also what each step of a LangGraph thread did.

    That is in the states: they are not read if one is larger than `max_state_bytes`.
    """
    page = list(thread.history(limit=limit + 1, **selection))
    next = page[limit - 1].cursor if len(page) > limit else None
    page = page[:limit]
    is_large = any(checkpoint.state_bytes > max_state_bytes for checkpoint in page)
    if is_raw or is_large or not page or not _is_graph(store, page[0]):
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
