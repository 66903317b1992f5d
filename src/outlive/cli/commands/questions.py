"""Commands about what runs ask people: questions, answer."""

from __future__ import annotations

import getpass
import heapq
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from outlive.cli.command import argument, command, flag, limit_of, option, watched_limit_option
from outlive.cli.commands.runs import thread_option
from outlive.cli.context import Call
from outlive.cli.lookup import find_run, find_thread
from outlive.cli.question_view import question_cells, show_question, show_questions
from outlive.cli.watch import Listing, answer_list, watch_option
from outlive.errors import AnswerRefused, BadArgument
from outlive.view.advice import message_with_advice, question_damage
from outlive.view.answers import describe_schema, parse_answer
from outlive.view.escape import escape_terminal, quote_argument, unescape
from outlive.view.items import question_item
from outlive.view.units import parse_duration
from outlive.view.values import one_line

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo
    from outlive.view.opened_store import OpenedStore

_STATUSES = ("open", "answered", "expired", "withdrawn")


# questions


@command(
    "questions",
    option("--status", type=click.Choice([*_STATUSES, "all"]), default="open", show_default=True, help="Only questions with this status."),
    option("--agent", metavar="AGENT", help="Only questions of this agent."),
    option("--thread", metavar="THREAD", help="Only questions of this thread."),
    option("--older-than", metavar="TIME", help="Only questions that were asked at least so long ago, such as 2h or 3d."),
    flag("--events", help="Include the events that runs wait for."),
    flag("--full", help="Do not shorten long values."),
    watched_limit_option("questions"),
    watch_option(),
)  # fmt: skip
def questions(
    call: Call,
    status: str,
    agent: str | None,
    thread: str | None,
    older_than: str | None,
    events: bool,
    full: bool,
    limit: int | None,
    watch: bool,
) -> None:
    """List the open questions of all runs, the oldest first: what is asked, since when, and what an answer has to be.

    A damaged question is listed with the reason; then the exit code is 1.

    \b
    outlive questions --agent refunds --older-than 1d
    outlive questions --watch
    """  # noqa: D301  # click reads the backspace as: do not wrap
    older_than_s = None if older_than is None else parse_duration("--older-than", older_than)
    with call.open() as store:
        thread_id = None if thread is None else find_thread(store, thread)

        most = limit_of(limit, watches=watch)

        def look() -> Listing:
            listed = store.questions(
                status=None if status == "all" else status,
                agent=agent,
                older_than_s=older_than_s,
                thread=thread_id,
                events=events,
            )
            page = (
                sorted(listed, key=_asked) if most is None else heapq.nsmallest(most + 1, listed, key=_asked)
            )
            items, damage = (
                [question_item(question) for question in page[:most]],
                question_damage(page[:most]),
            )
            return Listing(
                items,
                lambda: (
                    show_questions(items, full=full) if items else print(f"no {_adjective(status)}questions")
                ),
                name=_name,
                cells=question_cells,
                notes=[
                    *(["more: use --limit"] if len(page) > len(items) and not call.is_json else []),
                    *damage,
                ],
                is_ok=not damage,
            )

        answer_list(call, look, watches=watch)


def _asked(question: QuestionInfo) -> tuple[float, str, str]:
    return (question.asked_at.timestamp() if question.asked_at else 0.0, question.run, question.name)


def _adjective(status: str) -> str:
    return "" if status == "all" else f"{status} "


def _name(item: Mapping[str, Any]) -> str:
    """Return the run and the name of a question, as arguments of `outlive answer`."""
    return f"{quote_argument(item['run'])} {quote_argument(item['name'])}"


# answer


