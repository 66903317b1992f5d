"""Renders pages and JSON: one frame, text that is harmless, links that work under a prefix."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from outlive.inspector.access import Access
from outlive.view.escape import escape_json, escape_lines, escape_terminal, quote_word
from outlive.view.run_text import (
    describe_failures,
    describe_lease,
    describe_now,
    describe_progress,
    format_cost,
    format_tokens,
)
from outlive.view.units import (
    format_age,
    format_count,
    format_duration,
    format_elapsed,
    format_size,
    parse_iso,
)
from outlive.view.values import one_line

FORMAT = 1  # of the JSON, the same as of the command line
_SHORT = 18


class Site:
    """What every page needs to answer a request."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.store = access.store
        folder = resources.files("outlive.inspector") / "templates"
        self._templates = jinja2.Environment(
            loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(_FILTERS)
        self._templates.finalize = _harmless

    def page(self, request: Request, name: str, *, status: int = 200, **values: Any) -> Response:
        """Render a page. Every text in it is escaped, for HTML and for the reader's eyes."""
        root = request.scope.get("root_path", "")

        def link(path: str, /, **query: Any) -> str:
            given = [
                (key.rstrip("_"), value) for key, value in query.items() if value not in (None, "", False)
            ]
            return f"{root}{path}" + (f"?{urlencode(given)}" if given else "")

        frame = {
            "link": link,
            "store_name": self.store.url,
            "tenant": self.store.tenant,
            "is_writable": self.access.is_writable,
            "is_redacted": bool(self.access.redaction),
            "form_token": self.access.form_token,
            "possible_acts": possible_acts,
            "now": dt.datetime.now().astimezone(),
            "here": request.url.path.removeprefix(root),
            "query": str(request.url.query),
            "q": "",
            "shown_command": self._shown_command,
            "copied_command": self._copied_command,
            "command_note": "",
            "live": None,
            "json_link": None,
        }
        text = self._templates.get_template(f"{name}.html").render({**frame, **values})
        return HTMLResponse(text, status)

    def _shown_command(self, command: str) -> str:
        return _with_options(command, tenant=self.store.tenant)

    def _copied_command(self, command: str) -> str:
        """Return a command that works in any folder. The URL of a server is left out: it may need a password."""
        url = self.store.url if self.store.url.startswith("sqlite:") else ""
        return _with_options(command, store=url, tenant=self.store.tenant)

    def json(
        self, command: str, items: Sequence[Mapping[str, Any]], next: str | None = None, *, is_ok: bool = True
    ) -> Response:
        """Answer as `outlive COMMAND --json` does."""
        answer = {
            "format": FORMAT,
            "command": command,
            "store": self.store.url,
            "tenant": self.store.tenant,
            "ok": is_ok,
            "items": self.access.redaction.clean(list(items)),
            "next": next,
        }
        return json_response(answer)


def json_response(answer: Any, status: int = 200) -> Response:
    return Response(escape_json(json.dumps(answer)), status, media_type="application/json")


def command_line(command: str, *words: str, **options: str | None) -> str:
    """Return the equal line for a terminal. Empty words and options are left out."""
    named = [f"--{name.replace('_', '-')}={quote_word(value)}" for name, value in options.items() if value]
    dashes = ["--"] if any(word.startswith("-") for word in words) else []
    return " ".join(["outlive", command, *named, *dashes, *(quote_word(word) for word in words if word)])


def _with_options(command: str, **options: str) -> str:
    """Add options that every command has."""
    given = [f"--{name}={quote_word(value)}" for name, value in options.items() if value]
    return " ".join(["outlive", *given, command.removeprefix("outlive ")])


def possible_acts(standing: str) -> list[str]:
    """Return what can be done about a run."""
    acts = []
    if standing in ("dead", "failed", "parked", "cancelled"):
        acts.append("give back")
    if standing not in ("completed", "parked", "cancelled"):
        acts.append("park")
    if standing not in ("completed", "cancelled"):
        acts.append("cancel")
    return acts


# Text


class Whole(str):
    """A text whose lines are kept."""

    __slots__ = ()


class Exact(str):
    """A text that is harmless already, and must not change."""

    __slots__ = ()


def _harmless(value: Any) -> Any:
    """Write out what could deceive a reader: direction marks, control and invisible characters."""
    if isinstance(value, Markup | Exact) or not isinstance(value, str):
        return value
    return escape_lines(value) if isinstance(value, Whole) else escape_terminal(value)


def _when(value: Any) -> Markup:
    """Return how long ago a moment was; the exact one is in the title."""
    at = parse_iso(value) if isinstance(value, str) else value
    if at is None:
        return Markup("")
    exact = f"{at.astimezone():%Y-%m-%d %H:%M:%S %Z}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), exact, format_age(at))


def _id(value: str, kind: str = "") -> Markup:
    """Return an id, which keeps its own direction."""
    return Markup("<bdi>{}</bdi>").format(escape_terminal(value))


def _short(value: str) -> Markup:
    text = escape_terminal(value)
    shown = text if len(text) <= _SHORT + 6 else f"{text[:_SHORT]}…"
    return Markup('<bdi title="{}">{}</bdi>').format(text, shown)


def _copy(value: str, what: str = "") -> Markup:
    """Return a button that copies a text; it works with JavaScript only, and is hidden without."""
    label = f"copy {what}".strip()
    return Markup(
        '<button type="button" class="copy" data-copy="{}" aria-label="{}" hidden>copy</button>'
    ).format(escape_terminal(value), label)  # the command line also knows the escaped form


def _elapsed(item: Mapping[str, Any]) -> str:
    began = parse_iso(item["began_at"])
    return "" if began is None else format_elapsed(began, parse_iso(item["ended_at"]))


def _standing(value: str) -> Markup:
    return Markup('<span class="standing {}">{}</span>').format(escape(value), value)


def _plain(value: Any, room: int) -> str:
    """Return a text as it is, any other value on one line; both cut."""
    if not isinstance(value, str):
        return one_line(value, room)
    return value if len(value) <= room else f"{value[: room - 1]}…"


def _why(item: Mapping[str, Any]) -> str:
    """Return why a run is as it is."""
    return item["error"] or describe_now(item) or describe_progress(item) or ""


_FILTERS: dict[str, Any] = {
    "when": _when,
    "id": _id,
    "short": _short,
    "copy": _copy,
    "size": format_size,
    "duration": format_duration,
    "count": format_count,
    "elapsed": _elapsed,
    "standing": _standing,
    "line": one_line,
    "whole": Whole,
    "tokens": format_tokens,
    "cost": format_cost,
    "now": describe_now,
    "why": _why,
    "lease": describe_lease,
    "failures": describe_failures,
    "plain": _plain,
    "json": lambda value: Whole(json.dumps(value, indent=2, ensure_ascii=False)),
}
