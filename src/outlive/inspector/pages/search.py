"""Finds threads and runs by id and metadata at once, and texts in states on request."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import Corrupt, OutliveError
from outlive.format.diff import join_path
from outlive.inspector.access import MAX_STATE_BYTES
from outlive.inspector.site import Site, command_line
from outlive.values import parse_thread_cursor
from outlive.view.graph import read_graph
from outlive.view.opaque import unwrap
from outlive.view.values import to_json

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo

_MOST, _SCANNED, _STATES = 50, 2_000, 500
_LIMIT_S = 5.0  # of reading states, for one page
_AROUND = 60  # characters around a match


def find(site: Site, text: str) -> dict[str, list[dict[str, Any]]]:
    """Return threads and runs whose id begins with a text, and threads whose id or metadata contain it."""
    threads = {info.id: "id" for info in itertools.islice(site.store.list_threads([], prefix=text), _MOST)}
    clean = site.access.redaction.clean
    for info in itertools.islice(site.store.list_threads([], newest=True), _SCANNED):
        if len(threads) >= _MOST:
            break
        metadata = json.dumps(clean(to_json(dict(info.metadata))), ensure_ascii=False)
        if text in info.id or text in metadata:
            threads.setdefault(info.id, "id" if text in info.id else metadata[:200])
    runs = [
        {"id": run.id, "thread": run.thread, "status": run.status, "agent": run.agent}
        for run in itertools.islice(_named_runs(site, text), _MOST)
    ]
    return {"threads": [{"id": id, "where": where} for id, where in threads.items()], "runs": runs}


def _named_runs(site: Site, text: str) -> Iterator[RunInfo]:
    """Iterate over runs whose id or agent contains a text, until the time for a page is over."""
    until = time.monotonic() + _LIMIT_S
    for run in site.store.runs():
        if time.monotonic() > until:
            return
        if text in run.id or (run.agent is not None and text in run.agent):
            yield run


def search_states(site: Site, text: str, after: str | None) -> dict[str, Any]:
    """Search the newest state of threads, the last changed first, for a few seconds."""
    matches: list[dict[str, str]] = []
    looked, skipped, cursor = 0, 0, after
    damaged: list[Corrupt] = []
    threads = site.store.list_threads(damaged, newest=True, before=parse_thread_cursor(after or ""))
    until = time.monotonic() + _LIMIT_S
    for info in itertools.islice(threads, _STATES):
        if time.monotonic() > until or len(matches) >= _MOST:
            break
        looked, cursor = looked + 1, info.cursor
        if info.head is None or info.head.state_bytes > MAX_STATE_BYTES:
            skipped += info.head is not None
            continue
        try:
            state = site.store.thread(info.id, namespace=info.head.namespace).load()
        except OutliveError:  # a damaged thread is the business of verify
            skipped += 1
            continue
        match = find_text(site.access.redaction.clean(state), text)
        if match is not None:
            matches.append({"id": info.id, **match})
    else:
        if looked < _STATES:
            cursor = None
    return {"matches": matches, "looked": looked, "skipped": skipped + len(damaged), "next": cursor}


def find_text(state: Any, text: str) -> dict[str, str] | None:
    """Return where a text is in a state, in a value or a key, and what is around it."""
    graph = read_graph(state)
    waiting: list[tuple[str, Any]] = [("", state if graph is None else graph.values)]
    while waiting:
        path, value = waiting.pop()
        value = unwrap(value)
        if isinstance(value, str):
            if (at := value.find(text)) >= 0:
                return _around(path, value, at, text)
        elif isinstance(value, dict):
            named = next((key for key in value if isinstance(key, str) and text in key), None)
            if named is not None:
                return _around(join_path(path, named), named, named.find(text), text)
            waiting += [(join_path(path, key), item) for key, item in reversed(value.items())]
        elif isinstance(value, list | tuple):
            waiting += [(f"{path}[{at}]", item) for at, item in reversed(list(enumerate(value)))]
        elif isinstance(value, int | float) and text in str(value):
            return _around(path, str(value), str(value).find(text), text)
    return None


def _around(path: str, value: str, at: int, text: str) -> dict[str, str]:
    end = at + len(text)
    before, after = value[max(0, at - _AROUND) : at], value[end : end + _AROUND]
    return {"path": path, "before": before, "text": value[at:end], "after": after}


def search(site: Site, request: Request) -> Response:
    params = request.query_params
    text = params.get("q", "")[:500]
    found = find(site, text) if text else {"threads": [], "runs": []}
    states = (
        search_states(site, text, params.get("after") or None)
        if text and params.get("states") == "1"
        else None
    )
    return site.page(
        request, "search", q=text, found=found, states=states, command=command_line("ls", text),
        command_note="lists ids that begin with it" if text else "",
        json_link=f"/search.json?{request.url.query}",
    )  # fmt: skip


def search_json(site: Site, request: Request) -> Response:
    text = request.query_params.get("q", "")[:500]
    found = find(site, text) if text else {"threads": [], "runs": []}
    items = [{"kind": kind[:-1], **item} for kind, found_items in found.items() for item in found_items]
    next = None
    if text and request.query_params.get("states") == "1":
        states = search_states(site, text, request.query_params.get("after") or None)
        items += [{"kind": "state", **match} for match in states["matches"]]
        next = states["next"]
    return site.json("search", items, next)
