"""Finds threads and runs by id and metadata at once, and texts in states on request."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import OutliveError
from outlive.inspector.access import MAX_STATE_BYTES
from outlive.inspector.site import Site, command_line
from outlive.view.values import to_json

_MOST, _SCANNED, _STATES = 50, 2_000, 500
_LIMIT_S = 5.0  # of reading states, for one page
_AROUND = 60  # characters around a match


def find(site: Site, text: str) -> dict[str, list[dict[str, Any]]]:
    """Return threads and runs whose id begins with a text, and threads whose id or metadata contain it."""
    threads = {info.id: "id" for info in itertools.islice(site.store.threads(prefix=text), _MOST)}
    clean = site.access.redaction.clean
    for info in itertools.islice(site.store.threads(order="updated"), _SCANNED):
        if len(threads) >= _MOST:
            break
        metadata = json.dumps(clean(to_json(dict(info.metadata))), ensure_ascii=False)
        if text in info.id or text in metadata:
            threads.setdefault(info.id, "id" if text in info.id else metadata[:200])
    runs = [
        {"id": run.id, "thread": run.thread, "status": run.status, "agent": run.agent}
        for run in itertools.islice((run for run in site.store.runs() if text in run.id), _MOST)
    ]
    return {"threads": [{"id": id, "where": where} for id, where in threads.items()], "runs": runs}


def search_states(site: Site, text: str, after: str | None) -> dict[str, Any]:
    """Look into the newest state of threads, the last changed first, for a few seconds."""
    matches: list[dict[str, str]] = []
    looked, cursor = 0, after
    until = time.monotonic() + _LIMIT_S
    for info in itertools.islice(site.store.threads(order="updated", after=after), _STATES):
        if time.monotonic() > until or len(matches) >= _MOST:
            break
        looked, cursor = looked + 1, info.cursor
        if info.head is None or info.head.state_bytes > MAX_STATE_BYTES:
            continue
        try:
            state = site.store.thread(info.id, namespace=info.head.namespace).load()
        except OutliveError:
            continue  # a damaged thread is the business of verify
        whole = json.dumps(to_json(site.access.redaction.clean(state)), ensure_ascii=False)
        at = whole.find(text)
        if at >= 0:
            around = whole[max(0, at - _AROUND) : at + len(text) + _AROUND]
            matches.append({"id": info.id, "where": around})
    else:
        if looked < _STATES:
            cursor = None
    return {"matches": matches, "looked": looked, "next": cursor}


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
        request, "search", q=text, found=found, states=states, command=command_line("ls", *filter(None, [text])),
        json_link=f"/search.json?{request.url.query}",
    )  # fmt: skip


def search_json(site: Site, request: Request) -> Response:
    text = request.query_params.get("q", "")[:500]
    found = find(site, text) if text else {"threads": [], "runs": []}
    return site.json(
        "search", [{"kind": kind[:-1], **item} for kind, items in found.items() for item in items]
    )
