"""A history as a tree: a lane for each branch, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outlive.values import CheckpointInfo

_DRAWN = {"*": "●", "|": "│", "o": "○", "join": "├", "bend": "╯", "dash": "─", "pass": "┴"}
_PLAIN = {"*": "*", "|": "|", "o": "o", "join": "|", "bend": "'", "dash": "-", "pass": "-"}


class Lanes:
    """Which checkpoint each lane leads to, while the history is walked from new to old."""

    def __init__(self, known: set[tuple[str, str]], *, is_plain: bool) -> None:
        self._known = known
        self._signs = _PLAIN if is_plain else _DRAWN
        self._lanes: list[tuple[str, str] | None] = []

    def draw(self, checkpoint: CheckpointInfo) -> tuple[str | None, str]:
        """Return the line that leads to a checkpoint, when branches meet there, and the line it stands on."""
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
        """Draw how lanes end in the first of them."""
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
    """Return the lines of a tree, each with the checkpoint that stands on it."""
    lanes = Lanes({(one.namespace, one.id) for one in page}, is_plain=is_plain)
    out: list[tuple[str, CheckpointInfo | None]] = []
    for one in page:
        join, line = lanes.draw(one)
        if join is not None:
            out.append((join, None))
        out.append((line, one))
    return out


def show_tree(page: list[CheckpointInfo], *, is_drawn: bool = True) -> None:
    """Print checkpoints, as a tree unless it is only some that do not belong together."""
    from outlive.cli.lookup import shortened
    from outlive.cli.output.table import Column, can_draw, print_table
    from outlive.cli.output.units import age, size

    if not page:
        print("no checkpoints")
        return
    ids = shortened(one.id for one in page)
    runs = shortened(one.run for one in page if one.run)
    columns = (
        Column("", keeps=True), Column("SEQ", right=True, keeps=True), Column("STEP", right=True, keeps=True), Column("SOURCE", drops=2),
        Column("SIZE", right=True, drops=4), Column("NEW", right=True, keeps=True, drops=1), Column("RUN", drops=3), Column("SAVED", keeps=True, drops=5),
        Column("NAMESPACE"), Column("CHECKPOINT", is_id=True),
    )  # fmt: skip
    print_table(
        columns,
        [
            (line, "", "", "", "", "", "", "", "", "") if one is None else (
                line, f"@{one.seq}", "" if one.step is None else str(one.step), one.source, size(one.state_bytes),
                size(one.new_bytes), runs.get(one.run or "", ""), age(one.created_at), one.namespace, ids[one.id],
            )
            for line, one in (draw(page, is_plain=not can_draw()) if is_drawn else [("", one) for one in page])
        ],
    )  # fmt: skip
