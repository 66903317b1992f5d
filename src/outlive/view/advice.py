"""The message of an error, and what to do about it at a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from outlive.errors import OutliveError

if TYPE_CHECKING:
    from outlive.runs.questions import QuestionInfo


def message_with_advice(error: OutliveError) -> str:
    """Return what went wrong, and what to do."""
    return "; ".join(filter(None, split_advice(error)))


def split_advice(error: OutliveError) -> tuple[str, str]:
    """Return what went wrong, and what to do, or "" if nothing is known."""
    return error.summary.replace("\n", " "), error.advice or ""


def describe_unreadable(what: str, error: str | None) -> str:
    """Return why a run or question of a list cannot be read, and what to do."""
    reason = (error or "it cannot be read").removeprefix("it ")
    return f"{what} {reason}; outlive verify lists all damage; restore the thread from a backup".replace(
        "\n", " "
    )


def question_damage(questions: Iterable[QuestionInfo]) -> list[str]:
    """Return why questions of a list cannot be read, and what to do."""
    unreadable = [question for question in questions if not question.is_readable]
    return [
        describe_unreadable(f"question {item.name!r} of run {item.run!r}", item.error) for item in unreadable
    ]
