"""The events of a store: `outlive.open(url, on_event=function)`.

The function is called after the fact, in the thread or task that did it, and should return at once.
What it raises is shown as a warning and goes no further: watching must not stop the work. A list of
functions is called in its order. One that has a method `begin_trace` is asked for the trace context
of a run before its first commit, which stores it; one that has `current_trace`, for that of the
caller who submits a run.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from outlive.dataclass import dataclass

SAVE, LOAD, CLAIM, END, LOSS = "save", "load", "claim", "end", "loss"
FAILOVER, FAILBACK, SWEEP = "failover", "failback", "sweep"
STEP_BEGIN, STEP_END, STALL = "step_begin", "step_end", "stall"
QUESTION, ANSWER, WAKE = "question", "answer", "wake"
# The header `traceparent` of the W3C: version, trace, span, flags; ids of zeros are none.
_TRACE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `name` says what:

    "save", "load", "sweep", "failover", "failback"
    "claim", "end", "loss":        a run started or was claimed, ended, or was lost to another process
    "step_begin", "step_end":      the function of a step was called, and returned or raised
    "stall":                       a run made no progress for `progress_s`: its lease is not renewed
    "question", "answer", "wake":  a run asks and waits, got an answer, or can continue after a wait
    """

    name: str
    thread: str
    namespace: str = ""
    checkpoint: str | None = None
    run: str | None = None
    status: str | None = None  # of a run or a step; of a sweep "done", "stopped" or "failed"
    attempt: int | None = None
    state_bytes: int | None = None  # of a sweep: the bytes that it freed
    new_bytes: int | None = None
    duration_s: float = 0.0
    error: str | None = None  # of a sweep or a step: what went wrong
    step: str | None = None  # the name of a step, a question or a wait
    key: str | None = None  # of a step
    agent: str | None = None  # of a run
    usage: Mapping[str, Any] | None = None  # of a run, in all its attempts: at a claim, end or loss
    previous: str | None = None  # of a claim: how the attempt before it ended; None: it is the first
    trace: str | None = None  # of a claim: the W3C trace context that is stored with the run


Watcher = Callable[[Event], None]


class EventSink:
    """Where a store's events go."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = watchers

    def emit(self, event: Event) -> None:
        for watcher in self._watchers:
            try:
                watcher(event)
            except Exception as error:  # noqa: BLE001  # whatever a watcher does wrong, the work was done
                _warn(error)

    def begin_trace(self, thread: str, run: str, agent: str | None) -> str | None:
        """Return the trace context to store with a run that begins: that of the first watcher that traces."""
        return self._trace("begin_trace", thread, run, agent)

    def current_trace(self) -> str | None:
        """Return the trace context of the caller, to store with a run that is submitted."""
        return self._trace("current_trace")

    def _trace(self, method: str, *arguments: object) -> str | None:
        for watcher in self._watchers:
            ask: Callable[..., object] | None = getattr(watcher, method, None)
            if ask is not None:
                try:
                    return valid_trace(ask(*arguments))
                except Exception as error:  # noqa: BLE001  # the run begins without it
                    _warn(error)
        return None

    @property
    def is_on(self) -> bool:
        return bool(self._watchers)


def valid_trace(value: object) -> str | None:
    """Return a trace context; None if it is none, whatever a watcher returned or a record has."""
    return value if isinstance(value, str) and _TRACE.fullmatch(value) else None


def _warn(error: Exception) -> None:
    warnings.warn(f"on_event raised {type(error).__name__}: {error}", stacklevel=3)
