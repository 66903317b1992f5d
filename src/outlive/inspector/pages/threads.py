"""All threads, the last changed first, a page at a time."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, Corrupt
from outlive.inspector.access import PAGE
from outlive.inspector.site import Site, command_line
from outlive.sync.iterator import each
from outlive.threads.listing import Threads
from outlive.values import parse_thread_cursor
from outlive.view.advice import message_with_advice
from outlive.view.items import thread_item
from outlive.view.lease_clock import LeaseClock

if TYPE_CHECKING:
    from outlive.values import ThreadInfo


def list_page(
    site: Site, request: Request, damaged: list[Corrupt]
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of threads, and where the next one begins."""
    params = request.query_params
    prefix, after = params.get("prefix", ""), params.get("after") or None
    is_newest = not prefix and params.get("order", "updated") != "id"
    selection: dict[str, Any] = {"prefix": prefix, "filter": parse_filter(params.get("filter", ""))}
    if is_newest:
        cursor = None if after is None else parse_thread_cursor(after)
        if after is not None and cursor is None:
            raise BadArgument("this place in the list is unknown; open the list of threads again")
        selection |= {"newest": True, "before": cursor}
    else:
        selection["after"] = after
    threads = each(Threads(site.store.engine, site.store.tenant, damaged=damaged, **selection))
    page = list(itertools.islice(threads, PAGE + 1))
    has_more, page = len(page) > PAGE, page[:PAGE]
    clock = LeaseClock.of(site.store)
    items = [thread_item(info, _run_of_head(site, info, clock)) for info in page]
    next = None if not has_more else page[-1].cursor if is_newest else page[-1].id
    return items, next


def _run_of_head(site: Site, info: ThreadInfo, clock: LeaseClock) -> dict[str, Any] | None:
    if info.head is None or info.head.run is None:
        return None
    run = site.store.find_run(info.head.run, thread=info.id)
    return None if run is None else {"id": run.id, "status": run.status, "standing": clock.standing(run)}


def parse_filter(text: str) -> dict[str, Any]:
    """Return the metadata that threads must have: `user=ada tier=2`."""
    wanted: dict[str, Any] = {}
    for pair in text.split():
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadArgument(f"the filter takes KEY=VALUE, not {pair!r}")
        try:
            wanted[key] = json.loads(value)
        except ValueError:
            wanted[key] = value
    return wanted


def threads(site: Site, request: Request) -> Response:
    damaged: list[Corrupt] = []
    items, next = list_page(site, request, damaged)
    params = request.query_params
    order = "id" if params.get("prefix") else params.get("order", "updated")
    return site.page(
        request,
        "threads",
        items=site.access.redaction.clean(items),
        next=next,
        order=order,
        prefix=params.get("prefix", ""),
        filter=params.get("filter", ""),
        after=params.get("after", ""),
        damaged=[message_with_advice(error) for error in damaged],
        command=command_line(
            "ls", *filter(None, [params.get("prefix", "")]), sort="age" if order != "id" else None
        ),
        json_link=f"/threads.json?{request.url.query}" if request.url.query else "/threads.json",
        live="threads",
    )


def threads_json(site: Site, request: Request) -> Response:
    items, next = list_page(site, request, [])
    return site.json("ls", items, next)
