"""Runs with their leases, workers, steps and responses, as items."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outlive.backend import escape
from outlive.dataclass import dataclass
from outlive.errors import Corrupt, RunMissing
from outlive.view.advice import describe_unreadable, message_with_advice
from outlive.view.items import USAGE_FIELDS, run_details, run_item
from outlive.view.lease_clock import LeaseClock
from outlive.view.opaque import unwrap

if TYPE_CHECKING:
    from outlive.runs.lease import RunInfo
    from outlive.runs.questions import QuestionInfo
    from outlive.runs.step_record import StepInfo
    from outlive.runs.worker_record import WorkerInfo
    from outlive.values import ThreadInfo
    from outlive.view.opened_store import OpenedStore


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
    damage: list[str]  # why something of the run, or of others in its list, cannot be read

    @classmethod
    def of(cls, store: OpenedStore, info: RunInfo) -> RunView:
        return cls(info, LeaseClock.of(store), store, Workers(store), Usages(), [])

    def item(self) -> dict[str, Any]:
        if not self.info.is_readable:
            note_damage(self.damage, describe_unreadable(f"run {self.info.id!r}", self.info.error))
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
        usage = {name: self.info.usage[name] for name in USAGE_FIELDS if is_number(self.info.usage.get(name))}
        if usage or not self.info.is_readable:
            return usage
        try:
            return self.usages.of(self.info, self._usage_of_models)
        except RunMissing:  # it was deleted meanwhile
            return {}
        except Corrupt as error:
            note_damage(self.damage, message_with_advice(error))
            return {}

    def _usage_of_models(self) -> dict[str, Any]:
        if not self.info.attempt:
            return {}  # a submitted run has asked nothing yet
        responses = self.responses()
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
        # Most commands open the store with a codec that builds no values: then these are fields
        # already.
        fields = [unwrap(response) for response in responses]
        return [item if isinstance(item, dict) else item.to_snapshot() for item in fields]


def run_of_head(
    store: OpenedStore, info: ThreadInfo, clock: LeaseClock, damage: list[str]
) -> dict[str, Any] | None:
    """Return the run that saved the newest checkpoint of a thread, for the item of the thread.

    Without it the thread can still be listed: when it cannot be read, `damage` gets the reason.
    """
    if info.head is None or info.head.run is None:
        return None
    try:
        run = store.find_run(info.head.run, thread=info.id)
    except Corrupt as error:
        note_damage(damage, message_with_advice(error))
        return None
    if run is None:
        return None
    if not run.is_readable:
        note_damage(damage, describe_unreadable(f"run {run.id!r}", run.error))
    return {"id": run.id, "status": run.status, "standing": clock.standing(run)}


def note_damage(damage: list[str], message: str) -> None:
    """Add a reason, once."""
    if message not in damage:
        damage.append(message)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def list_runs(
    store: OpenedStore,
    wanted: set[str],
    agent: str | None,
    thread: str | None,
    limit: int | None,
    after: str | None,
    usages: Usages,
    damage: list[str],
) -> tuple[list[RunView], str | None]:
    """Return the runs in one of the wanted states by id, and the id after which there are more.

    A damaged run is among them and hides no other. When the items of the runs are made, `damage`
    gets why something cannot be read.
    """
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
            views.append(RunView(info, clock, store, workers, usages, damage))
    return views, None
