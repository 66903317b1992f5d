"""Shows runs with their leases, waits, attempts, steps and responses: what `runs`, `runs show` and `recover` print."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.backend import escape
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.output.escape import quote_argument
from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.items import USAGE_FIELDS, question_item, run_details, run_item
from outlive.cli.output.opaque import read_packed, unwrap
from outlive.cli.output.table import Column, print_fields, print_table, standing_style
from outlive.cli.output.units import (
    format_age,
    format_count,
    format_duration,
    format_elapsed,
    format_time,
    parse_iso,
)
from outlive.cli.output.values import lines, one_line
from outlive.cli.question_view import show_questions

if TYPE_CHECKING:
    from outlive.cli.opened_store import OpenedStore
    from outlive.runs.attempts import Attempt
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo
    from outlive.runs.step_record import StepInfo
    from outlive.runs.worker_record import WorkerInfo

_UNLIMITED = 1_000_000  # characters
_QUIET_S = 60.0  # without a write, before a list says so


class Workers:
    """The living workers of a store, read when they are first needed."""

    def __init__(self, store: OpenedStore) -> None:
        self._store = store
        self._infos: list[WorkerInfo] | None = None

    def can_claim(self, run: RunInfo) -> bool:
        """Tell whether one of them has a handler for a run."""
        if self._infos is None:
            self._infos = list(self._store.workers())
        return any(worker.handles(run.agent, run.code_version) for worker in self._infos)


class Usages:
    """What the models of runs used. While a list is watched, only that of runs that were written to is read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[object, dict[str, Any]]] = {}
        self._before = self._known

    def look_again(self) -> None:
        """Keep only what the last look at the list needed."""
        self._before, self._known = self._known, {}

    def of(self, run: RunInfo, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        entry = run._entry
        version = (
            None if entry is None else (entry.rank, entry.until)
        )  # every write of a run renews its lease
        known = self._before.get((run.thread, run.id))
        if known is None or known[0] != version:
            known = (version, read())
        self._known[run.thread, run.id] = known
        return known[1]


@dataclass(slots=True)
class RunView:
    """A run with its lease, steps and responses."""

    info: RunInfo
    clock: LeaseClock
    store: OpenedStore
    workers: Workers
    usages: Usages

    @classmethod
    def of(cls, store: OpenedStore, info: RunInfo) -> RunView:
        return cls(info, LeaseClock.of(store), store, Workers(store), Usages())

    def item(self) -> dict[str, Any]:
        left_s = self.clock.left_s(self.info) if self.info.status == "running" else None
        standing = self.clock.standing(self.info)
        return run_item(
            self.info,
            standing=standing,
            lease_left_s=left_s,
            usage=self._usage(),
            has_worker=self.workers.can_claim(self.info) if standing in ("dead", "released") else None,
        )

    def full_item(self) -> dict[str, Any]:
        steps, questions, responses = self.steps(), self.questions(), self.responses()
        return {**self.item(), **run_details(self.info, steps, questions, responses)}

    def _usage(self) -> dict[str, Any]:
        """Return tokens and cost as the run reports them, else the sum over its models."""
        usage = {
            name: self.info.usage[name] for name in USAGE_FIELDS if _is_number(self.info.usage.get(name))
        }
        return usage or self.usages.of(self.info, self._usage_of_models)

    def _usage_of_models(self) -> dict[str, Any]:
        responses = self.responses() if self.info.attempt else []  # a submitted run has asked nothing yet
        if not responses:
            return {}
        return {name: sum(response.get(name) or 0 for response in responses) for name in USAGE_FIELDS}

    def steps(self) -> list[StepInfo]:
        return self.store.steps(self.info.id, thread=self.info.thread)

    def questions(self) -> list[QuestionInfo]:
        """Return what the run asked, and the events that it waited for."""
        questions = self.store.questions(status=None, thread=self.info.thread, events=True)
        return [question for question in questions if question.run == self.info.id]

    def responses(self) -> list[dict[str, Any]]:
        """Return the fields of the responses of the models."""
        responses = self.store.responses(self.info.id, thread=self.info.thread)
        # Most commands open the store with a codec that builds no values: then these are fields already.
        fields = [unwrap(response) for response in responses]
        return [item if isinstance(item, dict) else item.to_snapshot() for item in fields]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_runs(
    store: OpenedStore,
    wanted: set[str],
    agent: str | None,
    thread: str | None,
    limit: int | None,
    after: str | None,
    usages: Usages,
) -> tuple[list[RunView], str | None]:
    """Return the runs in one of the wanted states by id, and the id after which there are more."""
    clock, workers = LeaseClock.of(store), Workers(store)
    usages.look_again()
    views: list[RunView] = []
    stored = {"running" if status in ("live", "dead") else status for status in wanted}
    for info in store.runs(status=sorted(stored), agent=agent, thread=thread):
        if after is not None and escape(info.id) <= escape(after):
            continue
        if wanted & {clock.standing(info), info.status}:
            if len(views) == limit:
                return views, views[-1].info.id
            views.append(RunView(info, clock, store, workers, usages))
    return views, None


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
        _lease(item),
        str(item["attempt"]),
        _failures(item),
        _progress(item),
        _now(item),
        _tokens(item),
        _cost(item["cost_usd"]),
        format_age(parse_iso(item["started_at"])),
        item["error"] or "",
    )


