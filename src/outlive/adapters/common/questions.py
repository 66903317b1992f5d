"""Questions of an agent to a person: its run waits, and `store.answer` continues it.

Most are tool calls that need an approval. The answer is true or false, or an object that says more:
`{"approve": false, "message": "too expensive"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlive.adapters.common.current import Work
from outlive.adapters.common.plain import jsonable
from outlive.runs.waits import Question

_NAME = 100  # characters of the name of a tool in the name of a question
APPROVAL = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {
                "approve": {"type": "boolean"},
                "always": {"type": "boolean"},
                "message": {"type": "string"},
            },
            "required": ["approve"],
            "additionalProperties": False,
        },
    ]
}
# For frameworks that take no more than that.
YES_OR_NO = {
    "anyOf": [
        {"type": "boolean"},
        {
            "type": "object",
            "properties": {"approve": {"type": "boolean"}},
            "required": ["approve"],
            "additionalProperties": False,
        },
    ]
}


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a question for approval."""

    approve: bool
    always: bool = False  # also for later calls of this tool
    message: str | None = None  # for the model, with a refusal


def approval(tool: str, call_id: str, arguments: Any, **more: Any) -> tuple[str, Question]:
    """Return the question whether a tool may be called, and its name, which the id of the call makes unique."""
    payload = {"tool": tool, "arguments": jsonable(arguments), "call_id": call_id, **more}
    return f"{' '.join(tool.split())[:_NAME]}:{call_id}", Question(payload, APPROVAL)


def yes_or_no(tool: str, call_id: str, arguments: Any, **more: Any) -> tuple[str, Question]:
    """Return the same question, for an answer without a message and without a decision for later calls."""
    name, question = approval(tool, call_id, arguments, **more)
    return name, Question(question.payload, YES_OR_NO)


def decision_of(answer: Any) -> Decision:
    """Return what a person decided."""
    return Decision(**answer) if isinstance(answer, dict) else Decision(bool(answer))


async def ask_all(work: Work, questions: Mapping[str, Question]) -> dict[str, Any]:
    """Return the answers by name. Without all of them the run waits: raises RunSuspended.

    A question that was asked in an earlier attempt is asked as it was then: its name says which it
    is, and its payload may look different in another version of the program.
    """
    with work.guarded():
        first = {name: work.run._waits.first_asked(name) or asked for name, asked in questions.items()}
        return await work.run.ask_all(first)
