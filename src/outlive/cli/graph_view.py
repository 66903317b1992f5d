"""A checkpoint of a LangGraph thread as a person wants to see it: values, messages, next nodes, interrupts.

The rest of the stored state is LangGraph's bookkeeping; `--raw` shows it, as of any other thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from outlive.cli.checkpoint_view import CheckpointView, Comparison
from outlive.cli.output.escape import escape_terminal
from outlive.cli.output.graph import GraphState, delta_channels, own_metadata, read_graph
from outlive.cli.output.items import interrupt_item
from outlive.cli.output.messages import Message, read_messages, show_messages
from outlive.cli.output.table import print_fields, terminal_width
from outlive.cli.output.tree import join_nodes
from outlive.cli.output.values import lines, one_line, to_json
from outlive.format.diff import diff, join_path
from outlive.values import Change

if TYPE_CHECKING:
    from outlive.values import Checkpoint, Interrupt

_PAYLOAD = 200  # characters of an interrupt's payload
_IN_WRITES = "(a DeltaChannel: its value is in the writes since an older checkpoint)"


def checkpoint_view(
    checkpoint: Checkpoint, path: str | None, *, is_head: bool, is_full: bool, is_raw: bool
) -> CheckpointView:
    """Return the view of a checkpoint: that of a graph if LangGraph wrote it, unless `is_raw`."""
    graph = None if is_raw else read_graph(checkpoint.state)
    if graph is None:
        return CheckpointView(checkpoint, path, is_head=is_head, is_full=is_full)
    return GraphView(checkpoint, graph, path, is_head=is_head, is_full=is_full)


def comparison(old: Checkpoint, new: Checkpoint, *, is_raw: bool) -> Comparison:
    """Return the changes between two checkpoints: by channel if both are LangGraph's, unless `is_raw`."""
    graphs = (None, None) if is_raw else (read_graph(old.state), read_graph(new.state))
    if graphs[0] is None or graphs[1] is None:
        return Comparison(old, new)
    return GraphComparison(old, new, graphs[0], graphs[1])


class GraphView(CheckpointView):
    """A checkpoint of a graph, or one value of it."""

    def __init__(
        self, checkpoint: Checkpoint, graph: GraphState, path: str | None, *, is_head: bool, is_full: bool
    ) -> None:
        self._graph = graph
        super().__init__(checkpoint, path, is_head=is_head, is_full=is_full)
        writes = checkpoint.pending_writes
        # Tasks that have ended do not run again from the head. From an older checkpoint they do.
        self._next = graph.next_nodes(writes if is_head else ())
        self._asked = graph.interrupts(writes)
        self._errors = graph.errors(writes)

    def _root(self) -> Any:
        return self._graph.values

    def item(self) -> dict[str, Any]:
        interrupts = [interrupt_item(interrupt) for interrupt in self._asked]
        return {**super().item(), "next_nodes": self._next, "interrupts": interrupts}

    def _content_item(self) -> dict[str, Any]:
        return {
            "open_interrupts": [interrupt.id for interrupt in self._asked],
            "errors": [{"node": node, "error": to_json(error)} for node, error in self._errors],
            "values": {name: value_item(value) for name, value in self._graph.values.items()},
        }

    def brief(self) -> list[str]:
        """Return the channels with their values, messages as `role: text`; or the value at the path."""
        if self._path is not None:
            messages = read_messages(self._value)
            return super().brief() if messages is None else show_messages(messages, full=self._is_full)
        shown = [line for name, value in self._graph.values.items() for line in self._channel(name, value)]
        absent = delta_channels(self._checkpoint.metadata, self._graph)
        return [*shown, *(f"{escape_terminal(name)}: {_IN_WRITES}" for name in absent)]

    def _channel(self, name: str, value: Any) -> list[str]:
        start = f"{escape_terminal(name)}: "
        messages = read_messages(value)
        if messages is not None:
            count = "1 message" if len(messages) == 1 else f"{len(messages):,} messages"
            return [start + count, *(f"  {line}" for line in show_messages(messages, full=self._is_full))]
        if isinstance(value, dict) and any(read_messages(item) is not None for item in value.values()):
            inner = (line for key, item in value.items() for line in self._channel(str(key), item))
            return [start.rstrip(), *(f"  {line}" for line in inner)]
        first, *rest = lines(value, width=terminal_width(), full=self._is_full, before=len(start))
        return [start + first, *rest]

    def show(self) -> None:
        if self._path is None:
            metadata = own_metadata(self._checkpoint.metadata)
            shown = ("metadata", one_line(metadata, _PAYLOAD) if metadata else "")
            print_fields([*self._progress(), *self._origin(parent=""), shown])
            print()
        for line in self.brief():
            print(line)

    def _progress(self) -> list[tuple[str, str]]:
        return [
            ("next nodes", join_nodes(self._next) or "none"),
            *(("interrupt", self._interrupt(interrupt)) for interrupt in self._asked),
            *(("error", f"{node}: {one_line(error, _PAYLOAD)}") for node, error in self._errors),
        ]

    def _interrupt(self, interrupt: Interrupt) -> str:
        where = " ".join(filter(None, (interrupt.node, interrupt.id)))
        return f"{where}: {one_line(interrupt.payload, 1_000_000 if self._is_full else _PAYLOAD)}"


