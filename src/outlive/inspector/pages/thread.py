"""One thread: its tree of checkpoints, and one of them as chat, state, changes, writes or JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, CallerError, CheckpointMissing
from outlive.inspector.access import MAX_CHANGES, MAX_STATE_BYTES
from outlive.inspector.site import Site, command_line, json_response
from outlive.inspector.state_page import state_level
from outlive.runtime.runtime import run_now
from outlive.sync.thread import Thread
from outlive.values import Checkpoint
from outlive.view.chat import read_conversations
from outlive.view.checkpoints import ABSENT, read_changes, read_content
from outlive.view.graph import own_metadata, read_graph
from outlive.view.items import checkpoint_item, question_item, thread_item, write_item
from outlive.view.lanes import lane_rows
from outlive.view.messages import Message
from outlive.view.units import format_size
from outlive.view.values import one_line, to_json

if TYPE_CHECKING:
    from outlive.values import Change, CheckpointInfo

VIEWS = ("chat", "state", "diff", "writes", "raw", "metadata")
_ROWS = 200
_TURNS = 60  # of a long conversation, the latest
_ROOM = 400  # characters of a changed value


class TooLarge(CallerError):
    """A state that is loaded only on request."""


@dataclass(slots=True)
class Place:
    """What the address names: a thread, a namespace, and a checkpoint of it."""

    site: Site
    request: Request

    def __post_init__(self) -> None:
        self.thread_id  # noqa: B018  # refuses an address without a thread

    @property
    def thread_id(self) -> str:
        id = self.request.query_params.get("id", "")
        if not id:
            raise BadArgument("the address names no thread")
        return id

    @property
    def namespace(self) -> str:
        return self.request.query_params.get("ns", "")

    @property
    def thread(self) -> Thread[Any]:
        return self.site.store.thread(self.thread_id, namespace=self.namespace)

    def load(self, id: str | None, thread: Thread[Any] | None = None) -> Checkpoint:
        """Load a checkpoint with its state; what is to be hidden is hidden in it. Raises TooLarge before it loads."""
        thread = thread or self.thread
        if not self._may_be_large and (size := self._state_bytes(thread, id)) > MAX_STATE_BYTES:
            raise TooLarge(f"this state has {format_size(size)}; add load=1 to the address to load it")
        with self._turn():
            checkpoint = thread.checkpoint(id)
        if checkpoint is None:
            raise CheckpointMissing(self.thread_id, id, "its page lists its checkpoints")
        redaction = self.site.access.redaction
        return Checkpoint.of(checkpoint, redaction.clean(checkpoint.state), checkpoint.pending_writes)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Load one large state at a time: it takes several times its size in memory."""
        if not self._may_be_large:
            yield
            return
        with self.site.access.heavy:
            yield

    @property
    def _may_be_large(self) -> bool:
        return self.request.query_params.get("load") == "1"

    def _state_bytes(self, thread: Thread[Any], id: str | None) -> int:
        store = self.site.store
        read = store.engine.backend.read(store.key(thread.id), thread.namespace, id, chunks=False)
        record = run_now(read).record
        return 0 if record is None else record.size


def thread(site: Site, request: Request) -> Response:
    place = Place(site, request)
    info = place.thread.info()
    if info is None:
        raise CheckpointMissing(place.thread_id, None, "the list of threads has all ids")
    params = request.query_params
    page = list(place.thread.history(limit=_ROWS + 1, before=params.get("before") or None))
    has_more, page = len(page) > _ROWS, page[:_ROWS]
    selected, is_head = _select(place, page, params.get("at"))
    values: dict[str, Any] = {
        "info": site.access.redaction.clean(thread_item(info, None)),
        "ns": place.namespace,
        "namespaces": _namespaces(place, page),
        "rows": list(zip(page, lane_rows(page), strict=True)),
        "next": page[-1].cursor if has_more else None,
        "before": params.get("before", ""),
        "marked": params.get("with", ""),
        "selected": None if selected is None else site.access.redaction.clean(checkpoint_item(selected)),
        "is_head": is_head,
        "views": VIEWS,
        "command": command_line("history", place.thread_id, namespace=place.namespace),
        "json_link": f"/history.json?{request.url.query}",
        "live": "thread",
        "questions": _questions(site, place.thread_id),
        "runs": _runs(page),
        "body": None,
    }
    if selected is not None:
        values["body"] = _body(place, selected, is_head)
    return site.page(request, "thread", **values)


def _select(place: Place, page: list[CheckpointInfo], id: str | None) -> tuple[CheckpointInfo | None, bool]:
    head = page[0] if page and not place.request.query_params.get("before") else None
    if id is None:
        return (head or (page[0] if page else None)), head is not None
    known = next((info for info in page if info.id == id), None)
    return known or place.load(id), head is not None and head.id == id


def _namespaces(place: Place, page: list[CheckpointInfo]) -> list[str]:
    newest = place.thread.history(limit=_ROWS, all_namespaces=True)
    return sorted({place.namespace, "", *(info.namespace for info in newest)})


