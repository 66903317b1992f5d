"""What changes the store, once its form was sent. Only with write=True."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outlive.errors import BadArgument
from outlive.inspector import targets
from outlive.inspector.access import MAX_FORM_BYTES
from outlive.inspector.asks import READ_ONLY, RUN_ACTS, edit_state, login, preview
from outlive.inspector.forms import read_answer
from outlive.inspector.site import Site
from outlive.inspector.targets import Form
from outlive.view.units import format_size

Deed = Callable[[Site, Request, dict[str, str]], str]  # returns the page to show next
Endpoint = Callable[[Request], Awaitable[Response]]


def endpoint(site: Site, perform: Deed, *, needs_write: bool) -> Endpoint:
    """Return the endpoint of a form: check that it may be sent, act, and show what came of it."""

    async def act(request: Request) -> Response:
        form = await _checked_form(site, request, needs_write)
        place = await run_in_threadpool(perform, site, request, form)
        return RedirectResponse(request.scope.get("root_path", "") + place, 303)

    return act


def preview_endpoint(site: Site) -> Endpoint:
    """Return the endpoint that shows what an edit would change."""

    async def show(request: Request) -> Response:
        form = await _checked_form(site, request, True)
        return await run_in_threadpool(preview, site, request, {**form, **request.query_params})

    return show


async def _checked_form(site: Site, request: Request, needs_write: bool) -> dict[str, str]:
    form = await _read_form(request)
    if not hmac.compare_digest(form.get("form_token", "").encode(), site.access.form_token.encode()):
        raise HTTPException(403, "This form is from another session; open the page again.")
    if needs_write and not site.access.is_writable:
        raise HTTPException(403, READ_ONLY)
    return form


async def _read_form(request: Request) -> dict[str, str]:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"A form may have {format_size(MAX_FORM_BYTES)} at most.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise HTTPException(400, "A form has 100 fields at most.") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}  # browsers send these line ends


def perform(site: Site, request: Request, form: dict[str, str]) -> str:
    """Do an act; return the page that shows the result."""
    act = request.path_params["act"]
    if act not in _DEEDS:
        raise HTTPException(404)
    return _DEEDS[act](site, {**form, **request.query_params})  # the address names what the act is about


def _change_run(site: Site, form: Form, act: str) -> str:
    run = targets.find_run(site, form)
    if act == "give-back":
        site.store.give_back(run)
    elif act == "park":
        site.store.park(run.id, thread=run.thread)
    else:
        site.store.cancel(run.id, thread=run.thread)
    return f"/run?{urlencode({'id': run.id, 'thread': run.thread})}"


def _answer(site: Site, form: Form) -> str:
    question = targets.find_question(site, form)
    value = read_answer(form, question.schema)
    site.store.answer(question.run, question.name, value, by=form.get("by") or None, thread=question.thread)
    return f"/run?{urlencode({'id': question.run, 'thread': question.thread})}"


def _fork(site: Site, form: Form) -> str:
    origin = site.store.thread(targets.thread_id(form), namespace=form.get("ns", ""))
    fork = origin.fork(form.get("new", ""), checkpoint=form.get("at") or None)
    return f"/thread?{urlencode({'id': fork.id})}"


def _edit(site: Site, form: Form) -> str:
    edited, path = edit_state(site, form), form.get("path", "")
    thread = site.store.thread(targets.thread_id(form), namespace=form.get("ns", ""))
    at = form.get("at") or None
    if form.get("new"):
        thread, at = thread.fork(form["new"], checkpoint=at), None
    options: dict[str, Any] = {"source": "update", "metadata": {"edited": path or "state", "by": login()}}
    saved = thread.save(edited, **options) if at is None else thread.save(edited, parent=at, **options)
    return f"/thread?{urlencode({'id': thread.id, 'ns': thread.namespace, 'at': saved.id, 'view': 'diff'})}"


def _delete(site: Site, form: Form) -> str:
    id = targets.thread_id(form)
    if form.get("confirm") != id:
        raise BadArgument(f"type the id of the thread, {id!r}, to delete it; nothing was deleted")
    site.store.delete(id)
    return "/threads"


def _prune(site: Site, form: Form) -> str:
    id = targets.thread_id(form)
    site.store.thread(id).prune(keep_last=targets.count_to_keep(form))
    return f"/thread?{urlencode({'id': id})}"


_DEEDS: dict[str, Callable[[Site, Form], str]] = {
    **{act: (lambda site, form, act=act: _change_run(site, form, act)) for act in RUN_ACTS},  # type: ignore[misc]
    "answer": _answer,
    "fork": _fork,
    "edit": _edit,
    "delete": _delete,
    "prune": _prune,
}
