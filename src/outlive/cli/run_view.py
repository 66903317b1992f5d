"""What `runs` and `run` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outlive.backend.protocol import escape
from outlive.cli.lease_clock import LeaseClock
from outlive.cli.lookup import engine_of, key_of, shortened
from outlive.cli.output.items import run_item
from outlive.cli.output.opaque import fields_of
from outlive.cli.output.table import Column, print_fields, print_table, standing_style
from outlive.cli.output.units import age, local, span
from outlive.cli.output.values import lines, one_line, to_json
from outlive.runs.steps import Step
from outlive.runtime.runtime import run_now

if TYPE_CHECKING:
    from outlive.backend.protocol import EntryRecord
    from outlive.runs.lease import RunInfo
    from outlive.sync.facades import Store

_PAGE = 500
_SUMMED = ("input_tokens", "output_tokens", "reasoning_tokens", "cost_usd")


@dataclass(slots=True)
class Running:
    """A run with its lease, its steps and its responses."""

    info: RunInfo
    clock: LeaseClock
    store: Store

    @classmethod
    def of(cls, store: Store, info: RunInfo) -> Running:
        return cls(info, LeaseClock.of(store), store)

    def item(self) -> dict[str, Any]:
        return run_item(self.info, self.clock, self._used())

    def whole_item(self) -> dict[str, Any]:
        info = self.info
        return {
            **self.item(),
            "prompt": to_json(info.prompt),
            "result": to_json(info.result),
            "attributes": to_json(dict(info.attributes)),
            "exclusive": info.exclusive,
            "lease_s": info.lease_s,
            "steps": [_step_item(step) for step in self.steps()],
            "responses": [to_json(response) for response in self.responses()],
        }

    def _used(self) -> dict[str, Any]:
        """Return tokens and cost: what the run itself says, else the sum over its models."""
        said = {name: self.info.usage[name] for name in _SUMMED if _is_number(self.info.usage.get(name))}
        if said:
            return said
        responses = self.responses()
        return {name: sum(one.get(name) or 0 for one in responses) for name in _SUMMED} if responses else {}

    def steps(self) -> list[Step]:
        """Return the ledger, in the order in which steps began."""
        found = []
        for entry in sorted(self._entries("step"), key=lambda entry: entry.revision):
            name, key = entry.key[len(self.info.id) + 1 :].split("\n", 1)
            arguments, value, error = engine_of(self.store).codec.unpack(entry.body or b"")
            found.append(Step(name, key, entry.status, arguments, value, error))
        return found

    def responses(self) -> list[dict[str, Any]]:
        """Return what each model answered, in the order in which the models were named."""
        found: dict[tuple[str, int], dict[str, Any]] = {}
        order: list[tuple[str, int]] = []
        for entry in self._entries("response"):
            said = engine_of(self.store).codec.unpack(entry.body or b"")
            ordinal, _, model = entry.key[len(self.info.id) + 1 :].partition("\n")
            if not ordinal:
                order = [(model_id, number) for model_id, number in said["places"]]
            elif ordinal.isdecimal():
                found[model, int(ordinal)] = fields_of(said[0])
        return [found[place] for place in order if place in found] or list(found.values())

    def _entries(self, kind: str) -> list[EntryRecord]:
        engine, key = engine_of(self.store), key_of(self.store, self.info.thread)
        found: list[EntryRecord] = []
        after = None
        while True:
            page = run_now(
                engine.backend.entries(
                    key.tenant, kind, thread=key, prefix=f"{self.info.id}\n", after=after, limit=_PAGE
                )
            )
            found += [entry for _, entry in page]
            if len(page) < _PAGE:
                return found
            after = (page[-1][1].key, page[-1][0].digest)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _step_item(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "key": step.key,
        "status": step.status,
        "value": to_json(step.value),
        "error": step.error,
    }


def list_runs(
    store: Store, wanted: set[str], agent: str | None, thread: str | None, limit: int, after: str | None
) -> tuple[list[Running], str | None]:
    """Return runs that are in one of the wanted states, by id, and behind which of them there are more."""
    clock = LeaseClock.of(store)
    found: list[Running] = []
    for info in store.runs(agent=agent, thread=thread):
        if after is not None and escape(info.id) <= escape(after):
            continue
        if wanted & {clock.standing(info), info.status}:
            if len(found) == limit:
                return found, found[-1].info.id
            found.append(Running(info, clock, store))
    return found, None


def show_runs(items: list[dict[str, Any]], *, are_all: bool = True) -> None:
    """Print runs as a table."""
    if not items:
        print("no runs" if are_all else "no runs; --all shows those that have ended too")
        return
    ids = shortened(item["id"] for item in items)
    columns = (
        Column("RUN", is_id=True), Column("STATUS", keeps=True, styles=standing_style), Column("THREAD", is_id=True), Column("AGENT", drops=3), Column("OWNER", drops=2),
        Column("LEASE", keeps=True), Column("ATTEMPT", right=True, keeps=True, drops=1), Column("AT", drops=7), Column("TOKENS", right=True, drops=6),
        Column("COST", right=True, drops=5), Column("STARTED", keeps=True, drops=8), Column("ERROR", drops=4),
    )  # fmt: skip
    print_table(columns, [(ids[item["id"]], *_run_cells(item)) for item in items])


def _run_cells(item: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        item["standing"],
        item["thread"],
        item["agent"] or "",
        _owner(item) if item["status"] == "running" else "",
        _lease(item),
        _attempt(item),
        _progress(item),
        _tokens(item),
        _cost(item["cost_usd"]),
        age(_when(item["started_at"])),
        item["error"] or "",
    )


def _attempt(item: Mapping[str, Any]) -> str:
    """Return which attempt it is of those that may fail; one that was released does not count."""
    is_failure = item["status"] in ("failed", "parked")
    return f"{item['failures'] + (not is_failure)}/{item['max_attempts']}"


def _when(text: str | None) -> Any:
    import datetime as dt

    return None if text is None else dt.datetime.fromisoformat(text)


def _owner(item: Mapping[str, Any]) -> str:
    owner = item["owner"]
    return "" if owner is None else f"{owner['pid']}@{owner['host']}"


def _lease(item: Mapping[str, Any]) -> str:
    left = item["lease_left_s"]
    if left is None:
        return ""
    return f"{span(left)} left" if left > 0 else "run out"


def _progress(item: Mapping[str, Any]) -> str:
    parts = [f"#{item['iteration']}" if item["iteration"] else "", item["phase"] or ""]
    return " ".join(part for part in parts if part)


def _tokens(item: Mapping[str, Any]) -> str:
    if item["input_tokens"] is None and item["output_tokens"] is None:
        return ""
    return f"{item['input_tokens'] or 0:,} → {item['output_tokens'] or 0:,}"


def _cost(dollars: float | None) -> str:
    return "" if dollars is None else f"${dollars:.4f}"


def show_run(running: Running, full: bool) -> None:
    """Print all of one run."""
    item, info = running.item(), running.info
    room = 1_000_000 if full else 200
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
            ("started", local(info.started_at)),
            ("updated", local(info.updated_at)),
            ("ended", local(info.ended_at)),
            ("prompt", "" if info.prompt is None else one_line(info.prompt, room)),
            ("error", info.error or ""),
        ]
    )
    if info.result is not None:
        print("\nresult\n" + "\n".join(lines(info.result, full=full)))
    _show_steps(running.steps(), room)
    _show_responses(running.responses(), room)


def _show_steps(steps: list[Step], room: int) -> None:
    if not steps:
        return
    print()
    columns = (Column("STEP"), Column("KEY"), Column("STATUS", keeps=True), Column("VALUE"))
    rows = [
        (
            step.name,
            step.key.removeprefix("="),
            step.status,
            step.error or ("" if step.status != "done" else one_line(step.value, min(room, 80))),
        )
        for step in steps
    ]
    print_table(columns, rows)


def _show_responses(responses: list[dict[str, Any]], room: int) -> None:
    if not responses:
        return
    print()
    columns = (
        Column("MODEL"), Column("STATUS", keeps=True), Column("ATTEMPTS", right=True), Column("TOKENS", right=True),
        Column("COST", right=True), Column("TEXT"),
    )  # fmt: skip
    rows = [
        (
            f"{one.get('model_id')}{' #' + str(one['ordinal'] + 1) if one.get('ordinal') else ''}",
            str(one.get("status")),
            str(one.get("attempts", "")),
            _tokens(
                {name: one.get(name) for name in _SUMMED},
            ),
            _cost(one.get("cost_usd")),
            one.get("error") or one_line(one.get("text", ""), min(room, 60)),
        )
        for one in responses
    ]
    print_table(columns, rows)