def _questions(site: Site, thread_id: str) -> list[dict[str, Any]]:
    items = [question_item(question) for question in site.store.questions(thread=thread_id)]
    return site.access.redaction.clean(items)  # type: ignore[no-any-return]


def _runs(page: list[CheckpointInfo]) -> list[str]:
    return list(dict.fromkeys(info.run for info in page if info.run is not None))


# A checkpoint


def _body(place: Place, info: CheckpointInfo, is_head: bool) -> dict[str, Any]:
    params = place.request.query_params
    try:
        checkpoint = info if isinstance(info, Checkpoint) else place.load(info.id)
    except TooLarge:
        return {"view": "large", "size": format_size(info.state_bytes)}
    graph = read_graph(checkpoint.state)
    conversations = read_conversations(checkpoint.state, graph)
    view = params.get("view", "")
    view = view if view in VIEWS else "chat" if conversations else "state"
    body = {
        "view": view,
        "is_graph": graph is not None,
        "has_chat": bool(conversations),
        "writes_count": len(checkpoint.pending_writes),
        "content": place.site.access.redaction.clean(
            read_content(checkpoint, None, is_head=is_head).progress()
        ),
    }
    build = {
        "chat": _chat,
        "state": _state,
        "diff": _diff,
        "writes": _writes,
        "raw": _raw,
        "metadata": _metadata,
    }[view]
    return {**body, **build(place, checkpoint)}


def _chat(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    conversations = read_conversations(checkpoint.state, read_graph(checkpoint.state))
    before: dict[str, int] = {}
    if checkpoint.parent is not None and checkpoint.state_bytes <= MAX_STATE_BYTES:
        parent = place.thread.checkpoint(checkpoint.parent)
        if parent is not None:
            older = read_conversations(parent.state, read_graph(parent.state))
            before = {conversation.path: len(conversation.turns) for conversation in older}
    shown = [
        {
            "path": conversation.path,
            "count": len(conversation.turns),
            "skipped": max(0, len(conversation.turns) - _TURNS),
            "turns": conversation.turns[-_TURNS:],
            "known": before.get(conversation.path, 0) - max(0, len(conversation.turns) - _TURNS),
        }
        for conversation in conversations
    ]
    return {"conversations": shown}


def _state(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    return state_level(checkpoint, place.request.query_params)


def _diff(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    old = _other(place, checkpoint)
    if old is None:
        return {"changes": [], "old": None, "left_out": 0}
    changes = read_changes(old, checkpoint).changes
    return {
        "old": checkpoint_item(old),
        "changes": [_change(change) for change in changes[:MAX_CHANGES]],
        "left_out": max(0, len(changes) - MAX_CHANGES),
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


def _change(change: Change) -> dict[str, Any]:
    return {"path": change.path, "kind": change.kind, "old": _value(change.old), "new": _value(change.new)}


def _value(value: Any) -> dict[str, str]:
    if value is ABSENT:
        return {"short": "(in the writes of older checkpoints)", "long": ""}
    if isinstance(value, Message):
        return {"short": value.line()[:_ROOM], "long": value.text if len(value.line()) > _ROOM else ""}
    short = one_line(value, _ROOM)
    is_long = isinstance(value, str) and len(value) > _ROOM // 2
    return {"short": short, "long": value[:100_000] if is_long else ""}


def _writes(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    items = [write_item(write) for write in checkpoint.pending_writes]
    shown = place.site.access.redaction.clean(items)
    lines = [one_line(write.value, 300) for write in checkpoint.pending_writes]
    return {
        "writes": list(zip(shown, lines, strict=True))
        if not place.site.access.redaction
        else [(item, one_line(item["value"], 300)) for item in shown]
    }


def _raw(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    if checkpoint.state_bytes > 2_000_000:
        return {"raw": None}
    return {"raw": to_json(checkpoint.state)}


def _metadata(place: Place, checkpoint: Checkpoint) -> dict[str, Any]:
    return {"metadata": place.site.access.redaction.clean(to_json(own_metadata(dict(checkpoint.metadata))))}


# JSON


def history_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    page = list(place.thread.history(limit=_ROWS + 1, before=request.query_params.get("before") or None))
    items = [checkpoint_item(info) for info in page[:_ROWS]]
    return site.json("history", items, page[_ROWS - 1].cursor if len(page) > _ROWS else None)


def show_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    checkpoint = place.load(request.query_params.get("at") or None)
    path = request.query_params.get("path") or None
    content = read_content(checkpoint, path, is_head=not request.query_params.get("at"))
    return site.json("show", [content.item()])


def state_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    level = state_level(place.load(request.query_params.get("at") or None), request.query_params)
    return json_response({"format": 1, **level})


def diff_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    checkpoint = place.load(request.query_params.get("at") or None)
    old = _other(place, checkpoint)
    return site.json("diff", [] if old is None else read_changes(old, checkpoint).items()[:MAX_CHANGES])


def export(site: Site, request: Request) -> Response:
    place = Place(site, request)
    if site.access.redaction:
        raise BadArgument("some values are hidden here, so the thread cannot be exported; use outlive export")
    text = place.thread.export()
    headers = {"content-disposition": 'attachment; filename="thread.json"'}
    return Response(text, media_type="application/json", headers=headers)
