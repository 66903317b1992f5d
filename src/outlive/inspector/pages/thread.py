"""One thread: the tree of its checkpoints beside one of them, and the same as JSON."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, CheckpointMissing
from outlive.inspector.pages.detail import compare, detail_values
from outlive.inspector.pages.place import Place
from outlive.inspector.site import Site, command_line, json_response
from outlive.inspector.state_page import state_level
from outlive.view.answers import describe_schema
from outlive.view.checkpoints import read_content
from outlive.view.escape import escape_terminal
from outlive.view.history import Selection, read_history
from outlive.view.items import question_item, thread_item
from outlive.view.lanes import lane_rows
from outlive.view.lease_clock import LeaseClock

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.values import CheckpointInfo

_ROWS = 100  # of the tree, before scripts show a window of all
_BATCH = 1_000  # checkpoints that scripts ask for at once
_MOST_RUNS = 20
_MOST_BYTES = 1 << 20  # of a state that is read for what a step of a graph did


def thread(site: Site, request: Request) -> Response:
    place = Place(site, request)
    info = place.thread.info()
    if info is None:
        raise CheckpointMissing(place.thread_id, None, "the list of threads has all ids")
    params = request.query_params
    page = list(place.thread.history(limit=_ROWS + 1, before=params.get("before") or None))
    has_more, page = len(page) > _ROWS, page[:_ROWS]
    selected = _select(place, page, params.get("at"))
    values: dict[str, Any] = {
        "info": site.access.redaction.clean(thread_item(info, None)),
        "ns": place.namespace,
        "namespaces": _namespaces(place, info.checkpoints, page),
        "rows": list(zip(page, lane_rows(page), strict=True)),
        "next": page[-1].cursor if has_more else None,
        "before": params.get("before", ""),
        "command": command_line("history", place.thread_id, namespace=place.namespace),
        "json_link": f"/history.json?{request.url.query}",
        "live": "thread",
        "questions": _questions(site, place.thread_id),
        "runs": _runs(site, place.thread_id),
        "selected": None,
        "body": None,
        "marked": params.get("with", ""),
    }
    if selected is not None:
        values |= detail_values(place, selected)
        values["command"] = values["body"].get("command", values["command"])
    return site.page(request, "thread", **values)


def _select(place: Place, page: list[CheckpointInfo], id: str | None) -> CheckpointInfo | None:
    if id is None:
        return page[0] if page else None
    return next((info for info in page if info.id == id), None) or place.describe(id)


def _namespaces(place: Place, total: int, page: list[CheckpointInfo]) -> list[str]:
    if total == len(page) and not place.namespace:
        return [""]
    newest = place.thread.history(limit=2 * _ROWS, all_namespaces=True)
    return sorted({place.namespace, "", *(info.namespace for info in newest)})


def _questions(site: Site, thread_id: str) -> list[dict[str, Any]]:
    items = [question_item(question) for question in site.store.questions(thread=thread_id)]
    return [{**site.access.redaction.clean(item), "takes": describe_schema(item["schema"])} for item in items]


def _runs(site: Site, thread_id: str) -> list[dict[str, Any]]:
    """Return the last runs of a thread, the newest first."""
    clock = LeaseClock.of(site.store)
    newest = heapq.nlargest(_MOST_RUNS, site.store.runs(thread=thread_id), key=_started)
    return [
        {"id": run.id, "thread": run.thread, "agent": run.agent, "standing": clock.standing(run)}
        for run in newest
    ]


def _started(run: RunInfo) -> float:
    return run.started_at.timestamp() if run.started_at is not None else 0.0


# JSON


def tree_json(site: Site, request: Request) -> Response:
    """Answer with many checkpoints as short rows, newest first, from which scripts draw the tree and the scrubber."""
    place = Place(site, request)
    before = request.query_params.get("before") or None
    page = list(place.thread.history(limit=_BATCH + 1, before=before))
    runs: dict[str | None, int] = {}
    rows = [_tree_row(info, runs) for info in page[:_BATCH]]
    names = [None if run is None else escape_terminal(run) for run in runs]
    next = page[_BATCH - 1].cursor if len(page) > _BATCH else None
    return json_response({"format": 1, "rows": rows, "runs": names, "next": next})


def _tree_row(info: CheckpointInfo, runs: dict[str | None, int]) -> list[Any]:
    """Return id, parent, seq, source, step, run (its number), milliseconds, bytes, new bytes, number of interrupts."""
    at = 0 if info.created_at is None else round(info.created_at.timestamp() * 1000)
    run = runs.setdefault(info.run, len(runs))
    sizes = (info.state_bytes, info.new_bytes, len(info.interrupts))
    return [info.id, info.parent, info.seq, escape_terminal(info.source), info.step, run, at, *sizes]


def history_json(site: Site, request: Request) -> Response:
    place, before = Place(site, request), request.query_params.get("before") or None
    selection: Selection = {"before": before, "filter": {}, "run": None, "all_namespaces": False}
    with site.access.turn():
        page = read_history(
            site.store, place.thread, selection, 2 * _ROWS, is_raw=False, max_state_bytes=_MOST_BYTES
        )
    return site.json("history", page.items(), page.next)


def show_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    checkpoint = place.load(request.query_params.get("at") or None)
    path = request.query_params.get("path") or None
    is_head = place.describe(None).id == checkpoint.id
    return site.json("show", [read_content(checkpoint, path, is_head=is_head).item()])


def state_json(site: Site, request: Request) -> Response:
    place = Place(site, request)
    level = state_level(place.load(request.query_params.get("at") or None), request.query_params)
    return json_response({"format": 1, **level})


def diff_json(site: Site, request: Request) -> Response:
    return site.json("diff", compare(Place(site, request)))


def export(site: Site, request: Request) -> Response:
    place = Place(site, request)
    if site.access.redaction:
        raise BadArgument("some values are hidden here, so the thread cannot be exported; use outlive export")
    text = place.thread.export()
    headers = {"content-disposition": 'attachment; filename="thread.json"'}
    return Response(text, media_type="application/json", headers=headers)
