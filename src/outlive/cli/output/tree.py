"""Draws a history as a tree: a lane for each branch, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from outlive.cli.output.graph import GraphStep
from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.table import Column, can_draw, print_table
from outlive.cli.output.units import format_age, format_size

if TYPE_CHECKING:
    from outlive.values import CheckpointInfo

_DRAWN = {"*": "●", "|": "│", "o": "○", "join": "├", "bend": "╯", "dash": "─", "pass": "┴"}
_PLAIN = {"*": "*", "|": "|", "o": "o", "join": "|", "bend": "'", "dash": "-", "pass": "-"}


class Lanes:
    """The checkpoint that each lane leads to, while the history is read from new to old."""

    def __init__(self, known: set[tuple[str, str]], *, is_plain: bool) -> None:
        self._known = known
        self._signs = _PLAIN if is_plain else _DRAWN
        self._lanes: list[tuple[str, str] | None] = []

    def draw(self, checkpoint: CheckpointInfo) -> tuple[str | None, str]:
        """Return the line where branches meet above a checkpoint, or None, and the line of the checkpoint."""
        here = (checkpoint.namespace, checkpoint.id)
        leading = [at for at, lane in enumerate(self._lanes) if lane == here]
        at = leading[0] if leading else self._free_lane(here)
        join = self._join(leading) if len(leading) > 1 else None
        for other in leading[1:]:
            self._lanes[other] = None
        line = self._line(at, checkpoint)
        parent = (checkpoint.namespace, checkpoint.parent or "")
        self._lanes[at] = parent if parent in self._known else None
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()
        return join, line

    def _free_lane(self, here: tuple[str, str]) -> int:
        for at, lane in enumerate(self._lanes):
            if lane is None:
                self._lanes[at] = here
                return at
        self._lanes.append(here)
        return len(self._lanes) - 1

    def _line(self, at: int, checkpoint: CheckpointInfo) -> str:
        parent = (checkpoint.namespace, checkpoint.parent or "")
        is_cut = checkpoint.parent is not None and parent not in self._known
        own = self._signs["o" if is_cut else "*"]
        return " ".join(
            own if number == at else self._signs["|"] if lane is not None else " "
            for number, lane in enumerate(self._lanes)
        )

    def _join(self, leading: list[int]) -> str:
        """Draw the line in which lanes end in the first of them."""
        first, last = leading[0], leading[-1]
        signs, out = self._signs, ""
        for at, lane in enumerate(self._lanes):
            if at == first:
                sign = signs["join"]
            elif at == last:
                sign = signs["bend"]
            elif at in leading:
                sign = signs["pass"]
            elif first < at < last and lane is None:
                sign = signs["dash"]
            else:
                sign = signs["|"] if lane is not None else " "
            out += sign + (signs["dash"] if first <= at < last else " ")
        return out.rstrip()


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

    If they are of a graph, `steps` tells what each of them did; there are no columns for sizes then.
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
