"""Shows questions of runs: as a table, and as what a person is asked at a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.table import Column, print_fields, print_table
from outlive.view.answers import describe_schema
from outlive.view.units import format_age, parse_iso
from outlive.view.values import lines, one_line

_ROOM, _UNLIMITED = 60, 1_000_000  # characters of a value

Item = Mapping[str, Any]


def show_questions(items: Sequence[Item], *, full: bool = False) -> None:
    """Print questions as a table."""
    ids = shorten_ids(item["run"] for item in items)
    columns = (
        Column("QUESTION"), Column("RUN", is_id=True), Column("THREAD", is_id=True, drops=5), Column("AGENT", drops=4),
        Column("STATUS", keeps=True), Column("ASKED", keeps=True, drops=2), Column("DUE", keeps=True, drops=1), Column("TAKES", drops=3),
        Column("PAYLOAD"), Column("ANSWER"), Column("BY"), Column("ANSWERED", keeps=True, drops=6),
    )  # fmt: skip
    print_table(columns, [_row(item, ids[item["run"]], _UNLIMITED if full else _ROOM) for item in items])


def question_cells(item: Item) -> tuple[str, ...]:
    """Return what a line about a change says of a question after its run and name."""
    return _row(item, item["run"], _ROOM)[2:]


def _row(item: Item, run: str, room: int) -> tuple[str, ...]:
    is_answered = item["status"] == "answered"
    return (
        item["name"],
        run,
        item["thread"],
        item["agent"] or "",
        item["status"],
        format_age(parse_iso(item["asked_at"])),
        format_age(parse_iso(item["due_at"])) if item["status"] == "open" else "",
        describe_schema(item["schema"]),
        "" if item["payload"] is None else one_line(item["payload"], room),
        one_line(item["value"], room) if is_answered else "",
        item["by"] or "",
        format_age(parse_iso(item["answered_at"])),
    )


def show_question(item: Item) -> None:
    """Print one question, before a person is asked for the answer."""
    print_fields(
        [
            ("question", item["name"]),
            ("run", item["run"]),
            ("agent", item["agent"] or ""),
            ("asked", format_age(parse_iso(item["asked_at"]))),
            ("due", format_age(parse_iso(item["due_at"]))),
            ("takes", describe_schema(item["schema"])),
        ]
    )
    if item["payload"] is not None:
        print("\n" + "\n".join(lines(item["payload"], full=True)) + "\n")
