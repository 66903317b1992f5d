"""The context inside a span of ours, which ends with the span in every thread and task.

OpenTelemetry makes a context current by a token, which only the context that got it may give back.
A run may end in another thread or task than it began in, which cannot change what is current there.
So the context itself knows whether its span has ended: from then on it is the context before it.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import Span, set_span_in_context

RunKey = tuple[str, str | None]  # (thread, run)
_RUN = "outlive-run"  # in a context: the run that it is inside


class SpanScope(Context):
    """The context inside a span, until the span has ended."""

    def __init__(self, span: Span, run: RunKey, before: Context) -> None:
        super().__init__({**set_span_in_context(span, before), _RUN: run})
        self.span = span
        self.before = before
        self.has_ended = False

    # What `get_value` and `set_value` of OpenTelemetry call

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of this context, or of the one before it once the span has ended."""
        return self.before.get(key, default) if self.has_ended else super().get(key, default)

    def copy(self) -> dict[str, object]:
        """Return the values of this context, or of the one before it once the span has ended."""
        return self.before.copy() if self.has_ended else super().copy()

    def end(self) -> None:
        """End the span; where this is the current context, the one before it is current again."""
        self.span.end()
        self.has_ended = True
        here = get_current()
        if (left := leave_ended(here)) is not here:
            attach(left)


def enter(span: Span, run: RunKey) -> SpanScope:
    """Make a span current."""
    scope = SpanScope(span, run, here())
    attach(scope)
    return scope


def here() -> Context:
    """Return the current context."""
    return leave_ended(get_current())


def leave_ended(context: Context) -> Context:
    """Return the first context that is not that of an ended span: otherwise they would form a chain."""
    while isinstance(context, SpanScope) and context.has_ended:
        context = context.before
    return context


def is_inside(context: Context, run: RunKey) -> bool:
    """Tell whether a context is inside a run."""
    return context.get(_RUN) == run
