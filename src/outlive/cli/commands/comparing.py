"""What `diff` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.cli.output.escape import shown
from outlive.cli.output.values import one_line, to_json
from outlive.errors import BadArgument
from outlive.format.diff import diff
from outlive.values import Change

if TYPE_CHECKING:
    from outlive.sync.facades import Store, Thread
    from outlive.values import Checkpoint

_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@dataclass(frozen=True, slots=True)
class Compared:
    """Two checkpoints and what changed from the one to the other."""

    old: Checkpoint
    new: Checkpoint
    changes: list[Change]

    def items(self) -> list[dict[str, Any]]:
        return [
            {
                "path": change.path,
                "kind": change.kind,
                "old": to_json(change.old),
                "new": to_json(change.new),
            }
            for change in self.changes
        ]

    def show(self, *, full: bool) -> None:
        from outlive.cli.output.table import is_terminal, width

        print(f"from {_named(self.old)} to {_named(self.new)}: {_counted(len(self.changes))}")
        room = 1_000_000 if full else max(width(), 60)
        paint = _painter() if is_terminal() else None
        for change in self.changes:
            line = _line(change, room)
            print(paint(line, _SIGNS[change.kind][1]) if paint else line)


def _painter() -> Any:
    import os

    import click

    if "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return None
    return lambda line, colour: click.style(line, fg=colour)


def _named(checkpoint: Checkpoint) -> str:
    step = "" if checkpoint.step is None else f" (step {checkpoint.step})"
    return f"{shown(checkpoint.thread)} @{checkpoint.seq}{step}"


def _counted(count: int) -> str:
    return "no difference" if not count else "1 change" if count == 1 else f"{count:,} changes"


def _line(change: Change, room: int) -> str:
    start = f"{_SIGNS[change.kind][0]} {shown(change.path)}: "
    room = max(room - len(start), 40)
    if change.kind == "added":
        return start + one_line(change.new, room)
    if change.kind == "removed":
        return start + one_line(change.old, room)
    half = (room - 3) // 2
    return f"{start}{one_line(change.old, half)} → {one_line(change.new, half)}"


def compare(store: Store, first: Thread, old: str | None, second: Thread, new: str | None) -> Compared:
    """Load two checkpoints and compare their states, whatever types are in them."""
    from outlive.cli.lookup import find_checkpoint

    target = find_checkpoint(store, second, new)
    if old is not None or first.id != second.id:
        source = find_checkpoint(store, first, old).id
    elif target.parent is not None:
        source = target.parent
    else:
        raise BadArgument(f"@{target.seq} of thread {first.id!r} has no parent; name what to compare it with")
    before, after = first.checkpoint(source), second.checkpoint(target.id)
    if before is None or after is None:
        raise BadArgument(
            f"checkpoint {source!r} of thread {first.id!r} was deleted; name another to compare with"
        )
    return Compared(before, after, diff(before.state, after.state))


def is_differing(compared: Compared) -> bool:
    return bool(compared.changes)