@command(
    "answer",
    argument("RUN"),
    argument("QUESTION", required=False),
    argument("VALUE", required=False),
    flag("--text", help="Take VALUE as text, even if it is JSON."),
    option("--by", metavar="NAME", help="Who answers. Default: your login name."),
    flag("--early", help="Keep the answer for a question that the run has not asked yet."),
    thread_option(),
)
def answer(
    call: Call,
    run: str,
    question: str | None,
    value: str | None,
    text: bool,
    by: str | None,
    early: bool,
    thread: str | None,
) -> None:
    """Answer a question of a run, or send it an event. The first answer counts.

    VALUE is JSON, or else text; - reads it from standard input. Without VALUE you are shown the question and asked for
    the answer, without QUESTION for all that the run waits for. A run that has all its answers can be claimed by any
    worker.

    \b
    outlive answer refund-7 approve? true --by ada
    outlive answer refund-7
    """  # noqa: D301
    with call.open(writes=True) as store:
        info = find_run(store, run, thread=thread)
        asked = _questions_of(store, info)
        names = [name for name, known in asked.items() if known.status == "open"]
        if question is not None:
            names = [_find_name(info, asked, question, early)]
        elif not names:
            raise BadArgument(f"run '{escape_terminal(info.id)}' has no open question")
        giver = by or _login_name()
        answered = [
            _answer(store, info, name, asked.get(name), _read(value), is_text=text, by=giver)
            for name in names
        ]
        _report(call, store, info, answered)


def _questions_of(store: OpenedStore, info: RunInfo) -> dict[str, QuestionInfo]:
    questions = store.questions(status=None, thread=info.thread, events=True)
    return {question.name: question for question in questions if question.run == info.id}


def _find_name(info: RunInfo, asked: Mapping[str, QuestionInfo], text: str, is_early: bool) -> str:
    """Return the name of a question. A misspelled one would be kept as an early answer, and the run wait on."""
    for name in (text, unescape(text)):
        if name in asked or is_early:
            return name
    names = [escape_terminal(name) for name, question in asked.items() if question.status == "open"]
    known = f"it asks {', '.join(map(repr, names))}" if names else "it has no open question"
    raise BadArgument(
        f"run '{escape_terminal(info.id)}' has not asked '{escape_terminal(text)}'; {known}; "
        "--early keeps the answer until it does"
    )


def _read(value: str | None) -> str | None:
    if value != "-":
        return value
    return sys.stdin.read().removesuffix("\n")


def _login_name() -> str | None:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):  # a user id without a name
        return None


def _answer(
    store: OpenedStore,
    info: RunInfo,
    name: str,
    question: QuestionInfo | None,
    text: str | None,
    *,
    is_text: bool,
    by: str | None,
) -> QuestionInfo:
    from outlive.runs.questions import check_readable

    if question is not None:
        check_readable(question)
    schema = None if question is None else question.schema
    asks = text is None
    if asks:
        _check_terminal(name, schema)
        if question is not None:
            show_question(question_item(question))
    while True:
        given = click.prompt("answer", err=True) if text is None else text
        value = given if is_text else parse_answer(given, schema)
        try:
            return store.answer(info.id, name, value, by=by, thread=info.thread)
        except AnswerRefused as error:
            takes = describe_schema(schema)
            error.with_advice(f"it takes {takes}" if takes else None, error.summary)
            if not asks:
                raise
            print(f"outlive: {escape_terminal(message_with_advice(error))}", file=sys.stderr)


def _check_terminal(name: str, schema: object) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        takes = describe_schema(schema)
        raise BadArgument(
            f"give a VALUE as the answer to '{escape_terminal(name)}'" + (f": {takes}" if takes else "")
        )


def _report(call: Call, store: OpenedStore, info: RunInfo, answered: list[QuestionInfo]) -> None:
    run = store.find_run(info.id, thread=info.thread)
    status = info.status if run is None else run.status
    items = [{**question_item(question), "run_status": status} for question in answered]
    name = escape_terminal(info.id)
    sentences = [
        f"answered '{escape_terminal(item['name'])}' of run {name}: {one_line(item['value'])}"
        for item in items
    ]
    sentences.append(f"run {name} is {status}{_NEXT.get(status, '')}")
    call.answer(items, lambda: print("\n".join(sentences)))


_NEXT = {
    "released": ": a worker or the next outlive recover resumes it",
    "waiting": ": it waits for more",
    "running": ": it has the answer when it asks",
}
