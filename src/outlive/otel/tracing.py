"""Events as spans: a run with its steps and saves inside, attempts linked.

A run is one span from its claim to its end in this process, and the current one for the code in
between, so that spans of other libraries (a call of a model, an HTTP request) nest inside it. A step
is the same inside its run. A save, a load and what belongs to no run become spans after the fact.

The span of the first attempt begins before the commit that starts the run. That commit stores its
trace context with the run (`RunInfo.trace`). A later attempt, in whichever process, is a span of its own
trace with a link to the first one: it may come days later, and has another cause.

OpenTelemetry makes a span current by a token, which only the context that got it may give back. A run
may end elsewhere, in another thread or task. So the former context is attached again instead, where
the span is still the current one. Where it is not, the next event leaves it: a context knows its
span, and whether that has ended.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from outlive.errors import BadArgument
from outlive.events import (
    CLAIM,
    END,
    LOAD,
    LOSS,
    QUESTION,
    SAVE,
    STALL,
    STEP_BEGIN,
    STEP_END,
    Event,
)
from outlive.otel.attributes import (
    EXECUTE_TOOL,
    INVOKE_AGENT,
    OPERATION,
    TOOL,
    api,
    of_event,
    of_usage,
)
from outlive.runtime.fork import reset_in_child

RunKey = tuple[str, str | None]  # (thread, run)
StepKey = tuple[RunKey, str | None, str | None]
_OPEN = "outlive-span"  # in a context: the innermost span of ours
_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
# The span of a run that is being started in this task or thread.
_beginning: ContextVar[tuple[RunKey, Any] | None] = ContextVar("outlive_span", default=None)


@dataclass(slots=True)
class _Open:
    """A span that has not ended, its context, and the context before it."""

    span: Any
    run: RunKey
    before: Any
    inside: Any = None
    has_ended: bool = False


class Spans:
    """Makes spans of events. Made by `otel.spans()`, for `on_event`."""

    def __init__(self, tracer: Any = None) -> None:
        if tracer is not None and not hasattr(tracer, "start_span"):
            raise BadArgument(f"tracer must be a Tracer of OpenTelemetry, not {tracer!r:.100}")
        self._trace, self._context = api("opentelemetry.trace"), api("opentelemetry.context")
        self._tracer = tracer if tracer is not None else self._trace.get_tracer("outlive")
        self._handlers: dict[str, Callable[[Event], None]] = {
            CLAIM: self._claim,
            END: self._end,
            LOSS: self._end,
            STEP_BEGIN: self._begin_step,
            STEP_END: self._end_step,
            SAVE: self._after,
            LOAD: self._after,
            STALL: self._note,
            QUESTION: self._note,
        }
        self.after_fork_in_child()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the spans that the parent has open."""
        self._lock = threading.Lock()
        self._runs: dict[RunKey, _Open] = {}
        self._steps: dict[StepKey, _Open] = {}

    def __call__(self, event: Event) -> None:
        """Make or end the span of an event."""
        self._handlers.get(event.name, self._after)(event)

    # Runs

    def begin_trace(self, thread: str, run: str, agent: str | None) -> str | None:
        """Begin the span of a run that starts, and return its trace context for the record of the run."""
        span = self._start_run(agent, [])
        _beginning.set(((thread, run), span))
        context = span.get_span_context()
        if not context.is_valid:  # no SDK is set up
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    def _start_run(self, agent: str | None, links: list[Any]) -> Any:
        name = INVOKE_AGENT if agent is None else f"{INVOKE_AGENT} {agent}"
        return self._tracer.start_span(
            name, context=self._here(), links=links, attributes={OPERATION: INVOKE_AGENT}
        )

    def _claim(self, event: Event) -> None:
        key = (event.thread, event.run)
        beginning = _beginning.get()
        if beginning is not None and beginning[0] == key:
            span = beginning[1]
        else:
            span = self._start_run(event.agent, self._links(event.trace))
        _beginning.set(None)
        span.set_attributes(of_event(event))
        with self._lock:
            former, self._runs[key] = self._runs.get(key), self._enter(span, key)
        if former is not None:  # its end was not told: the store could not be reached
            former.span.end()
            former.has_ended = True

    def _links(self, trace: str | None) -> list[Any]:
        match = _TRACEPARENT.fullmatch(trace) if isinstance(trace, str) else None
        if match is None:
            return []
        trace_id, span_id, flags = (int(part, 16) for part in match.groups())
        context = self._trace.SpanContext(trace_id, span_id, True, self._trace.TraceFlags(flags))
        return [self._trace.Link(context, {"outlive.link": "first attempt"})] if context.is_valid else []

    def _end(self, event: Event) -> None:
        key = (event.thread, event.run)
        with self._lock:
            run = self._runs.pop(key, None)
        if run is None:
            return
        error = "lost to another process" if event.name == LOSS else event.error
        self._finish(run, event, error, of_usage(event.usage))

    def _note(self, event: Event) -> None:
        with self._lock:
            run = self._runs.get((event.thread, event.run))
        if run is not None:
            run.span.add_event(f"outlive.{event.name}", of_event(event))

    # Steps

    def _begin_step(self, event: Event) -> None:
        attributes = {**of_event(event), OPERATION: EXECUTE_TOOL, TOOL: event.step}
        attributes.pop("outlive.status", None)
        key = (event.thread, event.run)
        name = f"{EXECUTE_TOOL} {event.step}"
        span = self._tracer.start_span(name, context=self._parent(key), attributes=attributes)
        with self._lock:
            self._steps[key, event.step, event.key] = self._enter(span, key)

    def _end_step(self, event: Event) -> None:
        with self._lock:
            step = self._steps.pop(((event.thread, event.run), event.step, event.key), None)
        if step is not None:  # an effect that `on_unfinished` settled was not called
            self._finish(step, event, event.error, {})

    # What is over when it is told

    def _after(self, event: Event) -> None:
        end = time.time_ns()
        parent = self._parent((event.thread, event.run))
        start = end - int(event.duration_s * 1e9)
        span = self._tracer.start_span(
            f"outlive.{event.name}", context=parent, start_time=start, attributes=of_event(event)
        )
        if event.error is not None:
            span.set_status(self._trace.StatusCode.ERROR, event.error)
        span.end(end_time=end)

    # Contexts

    def _enter(self, span: Any, key: RunKey) -> _Open:
        opened = _Open(span, key, self._here())
        inside = self._context.set_value(_OPEN, opened, self._trace.set_span_in_context(span, opened.before))
        opened.inside = inside
        self._context.attach(inside)
        return opened

    def _here(self) -> Any:
        """Return the current context, without spans of ours that have ended."""
        return self._left(self._context.get_current())

    def _left(self, context: Any) -> Any:
        while (opened := self._context.get_value(_OPEN, context)) is not None and opened.has_ended:
            context = opened.before
        return context

    def _parent(self, key: RunKey) -> Any:
        """Return the current context if it is inside the run, else that of the run."""
        here = self._here()
        opened = self._context.get_value(_OPEN, here)
        if opened is not None and opened.run == key:
            return here
        with self._lock:
            run = self._runs.get(key)
        return here if run is None else run.inside

    def _finish(self, opened: _Open, event: Event, error: str | None, more: dict[str, Any]) -> None:
        span = opened.span
        span.set_attributes({**of_event(event), **more})
        if error is not None:
            span.set_attribute("error.type", error.partition(":")[0])
            span.set_status(self._trace.StatusCode.ERROR, error)
        span.end()
        opened.has_ended = True
        if self._trace.get_current_span() is span:
            self._context.attach(self._left(opened.before))
