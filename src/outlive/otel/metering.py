"""Events as counters and histograms, and gauges that ask the store when they are collected.

No attribute is the id of a thread, run or checkpoint: their number has no limit. The gauges of one
collection share one look at the store, for a second. It lists the unfinished runs and the open
questions by index, at most 10,000 of each status. While the store cannot be reached the gauges have no
value.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outlive.backend import WALL, EntryQuery, entry_pages
from outlive.errors import BadArgument, OutliveError
from outlive.events import (
    ANSWER,
    CLAIM,
    END,
    FAILOVER,
    LOAD,
    LOSS,
    QUESTION,
    SAVE,
    STALL,
    STEP_END,
    Event,
)
from outlive.otel.attributes import AGENT, TOOL, api
from outlive.runs.attempts import DIED, LAPSED
from outlive.runs.lease import PARKED, RELEASED, RUN, UNFINISHED, RunInfo
from outlive.runtime.runtime import run_now
from outlive.store import AsyncStore
from outlive.sync.store import Store
from outlive.values import moment

if TYPE_CHECKING:
    Observe = Callable[["Look"], Iterable[tuple[float, dict[str, str]]]]

_FRESH_S = 1.0
_PAGE = 500
_MOST = 10_000
# name, unit, description; by the name of the event that it counts
_COUNTED = {
    SAVE: ("outlive.saves", "{save}", "Checkpoints that were saved"),
    END: ("outlive.runs.ended", "{run}", "Runs that ended, waited or were released in this process, by status"),
    CLAIM: ("outlive.runs.claimed", "{run}", "Runs that this process started or claimed"),
    LOSS: ("outlive.fences.refused", "{run}", "Runs that this process lost: a write was refused by the fence"),
    STALL: ("outlive.runs.stalled", "{run}", "Runs that made no progress for progress_s"),
    QUESTION: ("outlive.questions.asked", "{question}", "Questions that runs asked"),
    ANSWER: ("outlive.questions.answered", "{question}", "Questions that were answered"),
    FAILOVER: ("outlive.failovers", "{failover}", "Failovers to the other store of a pair"),
}  # fmt: skip
_TIMED = {
    SAVE: ("outlive.save.duration", "s", "How long saves took"),
    LOAD: ("outlive.load.duration", "s", "How long loads took"),
    STEP_END: ("outlive.step.duration", "s", "How long the functions of steps took"),
}


@dataclass(slots=True)
class Look:
    """What a store has at one moment."""

    runs: dict[str, int] = field(default_factory=dict)  # by status
    released_age_s: float = 0.0
    dead: int = 0
    dead_age_s: float = 0.0
    questions: int = 0
    questions_age_s: float = 0.0


class _Watched:
    """A store that gauges ask."""

    def __init__(self, store: Store | AsyncStore) -> None:
        self._store = store
        self._sync: AsyncStore | None = None  # the same store, for the thread that collects
        self._look: Look | None = None
        self._looked_at = float("-inf")
        self._lock = threading.Lock()

    @property
    def _inner(self) -> AsyncStore:
        return self._store._store if isinstance(self._store, Store) else self._store

    @property
    def attributes(self) -> dict[str, str]:
        tenant = self._inner._settings.tenant
        return {"outlive.tenant": tenant} if tenant else {}

    def is_closed(self) -> bool:
        if not self._inner._is_closed:
            return False
        if self._sync is not None:
            run_now(self._sync.close())
            self._sync = None
        return True

    def look(self) -> Look | None:
        """Return what is there, from a look that is a second old at most; None if it cannot be known."""
        with self._lock:
            if time.monotonic() - self._looked_at > _FRESH_S:
                try:
                    self._look = run_now(_look(self._opened()))
                except OutliveError:
                    self._look = None
                self._looked_at = time.monotonic()
            return self._look

    def _opened(self) -> AsyncStore:
        """Return the store in the sync mode: collections come from threads without an event loop."""
        if isinstance(self._store, Store):
            return self._store._store
        if self._sync is None:
            assert self._store._sync_sibling is not None
            self._sync = self._store._sync_sibling()
        return self._sync


async def _look(store: AsyncStore) -> Look:
    look, now = Look(), dt.datetime.now(dt.UTC)
    for status in (*UNFINISHED, PARKED):
        look.runs[status] = await _count(store, status)
    count = 0
    async for run in store.recoverable():
        if run.status == RELEASED:
            look.released_age_s = max(look.released_age_s, _age_s(_released_at(run), now))
        else:
            look.dead += 1
            look.dead_age_s = max(look.dead_age_s, _age_s(_died_at(run, now), now))
        if (count := count + 1) == _MOST:
            break
    async for question in store.questions():
        look.questions += 1
        look.questions_age_s = max(look.questions_age_s, _age_s(question.asked_at, now))
        if look.questions == _MOST:
            break
    return look


async def _count(store: AsyncStore, status: str) -> int:
    count = 0
    query = EntryQuery(store._settings.tenant, RUN, statuses=[status], limit=_PAGE)
    async for page in entry_pages(store._engine.backend, query):
        count += len(page)
        if count >= _MOST:
            break
    return count


def _released_at(run: RunInfo) -> dt.datetime | None:
    """Return since when any worker may claim a run."""
    entry = run._entry
    return moment(entry.until) if entry is not None and entry.clock == WALL else run.updated_at


def _died_at(run: RunInfo, now: dt.datetime) -> dt.datetime | None:
    """Return since when nothing works on a run, as far as it is known."""
    moments = [at for at in (run.lease_expires_at, run.updated_at) if at is not None and at <= now]
    return max(moments, default=None)


def _age_s(since: dt.datetime | None, now: dt.datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


class Metrics:
    """Measures what a store does. Made by `otel.metrics()`, for `on_event`."""

    def __init__(self, meter: Any = None) -> None:
        if meter is not None and not hasattr(meter, "create_counter"):
            raise BadArgument(f"meter must be a Meter of OpenTelemetry, not {meter!r:.100}")
        self._api = api("opentelemetry.metrics")
        self._meter = meter if meter is not None else self._api.get_meter("outlive")
        create = self._meter
        self._counters = {name: create.create_counter(*about) for name, about in _COUNTED.items()}
        self._histograms = {name: create.create_histogram(*about) for name, about in _TIMED.items()}
        self._bytes = create.create_counter("outlive.save.bytes", "By", "Bytes that saves added to the store")
        self._state = create.create_histogram("outlive.save.state_bytes", "By", "Sizes of saved states")
        self._recoveries = create.create_counter(
            "outlive.recoveries",
            "{run}",
            "Runs that were taken over after their process died or lost its lease",
        )
        self._stores: list[_Watched] = []
        self._has_gauges = False

    def __call__(self, event: Event) -> None:
        """Count an event."""
        attributes = _attributes(event)
        if event.name in self._counters:
            self._counters[event.name].add(1, attributes)
        if event.name in self._histograms:
            self._histograms[event.name].record(event.duration_s, attributes)
        if event.name == SAVE:
            self._bytes.add(event.new_bytes or 0, attributes)
            self._state.record(event.state_bytes or 0, attributes)
        if event.name == CLAIM and event.previous in (DIED, LAPSED):
            self._recoveries.add(1, attributes)

    def observe(self, store: Store | AsyncStore) -> None:
        """Add gauges of what the store has: runs by status, dead runs, open questions, and the age of the oldest.

        Every collection asks the store. A store that was closed is not asked any more.
        """
        if not isinstance(store, Store) and (
            not isinstance(store, AsyncStore) or store._sync_sibling is None
        ):
            raise BadArgument(
                f"observe takes a store that outlive.open or open_async returned, not {store!r:.100}"
            )
        self._stores.append(_Watched(store))
        if not self._has_gauges:
            self._has_gauges = True
            self._add_gauges()

    def _add_gauges(self) -> None:
        self._gauge(
            "outlive.runs", "{run}", "Runs that have not ended, by status",
            lambda look: [(count, {"outlive.status": status}) for status, count in look.runs.items()],
        )  # fmt: skip
        self._gauge("outlive.runs.dead", "{run}", "Runs whose process died", lambda look: [(look.dead, {})])
        self._gauge(
            "outlive.runs.dead.age", "s", "Since when the first of them is dead",
            lambda look: [(look.dead_age_s, {})],
        )  # fmt: skip
        self._gauge(
            "outlive.runs.released.age", "s", "How long the oldest released run waits for a worker",
            lambda look: [(look.released_age_s, {})],
        )  # fmt: skip
        self._gauge(
            "outlive.questions.open", "{question}", "Open questions", lambda look: [(look.questions, {})]
        )
        self._gauge(
            "outlive.questions.open.age", "s", "The age of the oldest open question",
            lambda look: [(look.questions_age_s, {})],
        )  # fmt: skip

    def _gauge(self, name: str, unit: str, description: str, observe: Observe) -> None:
        def collect(options: object) -> list[Any]:
            self._stores = [store for store in self._stores if not store.is_closed()]
            looks = [(store.attributes, store.look()) for store in self._stores]
            return [
                self._api.Observation(value, {**common, **attributes})
                for common, look in looks
                if look is not None
                for value, attributes in observe(look)
            ]

        self._meter.create_observable_gauge(name, [collect], unit, description)


def _attributes(event: Event) -> dict[str, str]:
    """Return those attributes of an event that have few values."""
    is_step = event.name == STEP_END
    values = {
        AGENT: event.agent,
        "outlive.status": event.status if event.name in (END, STEP_END) else None,
        "outlive.previous": event.previous,
        TOOL: event.step if is_step else None,
    }
    return {name: value for name, value in values.items() if value is not None}
