"""Commands about the checkpoints of a thread: show, history, tips, diff, writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.cli.command import (
    argument,
    command,
    filter_option,
    flag,
    limit_option,
    namespace_option,
    option,
    parse_filters,
    thread_argument,
)
from outlive.cli.context import Call
from outlive.cli.lookup import find_checkpoint, find_run, find_thread
from outlive.cli.output.escape import escape_lines, escape_terminal, quote_argument
from outlive.cli.output.items import checkpoint_item, write_item
from outlive.cli.output.opaque import OpaqueCodec, unwrap
from outlive.cli.output.path import pick
from outlive.cli.output.table import Column, is_terminal, print_fields, print_table, terminal_width
from outlive.cli.output.tree import show_checkpoints
from outlive.cli.output.units import format_size, format_time, parse_time
from outlive.cli.output.values import count_of, kind_of, lines, one_line, to_json
from outlive.errors import BadArgument
from outlive.format.diff import diff as diff_states
from outlive.format.diff import join_path
from outlive.values import Change, format_cursor, parse_cursor

if TYPE_CHECKING:
    from outlive.cli.opened_store import OpenedStore
    from outlive.sync.thread import Thread
    from outlive.values import Checkpoint, CheckpointInfo, PendingWrite

_UNLIMITED = 1_000_000  # characters


# show


@command(
    "show",
    thread_argument(),
    argument("CHECKPOINT", required=False),
    namespace_option(),
    option("--path", metavar="PATH", help="Only one value of the state, such as messages[0].text."),
    flag("--parts", help="Show the sizes of the parts of the state instead."),
    option("--at", metavar="TIME", help="The newest checkpoint at this time: 2026-05-01T12:00, local unless it has a zone."),
    flag("--full", help="Do not shorten long values."),
)  # fmt: skip
def show(
    call: Call,
    thread: str,
    checkpoint: str | None,
    namespace: str,
    path: str | None,
    parts: bool,
    at: str | None,
    full: bool,
) -> None:
    """Show a checkpoint and its state; the head if none is named.

    CHECKPOINT is an id, the beginning of one, or a position: @7 has seq 7, @-1 is the one before the head.
    """
    if at is not None and checkpoint is not None:
        raise BadArgument("give either a checkpoint or --at, not both")
    with call.open() as store:
        handle = store.thread(find_thread(store, thread), namespace=namespace)
        head = find_checkpoint(store, handle, None)
        if at is None:
            shown = handle.checkpoint(find_checkpoint(store, handle, checkpoint).id)
        else:
            shown = handle.checkpoint(at=parse_time("--at", at))
        if shown is None:
            raise BadArgument(f"thread '{escape_terminal(handle.id)}' had no checkpoint at that time")
        view = CheckpointView(shown, path, is_head=shown.id == head.id, is_full=full)
        items = view.part_items() if parts else [view.item()]
        call.answer(items, view.show_parts if parts else view.show, brief=view.brief)


class CheckpointView:
    """A checkpoint with its state, or with one value of it."""

    def __init__(self, checkpoint: Checkpoint, path: str | None, *, is_head: bool, is_full: bool) -> None:
        self._checkpoint = checkpoint
        self._path = path
        self._is_head = is_head
        self._is_full = is_full
        self._value = checkpoint.state if path is None else pick(checkpoint.state, path)

    def item(self) -> dict[str, Any]:
        item = {**checkpoint_item(self._checkpoint), "is_head": self._is_head}
        if self._path is not None:
            return {**item, "path": self._path, "value": to_json(self._value)}
        return {
            **item,
            "open_interrupts": [interrupt.id for interrupt in self._checkpoint.open_interrupts],
            "writes": [write_item(write) for write in self._checkpoint.pending_writes],
            "state": to_json(self._value),
        }

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
        size = f"{format_size(info.state_bytes)}; this save added {format_size(info.new_bytes)}"
        return [
            ("thread", info.thread + (f"  (namespace {info.namespace})" if info.namespace else "")),
            ("checkpoint", f"@{info.seq}  {info.id}{'  (head)' if self._is_head else ''}"),
            ("parent", info.parent or ""),
            ("step", "" if info.step is None else str(info.step)),
            ("source", info.source),
            ("run", info.run or ""),
            ("saved", format_time(info.created_at)),
            ("size", size),
            ("metadata", one_line(dict(info.metadata), 200) if info.metadata else ""),
            ("next nodes", ", ".join(info.next_nodes)),
            ("completed", ", ".join(info.completed_tasks)),
            ("interrupts", "; ".join(self._interrupts())),
            ("writes", str(len(info.pending_writes)) if info.pending_writes else ""),
        ]

    def _interrupts(self) -> Iterator[str]:
        open_ids = {interrupt.id for interrupt in self._checkpoint.open_interrupts}
        for interrupt in self._checkpoint.interrupts:
            state = "open" if interrupt.id in open_ids else "resumed"
            yield f"{interrupt.id} at {interrupt.node} ({state}): {one_line(interrupt.payload, 80)}"

    # Parts

    def part_items(self) -> list[dict[str, Any]]:
        """Return the parts of the value with their packed sizes, the largest first."""
        pack = OpaqueCodec().pack
        items = [
            {"path": path, "type": kind_of(part), "count": count_of(part), "bytes": len(pack(part))}
            for path, part in _parts(self._value, self._path or "")
        ]
        return sorted(items, key=lambda item: -int(str(item["bytes"])))

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


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts one level below a value."""
    value = unwrap(value)
    if isinstance(value, dict):
        return [(join_path(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{at}]", item) for at, item in enumerate(value)]
    return [(path or "state", value)]


# history, tips


@command(
    "history",
    thread_argument(),
    namespace_option(),
    flag("--all-namespaces", help="All namespaces of the thread."),
    option("--run", metavar="RUN", help="Only checkpoints of this run."),
    filter_option(),
    option("--before", metavar="CHECKPOINT", help="Start after this one: the next page. An id, a position or a cursor."),
    limit_option(50, "checkpoints"),
)  # fmt: skip
def history(
    call: Call,
    thread: str,
    namespace: str,
    all_namespaces: bool,
    run: str | None,
    filters: tuple[str, ...],
    before: str | None,
    limit: int,
) -> None:
    """List the checkpoints of a thread as a tree with its branches, newest first."""
    with call.open() as store:
        handle, start = store.thread(find_thread(store, thread), namespace=namespace), None
        if before is not None and parse_cursor(before) is not None:
            start = before
        elif before is not None:
            last = find_checkpoint(store, handle, before, is_anywhere=all_namespaces)
            start = format_cursor(last.epoch, last.seq, last.id)
        run_id = None if run is None else find_run(store, run).id
        page = list(
            handle.history(
                limit=limit + 1,
                before=start,
                filter=parse_filters(filters),
                run=run_id,
                all_namespaces=all_namespaces,
            )
        )
        next = page[limit - 1].cursor if len(page) > limit else None
        _answer_checkpoints(call, page[:limit], next=next)


@command("tips", thread_argument(), namespace_option())
def tips(call: Call, thread: str, namespace: str) -> None:
    """List the tips of a thread: the checkpoints without children. More than one means branches."""
    with call.open() as store:
        page = store.thread(find_thread(store, thread), namespace=namespace).tips()
        _answer_checkpoints(call, page, is_tree=False)


def _answer_checkpoints(
    call: Call, page: list[CheckpointInfo], *, next: str | None = None, is_tree: bool = True
) -> None:
    call.answer(
        [checkpoint_item(checkpoint) for checkpoint in page],
        lambda: show_checkpoints(page, is_tree=is_tree),
        brief=[escape_terminal(checkpoint.id) for checkpoint in page],
        next=next,
    )
    if next is not None and not call.is_json:
        call.note(f"more: --before {quote_argument(next).removeprefix('-- ')}")


# diff


@command(
    "diff",
    thread_argument(),
    argument("OLD", required=False),
    argument("NEW", required=False),
    namespace_option(),
    option("--to", metavar="THREAD", help="NEW is a checkpoint of this thread."),
    flag("--exit-code", help="Exit with 1 if there are changes."),
    flag("--full", help="Do not shorten long values."),
)
def diff(
    call: Call,
    thread: str,
    old: str | None,
    new: str | None,
    namespace: str,
    to: str | None,
    exit_code: bool,
    full: bool,
) -> None:
    """Show what changed between two checkpoints, path by path.

    Without NEW the head is compared; without OLD the parent of NEW.
    """
    with call.open() as store:
        first = store.thread(find_thread(store, thread), namespace=namespace)
        second = first if to is None else store.thread(find_thread(store, to), namespace=namespace)
        comparison = _compare(store, first, old, second, new)
        call.answer(
            comparison.items(),
            lambda: comparison.show(full=full),
            brief=lambda: [escape_terminal(change.path) for change in comparison.changes],
            is_ok=not (exit_code and comparison.changes),
        )


_SIGNS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two checkpoints, and the changes from the old one to the new one."""

    old: Checkpoint
    new: Checkpoint
    changes: list[Change]

    def items(self) -> list[dict[str, Any]]:
        return [
            {"path": change.path, "kind": change.kind, "old": to_json(change.old), "new": to_json(change.new)}
            for change in self.changes
        ]

    def show(self, *, full: bool) -> None:
        count = len(self.changes)
        summary = "no changes" if not count else "1 change" if count == 1 else f"{count:,} changes"
        print(f"from {_name(self.old)} to {_name(self.new)}: {summary}")
        room = _UNLIMITED if full else max(terminal_width(), 60)
        for change in self.changes:
            print(_paint(_line(change, room), _SIGNS[change.kind][1]))


def _paint(line: str, color: str) -> str:
    import os

    import click

    is_plain = not is_terminal() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return line if is_plain else click.style(line, fg=color)


def _name(checkpoint: Checkpoint) -> str:
    step = "" if checkpoint.step is None else f" (step {checkpoint.step})"
    return f"{escape_terminal(checkpoint.thread)} @{checkpoint.seq}{step}"


def _line(change: Change, room: int) -> str:
    start = f"{_SIGNS[change.kind][0]} {escape_terminal(change.path)}: "
    room = max(room - len(start), 40)
    if change.kind == "added":
        return start + one_line(change.new, room)
    if change.kind == "removed":
        return start + one_line(change.old, room)
    half = (room - 3) // 2
    return f"{start}{one_line(change.old, half)} → {one_line(change.new, half)}"


def _compare(
    store: OpenedStore, first: Thread, old: str | None, second: Thread, new: str | None
) -> Comparison:
    target = find_checkpoint(store, second, new)
    if old is not None or first.id != second.id:
        source = find_checkpoint(store, first, old).id
    elif target.parent is not None:
        source = target.parent
    else:
        raise BadArgument(
            f"@{target.seq} of thread {first.id!r} has no parent; name a checkpoint to compare with"
        )
    before, after = first.checkpoint(source), second.checkpoint(target.id)
    if before is None or after is None:
        raise BadArgument(
            f"checkpoint {source!r} of thread {first.id!r} was deleted; name another to compare with"
        )
    return Comparison(before, after, diff_states(before.state, after.state))


# writes


@command("writes", thread_argument(), argument("CHECKPOINT", required=False), namespace_option())
def writes(call: Call, thread: str, checkpoint: str | None, namespace: str) -> None:
    """List the pending writes of a checkpoint: what tasks wrote before the next step was saved."""
    with call.open() as store:
        handle = store.thread(find_thread(store, thread), namespace=namespace)
        pending = handle.writes(find_checkpoint(store, handle, checkpoint).id)
        call.answer(
            [write_item(write) for write in pending],
            lambda: _show_writes(pending),
            brief=[escape_terminal(write.channel) for write in pending],
        )


def _show_writes(pending: Sequence[PendingWrite]) -> None:
    if not pending:
        print("no pending writes")
        return
    columns = (
        Column("TASK"), Column("INDEX", right=True, keeps=True), Column("CHANNEL"), Column("PATH"), Column("VALUE"),
    )  # fmt: skip
    print_table(
        columns,
        [
            (write.task, str(write.index), write.channel, write.path, one_line(write.value, 80))
            for write in pending
        ],
    )
