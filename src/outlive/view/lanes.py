"""The lanes of a history that is read from new to old: one for each branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outlive.dataclass import dataclass

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

    @property
    def open(self) -> list[tuple[str, str] | None]:
        """The checkpoint that each lane leads to now."""
        return list(self._lanes)

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


@dataclass(frozen=True, slots=True)
class LaneRow:
    """Where a checkpoint is drawn, and which lanes pass it."""

    lane: int
    above: tuple[int, ...]  # lanes that come from a newer checkpoint
    below: tuple[int, ...]  # lanes that lead to an older one
    merging: tuple[int, ...]  # lanes that end here
    is_cut: bool  # its parent is not in the list


def lane_rows(page: Sequence[CheckpointInfo]) -> list[LaneRow]:
    """Return the place of each checkpoint of a page, newest first."""
    known = {(checkpoint.namespace, checkpoint.id) for checkpoint in page}
    lanes, rows = Lanes(known, is_plain=True), []
    for checkpoint in page:
        here = (checkpoint.namespace, checkpoint.id)
        before = lanes.open
        lanes.draw(checkpoint)
        own = [at for at, lane in enumerate(before) if lane == here]
        free = next((at for at, lane in enumerate(before) if lane is None), len(before))
        is_cut = checkpoint.parent is not None and (checkpoint.namespace, checkpoint.parent) not in known
        rows.append(
            LaneRow(own[0] if own else free, _used(before), _used(lanes.open), tuple(own[1:]), is_cut)
        )
    return rows


def _used(lanes: Sequence[object]) -> tuple[int, ...]:
    return tuple(at for at, lane in enumerate(lanes) if lane is not None)