def _failures(item: Mapping[str, Any]) -> str:
    """Return how many attempts failed, of those after which the run is parked; a released attempt did not fail."""
    count = _failure_count(item)
    return f"{count}/{item['max_attempts']}" if count else ""


def _failure_count(item: Mapping[str, Any]) -> int:
    """Return how many attempts failed, with the one whose process has just died."""
    return int(item["failures"]) + bool(item["standing"] == "dead")


def _lease(item: Mapping[str, Any]) -> str:
    left = item["lease_left_s"]
    if left is None:
        return ""
    return f"{format_duration(left)} left" if left > 0 else "expired"


def _progress(item: Mapping[str, Any]) -> str:
    parts = [f"#{item['iteration']}" if item["iteration"] else "", item["phase"] or ""]
    return " ".join(part for part in parts if part)


def _now(item: Mapping[str, Any]) -> str:
    """Return what the run waits for, or the step in which it has been quiet."""
    if item["waits"] is not None:
        return _waiting(item["waits"])
    step = "" if item["step"] is None else f" in step {item['step']!r}"
    died = f"died{step}" if item["standing"] == "dead" and step else ""
    if item["standing"] == "dead" and _failure_count(item) >= item["max_attempts"]:
        resumes = f"outlive retry {quote_argument(item['id'])} resumes it"
        return "; ".join(
            filter(
                None,
                (died, f"recovery parks it after {format_count(item['max_attempts'], 'failure')}", resumes),
            )
        )
    if item["has_worker"] is False:
        return "; ".join(filter(None, (died, f"no living worker has a handler for {agent_name(item)}")))
    if item["standing"] == "dead":
        return died
    quiet_s = item["quiet_s"]
    return (
        f"quiet for {format_duration(quiet_s)}{step}" if quiet_s is not None and quiet_s >= _QUIET_S else ""
    )


def agent_name(item: Mapping[str, Any]) -> str:
    """Return the agent of a run and, if it has one, the version of its code."""
    name = "runs without an agent" if item["agent"] is None else repr(item["agent"])
    return name if item["code_version"] is None else f"{name} in version {item['code_version']!r}"


def _waiting(waits: Mapping[str, Any]) -> str:
    """Return what a run waits for, since when and until when."""
    since, until = parse_iso(waits["since"]), parse_iso(waits["until"])
    due = "" if until is None else f", due {format_age(until)}"
    return f"waits {_reason(waits)}, since {format_age(since)}{due}"


def _reason(waits: Mapping[str, Any]) -> str:
    """Return what a run waits for, after the word "waits"."""
    reasons = {"backoff": "to try again after a failure", "start": "for its time to start"}
    return reasons.get(waits["reason"]) or f"for {_groups(waits)}"


def _groups(waits: Mapping[str, Any]) -> str:
    texts = [f"run {id}" for id in waits["runs"]]
    for group in waits["groups"]:
        names = ", ".join(map(repr, group["names"]))
        texts.append(f"any of {names}" if group["mode"] == "any" and len(group["names"]) > 1 else names)
    return " or ".join(texts)


def _tokens(item: Mapping[str, Any]) -> str:
    tokens = item.get("input_tokens"), item.get("output_tokens")
    return "" if tokens == (None, None) else f"{tokens[0] or 0:,} → {tokens[1] or 0:,}"


def _cost(dollars: float | None) -> str:
    return "" if dollars is None else f"${dollars:.4f}"


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
            ("lease", _lease(item)),
            *(_wait_fields(item["waits"]) if item["waits"] is not None else [("now", _now(item))]),
            ("at", _progress(item)),
            ("completed phases", ", ".join(map(str, info.completed_phases))),
            ("parent", info.parent or ""),
            ("code version", info.code_version or ""),
            ("priority", str(info.priority or "")),
            ("attributes", one_line(dict(info.attributes), room) if info.attributes else ""),
            ("tokens", _tokens(item)),
            ("cost", _cost(item["cost_usd"])),
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
        else f"${cost if _is_number(cost) else 0:.4f} of ${budget.cost_usd:.4f}",
        None if budget.tokens is None else f"{tokens(info.usage):,} of {budget.tokens:,} tokens",
        None if budget.steps is None else f"{steps:,} of {budget.steps:,} steps",
    ]
    return ", ".join(filter(None, parts))


def _wait_fields(waits: Mapping[str, Any]) -> list[tuple[str, str]]:
    since, until = parse_iso(waits["since"]), parse_iso(waits["until"])
    return [("waits", _reason(waits)), ("since", format_time(since)), ("until", format_time(until))]


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
            _tokens(response),
            _cost(response.get("cost_usd")),
            response.get("error") or one_line(response.get("text", ""), room),
        )
        for response in responses
    ]
    print_table(columns, rows)
