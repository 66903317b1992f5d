"""The events of a store: `outlive.open(url, on_event=function)`.

The function is called after the fact, in the thread or task that did it, and should return at once.
What it raises is shown as a warning and goes no further: watching must not stop the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

SAVE, LOAD, CLAIM, END, LOSS = "save", "load", "claim", "end", "loss"
FAILOVER, FAILBACK, SWEEP = "failover", "failback", "sweep"
STEP_BEGIN, STEP_END, STALL = "step_begin", "step_end", "stall"
QUESTION, ANSWER, WAKE = "question", "answer", "wake"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `name` says what:

    "save", "load", "sweep", "failover", "failback"
    "claim", "end", "loss":        a run started or was claimed, ended, or was lost to another process
    "step_begin", "step_end":      the function of a step was called, and returned or raised
    "stall":                       a run made no progress for `progress_s`: its lease is not renewed
    "question", "answer", "wake":  a run asks and waits, got an answer, or can continue
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


Watcher = Callable[[Event], None]


class EventSink:
    """Where a store's events go."""

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._watcher = watcher

    def emit(self, event: Event) -> None:
        if self._watcher is None:
            return
        try:
            self._watcher(event)
        except Exception as error:  # noqa: BLE001  # whatever a watcher does wrong, the work was done
            warnings.warn(f"on_event raised {type(error).__name__}: {error}", stacklevel=2)

    @property
    def is_on(self) -> bool:
        return self._watcher is not None
