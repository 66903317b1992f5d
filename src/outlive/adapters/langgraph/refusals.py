"""Who wrote a value that cannot be stored, in the words of the program and not in those of LangGraph.

LangGraph may report only the checkpoint that a refused write makes impossible, so a refused write
is remembered until that checkpoint is put. The checkpoint may also be put before the write: then
the nodes are named that ran since the checkpoint before.
"""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from outlive.backend import ThreadKey
from outlive.errors import Unencodable

_MOST = 100  # refused writes that are remembered


class _Words(NamedTuple):
    """How a channel of LangGraph's own is called."""

    path: str  # of a value in it, as LangGraph stores it: a pattern
    name: str  # of the same, for people
    act: str  # what the program did


_OWN = {
    "__start__": _Words("__start__", "input", "passed it as input to the graph"),
    "__interrupt__": _Words(r"__interrupt__\[0\]\.value", "interrupt", "passed it to interrupt()"),
    "__resume__": _Words("__resume__", "resume", "passed it to Command(resume=...)"),
    "__pregel_tasks": _Words(r"__pregel_tasks(\[\d+\])?\.arg", "Send.arg", "passed it to Send()"),
    "__return__": _Words("__return__", "result", "returned it"),
    "__end__": _Words("__end__", "result", "returned it"),
    "__previous__": _Words("__previous__", "previous", "returned it to be saved"),
}
_PUSHED = re.compile(r"__pregel_push, (\d+)")  # the number of a task that a node has sent
_PULLED = re.compile(r"__pregel_pull, ([^,]+)")


class Refusals:
    """The writes of a saver that were refused lately."""

    def __init__(self) -> None:
        self._sources: OrderedDict[tuple[bytes, str, str, str], str] = OrderedDict()

    def of_write(
        self, error: Unencodable, key: ThreadKey, namespace: str, target: str, channel: str, source: str
    ) -> Unencodable:
        """Return the error of a write, and remember who wrote it."""
        self._sources[key.digest, namespace, target, channel] = source
        while len(self._sources) > _MOST:
            self._sources.popitem(last=False)
        return _told(error, error.path.replace("state", channel, 1), channel, source)

    def of_checkpoint(
        self, error: Unencodable, key: ThreadKey, namespace: str, parent: str | None, nodes: list[str]
    ) -> Unencodable:
        """Return the error of a checkpoint; `nodes` ran since its parent."""
        path = error.path.removeprefix("state.channel_values.")
        channel = re.split(r"[.\[]", path, maxsplit=1)[0]
        written = self._sources.pop((key.digest, namespace, parent or "", channel), None)
        return _told(error, path, channel, written or _supposed(channel, nodes))


def _supposed(channel: str, nodes: list[str]) -> str:
    """Say who may have written something when the write itself is not known."""
    act = _OWN[channel].act if channel in _OWN else f"wrote it to channel {channel!r}"
    if channel == "__start__":
        return f"the program {act}"
    if not nodes:
        return f"it is in channel {channel!r}"
    return f"node {nodes[0]!r} {act}" if len(nodes) == 1 else f"one of the nodes {', '.join(nodes)} {act}"


def nodes_between(before: Any, checkpoint: Mapping[str, Any]) -> list[str]:
    """Return the nodes that ran between two checkpoints, whatever the first is."""
    first = before if isinstance(before, dict) else {}
    seen, now = first.get("versions_seen") or {}, checkpoint.get("versions_seen") or {}
    ran = [name for name, versions in now.items() if seen.get(name) != versions]
    with contextlib.suppress(AttributeError, KeyError, TypeError):
        ran += [send.value["node"] for send in first["channel_values"]["__pregel_tasks"]]
    return sorted({name for name in ran if not name.startswith("__")})


def _told(error: Unencodable, path: str, channel: str, source: str) -> Unencodable:
    words = _OWN.get(channel)
    where = path if words is None else re.sub(f"^{words.path}", words.name, path)
    reason = error.reason.replace("as state.channel_values.", "as ", 1).replace(
        "as state", f"as {channel}", 1
    )
    return Unencodable(where, reason, source)


def source_of(task: str, path: str, channel: str, node: str | None = None) -> str:
    """Say who wrote something. LangGraph names a task by a path: how it was started, then the node, or a number."""
    act = _OWN[channel].act if channel in _OWN else f"wrote it to channel {channel!r}"
    if channel == "__resume__":
        return f"the program {act}"
    if (pulled := _PULLED.findall(path)) and "__pregel_push" in path:  # by the functional API
        return f"a task of {pulled[-1]!r}, task {task!r}, {act}"
    node = pulled[-1] if pulled else node
    return f"{f'node {node!r}, ' if node else ''}task {task!r}, {act}"


def sent_to(path: str, state: Any) -> str | None:
    """Return the node of a task that was sent, as the checkpoint says, whose state is in opaque form."""
    with contextlib.suppress(AttributeError, IndexError, KeyError, TypeError):
        if (pushed := _PUSHED.search(path)) is not None:
            return str(state["channel_values"]["__pregel_tasks"][int(pushed[1])].value["node"])
    return None
