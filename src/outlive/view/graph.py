"""A LangGraph checkpoint, read from a state as it is stored. LangGraph need not be installed.

A state is recognised by its layout alone, the one that `OutliveSaver` writes. All of it is data
to show: nothing is imported and no object is built, whatever a state contains.

Which nodes come next is not stored. It follows from the channels, as in LangGraph: a node runs when
a channel that triggers it has a value which the node has not seen. For a graph's edges LangGraph
names these channels by the node: `branch:to:NODE`, `join:A+B:NODE`; the tasks of `Send` are in
`__pregel_tasks`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from outlive.dataclass import dataclass
from outlive.format.extensions import Opaque, Raw
from outlive.threads.pending_writes import open_interrupts
from outlive.values import CONTROL, Interrupt, PendingWrite
from outlive.view.messages import read_messages
from outlive.view.opaque import SEALED, flatten_models, unwrap

_LAYOUT = 1  # of the states that OutliveSaver writes
_START, _SENDS, _INTERRUPT, _ERROR = "__start__", "__pregel_tasks", "__interrupt__", "__error__"
# Of a graph that has not begun, and of an entrypoint, which has no channels of its own.
_UNNAMED = {_START: "input", "__previous__": "previous", "__end__": "result"}
_NO_NODES = ("__input__", _INTERRUPT)  # of versions_seen
_EDGE = re.compile(r"(?:branch:to|join:(?P<sources>[^:]*)):(?P<node>.+)", re.DOTALL)
_PULL = re.compile(r"__pregel_pull, ([^,]+)")
_PUSH = re.compile(r"~__pregel_push, (\d{1,12})(?:, \d+)?$")
_BOOKKEEPING = ("parents", "counters_since_delta_snapshot", "__whole__", "__no_source__")


@dataclass(frozen=True, slots=True)
class GraphStep:
    """What a step of a graph did, for a list of them."""

    next_nodes: tuple[str, ...]
    messages: int | None
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GraphState:
    """The state of a graph at a checkpoint."""

    channels: dict[str, Any]  # those of LangGraph itself too
    versions: dict[str, Any]
    seen: dict[str, Any]
    updated: list[str]

    @property
    def values(self) -> dict[str, Any]:
        """The channels that the program defined; before the first step, the input."""
        own = {name: value for name, value in self.channels.items() if not _is_internal(name)}
        return own or {
            shown: self.channels[name] for name, shown in _UNNAMED.items() if name in self.channels
        }

    @property
    def results(self) -> dict[str, Any]:
        """The values without the input, which is no channel of the program."""
        return {
            name: value for name, value in self.values.items() if name != "input" or name in self.channels
        }

    @property
    def step(self) -> GraphStep:
        """The nodes that come next, the number of messages, and the channels that have changed."""
        changed = (name for name in self.updated if not _is_internal(name))
        return GraphStep(tuple(self.next_nodes()), self._message_count(), tuple(changed))

    def _message_count(self) -> int | None:
        """Return how many messages the state has; None if it has no list of messages."""
        lists = [messages for value in self.values.values() if (messages := read_messages(value)) is not None]
        return sum(map(len, lists)) if lists else None

    # Which nodes come next

    def next_nodes(self, writes: Sequence[PendingWrite] = ()) -> list[str]:
        """Return the nodes that run next, without those whose writes are given."""
        sends = self._sends()
        nodes = [*sends, *dict.fromkeys(self._triggered())]
        # Without the calls of @task: these are no nodes.
        own = [write for write in writes if "__pregel_push, ~" not in write.path]
        begun = {_node(write, sends) for write in own} - {_START, ""}
        if _START in nodes and begun:
            nodes = sorted(begun)  # an entrypoint is triggered by the input itself
        for task in {write.task: write for write in own if write.channel not in CONTROL}.values():
            if (node := _node(task, sends)) in nodes:
                nodes.remove(node)
        return nodes

    def _sends(self) -> list[str]:
        tasks = unwrap(self.channels.get(_SENDS))
        sends = [_send_node(unwrap(task)) for task in tasks] if isinstance(tasks, list | tuple) else []
        return [node or "?" for node in sends]

    def _triggered(self) -> Iterator[str]:
        for channel, value in self.channels.items():
            if _is_available(channel, value):
                yield from (node for node in self._targets(channel) if self._is_unseen(node, channel))

    def _targets(self, channel: str) -> list[str]:
        if (edge := _EDGE.fullmatch(channel)) is not None:
            return [edge["node"]]
        readers = [
            node
            for node, seen in self.seen.items()
            if node not in _NO_NODES and isinstance(seen, dict) and channel in seen
        ]
        return readers or ([_START] if channel == _START else [])

    def _is_unseen(self, node: str, channel: str) -> bool:
        seen = self.seen.get(node)
        before = seen.get(channel) if isinstance(seen, dict) else None
        now = self.versions.get(channel)
        if isinstance(now, str) and isinstance(before, str):
            return now > before
        is_number = isinstance(now, int | float) and isinstance(before, int | float)
        return before is None or (is_number and now > before)

    # What tasks wrote at this checkpoint

    def interrupts(self, writes: Sequence[PendingWrite]) -> list[Interrupt]:
        """Return the interrupts that wait for an answer; without an id if they cannot be read."""
        sends = self._sends()
        nodes = {write.task: _node(write, sends) for write in writes}
        interrupts = []
        for write in writes:
            asked = open_interrupts((), [write, *_results(writes, write.task)])
            interrupts += [
                Interrupt(item.id, nodes[write.task], flatten_models(item.payload)) for item in asked
            ]
            if write.channel == _INTERRUPT and is_sealed(write.value) and not _results(writes, write.task):
                interrupts.append(Interrupt("", nodes[write.task], write.value))
        return interrupts

    def errors(self, writes: Sequence[PendingWrite]) -> list[tuple[str, Any]]:
        """Return the nodes that failed, each with its error."""
        sends, failed = self._sends(), [write for write in writes if write.channel == _ERROR]
        return [(_node(write, sends), unwrap(write.value)) for write in failed]


def read_graph(state: Any) -> GraphState | None:
    """Return the state of a graph, or None if LangGraph did not write it."""
    layout = state.get("langgraph") if isinstance(state, dict) else None
    if type(layout) is not int or layout != _LAYOUT:
        return None
    channels, versions = state.get("channel_values"), state.get("channel_versions")
    if not isinstance(channels, dict) or not all(isinstance(name, str) for name in channels):
        return None
    if not isinstance(versions, dict) and not is_sealed(state.get("rest")):
        return None
    seen, updated = state.get("versions_seen"), state.get("updated_channels")
    names = [name for name in updated if isinstance(name, str)] if isinstance(updated, list) else []
    return GraphState(
        {name: _whole(flatten_models(value)) for name, value in channels.items()},
        versions if isinstance(versions, dict) else {},
        seen if isinstance(seen, dict) else {},
        names,
    )


def _whole(value: Any) -> Any:
    """Return the value of a DeltaChannel that was stored whole, and any other as it is."""
    is_snapshot = isinstance(value, Opaque) and value.tag == "langgraph.DeltaSnapshot"
    return value.value[0] if is_snapshot and isinstance(value.value, list) and value.value else value


def own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata without what LangGraph and the saver need for themselves."""
    return {name: value for name, value in metadata.items() if name not in _BOOKKEEPING}


