"""Events as spans: a run with its steps and saves inside, attempts linked.

A run is one span from its claim to its end in this process, and the current one for the code in
between, so that spans of other libraries (a call of a model, an HTTP request) nest inside it. A
step is the same inside its run. A save, a load and what belongs to no run become spans after the
fact.

The span of the first attempt begins before the commit that starts the run. That commit stores its
trace context with the run (`RunInfo.trace`); `store.submit` stores that of its caller instead. A
later attempt, or the first one of a submitted run, in whichever process, is a span of its own trace
with a link to the stored one: it may come days later, and has another cause.

A span of a run has what was used since its claim. The usage of a run is the sum over its attempts,
so a claim tells what there was before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

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
    valid_trace,
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

if TYPE_CHECKING:
    from outlive.otel.span_scope import RunKey, SpanScope

    StepKey = tuple[RunKey, str | None, str | None]

# The span of a run that is being started in this task or thread.
_beginning: ContextVar[Any] = ContextVar("outlive_span", default=None)


class Spans:
    """Makes spans of events. Made by `otel.spans()`, for `on_event`."""

    def __init__(self, tracer: Any = None) -> None:
        if tracer is not None and not hasattr(tracer, "start_span"):
            raise BadArgument(f"tracer must be a Tracer of OpenTelemetry, not {tracer!r:.100}")
        self._trace = api("opentelemetry.trace")
        self._scopes = api("outlive.otel.span_scope")
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
        self._runs: dict[RunKey, tuple[SpanScope, Mapping[str, Any]]] = {}  # with what was used before
        self._steps: dict[StepKey, SpanScope] = {}

    def __call__(self, event: Event) -> None:
        """Make or end the span of an event."""
        self._handlers.get(event.name, self._after)(event)

    # Runs

    def begin_trace(self, thread: str, run: str, agent: str | None) -> str | None:
        """Begin the span of a run that starts, and return its trace context for the record of the run."""
        span = self._start_run(agent, [])
        _beginning.set(span)
        return _trace_of(span)

    def current_trace(self) -> str | None:
        """Return the trace context of the current span, for the record of a run that is submitted."""
        return _trace_of(self._trace.get_current_span())

    def _start_run(self, agent: str | None, links: list[Any]) -> Any:
        name = INVOKE_AGENT if agent is None else f"{INVOKE_AGENT} {agent}"
        return self._tracer.start_span(
            name, context=self._scopes.here(), links=links, attributes={OPERATION: INVOKE_AGENT}
        )

    def _claim(self, event: Event) -> None:
        key = (event.thread, event.run)
        span = _beginning.get()
        _beginning.set(None)
        if span is None or _trace_of(span) != event.trace:  # not of this start, or of one that failed
            span = self._start_run(event.agent, self._links(event))
        span.set_attributes(of_event(event))
        with self._lock:
            former = self._runs.get(key)
            self._runs[key] = self._scopes.enter(span, key), event.usage or {}
        if former is not None:  # its end was not told: the store could not be reached
            former[0].end()

    def _links(self, event: Event) -> list[Any]:
        trace = valid_trace(event.trace)
        if trace is None:
            return []
        trace_id, span_id, flags = (int(part, 16) for part in trace.split("-")[1:])
        context = self._trace.SpanContext(trace_id, span_id, True, self._trace.TraceFlags(flags))
        return [self._trace.Link(context, {"outlive.link": "origin"})]

    def _end(self, event: Event) -> None:
        key = (event.thread, event.run)
        with self._lock:
            run = self._runs.pop(key, None)
        if run is None:
            return
        scope, before = run
        error = "lost to another process" if event.name == LOSS else event.error
        self._finish(scope, event, error, of_usage(event.usage, before))

    def _note(self, event: Event) -> None:
        with self._lock:
            run = self._runs.get((event.thread, event.run))
        if run is not None:
            run[0].span.add_event(f"outlive.{event.name}", of_event(event))

    # Steps

    def _begin_step(self, event: Event) -> None:
        attributes = {**of_event(event), OPERATION: EXECUTE_TOOL, TOOL: event.step}
        attributes.pop("outlive.status", None)
        key = (event.thread, event.run)
        name = f"{EXECUTE_TOOL} {event.step}"
        span = self._tracer.start_span(name, context=self._parent(key), attributes=attributes)
        with self._lock:
            self._steps[key, event.step, event.key] = self._scopes.enter(span, key)

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

    def _parent(self, key: RunKey) -> Any:
        """Return the current context if it is inside the run, else that of the run."""
        here = self._scopes.here()
        if self._scopes.is_inside(here, key):
            return here
        with self._lock:
            run = self._runs.get(key)
        return here if run is None else run[0]

    def _finish(self, scope: SpanScope, event: Event, error: str | None, more: dict[str, Any]) -> None:
        scope.span.set_attributes({**of_event(event), **more})
        if error is not None:
            scope.span.set_attribute("error.type", error.partition(":")[0])
            scope.span.set_status(self._trace.StatusCode.ERROR, error)
        scope.end()


def _trace_of(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:  # there is no span, or no SDK is set up
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
