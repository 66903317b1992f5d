"""What a form or an address names: a thread, a run, a question, a state to edit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from outlive.errors import BadArgument, RunMissing
from outlive.inspector.access import MAX_STATE_BYTES
from outlive.inspector.site import Site
from outlive.runs.questions import check_readable
from outlive.view.graph import read_graph
from outlive.view.redaction import HIDDEN
from outlive.view.units import format_size
from outlive.view.values import to_json

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo
    from outlive.values import Checkpoint

Form = Mapping[str, str]


def thread_id(form: Form) -> str:
    if not form.get("id"):
        raise BadArgument("the form names no thread")
    return form["id"]


def count_to_keep(form: Form) -> int:
    text = form.get("keep", "10")
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise BadArgument(f"the number of checkpoints to keep must be at least 1, not {text!r}")
    return int(text[:9])


def find_run(site: Site, form: Form) -> RunInfo:
    run = site.store.find_run(form.get("id", ""), thread=form.get("thread") or None)
    if run is None:
        raise RunMissing(form.get("id", ""))
    return run


def find_question(site: Site, form: Form) -> QuestionInfo:
    listed = site.store.questions(status=None, thread=form.get("thread") or None, events=True)
    for question in listed:
        if (question.run, question.name) == (form.get("run"), form.get("name")):
            check_readable(question)
            return question
    raise BadArgument(f"run {form.get('run', '')!r} has not asked {form.get('name', '')!r}")


def is_graph(site: Site, form: Form) -> bool:
    """Tell whether LangGraph wrote a state: it depends on versions that an edit would not change."""
    return read_graph(_load(site, form).state) is not None


def editable_state(site: Site, form: Form) -> Any:
    """Return the state to edit."""
    checkpoint = _load(site, form)
    if read_graph(checkpoint.state) is not None:
        raise BadArgument(f"LangGraph would not notice this edit; in your program call {update_line(form)}")
    if site.access.redaction and HIDDEN in json.dumps(site.access.redaction.clean(to_json(checkpoint.state))):
        raise BadArgument("some values of this state are hidden here, so it cannot be edited")
    return checkpoint.state


def update_line(form: Form) -> str:
    """Return the line of a program that edits the state of a graph."""
    place = {"thread_id": thread_id(form), "checkpoint_ns": form.get("ns", "")}
    if form.get("at"):
        place["checkpoint_id"] = form["at"]
    return f"graph.update_state({{'configurable': {place!r}}}, values)"


def _load(site: Site, form: Form) -> Checkpoint:
    thread = site.store.thread(thread_id(form), namespace=form.get("ns", ""))
    at = form.get("at") or None
    info = site.store.describe(thread, at)
    if info is None:
        raise BadArgument(f"thread {thread.id!r} has no such checkpoint")
    if info.state_bytes > MAX_STATE_BYTES:
        raise BadArgument(f"this state has {format_size(info.state_bytes)}; edit it in a program")
    checkpoint = thread.checkpoint(at)
    if checkpoint is None:
        raise BadArgument(f"thread {thread.id!r} has no such checkpoint")
    return checkpoint
