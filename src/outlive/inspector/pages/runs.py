"""All runs, and one run: its attempts and steps as a waterfall, questions, responses, prompt and result."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, RunMissing
from outlive.inspector.access import PAGE
from outlive.inspector.pages.now import UNFINISHED
from outlive.inspector.site import Site, command_line, possible_acts
from outlive.view.answers import describe_schema
from outlive.view.runs import RunView, Usages, list_runs
from outlive.view.units import format_seconds, parse_iso
from outlive.view.values import to_json

STANDINGS = ("live", "dead", "waiting", "released", "parked", "failed", "completed", "cancelled")
_WAITS = ("ask", "wait", "sleep", "run")
_LEAST = 0.4  # percent of the width, of a bar
_CHUNKS = 100  # of the output


def list_page(site: Site, request: Request, damage: list[str]) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of runs, and where the next one begins. `damage` gets why one cannot be read."""
    params = request.query_params
    chosen = {status for status in params.getlist("status") if status in STANDINGS}
    wanted = chosen or (set(STANDINGS) if params.get("all") == "1" else UNFINISHED)
    agent, thread = params.get("agent") or None, params.get("thread") or None
    views, next = list_runs(
        site.store, set(wanted), agent, thread, PAGE, params.get("after") or None, Usages(), damage
    )
    return [view.item() for view in views], next


def runs(site: Site, request: Request) -> Response:
    damage: list[str] = []
    items, next = list_page(site, request, damage)
    params = request.query_params
    return site.page(
        request,
        "runs",
        items=site.access.redaction.clean(items),
        next=next,
        standings=STANDINGS,
        chosen=params.getlist("status"),
        all=params.get("all") == "1",
        agent=params.get("agent", ""),
        thread=params.get("thread", ""),
        damage=damage,
        command=_command(params),
        json_link=f"/runs.json?{request.url.query}" if request.url.query else "/runs.json",
        live="now",
    )


def _command(params: QueryParams) -> str:
    statuses = [f"--status={status}" for status in params.getlist("status") if status in STANDINGS]
    options = {name: params.get(name) for name in ("agent", "thread", "after")}
    line = command_line("runs", **options)
    return " ".join([line, *statuses, *(["--all"] if params.get("all") == "1" and not statuses else [])])


def runs_json(site: Site, request: Request) -> Response:
    damage: list[str] = []
    items, next = list_page(site, request, damage)
    return site.json("runs", items, next, is_ok=not damage)


def find_view(site: Site, request: Request) -> RunView:
    id, thread = request.query_params.get("id", ""), request.query_params.get("thread") or None
    if not id:
        raise BadArgument("the address names no run")
    info = site.store.find_run(id, thread=thread)
    if info is None:
        raise RunMissing(id)
    return RunView.of(site.store, info)


def run(site: Site, request: Request) -> Response:
    view = find_view(site, request)
    item = site.access.redaction.clean(view.full_item())
    questions = [{**question, "takes": describe_schema(question["schema"])} for question in item["questions"]]
    return site.page(
        request,
        "run",
        item=item,
        questions=questions,
        acts=possible_acts(item["standing"]),
        waterfall=draw_waterfall(item),
        **_read_output(site, view),
        command=command_line("runs show", view.info.id),
        json_link=f"/run.json?{request.url.query}",
        live="run",
    )


def _read_output(site: Site, view: RunView) -> dict[str, Any]:
    """Return what the run emitted, from the beginning; no more than a page shows."""
    chunks = site.store.follow(view.info.id, wait=False, thread=view.info.thread)
    first = list(itertools.islice(chunks, _CHUNKS + 1))
    items = [
        {"number": chunk.number, "attempt": chunk.attempt, "value": to_json(chunk.value)} for chunk in first
    ]
    return {"output": site.access.redaction.clean(items[:_CHUNKS]), "output_more": len(items) > _CHUNKS}


def run_json(site: Site, request: Request) -> Response:
    return site.json("runs show", [find_view(site, request).full_item()])


# The waterfall


def draw_waterfall(item: dict[str, Any]) -> dict[str, Any] | None:
    """Return bars on a common scale: attempts, and steps with their waits; None without any."""
    began = [_seconds(part["began_at"]) for part in (*item["attempts"], *item["steps"])]
    if not began:
        return None
    now = dt.datetime.now(dt.UTC).timestamp()
    is_open = item["standing"] in ("live", "waiting")
    ends = [_seconds(part["ended_at"]) or 0.0 for part in (*item["attempts"], *item["steps"])]
    start = min(began)
    end = max([*ends, *began, _seconds(item["ended_at"]) or 0.0, now if is_open else 0.0, start + 0.001])
    scale = _Scale(start, end)
    return {
        "total": format_seconds(end - start),
        "ticks": [scale.tick(part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)],
        "attempts": [
            {
                **scale.bar(attempt, end, "attempt"),
                "number": attempt["number"],
                "outcome": attempt["outcome"] or "",
            }
            for attempt in item["attempts"]
        ],
        "rows": [{"step": step, "bars": _step_bars(scale, step, end)} for step in item["steps"]],
    }


def _step_bars(scale: _Scale, step: dict[str, Any], end: float) -> list[dict[str, Any]]:
    kind = "wait" if step["kind"] in _WAITS else step["status"]
    failed = [scale.bar(failure, end, "raised") for failure in step["failures"]]
    return [*failed, scale.bar(step, end, kind)]


class _Scale:
    def __init__(self, start: float, end: float) -> None:
        self._start, self._length = start, end - start

    def tick(self, part: float) -> dict[str, Any]:
        return {
            "x": round(part * 100, 2),
            "label": format_seconds(part * self._length) if part else "0 s",
        }

    def bar(self, part: dict[str, Any], end: float, kind: str) -> dict[str, Any]:
        began = _seconds(part["began_at"])
        ended = _seconds(part["ended_at"]) or end
        x = (began - self._start) / self._length * 100
        width = max(_LEAST, (ended - began) / self._length * 100)
        x = max(0.0, min(x, 100 - width))
        return {
            "x": round(x, 2),
            "width": round(min(width, 100.0), 2),
            "kind": kind,
            "is_open": part["ended_at"] is None,
        }


def _seconds(text: str | None) -> float:
    when = parse_iso(text)
    return 0.0 if when is None else when.timestamp()
