"""All threads, the last changed first, a page at a time."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, Corrupt
from outlive.inspector.access import PAGE
from outlive.inspector.pages.runs import STANDINGS
from outlive.inspector.site import Site, command_line
from outlive.values import parse_thread_cursor
from outlive.view.advice import message_with_advice
from outlive.view.escape import quote_word
from outlive.view.items import thread_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.runs import run_of_head
from outlive.view.units import parse_duration, parse_size

if TYPE_CHECKING:
    from outlive.values import ThreadInfo


FIELDS = ("prefix", "filter", "standing", "larger", "untouched", "asks")
_LABELS = {
    "standing": "of the run",
    "larger": "of the size",
    "untouched": "of the age",
    "asks": "of questions",
}
_MOST_QUESTIONS = 10_000
_SCANNED = 2_000  # threads that are looked at for a page, when a filter leaves few


@dataclass(slots=True)
class Listing:
    """A page of threads, and where the next one begins."""

    items: list[dict[str, Any]]
    next: str | None
    looked: int
    asking: Counter[str]
    damage: list[str]  # why threads or their runs cannot be read


def list_page(site: Site, request: Request) -> Listing:
    """Return a page of threads; a filter that leaves few ends it early, with a place to continue."""
    params, clock = request.query_params, LeaseClock.of(site.store)
    is_newest = not params.get("prefix") and params.get("order", "updated") != "id"
    asking = Counter(
        question.thread for question in itertools.islice(site.store.questions(), _MOST_QUESTIONS)
    )
    accepts = _parse_conditions(params, asking)
    items: list[dict[str, Any]] = []
    damaged: list[Corrupt] = []
    damage: list[str] = []
    last, looked, next = None, 0, None
    for info in _threads(site, params, is_newest, damaged):
        if len(items) == PAGE or looked == _SCANNED:
            next = _place(last, is_newest)
            break
        last, looked = info, looked + 1
        run = run_of_head(site.store, info, clock, damage)
        if accepts(info, run):
            items.append(thread_item(info, run))
    return Listing(items, next, looked, asking, [*map(message_with_advice, damaged), *damage])


def _place(last: ThreadInfo | None, is_newest: bool) -> str | None:
    return None if last is None else last.cursor if is_newest else last.id


def _threads(
    site: Site, params: Mapping[str, str], is_newest: bool, damaged: list[Corrupt]
) -> Iterator[ThreadInfo]:
    after = params.get("after") or None
    filters = parse_filter(params.get("filter", ""))
    selection: dict[str, Any] = {"prefix": params.get("prefix", ""), "filter": filters}
    if is_newest:
        cursor = None if after is None else parse_thread_cursor(after)
        if after is not None and cursor is None:
            raise BadArgument("this place in the list is unknown; open the list of threads again")
        selection |= {"newest": True, "before": cursor}
    else:
        selection["after"] = after
    return site.store.list_threads(damaged, **selection)


Condition = Callable[["ThreadInfo", dict[str, Any] | None], bool]


def _parse_conditions(params: Mapping[str, str], asking: Counter[str]) -> Condition:
    """Return what a thread must be, by its size, its age, its run and its questions."""
    standing, asks = params.get("standing", ""), params.get("asks") == "1"
    larger = parse_size("the size", params["larger"]) if params.get("larger") else 0
    age_s = parse_duration("the age", params["untouched"]) if params.get("untouched") else 0.0
    now = dt.datetime.now(dt.UTC)

    def accepts(info: ThreadInfo, run: dict[str, Any] | None) -> bool:
        return (
            info.stored_bytes >= larger
            and (not age_s or (now - info.updated_at).total_seconds() >= age_s)
            and (not standing or (run is not None and run["standing"] == standing))
            and (not asks or bool(asking[info.id]))
        )

    return accepts


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
    listing = list_page(site, request)
    params = request.query_params
    fields = {name: params.get(name, "") for name in FIELDS}
    order = "id" if params.get("prefix") else params.get("order", "updated")
    return site.page(
        request,
        "threads",
        items=site.access.redaction.clean(listing.items),
        next=listing.next,
        looked=listing.looked,
        asking=listing.asking,
        order=order,
        fields=fields,
        is_filtered=any(fields.values()),
        standings=STANDINGS,
        page_size=PAGE,
        after=params.get("after", ""),
        damage=listing.damage,
        command=_command(params, order),
        command_note=_command_note(params),
        json_link=f"/threads.json?{request.url.query}" if request.url.query else "/threads.json",
        live="threads",
    )


def _command(params: Mapping[str, str], order: str) -> str:
    filters = "".join(f" --filter={quote_word(pair)}" for pair in params.get("filter", "").split())
    options = {"after": params.get("after")} if order == "id" else {"sort": "age"}
    return command_line(f"ls{filters}", params.get("prefix", ""), **options)


def _command_note(params: Mapping[str, str]) -> str:
    """Return what the command does not do as the page does."""
    left_out = [_LABELS[name] for name in _LABELS if params.get(name)]
    return f"without the filter {' and '.join(left_out)}" if left_out else ""


def threads_json(site: Site, request: Request) -> Response:
    listing = list_page(site, request)
    return site.json("ls", listing.items, listing.next, is_ok=not listing.damage)
