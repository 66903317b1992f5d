"""One checkpoint: its chat, a level of its state, what changed, its writes, its JSON or its metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import Corrupt, KeyMissing, WrongKey
from outlive.inspector.access import MAX_CHANGES, MAX_STATE_BYTES
from outlive.inspector.pages.place import Place, TooLarge
from outlive.inspector.site import Site, command_line
from outlive.inspector.state_page import state_level
from outlive.values import Checkpoint
from outlive.view.advice import message_with_advice
from outlive.view.chat import Conversation, read_conversations
from outlive.view.checkpoints import ABSENT, read_changes, read_content
from outlive.view.graph import GraphState, own_metadata, read_graph
from outlive.view.items import checkpoint_item, write_item
from outlive.view.messages import Message
from outlive.view.units import format_size
from outlive.view.values import one_line, to_json

if TYPE_CHECKING:
    from outlive.values import Change, CheckpointInfo

VIEWS = ("chat", "state", "diff", "writes", "raw", "metadata")
_TURNS = 60  # of a long conversation, the latest
_ROOM = 400  # characters of a changed value
_WHOLE = 100_000  # characters of a value that is unfolded
_RAW_BYTES = 500_000


def detail(site: Site, request: Request) -> Response:
    """Answer with the checkpoint alone, which scripts put into the page of its thread."""
    place = Place(site, request)
    selected = place.describe(request.query_params.get("at") or None)
    return site.page(request, "detail", info={"id": place.thread_id}, **detail_values(place, selected))


def detail_values(place: Place, selected: CheckpointInfo) -> dict[str, Any]:
    """Return what the template of a checkpoint needs."""
    site, params = place.site, place.request.query_params
    is_head = place.describe(None).id == selected.id
    return {
        "ns": place.namespace,
        "selected": site.access.redaction.clean(checkpoint_item(selected)),
        "is_head": is_head,
        "marked": params.get("with", ""),
        "marked_thread": params.get("thread", ""),
        "before": params.get("before", ""),
        "load": params.get("load", ""),
        "views": VIEWS,
        "body": _body(place, selected, is_head),
    }


@dataclass(slots=True)
class _Loaded:
    """A checkpoint with its state, and what was read from that once."""

    place: Place
    checkpoint: Checkpoint
    graph: GraphState | None
    conversations: list[Conversation]


def _body(place: Place, info: CheckpointInfo, is_head: bool) -> dict[str, Any]:
    try:
        checkpoint = place.load(info.id)
    except TooLarge:
        return {"view": "large", "size": format_size(info.state_bytes), "command": ""}
    except (Corrupt, KeyMissing, WrongKey) as error:
        return {"view": "unreadable", "why": message_with_advice(error), "command": command_line("verify")}
    graph = read_graph(checkpoint.state)
    loaded = _Loaded(place, checkpoint, graph, read_conversations(checkpoint.state, graph))
    asked = place.request.query_params.get("view", "")
    view = asked if asked in VIEWS else "chat" if loaded.conversations else "state"
    progress = read_content(checkpoint, None, is_head=is_head).progress()
    return {
        "view": view,
        "is_graph": graph is not None,
        "has_chat": bool(loaded.conversations),
        "writes_count": len(checkpoint.pending_writes),
        "content": place.site.access.redaction.clean(progress),
        "command": _command(place, info, view, is_graph=graph is not None),
        **_BUILDERS[view](loaded),
    }


def _command(place: Place, info: CheckpointInfo, view: str, *, is_graph: bool) -> str:
    thread, ns, params = place.thread_id, place.namespace, place.request.query_params
    if view == "diff" and params.get("with"):
        old_thread = params.get("thread") or thread
        to = thread if old_thread != thread else None
        return command_line("diff", old_thread, params["with"], info.id, namespace=ns, to=to)
    if view == "diff" and info.parent:
        return command_line("diff", thread, info.parent, info.id, namespace=ns)
    if view == "writes":
        return command_line("writes", thread, info.id, namespace=ns)
    if view == "raw" and is_graph:
        return command_line("show --raw", thread, info.id, namespace=ns)
    path = params.get("path") if view == "state" else None
    return command_line("show", thread, info.id, namespace=ns, path=path)


# Chat


def _chat(loaded: _Loaded) -> dict[str, Any]:
    known = _known_turns(loaded)
    shown = []
    for conversation in loaded.conversations:
        turns = conversation.join_results()
        shown.append(
            {
                "path": conversation.path,
                "count": len(conversation.turns),
                "skipped": max(0, len(turns) - _TURNS),
                "turns": turns[-_TURNS:],
                "known": known.get(conversation.path, 0) if known is not None else len(conversation.turns),
            }
        )
    return {"conversations": shown}


def _known_turns(loaded: _Loaded) -> dict[str, int] | None:
    """Return how many messages the compared checkpoint has at each path; None if there is none to compare with."""
    place, checkpoint = loaded.place, loaded.checkpoint
    if checkpoint.state_bytes > MAX_STATE_BYTES:
        return None
    try:
        other = _other(place, checkpoint)
    except (TooLarge, Corrupt):
        return None
    if other is None:
        return None
    older = read_conversations(other.state, read_graph(other.state))
    return {conversation.path: len(conversation.turns) for conversation in older}


# State, diff, writes


def _state(loaded: _Loaded) -> dict[str, Any]:
    return state_level(loaded.checkpoint, loaded.place.request.query_params)


def _diff(loaded: _Loaded) -> dict[str, Any]:
    try:
        old = _other(loaded.place, loaded.checkpoint)
    except (TooLarge, Corrupt) as error:
        return {"changes": [], "old": None, "left_out": 0, "why": message_with_advice(error)}
    if old is None:
        return {"changes": [], "old": None, "left_out": 0, "why": ""}
    changes = read_changes(old, loaded.checkpoint).changes
    return {
        "old": checkpoint_item(old),
        "changes": [_change(change) for change in changes[:MAX_CHANGES]],
        "left_out": max(0, len(changes) - MAX_CHANGES),
        "why": "",
    }


def _other(place: Place, checkpoint: Checkpoint) -> Checkpoint | None:
    """Return what a checkpoint is compared with: the one in the address, or its parent."""
    params = place.request.query_params
    if params.get("with"):
        other = place.site.store.thread(params.get("thread") or place.thread_id, namespace=place.namespace)
        return place.load(params["with"], other)
    if checkpoint.parent is None or not place.thread.exists(checkpoint.parent):
        return None
    return place.load(checkpoint.parent)


def compare(place: Place) -> list[dict[str, Any]]:
    """Return the changes as `outlive diff --json` does."""
    checkpoint = place.load(place.request.query_params.get("at") or None)
    old = _other(place, checkpoint)
    return [] if old is None else read_changes(old, checkpoint).items()[:MAX_CHANGES]


def _change(change: Change) -> dict[str, Any]:
    return {"path": change.path, "kind": change.kind, "old": _value(change.old), "new": _value(change.new)}


def _value(value: Any) -> dict[str, str]:
    if value is ABSENT:
        return {"short": "(in the writes of older checkpoints)", "long": ""}
    if isinstance(value, Message):
        return {"short": value.line()[:_ROOM], "long": value.text if len(value.line()) > _ROOM else ""}
    short = one_line(value, _ROOM)
    if isinstance(value, str):
        return {"short": short, "long": value[:_WHOLE] if len(value) > _ROOM // 2 else ""}
    is_short = not short.endswith("…") and " of " not in short
    return {"short": short, "long": "" if is_short else one_line(value, _WHOLE)}


def _writes(loaded: _Loaded) -> dict[str, Any]:
    writes = loaded.checkpoint.pending_writes
    return {"writes": [(write_item(write), one_line(write.value, 300)) for write in writes]}


def _raw(loaded: _Loaded) -> dict[str, Any]:
    is_small = loaded.checkpoint.state_bytes <= _RAW_BYTES
    return {"raw": to_json(loaded.checkpoint.state) if is_small else None}


def _metadata(loaded: _Loaded) -> dict[str, Any]:
    metadata = to_json(own_metadata(dict(loaded.checkpoint.metadata)))
    return {"metadata": loaded.place.site.access.redaction.clean(metadata)}


_BUILDERS = {
    "chat": _chat,
    "state": _state,
    "diff": _diff,
    "writes": _writes,
    "raw": _raw,
    "metadata": _metadata,
}