def delta_channels(metadata: Mapping[str, Any], graph: GraphState) -> list[str]:
    """Return the DeltaChannels whose values are in the writes of older checkpoints."""
    counted = metadata.get("counters_since_delta_snapshot")
    names = counted if isinstance(counted, dict) else {}
    return [name for name in names if isinstance(name, str) and name not in graph.channels]


def is_sealed(value: Any) -> bool:
    """Tell whether only the serializer that wrote a value can read it, such as one that encrypts."""
    return isinstance(value, Raw) and value.code == SEALED


def _is_internal(channel: str) -> bool:
    return channel.startswith("__") or _EDGE.fullmatch(channel) is not None


def _is_available(channel: str, value: Any) -> bool:
    """Tell whether a channel would trigger its nodes; a deferred one does when the others have ended."""
    if isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], bool):
        value, is_ready = value
        if not is_ready and _EDGE.fullmatch(channel):
            return False
    edge = _EDGE.fullmatch(channel)
    if edge is None or edge["sources"] is None:
        return True
    # All sources have arrived when their names, joined, are as long as those in the channel's name.
    arrived = value if isinstance(value, set | frozenset | list | tuple) else ()
    return len("+".join(map(str, arrived))) == len(edge["sources"])


def _send_node(send: Any) -> str | None:
    if isinstance(send, list) and send:  # as LangGraph's serializer writes it
        send = {"node": send[0]}
    node = send.get("node") if isinstance(send, dict) else None
    return node if isinstance(node, str) else None


def _node(write: PendingWrite, sends: Sequence[str]) -> str:
    """Return the node of the task that made a write; "" if its path does not say."""
    if (push := _PUSH.search(write.path)) is not None and int(push[1]) < len(sends):
        return sends[int(push[1])]
    pull = _PULL.search(write.path)
    return "" if pull is None else pull[1]


def _results(writes: Sequence[PendingWrite], task: str) -> list[PendingWrite]:
    return [write for write in writes if write.task == task and write.channel not in CONTROL]
