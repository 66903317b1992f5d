"""What `show` and `writes` show of one checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outlive.cli.output.escape import shown_lines
from outlive.cli.output.items import checkpoint_item, write_item
from outlive.cli.output.opaque import inside
from outlive.cli.output.path import pick
from outlive.cli.output.table import Column, print_fields, print_table, width
from outlive.cli.output.units import local, size
from outlive.cli.output.values import count_of, kind_of, lines, one_line, to_json

if TYPE_CHECKING:
    from outlive.sync.facades import Store
    from outlive.values import Checkpoint, PendingWrite


class Shown:
    """A checkpoint, or one place of its state."""

    def __init__(
        self, store: Store, checkpoint: Checkpoint, path: str | None, *, is_head: bool, is_full: bool
    ) -> None:
        self._store = store
        self._checkpoint = checkpoint
        self._path = path
        self._is_head = is_head
        self._is_full = is_full
        self._value = checkpoint.state if path is None else pick(checkpoint.state, path)

    # One item

    def item(self) -> dict[str, Any]:
        one = self._checkpoint
        item = {**checkpoint_item(one), "is_head": self._is_head}
        if self._path is not None:
            return {**item, "path": self._path, "value": to_json(self._value)}
        return {
            **item,
            "open_interrupts": [asked.id for asked in one.open_interrupts],
            "writes": [write_item(write) for write in one.pending_writes],
            "state": to_json(self._value),
        }

    def show(self) -> None:
        if self._path is None:
            print_fields(self._fields())
            print()
        for line in self.brief():
            print(line)

    def brief(self) -> list[str]:
        """Return only the state, or what stands at the path: a text as it is, without what would harm."""
        if self._path is not None and isinstance(self._value, str):
            return [shown_lines(self._value)]
        return lines(self._value, width=width(), full=self._is_full)

    def _fields(self) -> list[tuple[str, str]]:
        one = self._checkpoint
        return [
            ("thread", one.thread + (f"  (namespace {one.namespace})" if one.namespace else "")),
            ("checkpoint", f"@{one.seq}  {one.id}{'  (head)' if self._is_head else ''}"),
            ("parent", one.parent or ""),
            ("step", "" if one.step is None else str(one.step)),
            ("source", one.source),
            ("run", one.run or ""),
            ("saved", local(one.created_at)),
            ("size", f"{size(one.state_bytes)}; this save added {size(one.new_bytes)}"),
            ("metadata", one_line(dict(one.metadata), 200) if one.metadata else ""),
            ("next nodes", ", ".join(one.next_nodes)),
            ("completed", ", ".join(one.completed_tasks)),
            ("interrupts", "; ".join(self._interrupts())),
            ("writes", str(len(one.pending_writes)) if one.pending_writes else ""),
        ]

    def _interrupts(self) -> Iterator[str]:
        open_ids = {asked.id for asked in self._checkpoint.open_interrupts}
        for asked in self._checkpoint.interrupts:
            answer = "open" if asked.id in open_ids else "resumed"
            yield f"{asked.id} at {asked.node} ({answer}): {one_line(asked.payload, 80)}"

    # Its parts

    def part_items(self) -> list[dict[str, Any]]:
        """Return the parts of the value, the largest first, with their sizes as they are packed."""
        pack = self._store._store._engine.codec.pack
        found = [
            {"path": path, "type": kind_of(part), "count": count_of(part), "bytes": len(pack(part))}
            for path, part in _parts(self._value, self._path or "")
        ]
        return sorted(found, key=lambda item: -int(str(item["bytes"])))

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
                size(item["bytes"]),
                f"{item['bytes'] / total:.0%}",
            )
            for item in items
        ]
        print_table(columns, rows)


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts of a value one level below it."""
    from outlive.format.diff import _join

    value = inside(value)
    if isinstance(value, dict):
        return [(_join(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{at}]", item) for at, item in enumerate(value)]
    return [(path or "state", value)]


def show_writes(found: Sequence[PendingWrite]) -> None:
    """Print pending writes."""
    if not found:
        print("no pending writes")
        return
    columns = (
        Column("TASK"), Column("INDEX", right=True, keeps=True), Column("CHANNEL"), Column("PATH"), Column("VALUE"),
    )  # fmt: skip
    print_table(
        columns, [(one.task, str(one.index), one.channel, one.path, one_line(one.value, 80)) for one in found]
    )
