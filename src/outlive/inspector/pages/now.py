"""What needs attention: questions, dead, hanging and parked runs, each with the reason and the act."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from outlive.backend import escape
from outlive.inspector.access import PAGE
from outlive.inspector.site import Site, command_line
from outlive.view.advice import question_damage
from outlive.view.answers import describe_schema
from outlive.view.items import question_item, worker_item
from outlive.view.run_text import QUIET_S
from outlive.view.runs import Usages, list_runs

if TYPE_CHECKING:
    from outlive.runs.questions import QuestionInfo

UNFINISHED = {"live", "dead", "waiting", "released", "parked", "failed"}
_MOST_RUNS, _MOST_QUESTIONS = 500, 10_000
_HEADINGS = {
    "dead": ("Dead", "The process died or lost its lease. A worker with a handler resumes it."),
    "hanging": ("Hanging", "The process renews its lease, but has written nothing for a minute or more."),
    "failed": ("Failed", "The agent raised an error. Nothing resumes it until you give it back."),
    "parked": ("Parked", "Set aside: nothing resumes it until you give it back."),
    "released": ("Released", "Any worker with a handler for the agent can claim it."),
    "waiting": ("Waiting", "For an answer, an event, a time or another run."),
    "live": ("Live", "A process is working on it."),
}


def open_questions(site: Site, damage: list[str], limit: int = PAGE) -> list[dict[str, Any]]:
    """Return the open questions, the oldest first. `damage` gets why one cannot be read."""
    listed = itertools.islice(site.store.questions(), _MOST_QUESTIONS)
    oldest = heapq.nsmallest(limit, listed, key=_asked)
    damage += question_damage(oldest)
    return [question_item(question) for question in oldest]


def _asked(question: QuestionInfo) -> tuple[float, str, str]:
    return (question.asked_at.timestamp() if question.asked_at else 0.0, question.run, question.name)


def group_runs(site: Site, damage: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs that have not ended, by how they stand. `damage` gets why one cannot be read."""
    views, _ = list_runs(site.store, UNFINISHED, None, None, _MOST_RUNS, None, Usages(), damage)
    groups: dict[str, list[dict[str, Any]]] = {name: [] for name in _HEADINGS}
    for view in views:
        item = view.item()
        is_hanging = item["standing"] == "live" and (item["quiet_s"] or 0.0) >= QUIET_S
        groups["hanging" if is_hanging else item["standing"]].append(item)
    return groups


def now(site: Site, request: Request) -> Response:
    damage: list[str] = []
    questions, groups = open_questions(site, damage), group_runs(site, damage)
    clean = site.access.redaction.clean
    return site.page(
        request,
        "now",
        questions=[{**clean(item), "takes": describe_schema(item["schema"])} for item in questions],
        groups=clean(groups),
        headings=_HEADINGS,
        counts={"questions": len(questions), **{name: len(items) for name, items in groups.items()}},
        workers=[worker_item(worker) for worker in site.store.workers()],
        damage=damage,
        command=command_line("runs"),
        json_link="/now.json",
        live="now",
    )


def now_json(site: Site, request: Request) -> Response:
    damage: list[str] = []
    items = [item for group in group_runs(site, damage).values() for item in group]
    return site.json("runs", sorted(items, key=lambda item: escape(item["id"])), is_ok=not damage)


def questions_json(site: Site, request: Request) -> Response:
    damage: list[str] = []
    items = open_questions(site, damage)
    return site.json("questions", items, is_ok=not damage)
