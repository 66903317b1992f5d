"""What each act will do, as a page with the form that does it. Only with write=True."""

from __future__ import annotations

import getpass
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from outlive.errors import BadArgument, OutliveError
from outlive.format.diff import diff
from outlive.format.readable import packed
from outlive.inspector import targets
from outlive.inspector.access import MAX_CHANGES, MAX_FORM_BYTES
from outlive.inspector.forms import Input, inputs_for
from outlive.inspector.site import Exact, Site, command_line
from outlive.inspector.targets import Form
from outlive.view.escape import escape_json, escape_terminal
from outlive.view.items import question_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.opaque import OpaqueCodec
from outlive.view.path import pick, replace_at
from outlive.view.units import format_count, format_size
from outlive.view.values import to_json

READ_ONLY = "This inspector is read-only; start it with outlive ui --write."
RUN_ACTS = {"give-back": "give back", "park": "park", "cancel": "cancel"}
_JSON_HINT = 'JSON; what JSON does not have is an object with a $ key, such as {"$tuple": [1, 2]}'


def ask(site: Site, request: Request) -> Response:
    """Show what an act will do, with the form that does it."""
    if not site.access.is_writable:
        raise HTTPException(403, READ_ONLY)
    act, params = request.path_params["act"], request.query_params
    if act not in _QUESTIONS:
        raise HTTPException(404)
    return _page(site, request, act, _QUESTIONS[act](site, params))


def preview(site: Site, request: Request, form: Form) -> Response:
    """Show what an edit changes, before it is saved."""
    edited = edit_state(site, form)
    changes = diff(targets.editable_state(site, form), edited)
    where = f"thread {form['new']!r}" if form.get("new") else "a branch from this checkpoint"
    values = {
        "title": f"Save this edit of {escape_terminal(form.get('path', '')) or 'the state'}?",
        "what": f"The edited state is saved as {where}. Nothing is overwritten, and no agent runs.",
        "button": "Save",
        "changes": changes[:MAX_CHANGES],
        "hidden": {
            "value": Exact(escape_json(form.get("value", ""))),
            "new": Exact(escape_json(form.get("new", ""))),
        },
        "command": command_line("show", targets.thread_id(form), form.get("at", "")),
    }
    return _page(site, request, "edit", values)


def _page(site: Site, request: Request, act: str, values: Mapping[str, Any]) -> Response:
    plain: dict[str, Any] = {
        "target": f"/act/{act}",
        "back": "/",
        "payload": None,
        "line": "",
        "changes": None,
        "hidden": {},
        "inputs": [],
        "is_dangerous": False,
        "named": dict(request.query_params),
    }
    return site.page(request, "ask", **{**plain, **values})


def edit_state(site: Site, form: Form) -> Any:
    """Return a state with the value of a form at its path. Raises BadArgument for what is no value."""
    state, path = targets.editable_state(site, form), form.get("path", "")
    try:
        value = OpaqueCodec().unpack(packed(json.loads(form.get("value", ""))))
    except (ValueError, RecursionError, OutliveError) as error:
        raise BadArgument(f"this is not the JSON of a value: {error}; nothing was saved") from None
    return replace_at(state, path, value)


def login() -> str:
    """Return who uses this machine."""
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user id without a name
        return ""


# Runs and questions


def _ask_run(site: Site, params: Form, act: str) -> dict[str, Any]:
    run = targets.find_run(site, params)
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
        "command": command_line(verb, run.id),
    }


def _ask_answer(site: Site, params: Form) -> dict[str, Any]:
    question = targets.find_question(site, params)
    item = site.access.redaction.clean(question_item(question))
    name, run = escape_terminal(question.name), escape_terminal(question.run)
    values = {
        "title": f"Answer {name}",
        "payload": item["payload"],
        "command": command_line("answer", question.run, question.name),
    }
    if question.status != "open":
        by = f" by {question.by}" if question.by else ""
        return {**values, "what": f"This question is {question.status}{by}.", "button": ""}
    who = Input("by", "Who answers", value=login())
    what = f"Run {run} waits for this. The first answer counts; then any worker can claim the run."
    schema = None if question.schema is None else site.access.redaction.clean(dict(question.schema))
    inputs = [*inputs_for(schema), who]
    return {**values, "what": what, "button": "Answer", "inputs": inputs}


