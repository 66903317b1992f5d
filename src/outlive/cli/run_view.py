"""Prints runs with their leases, waits, attempts, steps and responses: for `runs`, `runs show` and `recover`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.table import Column, print_fields, print_table, standing_style
from outlive.cli.question_view import show_questions
from outlive.view.items import question_item
from outlive.view.opaque import read_packed
from outlive.view.run_text import (
    describe_failures,
    describe_lease,
    describe_now,
    describe_progress,
    describe_reason,
    format_cost,
    format_tokens,
)
from outlive.view.runs import RunView, is_number
from outlive.view.units import format_age, format_elapsed, format_time, parse_iso
from outlive.view.values import lines, one_line

if TYPE_CHECKING:
    from outlive.runs.attempts import Attempt
    from outlive.runs.lease import RunInfo
    from outlive.runs.step_record import StepInfo

_UNLIMITED = 1_000_000  # characters


# A table of runs


def show_runs(items: list[dict[str, Any]], *, are_all: bool = True) -> None:
    if not items:
        print("no runs" if are_all else "no runs; --all includes completed and cancelled runs")
        return
    ids = shorten_ids(item["id"] for item in items)
    columns = (
        Column("RUN", is_id=True), Column("STATUS", keeps=True, styles=standing_style), Column("THREAD", is_id=True), Column("AGENT", drops=3), Column("OWNER", drops=2),
        Column("LEASE", keeps=True), Column("ATTEMPT", right=True, keeps=True, drops=1), Column("FAILURES", right=True, keeps=True, drops=9), Column("AT", drops=7), Column("NOW"), Column("TOKENS", right=True, drops=6),
        Column("COST", right=True, drops=5), Column("STARTED", keeps=True, drops=8), Column("ERROR", drops=4),
    )  # fmt: skip
    print_table(columns, [(ids[item["id"]], *run_cells(item)) for item in items])


def run_cells(item: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the list says of a run after its id."""
    owner = item["owner"]
    return (
        item["standing"],
        item["thread"],
        item["agent"] or "",
        f"{owner['pid']}@{owner['host']}" if owner and item["status"] == "running" else "",
        describe_lease(item),
        str(item["attempt"]),
        describe_failures(item),
        describe_progress(item),
        describe_now(item),
        format_tokens(item),
        format_cost(item["cost_usd"]),
        format_age(parse_iso(item["started_at"])),
        item["error"] or "",
    )


# One run


def show_run(view: RunView, full: bool) -> None:
    item, info, steps = view.item(), view.info, view.steps()
    room = _UNLIMITED if full else 200
    print_fields(
        [
            ("run", info.id),
            ("status", item["standing"]),
            ("thread", info.thread + (f"  (namespace {info.namespace})" if info.namespace else "")),
            ("agent", info.agent or ""),
            ("attempt", f"{info.attempt}; {info.failures} of at most {info.max_attempts} failed"),
            ("owner", str(info.owner) if info.owner else ""),
            ("lease", describe_lease(item)),
            *(_wait_fields(item["waits"]) if item["waits"] is not None else [("now", describe_now(item))]),
            ("at", describe_progress(item)),
            ("completed phases", ", ".join(map(str, info.completed_phases))),
            ("parent", info.parent or ""),
            ("code version", info.code_version or ""),
            ("priority", str(info.priority or "")),
            ("attributes", one_line(dict(info.attributes), room) if info.attributes else ""),
            ("tokens", format_tokens(item)),
            ("cost", format_cost(item["cost_usd"])),
            ("usage", one_line(dict(info.usage), room) if info.usage else ""),
            (
                "budget",
                "" if info.budget is None else _budget(info, sum(step.kind == "step" for step in steps)),
            ),
            ("started", format_time(info.started_at)),
            ("updated", format_time(info.updated_at)),
            ("ended", format_time(info.ended_at)),
            ("prompt", "" if info.prompt is None else one_line(read_packed(info.prompt), room)),
            ("error", info.error or ""),
        ]
    )
    if info.result is not None:
        print("\nresult\n" + "\n".join(lines(info.result, full=full)))
    if questions := [question for question in view.questions() if question.status == "open"]:
        print()
        show_questions([question_item(question) for question in questions], full=full)
    if len(info.attempts) > 1:
        print()
        _show_attempts(info.attempts)
    if steps:
        print()
        _show_steps(steps, min(room, 80))
    if responses := view.responses():
        print()
        _show_responses(responses, min(room, 60))


