"""Shows runs with their leases, steps and responses: what `runs`, `runs show` and `recover` print."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.backend import escape
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.output.ids import shorten_ids
from outlive.cli.output.items import USAGE_FIELDS, attempt_item, run_item, step_item
from outlive.cli.output.opaque import unwrap
from outlive.cli.output.table import Column, print_fields, print_table, standing_style
from outlive.cli.output.units import format_age, format_duration, format_time
from outlive.cli.output.values import lines, one_line, to_json

if TYPE_CHECKING:
    from outlive.cli.opened_store import OpenedStore
    from outlive.runs.lease import RunInfo
    from outlive.runs.step_record import StepInfo

_UNLIMITED = 1_000_000  # characters
_QUIET_S = 60.0  # a run that wrote something since is not quiet


@dataclass(slots=True)
class RunView:
    """A run with its lease, steps and responses."""

    info: RunInfo
    clock: LeaseClock
    store: OpenedStore

    @classmethod
    def of(cls, store: OpenedStore, info: RunInfo) -> RunView:
        return cls(info, LeaseClock.of(store), store)

    def item(self) -> dict[str, Any]:
        left_s = self.clock.left_s(self.info) if self.info.status == "running" else None
        standing = self.clock.standing(self.info)
        return run_item(self.info, standing=standing, lease_left_s=left_s, usage=self._usage())

    def full_item(self) -> dict[str, Any]:
        info = self.info
        return {
            **self.item(),
            "prompt": to_json(info.prompt),
            "result": to_json(info.result),
            "attributes": to_json(dict(info.attributes)),
            "exclusive": info.exclusive,
            "lease_s": info.lease_s,
            "attempts": [attempt_item(attempt) for attempt in info.attempts],
            "steps": [step_item(step) for step in self.steps()],
            "responses": [to_json(response) for response in self.responses()],
        }

    def _usage(self) -> dict[str, Any]:
        """Return tokens and cost as the run reports them, else the sum over its models."""
        usage = {
            name: self.info.usage[name] for name in USAGE_FIELDS if _is_number(self.info.usage.get(name))
        }
        if usage or not (responses := self.responses()):
            return usage
        return {name: sum(response.get(name) or 0 for response in responses) for name in USAGE_FIELDS}

    def steps(self) -> list[StepInfo]:
        return self.store.steps(self.info.id, thread=self.info.thread)

    def responses(self) -> list[dict[str, Any]]:
        """Return the fields of the responses of the models."""
        responses = self.store.responses(self.info.id, thread=self.info.thread)
        # Most commands open the store with a codec that builds no values: then these are fields already.
        fields = [unwrap(response) for response in responses]
        return [item if isinstance(item, dict) else item.to_snapshot() for item in fields]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_runs(
    store: OpenedStore, wanted: set[str], agent: str | None, thread: str | None, limit: int, after: str | None
) -> tuple[list[RunView], str | None]:
    """Return the runs in one of the wanted states by id, and the id after which there are more."""
    clock = LeaseClock.of(store)
    views: list[RunView] = []
    for info in store.runs(agent=agent, thread=thread):
        if after is not None and escape(info.id) <= escape(after):
            continue
        if wanted & {clock.standing(info), info.status}:
            if len(views) == limit:
                return views, views[-1].info.id
            views.append(RunView(info, clock, store))
    return views, None


# A table of runs


def show_runs(items: list[dict[str, Any]], *, are_all: bool = True) -> None:
    if not items:
        print("no runs" if are_all else "no runs; --all includes completed and cancelled runs")
        return
    ids = shorten_ids(item["id"] for item in items)
    columns = (
        Column("RUN", is_id=True), Column("STATUS", keeps=True, styles=standing_style), Column("THREAD", is_id=True), Column("AGENT", drops=3), Column("OWNER", drops=2),
        Column("LEASE", keeps=True), Column("ATTEMPT", right=True, keeps=True, drops=1), Column("AT", drops=7), Column("TOKENS", right=True, drops=6),
        Column("COST", right=True, drops=5), Column("STARTED", keeps=True, drops=8), Column("ERROR", drops=4),
    )  # fmt: skip
    print_table(columns, [(ids[item["id"]], *_run_cells(item)) for item in items])


def _run_cells(item: Mapping[str, Any]) -> tuple[str, ...]:
    owner, started = item["owner"], item["started_at"]
    return (
        item["standing"],
        item["thread"],
        item["agent"] or "",
        f"{owner['pid']}@{owner['host']}" if owner and item["status"] == "running" else "",
        _lease(item),
        _attempt(item),
        _progress(item),
        _tokens(item),
        _cost(item["cost_usd"]),
        format_age(None if started is None else dt.datetime.fromisoformat(started)),
        item["error"] or "",
    )


def _attempt(item: Mapping[str, Any]) -> str:
    """Return the number of the attempt out of those that may fail; a released attempt does not count."""
    is_failure = item["status"] in ("failed", "parked")
    return f"{item['failures'] + (not is_failure)}/{item['max_attempts']}"


def _lease(item: Mapping[str, Any]) -> str:
    left = item["lease_left_s"]
    if left is None:
        return ""
    return f"{format_duration(left)} left" if left > 0 else "expired"


def _progress(item: Mapping[str, Any]) -> str:
    parts = [f"#{item['iteration']}" if item["iteration"] else "", item["phase"] or "", _quiet(item)]
    return " ".join(part for part in parts if part)


def _quiet(item: Mapping[str, Any]) -> str:
    """Return since when a run is quiet, and in which step."""
    if item["quiet_s"] is None or item["quiet_s"] < _QUIET_S:
        return ""
    step = f" in step {item['step']!r}" if item["step"] else ""
    return f"quiet for {format_duration(item['quiet_s'])}{step}"


def _tokens(item: Mapping[str, Any]) -> str:
    tokens = item.get("input_tokens"), item.get("output_tokens")
    return "" if tokens == (None, None) else f"{tokens[0] or 0:,} → {tokens[1] or 0:,}"


def _cost(dollars: float | None) -> str:
    return "" if dollars is None else f"${dollars:.4f}"


# One run


def show_run(view: RunView, full: bool) -> None:
    item, info = view.item(), view.info
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
            ("at", _progress(item)),
            ("completed phases", ", ".join(map(str, info.completed_phases))),
            ("parent", info.parent or ""),
            ("code version", info.code_version or ""),
            ("attributes", one_line(dict(info.attributes), room) if info.attributes else ""),
            ("tokens", _tokens(item)),
            ("cost", _cost(item["cost_usd"])),
            ("usage", one_line(dict(info.usage), room) if info.usage else ""),
            ("started", format_time(info.started_at)),
            ("updated", format_time(info.updated_at)),
            ("ended", format_time(info.ended_at)),
            ("prompt", "" if info.prompt is None else one_line(info.prompt, room)),
            ("error", info.error or ""),
        ]
    )
    if info.result is not None:
        print("\nresult\n" + "\n".join(lines(info.result, full=full)))
    if steps := view.steps():
        print()
        _show_steps(steps, min(room, 80))
    if responses := view.responses():
        print()
        _show_responses(responses, min(room, 60))


def _show_steps(steps: list[StepInfo], room: int) -> None:
    columns = (
        Column("STEP"), Column("KEY"), Column("STATUS", keeps=True), Column("ATTEMPT", right=True, drops=1),
        Column("VALUE"),
    )  # fmt: skip
    rows = [
        (
            step.name,
            step.key.removeprefix("="),
            step.status,
            str(step.attempt),
            step.error or ("" if step.status != "done" else one_line(step.value, room)),
        )
        for step in steps
    ]
    print_table(columns, rows)


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
