"""The tools that change a run: answer a question, give it back, park it, cancel it. Only with --write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlive.cli.lookup import find_run
from outlive.cli.mcp.desk import Answer, Desk
from outlive.cli.mcp.size import fit
from outlive.errors import BadArgument, RunEnded
from outlive.view.answers import parse_answer
from outlive.view.escape import escape_terminal
from outlive.view.items import changed_run_item, question_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.units import parse_moment

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo


def answer(desk: Desk, *, run: str, question: str, value: Any, by: str, thread: str | None) -> Answer:
    store, info = desk.store, _run(desk, run, thread)
    asked = _question(desk, info, question)
    if isinstance(value, str) and asked.schema:
        value = parse_answer(value, asked.schema)  # some clients send every value as a text
    answered = store.answer(info.id, asked.name, value, by=by, thread=info.thread)
    now = store.find_run(info.id, thread=info.thread)
    item = {**question_item(answered), "run_status": info.status if now is None else now.status}
    return Answer([fit(desk.clean(item))])


def _question(desk: Desk, info: RunInfo, name: str) -> QuestionInfo:
    listed = desk.store.questions(status=None, thread=info.thread, events=True)
    asked = {question.name: question for question in listed if question.run == info.id}
    if name in asked:
        return asked[name]
    names = [escape_terminal(name) for name, question in asked.items() if question.status == "open"]
    known = f"it asks {', '.join(map(repr, names[:8]))}" if names else "it has no open question"
    raise BadArgument(f"run '{escape_terminal(info.id)}' has not asked '{escape_terminal(name)}'; {known}")


def retry(desk: Desk, *, run: str, thread: str | None, not_before: str | None) -> Answer:
    info = _run(desk, run, thread)
    was = LeaseClock.of(desk.store).standing(info)
    if not_before is None:
        desk.store.give_back(info)
    else:
        due = parse_moment("not_before", not_before)
        desk.store.retry(info.id, thread=info.thread, not_before=due)
    status = "released" if not_before is None else "waiting"
    return Answer([changed_run_item(info, was=was, status=status)])


def park(desk: Desk, *, run: str, thread: str | None) -> Answer:
    return _end(desk, run, thread, "parked")


def cancel(desk: Desk, *, run: str, thread: str | None) -> Answer:
    return _end(desk, run, thread, "cancelled")


def _end(desk: Desk, run: str, thread: str | None, status: str) -> Answer:
    info = _run(desk, run, thread)
    was = LeaseClock.of(desk.store).standing(info)
    if info.status in ("completed", status):
        raise RunEnded(info.id, info.status)
    (desk.store.park if status == "parked" else desk.store.cancel)(info.id, thread=info.thread)
    return Answer([changed_run_item(info, was=was, status=status)])


def _run(desk: Desk, id: str, thread: str | None) -> RunInfo:
    """Return the run to change. Its id must be complete: the beginning of one may soon match another run."""
    info = find_run(desk.store, id, thread=thread)
    if info.id != id and escape_terminal(info.id) != id:
        raise BadArgument(
            f"give the complete id of the run, '{escape_terminal(info.id)}'; nothing was changed"
        )
    return info
