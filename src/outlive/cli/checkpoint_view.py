"""Prints a checkpoint and its state, and the changes between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from outlive.cli.output.table import Column, is_terminal, print_fields, print_table, terminal_width
from outlive.view.checkpoints import Changes, CheckpointContent
from outlive.view.escape import escape_lines, escape_terminal
from outlive.view.units import format_size, format_time
from outlive.view.values import lines, one_line

if TYPE_CHECKING:
    from outlive.values import Change, Checkpoint

_UNLIMITED = 1_000_000  # characters


class CheckpointView(CheckpointContent):
    """A checkpoint with its state, or with one value of it."""

    def __init__(self, checkpoint: Checkpoint, path: str | None, *, is_head: bool, is_full: bool) -> None:
        super().__init__(checkpoint, path, is_head=is_head)
        self._is_full = is_full

    def show(self) -> None:
        if self._path is None:
            print_fields(self._fields())
            print()
        for line in self.brief():
            print(line)

    def brief(self) -> list[str]:
        """Return only the state or the value at the path; a text without quotes."""
        if self._path is not None and isinstance(self._value, str):
            return [escape_lines(self._value)]
        return lines(self._value, width=terminal_width(), full=self._is_full)

    def _fields(self) -> list[tuple[str, str]]:
        info = self._checkpoint
        return [
            *self._origin(parent=info.parent or ""),
            ("metadata", one_line(dict(info.metadata), 200) if info.metadata else ""),
            ("next nodes", ", ".join(info.next_nodes)),
            ("completed", ", ".join(info.completed_tasks)),
            ("interrupts", "; ".join(self._interrupts())),
            ("writes", str(len(info.pending_writes)) if info.pending_writes else ""),
        ]

    def _origin(self, *, parent: str) -> list[tuple[str, str]]:
        info = self._checkpoint
        size = f"{format_size(info.state_bytes)}; this save added {format_size(info.new_bytes)}"
        return [
            ("thread", info.thread + (f"  (namespace {info.namespace})" if info.namespace else "")),
            ("checkpoint", f"@{info.seq}  {info.id}{'  (head)' if self._is_head else ''}"),
            ("parent", parent),
            ("step", "" if info.step is None else str(info.step)),
            ("source", info.source),
            ("run", info.run or ""),
            ("saved", format_time(info.created_at)),
            ("size", size),
        ]

    def _interrupts(self) -> Iterator[str]:
        open_ids = {interrupt.id for interrupt in self._checkpoint.open_interrupts}
        for interrupt in self._checkpoint.interrupts:
            state = "open" if interrupt.id in open_ids else "resumed"
            yield f"{interrupt.id} at {interrupt.node} ({state}): {one_line(interrupt.payload, 80)}"

    # Parts

    def show_parts(self) -> None:
        items = self.part_items()
        total = sum(item["bytes"] for item in items) or 1
        columns = (
            Column("PATH"), Column("TYPE"), Column("COUNT", right=True), Column("SIZE", right=True, keeps=True),
            Column("SHARE", right=True, keeps=True),
        )  # fmt: skip
        rows = [
            (
                item["path"],
                item["type"],
                "" if item["count"] is None else f"{item['count']:,}",
                format_size(item["bytes"]),
                f"{item['bytes'] / total:.0%}",
            )
            for item in items
        ]
        print_table(columns, rows)


_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


class Comparison(Changes):
    """Two checkpoints, and the changes from the old one to the new one."""

    def show(self, *, full: bool) -> None:
        count = len(self.changes)
        summary = "no changes" if not count else "1 change" if count == 1 else f"{count:,} changes"
        print(f"from {_name(self._old)} to {_name(self._new)}: {summary}")
        room = _UNLIMITED if full else max(terminal_width(), 60)
        for change in self.changes:
            print(_paint(self._line(change, room), _SIGNS[change.kind][1]))

    def _line(self, change: Change, room: int) -> str:
        start = f"{_SIGNS[change.kind][0]} {escape_terminal(change.path)}: "
        room = max(room - len(start), 40)
        if change.kind == "added":
            return start + self._one_line(change.new, room)
        if change.kind == "removed":
            return start + self._one_line(change.old, room)
        half = (room - 3) // 2
        return f"{start}{self._one_line(change.old, half)} → {self._one_line(change.new, half)}"

    def _one_line(self, value: Any, room: int) -> str:
        return one_line(value, room)


def _paint(line: str, color: str) -> str:
    import os

    import click

    is_plain = not is_terminal() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return line if is_plain else click.style(line, fg=color)


def _name(checkpoint: Checkpoint) -> str:
    step = "" if checkpoint.step is None else f" (step {checkpoint.step})"
    return f"{escape_terminal(checkpoint.thread)} @{checkpoint.seq}{step}"
