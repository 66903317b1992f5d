"""Events as counters and histograms, and gauges that ask the store when they are collected.

No attribute is the id of a thread, run or checkpoint: their number has no limit. While a store
cannot be reached its gauges have no value.

A meter has each instrument once, however many stores are observed: OpenTelemetry keeps one of two
instruments with the same name, and of two observations with the same attributes the last. So the
gauges of a meter yield an observation for every store, each with the name of that store.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from outlive.arguments import check_text
from outlive.errors import BadArgument
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
from outlive.otel.store_look import Look, WatchedStore, inner_of
from outlive.runs.attempts import DIED, LAPSED
from outlive.runtime.fork import reset_in_child
from outlive.store import AsyncStore
from outlive.sync.store import Store

if TYPE_CHECKING:
    Observe = Callable[[Look], Iterable[tuple[float, dict[str, str]]]]

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


class Metrics:
    """Measures what a store does. Made by `otel.metrics()`, for `on_event`."""

    def __init__(self, meter: Any = None) -> None:
        if meter is not None and not hasattr(meter, "create_counter"):
            raise BadArgument(f"meter must be a Meter of OpenTelemetry, not {meter!r:.100}")
        self._instruments = _instruments_of(meter if meter is not None else _default_meter())

    def __call__(self, event: Event) -> None:
        """Count an event."""
        self._instruments.count(event)

    def observe(self, store: Store | AsyncStore, *, name: str | None = None) -> None:
        """Add gauges of what the store has: runs by status, dead runs, open questions, and the age of the oldest.

        Every collection asks the store. A store that was closed is not asked any more. The
        attribute `outlive.store` is `name` (default: the URL of the store, without secrets). Two
        stores of one URL and tenant are observed as one.
        """
        if not isinstance(store, Store) and (
            not isinstance(store, AsyncStore) or store._sync_sibling is None
        ):
            raise BadArgument(
                f"observe takes a store that outlive.open or open_async returned, not {store!r:.100}"
            )
        self._instruments.gauges.add(store, None if name is None else check_text("name", name))


class _Instruments:
    """The instruments of one meter, which all `Metrics` of it share."""

    def __init__(self, meter: Any) -> None:
        self._counters = {name: meter.create_counter(*about) for name, about in _COUNTED.items()}
        self._histograms = {name: meter.create_histogram(*about) for name, about in _TIMED.items()}
        self._bytes = meter.create_counter("outlive.save.bytes", "By", "Bytes that saves added to the store")
        self._state = meter.create_histogram("outlive.save.state_bytes", "By", "Sizes of saved states")
        self._recoveries = meter.create_counter(
            "outlive.recoveries",
            "{run}",
            "Runs that were taken over after their process died or lost its lease",
        )
        self.gauges = _Gauges(meter)

    def count(self, event: Event) -> None:
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


_all: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()  # by meter
_all_lock = threading.Lock()


def _instruments_of(meter: Any) -> _Instruments:
    with _all_lock:
        if meter not in _all:
            _all[meter] = _Instruments(meter)
        return _all[meter]


@functools.cache
def _default_meter() -> Any:
    """Return the meter of the global provider: before that is set, every call would return another one."""
    return api("opentelemetry.metrics").get_meter("outlive")


class _Gauges:
    """The gauges of one meter, and the stores that they ask."""

    def __init__(self, meter: Any) -> None:
        self._observation = api("opentelemetry.metrics").Observation
        self._stores: list[WatchedStore] = []
        self.after_fork_in_child()
        reset_in_child(self)
        self._add_gauges(meter)

    def after_fork_in_child(self) -> None:
        """Replace the locks, which a thread of the parent may have held."""
        self._lock = threading.Lock()
        for store in self._stores:
            store.after_fork_in_child()

    def add(self, store: Store | AsyncStore, name: str | None) -> None:
        """Observe a store from now on. Raises BadArgument if another one has its name."""
        with self._lock:
            others = [watched for watched in self._stores if not watched.is_closed()]
            if all(watched.inner is not inner_of(store) for watched in others):
                self._stores = [*others, _named(store, name, [watched.attributes for watched in others])]

    def _look(self) -> list[tuple[dict[str, str], Look]]:
        """Return what is in each store that can be reached."""
        with self._lock:
            self._stores = [store for store in self._stores if not store.is_closed()]
            stores = {tuple(store.attributes.items()): store for store in reversed(self._stores)}
        looks = [(store.attributes, store.look()) for store in stores.values()]
        return [(attributes, look) for attributes, look in looks if look is not None]

    def _add_gauges(self, meter: Any) -> None:
        gauge = functools.partial(self._gauge, meter)
        gauge(
            "outlive.runs", "{run}", "Runs that have not ended, by status",
            lambda look: [(count, {"outlive.status": status}) for status, count in look.runs.items()],
        )  # fmt: skip
        gauge("outlive.runs.dead", "{run}", "Runs whose process died", lambda look: [(look.dead, {})])
        gauge(
            "outlive.runs.dead.age", "s", "Since when the first of them is dead",
            lambda look: [(look.dead_age_s, {})],
        )  # fmt: skip
        gauge(
            "outlive.runs.released.age", "s", "How long the oldest released run waits for a worker",
            lambda look: [(look.released_age_s, {})],
        )  # fmt: skip
        gauge("outlive.questions.open", "{question}", "Open questions", lambda look: [(look.questions, {})])
        gauge(
            "outlive.questions.open.age", "s", "The age of the oldest open question",
            lambda look: [(look.questions_age_s, {})],
        )  # fmt: skip

    def _gauge(self, meter: Any, name: str, unit: str, description: str, observe: Observe) -> None:
        def collect(options: object) -> list[Any]:
            return [
                self._observation(value, {**common, **attributes})
                for common, look in self._look()
                for value, attributes in observe(look)
            ]

        meter.create_observable_gauge(name, [collect], unit, description)


def _named(store: Store | AsyncStore, name: str | None, taken: list[dict[str, str]]) -> WatchedStore:
    """Return a store to observe, with attributes that no other store has: equal URLs are the same store."""
    url = inner_of(store)._settings.url
    watched = WatchedStore(store, name or url)
    if name is not None and watched.attributes in taken:
        raise BadArgument(f"another store is observed as {name!r}; give this one another name")
    numbers = itertools.count(2)
    while url.startswith("memory:") and watched.attributes in taken:  # each is a store of its own
        watched = WatchedStore(store, f"{url}#{next(numbers)}")
    return watched


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
