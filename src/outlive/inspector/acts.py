"""What changes the store: each act says what will happen and asks, then does it. Only with write=True."""

from __future__ import annotations

import getpass
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from outlive.errors import BadArgument, OutliveError, RunMissing
from outlive.format.readable import packed
from outlive.inspector.access import MAX_FORM_BYTES
from outlive.inspector.site import Exact, Site, command_line
from outlive.view.answers import choices_of, describe_schema, parse_answer
from outlive.view.escape import escape_json, escape_terminal
from outlive.view.graph import read_graph
from outlive.view.items import question_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.opaque import OpaqueCodec
from outlive.view.path import pick, replace_at
from outlive.view.redaction import HIDDEN
from outlive.view.units import format_count, format_size
from outlive.view.values import to_json

Form = Mapping[str, str]
Deed = Callable[[Site, Request, dict[str, str]], str]  # returns the page to show next
_READ_ONLY = "This inspector is read-only; start it with outlive ui --write."
RUN_ACTS = {"give-back": "give back", "park": "park", "cancel": "cancel"}


def endpoint(site: Site, perform: Deed, *, needs_write: bool) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a form: check that it may be sent, act, and show what came of it."""

    async def act(request: Request) -> Response:
        form = await _read_form(request)
        if not hmac.compare_digest(form.get("form_token", "").encode(), site.access.form_token.encode()):
            raise HTTPException(403, "This form is from another session; open the page again.")
        if needs_write and not site.access.is_writable:
            raise HTTPException(403, _READ_ONLY)
        place = await run_in_threadpool(perform, site, request, form)
        return RedirectResponse(request.scope.get("root_path", "") + place, 303)

    return act


async def _read_form(request: Request) -> dict[str, str]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"A form may have {format_size(MAX_FORM_BYTES)} at most.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise HTTPException(400, "A form has 100 fields at most.") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}  # browsers send these line ends


# Asking


def ask(site: Site, request: Request) -> Response:
    """Show what an act will do, with the form that does it."""
    if not site.access.is_writable:
        raise HTTPException(403, _READ_ONLY)
    act, params = request.path_params["act"], request.query_params
    if act not in _QUESTIONS:
        raise HTTPException(404)
    return site.page(request, "ask", act=act, named=dict(params), **_QUESTIONS[act](site, params))


def _ask_run(site: Site, params: Form, act: str) -> dict[str, Any]:
    run = _run(site, params)
    standing = LeaseClock.of(site.store).standing(run)
    what = {
        "give-back": "It becomes released: the next worker with a handler for its agent claims it. No code runs here.",
        "park": "Nothing resumes it until it is given back.",
        "cancel": "It ends, and its thread is free at once.",
    }[act]
    if standing == "live" and act != "give-back":
        what += f" It is running in {run.owner}: its next write will be refused."
    verb = {"give-back": "retry"}.get(act, act)
    return {
        "title": f"{RUN_ACTS[act].capitalize()} run {escape_terminal(run.id)}?",
        "what": f"The run is {standing}. {what}",
        "button": RUN_ACTS[act].capitalize(),
        "is_dangerous": act == "cancel",
        "inputs": [],
        "command": command_line(verb, run.id),
    }


def _ask_answer(site: Site, params: Form) -> dict[str, Any]:
    question = _question(site, params)
    item = site.access.redaction.clean(question_item(question))
    choices = choices_of(question.schema)
    kind = "choices" if choices is not None else "text"
    is_text = isinstance(question.schema, Mapping) and question.schema.get("type") == "string"
    options = [{"value": json.dumps(choice), "label": _label(choice)} for choice in choices or ()]
    takes = describe_schema(question.schema)
    field = {
        "name": "value",
        "kind": kind,
        "label": "Your answer",
        "options": options,
        "value": "",
        "hint": takes or "JSON, or else text",
        "is_text": is_text,
    }
    return {
        "title": f"Answer {escape_terminal(question.name)}",
        "what": f"Run {escape_terminal(question.run)} waits for this. The first answer counts; then any worker can claim the run.",
        "payload": item["payload"],
        "button": "Answer",
        "is_dangerous": False,
        "inputs": [
            field,
            {"name": "by", "kind": "line", "label": "Who answers", "value": _login(), "hint": ""},
        ],
        "command": command_line("answer", question.run, question.name),
    }


def _label(choice: Any) -> str:
    return (
        {True: "yes", False: "no"}.get(choice, "")
        if isinstance(choice, bool)
        else choice
        if isinstance(choice, str)
        else json.dumps(choice)
    )


def _ask_fork(site: Site, params: Form) -> dict[str, Any]:
    return {
        "title": f"Fork thread {escape_terminal(params.get('id', ''))}",
        "what": "A new thread starts with this checkpoint. The old thread stays as it is.",
        "button": "Fork",
        "is_dangerous": False,
        "inputs": [
            {
                "name": "new",
                "kind": "line",
                "label": "The id of the new thread",
                "value": f"{params.get('id', '')}-fork",
                "hint": "",
            }
        ],
        "command": command_line(
            "fork", params.get("id", ""), f"{params.get('id', '')}-fork", at=params.get("at")
        ),
    }


def _ask_edit(site: Site, params: Form) -> dict[str, Any]:
    state, path = _state(site, params), params.get("path", "")
    value = to_json(pick(state, path))
    hint = 'JSON; what JSON does not have is an object with a $ key, such as {"$tuple": [1, 2]}'
    text = Exact(escape_json(json.dumps(value, indent=2, ensure_ascii=False)))
    return {
        "title": f"Edit {escape_terminal(path) or 'the state'}",
        "what": "The edited state is saved as a branch from this checkpoint, and becomes the head of the thread. Nothing is overwritten.",
        "button": "Save as a branch",
        "is_dangerous": False,
        "inputs": [
            {"name": "value", "kind": "json", "label": "The new value", "value": text, "hint": hint},
            {
                "name": "new",
                "kind": "line",
                "label": "Save into a new thread instead (optional id)",
                "value": "",
                "hint": "",
            },
        ],
        "command": command_line("show", params.get("id", ""), params.get("at", "")),
    }


def _ask_delete(site: Site, params: Form) -> dict[str, Any]:
    thread = site.store.thread(_thread_id(params))
    sizes, runs = thread.size(), sum(1 for _ in site.store.runs(thread=thread.id))
    contents = f"{format_count(sizes.checkpoints, 'checkpoint')} ({format_size(sizes.stored_bytes)}) and {format_count(runs, 'run')}"
    return {
        "title": f"Delete thread {escape_terminal(thread.id)}?",
        "what": f"Its {contents} are deleted, in all namespaces. This cannot be undone.",
        "button": "Delete the thread",
        "is_dangerous": True,
        "inputs": [
            {"name": "confirm", "kind": "line", "label": "Type the id of the thread", "value": "", "hint": ""}
        ],
        "command": command_line("rm", thread.id),
    }


def _ask_prune(site: Site, params: Form) -> dict[str, Any]:
    thread, keep = site.store.thread(_thread_id(params)), _keep(params)
    pruned = thread.prune(keep_last=keep, dry_run=True)
    return {
        "title": f"Prune thread {escape_terminal(thread.id)}?",
        "what": f"Keeps the newest {keep} of each namespace and open interrupts. Deletes "
        f"{format_count(pruned.checkpoints, 'checkpoint')} ({format_size(pruned.freed_bytes)}). This cannot be undone.",
        "button": "Prune",
        "is_dangerous": True,
        "inputs": [],
        "command": f"{command_line('prune', thread.id)} --keep-last {keep}",
    }


_QUESTIONS: dict[str, Callable[[Site, Form], dict[str, Any]]] = {
    **{act: (lambda site, params, act=act: _ask_run(site, params, act)) for act in RUN_ACTS},  # type: ignore[misc]
    "answer": _ask_answer,
    "fork": _ask_fork,
    "edit": _ask_edit,
    "delete": _ask_delete,
    "prune": _ask_prune,
}


# Doing


def perform(site: Site, request: Request, form: dict[str, str]) -> str:
    """Do an act; return the page that shows the result."""
    act = request.path_params["act"]
    if act not in _DEEDS:
        raise HTTPException(404)
    return _DEEDS[act](site, {**form, **request.query_params})  # the address names what the act is about


def _change_run(site: Site, form: Form, act: str) -> str:
    run = _run(site, form)
    if act == "give-back":
        site.store.give_back(run)
    elif act == "park":
        site.store.park(run.id, thread=run.thread)
    else:
        site.store.cancel(run.id, thread=run.thread)
    return f"/run?{urlencode({'id': run.id, 'thread': run.thread})}"


def _answer(site: Site, form: Form) -> str:
    question = _question(site, form)
    text = form.get("value", "")
    value = (
        json.loads(text) if choices_of(question.schema) is not None else parse_answer(text, question.schema)
    )
    site.store.answer(question.run, question.name, value, by=form.get("by") or None, thread=question.thread)
    return f"/run?{urlencode({'id': question.run, 'thread': question.thread})}"


def _fork(site: Site, form: Form) -> str:
    origin = site.store.thread(_thread_id(form), namespace=form.get("ns", ""))
    fork = origin.fork(form.get("new", ""), checkpoint=form.get("at") or None)
    return f"/thread?{urlencode({'id': fork.id})}"


def _edit(site: Site, form: Form) -> str:
    state, path = _state(site, form), form.get("path", "")
    try:
        value = OpaqueCodec().unpack(packed(json.loads(form.get("value", ""))))
    except (ValueError, RecursionError, OutliveError) as error:
        raise BadArgument(f"this is not the JSON of a value: {error}; nothing was saved") from None
    edited = replace_at(state, path, value)
    thread, at = site.store.thread(_thread_id(form), namespace=form.get("ns", "")), form.get("at") or None
    if form.get("new"):
        thread, at = thread.fork(form["new"], checkpoint=at), None
    options: dict[str, Any] = {"source": "update", "metadata": {"edited": path or "state", "by": _login()}}
    saved = thread.save(edited, **options) if at is None else thread.save(edited, parent=at, **options)
    return f"/thread?{urlencode({'id': thread.id, 'ns': thread.namespace, 'at': saved.id, 'view': 'diff'})}"


def _delete(site: Site, form: Form) -> str:
    id = _thread_id(form)
    if form.get("confirm") != id:
        raise BadArgument(f"type the id of the thread, {id!r}, to delete it; nothing was deleted")
    site.store.delete(id)
    return "/threads"


def _prune(site: Site, form: Form) -> str:
    id = _thread_id(form)
    site.store.thread(id).prune(keep_last=_keep(form))
    return f"/thread?{urlencode({'id': id})}"


_DEEDS: dict[str, Callable[[Site, Form], str]] = {
    **{act: (lambda site, form, act=act: _change_run(site, form, act)) for act in RUN_ACTS},  # type: ignore[misc]
    "answer": _answer,
    "fork": _fork,
    "edit": _edit,
    "delete": _delete,
    "prune": _prune,
}


# What a form names


def _thread_id(form: Form) -> str:
    if not form.get("id"):
        raise BadArgument("the form names no thread")
    return form["id"]


def _keep(form: Form) -> int:
    text = form.get("keep", "10")
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise BadArgument(f"the number of checkpoints to keep must be at least 1, not {text!r}")
    return int(text[:9])


def _run(site: Site, form: Form) -> Any:
    run = site.store.find_run(form.get("id", ""), thread=form.get("thread") or None)
    if run is None:
        raise RunMissing(form.get("id", ""))
    return run


def _question(site: Site, form: Form) -> Any:
    listed = site.store.questions(status=None, thread=form.get("thread") or None, events=True)
    for question in listed:
        if (question.run, question.name) == (form.get("run"), form.get("name")):
            return question
    raise BadArgument(f"run {form.get('run', '')!r} has not asked {form.get('name', '')!r}")


def _state(site: Site, form: Form) -> Any:
    """Return the state to edit. What a graph stores depends on versions that an edit would not change."""
    thread = site.store.thread(_thread_id(form), namespace=form.get("ns", ""))
    checkpoint = thread.checkpoint(form.get("at") or None)
    if checkpoint is None:
        raise BadArgument(f"thread {thread.id!r} has no such checkpoint")
    if read_graph(checkpoint.state) is not None:
        raise BadArgument(
            "LangGraph would not notice this edit, since versions of channels stay the same; in your program call "
            f"graph.update_state({{'configurable': {{'thread_id': {thread.id!r}, 'checkpoint_id': {checkpoint.id!r}}}}}, values)"
        )
    if HIDDEN in json.dumps(site.access.redaction.clean(to_json(checkpoint.state))) and site.access.redaction:
        raise BadArgument("some values of this state are hidden here, so it cannot be edited")
    return checkpoint.state


def _login() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user id without a name
        return ""