# Threads


def _ask_fork(site: Site, params: Form) -> dict[str, Any]:
    id = targets.thread_id(params)
    new = f"{id}-fork"
    return {
        "title": f"Fork thread {escape_terminal(id)}",
        "what": "A new thread starts with this checkpoint. The old thread stays as it is.",
        "button": "Fork",
        "inputs": [Input("new", "The id of the new thread", value=new, required=True)],
        "command": command_line("fork", id, new, at=params.get("at")),
    }


def _ask_edit(site: Site, params: Form) -> dict[str, Any]:
    path, command = params.get("path", ""), command_line("show", params.get("id", ""), params.get("at", ""))
    title = f"Edit {escape_terminal(path) or 'the state'}"
    if targets.is_graph(site, params):
        what = "LangGraph decides by the versions of its channels what runs next, and an edit here would not change them. Call this in your program:"
        line = targets.update_line(params)
        return {"title": title, "what": what, "line": line, "button": "", "command": command}
    text = json.dumps(to_json(pick(targets.editable_state(site, params), path)), indent=2, ensure_ascii=False)
    if len(text) > MAX_FORM_BYTES // 4:
        raise BadArgument(f"this value has {format_size(len(text))} as JSON; choose a smaller part of it")
    rows = min(24, text.count("\n") + 4)
    value = Input("value", "The new value", "json", Exact(escape_json(text)), _JSON_HINT, True, rows)
    return {
        "title": title,
        "what": "The edited state is saved as a branch from this checkpoint, and becomes the head of the thread. "
        "Nothing is overwritten. You see what changes before it is saved.",
        "button": "Show what changes",
        "target": "/preview/edit",
        "inputs": [value, Input("new", "Save into a new thread instead (optional id)")],
        "command": command,
    }


def _ask_delete(site: Site, params: Form) -> dict[str, Any]:
    thread = site.store.thread(targets.thread_id(params))
    sizes, runs = thread.size(), sum(1 for _ in site.store.runs(thread=thread.id))
    contents = f"{format_count(sizes.checkpoints, 'checkpoint')} ({format_size(sizes.stored_bytes)}) and {format_count(runs, 'run')}"
    return {
        "title": f"Delete thread {escape_terminal(thread.id)}?",
        "what": f"Its {contents} are deleted, in all namespaces. This cannot be undone.",
        "button": "Delete the thread",
        "is_dangerous": True,
        "inputs": [Input("confirm", "Type the id of the thread", required=True)],
        "command": command_line("rm", thread.id),
    }


def _ask_prune(site: Site, params: Form) -> dict[str, Any]:
    thread, keep = site.store.thread(targets.thread_id(params)), targets.count_to_keep(params)
    pruned = thread.prune(keep_last=keep, dry_run=True)
    return {
        "title": f"Prune thread {escape_terminal(thread.id)}?",
        "what": f"Keeps the newest {keep} of each namespace and open interrupts. Deletes "
        f"{format_count(pruned.checkpoints, 'checkpoint')} ({format_size(pruned.freed_bytes)}). This cannot be undone.",
        "button": "Prune",
        "is_dangerous": True,
        "command": command_line("prune", thread.id, keep_last=str(keep)),
    }


_QUESTIONS: dict[str, Callable[[Site, Form], dict[str, Any]]] = {
    **{act: (lambda site, params, act=act: _ask_run(site, params, act)) for act in RUN_ACTS},  # type: ignore[misc]
    "answer": _ask_answer,
    "fork": _ask_fork,
    "edit": _ask_edit,
    "delete": _ask_delete,
    "prune": _ask_prune,
}
