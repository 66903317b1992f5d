"""A checkpoint with its state, and the changes between two, as items.

Of a LangGraph thread these are values, messages, next nodes and interrupts. The rest of the stored
state is LangGraph's bookkeeping; `is_raw` shows it, as of any other thread.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from outlive.format.diff import diff, join_path
from outlive.values import Change
from outlive.view.graph import GraphState, delta_channels, read_graph
from outlive.view.items import checkpoint_item, interrupt_item, write_item
from outlive.view.messages import Message, read_messages
from outlive.view.opaque import OpaqueCodec, unwrap
from outlive.view.path import pick
from outlive.view.values import count_of, kind_of, to_json

if TYPE_CHECKING:
    from outlive.values import Checkpoint

ABSENT = object()  # the value of a DeltaChannel that is in the writes of older checkpoints


class CheckpointContent:
    """A checkpoint with its state, or with one value of it."""

    def __init__(self, checkpoint: Checkpoint, path: str | None, *, is_head: bool) -> None:
        self._checkpoint = checkpoint
        self._path = path
        self._is_head = is_head
        self._value = self._root() if path is None else pick(self._root(), path)

    @property
    def value(self) -> Any:
        """The state, or the value at the path."""
        return self._value

    def _root(self) -> Any:
        """Return what paths lead into."""
        return self._checkpoint.state

    def item(self) -> dict[str, Any]:
        if self._path is not None:
            return {**self.head_item(), "value": to_json(self._value)}
        return {**self.head_item(), **self._content_item()}

    def head_item(self) -> dict[str, Any]:
        """Return the item without the value."""
        path = {} if self._path is None else {"path": self._path}
        return {**checkpoint_item(self._checkpoint), "is_head": self._is_head, **path}

    def progress(self) -> dict[str, Any]:
        """Return what comes next: nodes, open interrupts and errors."""
        info = self._checkpoint
        asked = [interrupt_item(interrupt) for interrupt in info.open_interrupts]
        return {"next_nodes": list(info.next_nodes), "interrupts": asked, "errors": []}

    def _content_item(self) -> dict[str, Any]:
        return {
            "open_interrupts": [interrupt.id for interrupt in self._checkpoint.open_interrupts],
            "writes": [write_item(write) for write in self._checkpoint.pending_writes],
            "state": to_json(self._value),
        }

    def part_items(self) -> list[dict[str, Any]]:
        """Return the parts of the value with their packed sizes, the largest first."""
        pack = OpaqueCodec().pack
        items = [
            {"path": path, "type": kind_of(part), "count": count_of(part), "bytes": len(pack(part))}
            for path, part in self.parts()
        ]
        return sorted(items, key=lambda item: -int(str(item["bytes"])))

    def parts(self) -> list[tuple[str, Any]]:
        """Return what is one level below the value, each with its path."""
        return _parts(self._value, self._path or "")


def _parts(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the parts one level below a value."""
    value = unwrap(value)
    if isinstance(value, dict):
        return [(join_path(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{at}]", item) for at, item in enumerate(value)]
    return [(path or "state", value)]


class GraphContent(CheckpointContent):
    """A checkpoint of a graph, or one value of it."""

    def __init__(self, checkpoint: Checkpoint, graph: GraphState, path: str | None, *, is_head: bool) -> None:
        self._graph = graph
        CheckpointContent.__init__(
            self, checkpoint, path, is_head=is_head
        )  # not that of a subclass which prints
        writes = checkpoint.pending_writes
        # Tasks that have ended do not run again from the head. From an older checkpoint they do.
        self._next = graph.next_nodes(writes if is_head else ())
        self._asked = graph.interrupts(writes)
        self._errors = graph.errors(writes)

    def _root(self) -> Any:
        return self._graph.values

    def head_item(self) -> dict[str, Any]:
        interrupts = [interrupt_item(interrupt) for interrupt in self._asked]
        return {**super().head_item(), "next_nodes": self._next, "interrupts": interrupts}

    def progress(self) -> dict[str, Any]:
        asked = [interrupt_item(interrupt) for interrupt in self._asked]
        return {"next_nodes": self._next, "interrupts": asked, "errors": self._error_items()}

    def _error_items(self) -> list[dict[str, Any]]:
        return [{"node": node, "error": to_json(error)} for node, error in self._errors]

    def _content_item(self) -> dict[str, Any]:
        return {
            "open_interrupts": [interrupt.id for interrupt in self._asked],
            "errors": self._error_items(),
            "values": {name: value_item(value) for name, value in self._graph.values.items()},
        }


def read_content(
    checkpoint: Checkpoint, path: str | None, *, is_head: bool, is_raw: bool = False
) -> CheckpointContent:
    """Return a checkpoint: as that of a graph if LangGraph wrote it, unless `is_raw`."""
    graph = None if is_raw else read_graph(checkpoint.state)
    if graph is None:
        return CheckpointContent(checkpoint, path, is_head=is_head)
    return GraphContent(checkpoint, graph, path, is_head=is_head)


def value_item(value: Any) -> Any:
    """Return a value as JSON; messages as their fields."""
    if isinstance(value, Message):
        return to_json(value.fields)
    messages = read_messages(value)
    return to_json(value) if messages is None else [to_json(message.fields) for message in messages]


# Changes


class Changes:
    """Two checkpoints, and the changes from the old one to the new one."""

    def __init__(self, old: Checkpoint, new: Checkpoint) -> None:
        self._old, self._new = old, new
        self.changes = self._compare()

    def _compare(self) -> list[Change]:
        return diff(self._old.state, self._new.state)

    def items(self, start: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        """Return the changes, or a page of them."""
        return [
            {
                "path": change.path,
                "kind": change.kind,
                "old": self._to_json(change.old),
                "new": self._to_json(change.new),
            }
            for change in self.changes[start:end]
        ]

    def _to_json(self, value: Any) -> Any:
        return to_json(value)


class GraphChanges(Changes):
    """Two checkpoints of graphs, compared channel by channel and message by message."""

    def __init__(
        self, old: Checkpoint, new: Checkpoint, old_graph: GraphState, new_graph: GraphState
    ) -> None:
        self._graphs = old_graph, new_graph
        super().__init__(old, new)

    def _compare(self) -> list[Change]:
        old, new = (graph.results for graph in self._graphs)
        deltas = self._changed_deltas()
        names = [name for name in dict.fromkeys((*old, *new)) if name not in deltas]
        changes = [change for name in names for change in _compare_channel(name, old, new)]
        return changes + [
            Change(join_path("", name), "changed", old.get(name, ABSENT), new.get(name, ABSENT))
            for name in deltas
        ]

    def _changed_deltas(self) -> list[str]:
        """Return the DeltaChannels that have changed, and whose values cannot be compared here."""
        pairs = zip((self._old, self._new), self._graphs, strict=True)
        names = dict.fromkeys(name for side, graph in pairs for name in delta_channels(side.metadata, graph))
        before, after = (graph.versions for graph in self._graphs)
        return [name for name in names if before.get(name) != after.get(name)]

    def _to_json(self, value: Any) -> Any:
        return None if value is ABSENT else value_item(value)


def read_changes(old: Checkpoint, new: Checkpoint, *, is_raw: bool = False) -> Changes:
    """Return the changes between two checkpoints: by channel if both are LangGraph's, unless `is_raw`."""
    graphs = (None, None) if is_raw else (read_graph(old.state), read_graph(new.state))
    if graphs[0] is None or graphs[1] is None:
        return Changes(old, new)
    return GraphChanges(old, new, graphs[0], graphs[1])


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