def value_item(value: Any) -> Any:
    """Return a value as JSON; messages as their fields."""
    if isinstance(value, Message):
        return to_json(value.fields)
    messages = read_messages(value)
    return to_json(value) if messages is None else [to_json(message.fields) for message in messages]


# Changes


class GraphComparison(Comparison):
    """Two checkpoints of graphs, compared channel by channel and message by message."""

    def __init__(
        self, old: Checkpoint, new: Checkpoint, old_graph: GraphState, new_graph: GraphState
    ) -> None:
        self._graphs = old_graph, new_graph
        super().__init__(old, new)

    def _compare(self) -> list[Change]:
        old, new = (graph.results for graph in self._graphs)
        names = dict.fromkeys((*old, *new))
        return [change for name in names for change in _compare_channel(name, old, new)]

    def show(self, *, full: bool) -> None:
        super().show(full=full)
        before, after = (join_nodes(graph.next_nodes()) for graph in self._graphs)
        if before != after:
            print(f"next nodes: {escape_terminal(before or 'none')} → {escape_terminal(after or 'none')}")

    def _to_json(self, value: Any) -> Any:
        return value_item(value)

    def _one_line(self, value: Any, room: int) -> str:
        if not isinstance(value, Message):
            return super()._one_line(value, room)
        text = value.line()
        return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"


def _compare_channel(name: str, old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    before, after = ([] if name not in side else read_messages(side[name]) for side in (old, new))
    if before is None or after is None:
        before_value, after_value = ({name: side[name]} if name in side else {} for side in (old, new))
        return diff(before_value, after_value)
    return _compare_messages(join_path("", name), before, after)


def _compare_messages(path: str, old: list[Message], new: list[Message]) -> list[Change]:
    """Compare messages by id; by position if ids are missing, not unique or in another order."""
    by_id = {message.id: message for message in old}
    new_ids = [message.id for message in new]
    shared = [id for id in new_ids if id in by_id]
    is_ordered = shared == [id for id in by_id if id in set(shared)]
    if None in by_id or None in new_ids or len(by_id) < len(old) or not is_ordered:
        by_place = diff([message.fields for message in old], [message.fields for message in new], path)
        return [_with_message(change, path) for change in by_place]
    changes = [
        Change(f"{path}[{at}]", "removed", old=message)
        for at, message in enumerate(old)
        if message.id not in new_ids
    ]
    for at, message in enumerate(new):
        if message.id in by_id:
            changes += diff(by_id[message.id].fields, message.fields, f"{path}[{at}]")
        else:
            changes.append(Change(f"{path}[{at}]", "added", new=message))
    return changes


def _with_message(change: Change, path: str) -> Change:
    """Show what was added or removed at a position as a message."""
    if change.kind == "changed" or not re.fullmatch(r"\[\d+\]", change.path.removeprefix(path)):
        return change
    if change.kind == "added":
        return Change(change.path, "added", new=Message(change.new))
    return Change(change.path, "removed", old=Message(change.old))
