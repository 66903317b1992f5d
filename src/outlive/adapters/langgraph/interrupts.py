"""Interrupts of a graph as questions of its run.

A graph that stops at `interrupt()` has stored, with the checkpoint, what it asks. Its run asks the
same: one question for each interrupt, named `node:id` by the node and the first characters of the
interrupt's id. The run waits for all of them, and then the graph continues with
`Command(resume={id: answer, ...})`. After a crash in between the same questions return the same
answers, and LangGraph runs the node again, as it does whenever a node is interrupted.

The payload of a question is for people and for processes without the classes of the graph, so it is
plain: models and dataclasses become dicts. With a serializer that decides alone what its bytes look
like, such as one that encrypts, the payload has no value: it would be readable. It also has none
when it is too large for a question, but its size, `value_bytes`: the value is in the checkpoint.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from outlive.adapters.langgraph.packed_values import is_packed, pack, unpack
from outlive.adapters.langgraph.values.codec import ValueCodec
from outlive.errors import BadArgument, Unencodable
from outlive.runs.answer_schema import schema_of
from outlive.runs.lease import RunInfo
from outlive.runs.questions import QuestionInfo, check_readable
from outlive.runs.waits import Question
from outlive.store import AsyncStore

_UNANSWERED = ("waiting", "released")  # a run that is released has its answers, and continues with them
_LONG_AGO = dt.datetime.min.replace(tzinfo=dt.UTC)
_ID, _NODE = 12, 100  # characters of an interrupt's id and its node in the name of its question
_MOST_BYTES = 512 << 10  # of a payload; the question also has room for its schema and its answer


def questions_of(state: Any, codec: ValueCodec) -> dict[str, Question]:
    """Return the questions that a graph asks in a state, by name; none when it does not wait."""
    return {
        _name(task.name, interrupt): Question(_payload(task.name, interrupt, codec), _schema(interrupt))
        for task in state.tasks
        for interrupt in task.interrupts
    }


def _name(node: str, interrupt: Any) -> str:
    return f"{' '.join(node.split())[:_NODE]}:{interrupt.id[:_ID]}"


def resumed_by(questions: Mapping[str, Question], answers: Mapping[str, Any], codec: ValueCodec) -> Any:
    """Return the input with which a graph continues."""
    from langgraph.types import Command  # the extra needs only langgraph-checkpoint

    values = {name: unpack(codec, value) if is_packed(value) else value for name, value in answers.items()}
    return Command(resume={question.payload["id"]: values[name] for name, question in questions.items()})


async def answer_run(
    store: AsyncStore, run: RunInfo, input: Any, codec: ValueCodec, *, is_named: bool
) -> bool:
    """If the input is the answer for which a run of the thread waits, store it, and let `run` be that run.

    Returns whether `run` is one that may exist already. Raises AlreadyAnswered, AnswerInvalid, and
    BadArgument for an answer to several questions that does not say which.
    """
    resume = getattr(input, "resume", None) if type(input).__name__ == "Command" else None
    if resume is None:
        return is_named
    asked = []
    async for question in store.questions(status=None, thread=run.thread):
        check_readable(question)  # it may be the one that is answered
        if run.agent in (None, question.agent) and _interrupt_id(question) is not None:
            asked.append(question)
    asked = [question for question in asked if question.status in ("open", "answered")]
    if not asked:
        return is_named
    # The newest: an earlier run may still wait for what the graph does not ask any more.
    waiting = max(asked, key=lambda question: question.asked_at or _LONG_AGO).run
    if (
        stored := await store.find_run(waiting, thread=run.thread)
    ) is None or stored.status not in _UNANSWERED:
        return is_named
    if is_named and waiting != run.id:
        raise BadArgument(
            f"run {waiting!r} of this thread waits for this answer; leave out run_id, or pass that one"
        )
    if input.update is not None or input.goto:
        raise BadArgument(
            "a run that waits takes Command(resume=...) alone; change the state with graph.update_state before"
        )
    ids = {_interrupt_id(question): question.name for question in asked if question.run == waiting}
    still = {
        _interrupt_id(question): question.name
        for question in asked if question.run == waiting and question.status == "open"
    }  # fmt: skip
    if not (isinstance(resume, Mapping) and resume and resume.keys() <= ids.keys()):
        if len(still or ids) > 1:
            raise BadArgument(
                f"the graph asks {len(still)} questions; answer with Command(resume={{id: answer}}): {[*still]}"
            )
        resume = dict.fromkeys(still or ids, resume)
    schemas = {question.name: question.schema for question in asked if question.run == waiting}
    for id, value in resume.items():
        answer = _answer(store, value, schemas[ids[id]], codec)
        await store.answer(waiting, ids[id], answer, by="Command(resume=...)", thread=run.thread)
    run.id = waiting
    return True


def _answer(store: AsyncStore, value: Any, schema: Any, codec: ValueCodec) -> Any:
    """Return an answer in a form that the store takes: objects are packed as the graph's serializer does."""
    if schema is not None:
        return to_jsonable_python(value)
    if codec.is_open:
        with contextlib.suppress(Unencodable):
            store._engine.codec.pack(value)
            return value
    return pack(codec, value, "answer")


def _interrupt_id(question: QuestionInfo) -> str | None:
    payload = question.payload
    return payload.get("id") if isinstance(payload, dict) and "node" in payload else None


def _payload(node: str, interrupt: Any, codec: ValueCodec) -> dict[str, Any]:
    payload = {"node": node, "id": interrupt.id}
    if not codec.is_open:
        return payload
    try:
        value = to_jsonable_python(
            interrupt.value,
            bytes_mode="base64",
            fallback=lambda part: f"<{type(part).__qualname__}>",
        )
    except PydanticSerializationError:  # of code of the program; the value is in the checkpoint
        value = f"<{type(interrupt.value).__qualname__}>"
    size = len(codec.pack(value))
    return {**payload, "value": value} if size <= _MOST_BYTES else {**payload, "value_bytes": size}


def _schema(interrupt: Any) -> Any:
    schema = getattr(interrupt, "response_schema", None)  # older versions have none
    try:
        schema_of(schema)
    except BadArgument:
        return None  # it has keywords that are not checked here; LangGraph checks the answer
    return schema
