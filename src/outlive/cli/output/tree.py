"""Draws a history as a tree: a lane for each branch, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.table import Column, can_draw, print_table
from outlive.view.graph import GraphStep
from outlive.view.lanes import Lanes
from outlive.view.units import format_age, format_size

if TYPE_CHECKING:
    from outlive.values import CheckpointInfo


def draw(page: list[CheckpointInfo], *, is_plain: bool) -> list[tuple[str, CheckpointInfo | None]]:
    """Return the lines of a tree, each with its checkpoint if it has one."""
    lanes = Lanes({(checkpoint.namespace, checkpoint.id) for checkpoint in page}, is_plain=is_plain)
    lines: list[tuple[str, CheckpointInfo | None]] = []
    for checkpoint in page:
        join, line = lanes.draw(checkpoint)
        if join is not None:
            lines.append((join, None))
        lines.append((line, checkpoint))
    return lines


_COLUMNS = (
    Column("", keeps=True), Column("SEQ", right=True, keeps=True), Column("STEP", right=True, keeps=True),
    Column("SOURCE", drops=2), Column("NEXT"), Column("MESSAGES", right=True, keeps=True), Column("CHANGED"),
    Column("SIZE", right=True, drops=4),
    Column("NEW", right=True, keeps=True, drops=1), Column("RUN", drops=3),
    Column("SAVED", keeps=True, drops=5), Column("NAMESPACE"), Column("CHECKPOINT", is_id=True),
)  # fmt: skip


_NO_STEP = GraphStep((), None, ())


def show_checkpoints(
    page: list[CheckpointInfo], steps: Mapping[CheckpointInfo, GraphStep], *, is_tree: bool = True
) -> None:
    """Print checkpoints as a tree, or as a list if they do not belong together.

    If they are of a graph, `steps` tells what each of them did; there are no columns for sizes
    then.
    """
    if not page:
        print("no checkpoints")
        return
    ids = shorten_ids(checkpoint.id for checkpoint in page)
    runs = shorten_ids(checkpoint.run for checkpoint in page if checkpoint.run)

    def cells(line: str, checkpoint: CheckpointInfo | None) -> tuple[str, ...]:
        if checkpoint is None:
            return (line, *[""] * (len(_COLUMNS) - 1))
        step = steps.get(checkpoint, _NO_STEP)
        return (
            line,
            f"@{checkpoint.seq}",
            "" if checkpoint.step is None else str(checkpoint.step),
            checkpoint.source,
            join_nodes(step.next_nodes),
            "" if step.messages is None else f"{step.messages:,}",
            ", ".join(step.changed),
            "" if steps else format_size(checkpoint.state_bytes),
            "" if steps else format_size(checkpoint.new_bytes),
            runs.get(checkpoint.run or "", ""),
            format_age(checkpoint.created_at),
            checkpoint.namespace,
            ids[checkpoint.id],
        )

    lines = draw(page, is_plain=not can_draw()) if is_tree else [("", checkpoint) for checkpoint in page]
    print_table(_COLUMNS, [cells(*line) for line in lines])


def join_nodes(nodes: Sequence[str]) -> str:
    """Return nodes as text; one that runs several times once, with the number."""
    counts = {node: nodes.count(node) for node in nodes}
    return ", ".join(node if count == 1 else f"{node} ×{count}" for node, count in counts.items())