def _budget(info: RunInfo, steps: int) -> str:
    """Return how much of its budget a run has used."""
    from outlive.runs.budget import tokens

    budget, cost = info.budget, info.usage.get("cost_usd")
    assert budget is not None
    parts = [
        None
        if budget.cost_usd is None
        else f"${cost if is_number(cost) else 0:.4f} of ${budget.cost_usd:.4f}",
        None if budget.tokens is None else f"{tokens(info.usage):,} of {budget.tokens:,} tokens",
        None if budget.steps is None else f"{steps:,} of {budget.steps:,} steps",
    ]
    return ", ".join(filter(None, parts))


def _wait_fields(waits: Mapping[str, Any]) -> list[tuple[str, str]]:
    since, until = parse_iso(waits["since"]), parse_iso(waits["until"])
    return [("waits", describe_reason(waits)), ("since", format_time(since)), ("until", format_time(until))]


def _show_attempts(attempts: Sequence[Attempt]) -> None:
    columns = (
        Column("ATTEMPT", right=True), Column("OWNER"), Column("BEGAN", keeps=True), Column("TOOK", right=True, keeps=True),
        Column("ENDED", keeps=True), Column("ERROR"),
    )  # fmt: skip
    rows = [
        (
            str(attempt.number),
            attempt.owner,
            format_age(attempt.began_at),
            format_elapsed(attempt.began_at, attempt.ended_at),
            attempt.outcome or "",
            attempt.error or "",
        )
        for attempt in attempts
    ]
    print_table(columns, rows)


def _show_steps(steps: list[StepInfo], room: int) -> None:
    """Print the steps in the order in which they began, each after its calls that failed."""
    columns = (
        Column("STEP"), Column("KEY"), Column("KIND", keeps=True, drops=2), Column("STATUS", keeps=True), Column("TRY", right=True, keeps=True, drops=1),
        Column("ATTEMPT", right=True, keeps=True, drops=4), Column("BEGAN", keeps=True, drops=3), Column("TOOK", right=True, keeps=True), Column("VALUE"),
    )  # fmt: skip
    has_attempts = any(step.attempt > 1 for step in steps)
    rows = [row for step in steps for row in _step_rows(step, has_attempts, room)]
    print_table(columns, rows)


def _step_rows(step: StepInfo, has_attempts: bool, room: int) -> Iterator[tuple[str, ...]]:
    kind = "effect" if step.effect_key is not None else step.kind.removeprefix("step")
    place = (step.name, step.key.removeprefix("="), kind)
    first = step.tries - len(step.failures)  # earlier ones are not kept
    calls = [
        *(("raised", failed.attempt, failed.began_at, failed.ended_at, failed.error) for failed in step.failures),
        (step.status, step.attempt, step.began_at, step.ended_at, step.error or _value(step, room)),
    ]  # fmt: skip
    for number, (status, attempt, began, ended, text) in enumerate(calls, first):
        yield (
            *place,
            status,
            str(number) if step.tries > 1 else "",
            str(attempt or "") if has_attempts else "",
            format_age(began),
            format_elapsed(began, ended),
            text,
        )


def _value(step: StepInfo, room: int) -> str:
    return one_line(step.value, room) if step.status == "done" else ""


def _show_responses(responses: list[dict[str, Any]], room: int) -> None:
    columns = (
        Column("MODEL"), Column("STATUS", keeps=True), Column("ATTEMPTS", right=True), Column("TOKENS", right=True),
        Column("COST", right=True), Column("TEXT"),
    )  # fmt: skip
    rows = [
        (
            f"{response.get('model_id')}{' #' + str(response['ordinal'] + 1) if response.get('ordinal') else ''}",
            str(response.get("status")),
            str(response.get("attempts", "")),
            format_tokens(response),
            format_cost(response.get("cost_usd")),
            response.get("error") or one_line(response.get("text", ""), room),
        )
        for response in responses
    ]
    print_table(columns, rows)
