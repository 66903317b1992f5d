"""A checkpoint of a LangGraph thread as a person wants to see it: values, messages, next nodes, interrupts.

The rest of the stored state is LangGraph's bookkeeping; `--raw` shows it, as of any other thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.cli.checkpoint_view import CheckpointView, Comparison
from outlive.cli.output.table import print_fields, terminal_width
from outlive.cli.output.tree import join_nodes
from outlive.view.checkpoints import ABSENT, GraphChanges, GraphContent
from outlive.view.escape import escape_terminal
from outlive.view.graph import GraphState, delta_channels, own_metadata, read_graph
from outlive.view.messages import Message, read_messages, show_messages
from outlive.view.values import lines, one_line

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


class GraphView(GraphContent, CheckpointView):
    """A checkpoint of a graph, or one value of it."""

    def __init__(
        self, checkpoint: Checkpoint, graph: GraphState, path: str | None, *, is_head: bool, is_full: bool
    ) -> None:
        GraphContent.__init__(self, checkpoint, graph, path, is_head=is_head)
        self._is_full = is_full

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


# Changes


class GraphComparison(GraphChanges, Comparison):
    """Two checkpoints of graphs, compared channel by channel and message by message."""

    def show(self, *, full: bool) -> None:
        super().show(full=full)
        before, after = (join_nodes(graph.next_nodes()) for graph in self._graphs)
        if before != after:
            print(f"next nodes: {escape_terminal(before or 'none')} → {escape_terminal(after or 'none')}")

    def _one_line(self, value: Any, room: int) -> str:
        if value is ABSENT:
            return _IN_WRITES
        if not isinstance(value, Message):
            return super()._one_line(value, room)
        text = value.line()
        return text if len(text) <= room else f"{text[: max(room - 1, 1)]}…"
